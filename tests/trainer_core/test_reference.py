"""`docs/reference.md` says what the schema says."""

from tests.trainer_core.runs import REPOSITORY
from trainer_core.reference_page import page
from trainer_core.spec import JobSpec


def test_the_page_of_all_fields_is_as_make_docs_writes_it() -> None:
    assert page() == (REPOSITORY / "docs/reference.md").read_text(encoding="utf-8")


def test_every_field_of_every_block_is_there() -> None:
    found = page()
    for name, block in JobSpec.model_json_schema()["$defs"].items():
        section = found.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for field in block["properties"]:
            assert f"| `{field}` |" in section
