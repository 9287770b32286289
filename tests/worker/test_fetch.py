"""What a user names in the object store, and what is said when it is not there."""

import secrets
from pathlib import Path

import pytest

from app.settings import Settings
from app.storage import Store
from polar.stack.services import SeaweedFS
from trainer_core.errors import InvalidSpec
from trainer_core.spec import TrainSpec
from worker.fetch import Fetcher


def _spec(path: str, **source: object) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "task": {"type": "sft"},
            "model": {"source": "hub", "name_or_path": "org/model"},
            "data": {"train": [{"source": "s3", "path": path, **source}]},
        }
    )


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("s3://open-bucket/rows.jsonl", "the bucket 'open-bucket' does not exist"),
        ("s3://elsewhere/rows.jsonl", "the bucket 'elsewhere' is not open to jobs here"),
        ("s3://open-bucket/../elsewhere/rows.jsonl", "must not climb"),
        ("s3://{bucket}/prj_default/none.jsonl", "there is nothing at"),
        ("s3://{bucket}/prj_other/rows.jsonl", "belongs to another project"),
    ],
)
def test_an_absent_place_is_the_callers_error_with_its_field(
    store_settings: Settings, place: str, words: str
):
    store_settings.s3_buckets = ["open-bucket"]
    fetcher = Fetcher(store_settings, Store(store_settings), "prj_default")
    with pytest.raises(InvalidSpec, match=words) as caught:
        fetcher.data(_spec(place.format(bucket=store_settings.s3_bucket)))
    assert caught.value.field == "data.train[0].path"


def test_an_object_is_fetched_under_its_name(store_settings: Settings):
    store = Store(store_settings)
    store.put_bytes("prj_default/mine/rows.jsonl", b'{"text": "a"}\n')
    fetcher = Fetcher(store_settings, store, "prj_default")
    spec = _spec(f"s3://{store_settings.s3_bucket}/prj_default/mine/rows.jsonl")
    paths = fetcher.data(spec).paths
    assert Path(paths["train/0"]).read_bytes() == b'{"text": "a"}\n'


def test_a_bucket_that_is_open_to_all_is_read_with_the_services_keys(
    store_settings: Settings, seaweed: SeaweedFS
):
    bucket = f"open-{secrets.token_hex(4)}"
    seaweed.client().create_bucket(Bucket=bucket)
    Store(store_settings).at(bucket).put_bytes("shared/rows.jsonl", b"{}\n")
    store_settings.s3_buckets = [f"{bucket}/shared"]
    fetcher = Fetcher(store_settings, Store(store_settings), "prj_default")
    paths = fetcher.data(_spec(f"s3://{bucket}/shared/rows.jsonl")).paths
    assert Path(paths["train/0"]).read_bytes() == b"{}\n"
    with pytest.raises(InvalidSpec, match="is not open to jobs here"):
        fetcher.data(_spec(f"s3://{bucket}/sharedother/rows.jsonl"))


def test_a_bucket_of_the_owners_is_read_with_the_owners_keys(
    store_settings: Settings, seaweed: SeaweedFS
):
    bucket = f"owned-{secrets.token_hex(4)}"
    seaweed.client().create_bucket(Bucket=bucket)
    Store(store_settings).at(bucket).put_bytes("rows.jsonl", b"{}\n")
    spec = _spec(f"s3://{bucket}/rows.jsonl", token={"secret": "mine"})

    def fetch(value: str) -> Path:
        secret = {"mine": value}
        fetcher = Fetcher(store_settings, Store(store_settings), "prj_default", secret)
        return Path(fetcher.data(spec).paths["train/0"])

    assert fetch(":".join(seaweed.keys)).read_bytes() == b"{}\n"
    with pytest.raises(InvalidSpec, match="these keys may not read it"):
        fetch("SOMEONE:else")
    with pytest.raises(InvalidSpec, match="must hold ACCESS_KEY:SECRET_KEY") as caught:
        fetch("a-token-of-the-hub")
    assert caught.value.field == "data.train[0].token"
