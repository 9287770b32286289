"""Markers for training that stock templates lack: TRL's copies of them with `{% generation %}`.

TRL brings the templates of the large model families, and beside each one that marks what the
assistant says. The pair is looked up by the text of the stock one; nothing of TRL is imported.
"""

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

_SUFFIX = "_training"


def marked_twin(text: str) -> str | None:
    """The template that writes the same with markers; None where none is known."""
    return _twins().get(text)


@lru_cache(maxsize=1)
def _twins() -> dict[str, str]:
    package = find_spec("trl")
    found: dict[str, str] = {}
    for root in (package.submodule_search_locations or ()) if package else ():
        for stock in sorted(Path(root, "chat_templates").glob("*.jinja")):
            twin = stock.with_stem(stock.stem + _SUFFIX)
            if twin.is_file():
                found[stock.read_text(encoding="utf-8")] = twin.read_text(encoding="utf-8")
    return found
