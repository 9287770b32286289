"""What a user names in the object store, and what is said when it is not there."""

from pathlib import Path

import pytest

from app.settings import Settings
from app.storage import Store
from trainer_core.errors import InvalidSpec
from trainer_core.spec import TrainSpec
from worker.fetch import Fetcher


def _spec(path: str) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "task": {"type": "sft"},
            "model": {"source": "hub", "name_or_path": "org/model"},
            "data": {"train": [{"source": "s3", "path": path}]},
        }
    )


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("s3://no-such-bucket-here/rows.jsonl", "the bucket 'no-such-bucket-here' does not exist"),
        ("s3://{bucket}/prj_default/none.jsonl", "there is nothing at"),
        ("s3://{bucket}/prj_other/rows.jsonl", "belongs to another project"),
    ],
)
def test_an_absent_place_is_the_callers_error_with_its_field(
    store_settings: Settings, place: str, words: str
):
    fetcher = Fetcher(store_settings, Store(store_settings), "prj_default")
    with pytest.raises(InvalidSpec, match=words) as caught:
        fetcher.data(_spec(place.format(bucket=store_settings.s3_bucket)))
    assert caught.value.field == "data.train[0].path"


def test_an_object_is_fetched_under_its_name(store_settings: Settings):
    store = Store(store_settings)
    store.put_bytes("prj_default/mine/rows.jsonl", b'{"text": "a"}\n')
    fetcher = Fetcher(store_settings, store, "prj_default")
    spec = _spec(f"s3://{store_settings.s3_bucket}/prj_default/mine/rows.jsonl")
    _, paths = fetcher.data(spec)
    assert Path(paths["train/0"]).read_bytes() == b'{"text": "a"}\n'
