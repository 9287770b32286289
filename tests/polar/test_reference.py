"""The page of commands says what the commands say."""

from polar.reference import page
from tests.services import ROOT


def test_the_page_is_the_one_that_make_docs_writes() -> None:
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == page()
