"""`docs/xgen.md` lists what the form really has.

`POLAR_WRITE_DOCS=1 pytest tests/app/xgen/test_page.py` writes its table again.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from app.xgen.form import TrainForm
from tests.services import ROOT

PAGE = ROOT / "docs" / "xgen.md"
BETWEEN = re.compile(r"(<!-- fields -->\n).*(<!-- end of fields -->)", re.DOTALL)


def test_the_page_lists_every_field() -> None:
    text = PAGE.read_text(encoding="utf-8")
    right = BETWEEN.sub(lambda found: found[1] + "\n".join([*_table(), found[2]]), text)
    if os.environ.get("POLAR_WRITE_DOCS"):
        PAGE.write_text(right, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == right
    assert "| `number_gpu` | `1` |" in right


def _table() -> Iterator[str]:
    yield from ("| field | default | what becomes of it |", "| --- | --- | --- |")
    for name, field in TrainForm.model_fields.items():
        yield f"| `{name}` | {_default(field)} | {field.description} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.default
    plain = value.get_secret_value() if isinstance(value, SecretStr) else value
    if plain == "":
        return "–"
    if isinstance(plain, bool):
        return f"`{str(plain).lower()}`"
    return f"`{plain:g}`" if isinstance(plain, float) else f"`{plain}`"
