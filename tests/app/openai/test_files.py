"""`/v1/files` with the official client: uploaded, listed, read and deleted as data sets are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.app.openai.client import ROW, client_of, upload
from tests.app.server import Api

OTHER = "INSERT INTO projects (id, name) VALUES ('prj_other', 'other') ON CONFLICT DO NOTHING"


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[openai.OpenAI]:
    with client_of(api) as made:
        yield made


def test_a_file_is_a_data_set_at_both_doors(
    api: Api, client: openai.OpenAI, tmp_path: Path
) -> None:
    path = tmp_path / "쇼핑 shop.v1.jsonl"
    path.write_text(ROW * 3)
    made = client.files.create(file=path, purpose="fine-tune")
    assert (made.object, made.bytes, made.filename) == ("file", len(path.read_bytes()), path.name)
    assert (made.purpose, made.status, made.status_details) == ("fine-tune", "processed", None)
    assert client.files.wait_for_processing(made.id).id == made.id
    assert client.files.content(made.id).read() == path.read_bytes()
    own = api.client.get(f"/datasets/ds_{made.id.removeprefix('file-')}").json()
    assert (own["name"], own["rows"], own["row_format"]) == ("shop", 3, "messages")
    assert client.files.retrieve(own["id"]) == made
    deleted = client.files.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    assert client.files.delete(made.id).deleted  # as a client that lost the answer asks
    with pytest.raises(openai.NotFoundError) as gone:
        client.files.retrieve(made.id)
    assert gone.value.code == "file_not_found"
    assert api.client.get(f"/datasets/{own['id']}").status_code == 404


def test_files_are_paged_in_both_orders(client: openai.OpenAI) -> None:
    made = [upload(client) for _ in range(3)]
    newest = client.files.list(limit=2)
    assert [file.id for file in newest.data] == made[:0:-1]
    assert newest.has_more
    every = [file.id for file in client.files.list(limit=2)]  # the client turns the pages
    assert every[:3] == made[::-1]
    assert every == [file.id for file in client.files.list(order="asc")][::-1]
    assert client.files.list(purpose="vision").data == []


def test_rows_with_problems_say_so(client: openai.OpenAI) -> None:
    made = client.files.create(
        file=("rows.jsonl", (ROW + '{"messages": []}\n').encode()), purpose="fine-tune"
    )
    assert "line 2" in (client.files.retrieve(made.id).status_details or "")


@pytest.mark.parametrize(
    ("name", "content", "purpose", "param", "message"),
    [
        ("rows.jsonl", b"{broken\n", "fine-tune", "file", "line 1"),
        ("rows.jsonl", b"", "fine-tune", "file", "is empty"),
        ("../rows.jsonl", ROW.encode(), "fine-tune", "file", "no folders"),
        ("rows.jsonl", ROW.encode(), "assistants", "purpose", "send `fine-tune`"),
    ],
)
def test_what_is_refused(
    client: openai.OpenAI, name: str, content: bytes, purpose: Any, param: str, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=(name, content), purpose=purpose)
    assert refused.value.param == param
    assert message in refused.value.message


def test_a_file_that_is_to_expire_is_refused_with_the_way_out(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(
            file=("rows.jsonl", ROW.encode()),
            purpose="fine-tune",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
    assert refused.value.param == "expires_after[anchor]"
    assert "until they are deleted" in refused.value.message


def test_a_file_that_a_job_reads_stays(client: openai.OpenAI) -> None:
    file = upload(client)
    job = client.fine_tuning.jobs.create(model="org/model", training_file=file)
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.delete(file)
    assert refused.value.code == "dataset_in_use"
    client.fine_tuning.jobs.cancel(job.id)
    client.files.delete(file)


def test_places_and_files_of_other_projects_are_not_here(api: Api, client: openai.OpenAI) -> None:
    place = {"name": "place", "source": "hub", "location": "org/data"}
    registered = api.client.post("/datasets", json=place).json()["id"]
    foreign = upload(client)
    api.write(OTHER)
    moved = f"ds_{foreign.removeprefix('file-')}"
    api.write("UPDATE datasets SET project_id = 'prj_other' WHERE id = :id", id=moved)
    for absent in (registered, foreign, "file-x", "file-results-" + foreign[5:]):
        for call in (client.files.retrieve, client.files.content):
            with pytest.raises(openai.NotFoundError):
                call(absent)
    for absent in (registered, foreign, "file-x"):
        with pytest.raises(openai.NotFoundError) as kept:
            client.files.delete(absent)
        assert kept.value.code == "file_not_found"
    assert api.client.get(f"/datasets/{registered}").status_code == 200
    assert foreign not in [file.id for file in client.files.list()]


def test_a_viewer_may_look_and_not_touch(api: Api, client: openai.OpenAI) -> None:
    file = upload(client)
    key = api.client.post("/api-keys", json={"name": "v", "role": "viewer"}).json()["key"]
    with client_of(api, key) as viewer:
        assert viewer.files.retrieve(file).id == file
        with pytest.raises(openai.PermissionDeniedError) as refused:
            viewer.files.delete(file)
        assert refused.value.code == "role_too_low"
        with pytest.raises(openai.PermissionDeniedError):
            upload(viewer)
