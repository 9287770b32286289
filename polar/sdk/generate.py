"""Writes the classes of answers from the API's description: `generate < openapi.json > answers.py`.

An answer may hold more than is known here: newer services add fields, and values of enumerations.
"""

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

FOREIGN = ("/api/train", "/v1", "/internal")
"""Dialects of others; this client speaks the service's own."""

HEAD = '''"""What the service answers; written by `make openapi` from openapi/openapi.json."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Base of all answers; fields that a newer service adds are kept as they come."""

    model_config = ConfigDict(extra="allow", defer_build=True)

'''
HIDDEN = ("CreatedKey.key", "Ticket.ticket", "Ticket.path", "WebhookWithSecret.secret")
"""What is secret: it is read as a field, and never shown with the whole."""

_WORDS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
_METHODS = ("get", "post", "put", "patch", "delete")
_WIDTH = 88


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    """Yield method, path and description of each operation that this client is to know."""
    for path, item in document["paths"].items():
        if path.startswith(FOREIGN):
            continue
        for method in _METHODS:
            if method in item:
                yield method.upper(), path, item[method]


def generated(document: Json) -> str:
    """Return the module's text, not yet formatted."""
    schemas = document["components"]["schemas"]
    needed: dict[str, None] = {}
    for _, _, operation in operations(document):
        for status, response in operation["responses"].items():
            if status.startswith("2"):
                for name in _references(response):
                    _collect(name, schemas, needed)
    return HEAD + "\n".join(_definition(name, schemas[name]) for name in needed)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rpartition("/")[2]
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from _references(each)


def _collect(name: str, schemas: Json, needed: dict[str, None]) -> None:
    """Add a schema behind those that it is made of."""
    if name in needed:
        return
    for other in _references(schemas[name]):
        _collect(other, schemas, needed)
    needed[name] = None


def _definition(name: str, schema: Json) -> str:
    if "enum" in schema:
        return f"\n{_class(name)} = {_type(schema)}\n{_docstring(schema, '')}\n"
    lines = [f"\nclass {_class(name)}(Answer):", _docstring(schema, "    "), ""]
    required = schema.get("required", ())
    for field, described in schema.get("properties", {}).items():
        kind = _type(described)
        if field not in required:
            kind += "" if kind.endswith("None") else " | None"
            kind += " = None"
        elif f"{name}.{field}" in HIDDEN:
            kind += " = Field(repr=False)"
        lines.append(f"    {field}: {kind}")
        if "description" in described:
            lines.append(_docstring(described, "    "))
    return "\n".join(lines) + "\n"


def _class(name: str) -> str:
    """Return a schema's name; what is another one in requests has `-Output` in answers."""
    return name.removesuffix("-Output").replace("-", "")


def _docstring(schema: Json, indent: str) -> str:
    text = " ".join(schema.get("description", "An answer.").split()).replace("\\", "\\\\")
    first, *rest = textwrap.wrap(text, _WIDTH, break_long_words=False)
    if not rest:
        return f'{indent}"""{first}"""'
    return "\n".join([f'{indent}"""{first}', *(indent + line for line in rest), f'{indent}"""'])


def _type(schema: Json) -> str:
    """Return the annotation of a value; enumerations are open."""
    if "$ref" in schema:
        return _class(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema or "oneOf" in schema:
        kinds = map(_type, schema.get("anyOf") or schema["oneOf"])
        return " | ".join(dict.fromkeys(kinds))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is not None:
        return f"Literal[{', '.join(json.dumps(value) for value in values)}] | str"
    if schema.get("format") == "date-time":
        return "datetime"
    if schema.get("type") == "null":
        return "None"
    return _WORDS.get(schema.get("type", ""), "") or _container(schema)


def _container(schema: Json) -> str:
    if "prefixItems" in schema:
        return f"tuple[{', '.join(map(_type, schema['prefixItems']))}]"
    if schema.get("type") == "array":
        return f"list[{_type(schema.get('items') or {})}]"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {_type(values) if isinstance(values, dict) else 'Any'}]"
    return "Any"


def formatted(text: str) -> str:
    """Return the text as ruff writes it."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "answers.py", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    sys.stdout.write(formatted(generated(json.load(sys.stdin))))
