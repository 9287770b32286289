"""The embedded services: real queries, private secrets, data that survive."""

import boto3
import httpx
import psycopg
import pytest
import redis
from botocore.exceptions import ClientError

from polar.stack.services import Postgres, SeaweedFS, Valkey
from tests.services import S3, command_lines


def test_postgres_is_version_18_and_wants_its_password(postgres: Postgres) -> None:
    with postgres.connect() as connection:
        row = connection.execute("SHOW server_version").fetchone()
    assert row is not None
    assert str(row[0]).startswith("18.")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(host="127.0.0.1", port=postgres.port, user="polar", password="wrong")


def test_each_test_gets_its_own_database(database_url: str) -> None:
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        row = connection.execute("SELECT current_database()").fetchone()
    assert row is not None
    assert str(row[0]).startswith("test_")


def test_valkey_wants_its_password(valkey: Valkey, valkey_url: str) -> None:
    with redis.Redis.from_url(valkey_url, decode_responses=True) as client:
        client.set("물음", "답")
        assert client.get("물음") == "답"
    with (
        redis.Redis(port=valkey.port) as stranger,
        pytest.raises(redis.AuthenticationError, match="Authentication required"),
    ):
        stranger.ping()


def test_s3_refuses_a_wrong_key(s3: S3, seaweed: SeaweedFS) -> None:
    seaweed.client().put_object(Bucket=s3.bucket, Key="상점 data.txt", Body=b"ok")
    body = seaweed.client().get_object(Bucket=s3.bucket, Key="상점 data.txt")["Body"].read()
    assert body == b"ok"
    stranger = boto3.client(
        "s3",
        endpoint_url=s3.endpoint,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key="wrong",
        region_name=s3.region,
    )
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        stranger.get_object(Bucket=s3.bucket, Key="상점 data.txt")


def test_s3_has_no_open_side_door(s3: S3, seaweed: SeaweedFS) -> None:
    """The filer behind S3 listens too; without its key it gives and takes nothing."""
    seaweed.client().put_object(Bucket=s3.bucket, Key="a", Body=b"private")
    filer = f"http://127.0.0.1:{seaweed.ports.filer}/buckets/{s3.bucket}/a"
    assert httpx.get(filer).status_code == httpx.codes.UNAUTHORIZED
    assert httpx.put(filer, content=b"other").status_code == httpx.codes.UNAUTHORIZED


def test_secrets_are_private_and_not_in_process_lists(
    postgres: Postgres, valkey: Valkey, seaweed: SeaweedFS
) -> None:
    files = [postgres.password_file, valkey.password_file, seaweed.keys_file]
    files.append(valkey.data / "valkey.conf")
    assert [oct(file.stat().st_mode & 0o777) for file in files] == ["0o600"] * 4
    assert postgres.password_file.parent.stat().st_mode & 0o777 == 0o700
    secrets = {postgres.password, valkey.password_file.read_text(), *seaweed.keys}
    assert not [line for line in command_lines() if any(secret in line for secret in secrets)]
