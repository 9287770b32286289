"""Reading the objects of a large JSON array one by one."""

import json
import re
from collections.abc import Iterator
from typing import Any

_BLANKS = re.compile(r"[ \t\r\n]*")
_LONGEST_VALUE = 256 << 20  # characters
_LONGEST_WORD = 16  # such as -Infinity or a \uXXXX escape, torn by the end of a chunk


class Scanner:
    """Walks over JSON text that comes in chunks; keeps no more than one value and one chunk."""

    def __init__(self, chunks: Iterator[str]) -> None:
        self._chunks = chunks
        self._text = ""
        self._at = 0
        self._line = 1
        self._counted = 0
        self._decoder = json.JSONDecoder()

    @property
    def line(self) -> int:
        """The line, from 1, that the scanner has reached."""
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def rows(self) -> Iterator[tuple[int, Any]]:
        """Elements, each with the line that it begins on; raises ValueError for broken JSON."""
        start = self._peek()
        if start == "[":
            yield from self._array()
        elif start == "{":
            yield from self._data_of_object()
        elif start:
            raise ValueError(f"it begins with {start!r}")
        if self._peek():
            raise ValueError("something follows behind its end")

    def _data_of_object(self) -> Iterator[tuple[int, Any]]:
        self._expect("{")
        found = False
        while self._peek() != "}":
            key = self._value()
            self._expect(":")
            if key == "data" and self._peek() == "[":
                found = True
                yield from self._array()
            else:
                self._value()
            self._separator("}")
        self._expect("}")
        if not found:
            raise ValueError("the object has no array 'data'")

    def _array(self) -> Iterator[tuple[int, Any]]:
        self._expect("[")
        while self._peek() != "]":
            line = self.line
            yield line, self._value()
            self._separator("]")
        self._expect("]")

    def _separator(self, end: str) -> None:
        if self._peek() == end:
            return
        self._expect(",")
        if self._peek() == end:
            raise ValueError(f"a comma stands before '{end}'")

    def _expect(self, character: str) -> None:
        found = self._peek()
        if found != character:
            raise ValueError(f"expected '{character}', found {repr(found) if found else 'its end'}")
        self._at += 1

    def _peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            found = _BLANKS.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _value(self) -> Any:
        self._peek()
        wanted = 0
        while True:
            if len(self._text) - self._at >= wanted:
                try:
                    value, end = self._decoder.raw_decode(self._text, self._at)
                except json.JSONDecodeError as error:
                    self._unless_torn(error)
                else:
                    # A number that ends with the chunk may go on in the next one.
                    if end < len(self._text):
                        self._at = end
                        return value
                wanted = 2 * (len(self._text) - self._at)
            if not self._more():
                return self._last_value()

    def _unless_torn(self, error: json.JSONDecodeError) -> None:
        """Raise an error that no further chunk can mend: it stands well before the end."""
        if error.pos < len(self._text) - _LONGEST_WORD and "Unterminated" not in error.msg:
            self._at = error.pos
            raise ValueError(error.msg) from error

    def _last_value(self) -> Any:
        try:
            value, self._at = self._decoder.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            self._at = error.pos
            raise ValueError(error.msg) from error
        return value

    def _more(self) -> bool:
        chunk = next(self._chunks, "")
        if not chunk:
            return False
        if len(self._text) - self._at > _LONGEST_VALUE:
            raise ValueError(f"a value is longer than {_LONGEST_VALUE >> 20} MiB")
        self._line = self.line  # count what is left behind
        self._text = self._text[self._at :] + chunk
        self._at = self._counted = 0
        return True
