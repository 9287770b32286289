"""`docs/reference.md`: every field of a job's spec, from the schema that jobs are checked by."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainer_core.spec import JobSpec

Schema = Mapping[str, Any]

_HEAD = """# Reference: every field of a spec

This page is written by `make docs` from the schema that jobs are checked by; a test fails when it
is stale. Only `task`, `model` and `data` are required; what is left out is filled in for the
hardware that the job lands on (`python -m trainer_core resolve FILE` shows with what). Types are
strict: `"3"` is no number.
"""
_BOUNDS = (
    ("exclusiveMinimum", "> {}"),
    ("minimum", "≥ {}"),
    ("exclusiveMaximum", "< {}"),
    ("maximum", "≤ {}"),
    ("maxLength", "at most {} characters"),
)
_PLAIN = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "null": "`null`",
    "object": "object",
}


def page() -> str:
    """The whole page."""
    schema = JobSpec.model_json_schema()
    blocks = {"JobSpec": schema, **schema["$defs"]}
    return "\n".join([_HEAD, *(_section(name, blocks[name]) for name in _in_order(blocks))])


def _in_order(blocks: Mapping[str, Schema]) -> list[str]:
    """The names of all blocks, each after the first one that has it."""
    found = ["JobSpec"]
    for name in found:  # it grows
        inside = _references(blocks[name].get("properties"))
        found += [ref for ref in dict.fromkeys(inside) if ref not in found]
    return found


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].rpartition("/")[2]
        for name, member in value.items():
            yield from () if name == "mapping" else _references(member)
    elif isinstance(value, list):
        for member in value:
            yield from _references(member)


def _section(name: str, block: Schema) -> str:
    described = " ".join(str(block.get("description", "")).split())
    lines = [f"## {name}", "", described, "", "| field | type | default | meaning |"]
    required = block.get("required", [])
    rows = (
        _row(field, schema, required=field in required)
        for field, schema in block.get("properties", {}).items()
    )
    return "\n".join([*lines, "| --- | --- | --- | --- |", *rows, ""])


def _row(field: str, schema: Schema, *, required: bool) -> str:
    default = "required" if required else _default(schema.get("default"))
    meaning = " ".join(str(schema.get("description", "")).split())
    cells = (f"`{field}`", _type(schema), default, meaning)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _default(value: Any) -> str:
    """A block's own defaults stand in its section."""
    if value is None or isinstance(value, dict | list):
        return "" if value else "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if members := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(member) for member in members))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    return _plain(schema)


def _plain(schema: Schema) -> str:
    kind = schema.get("type", "object")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_type(schema['additionalProperties'])}"
    bounds = [text.format(f"{schema[key]:,}") for key, text in _BOUNDS if key in schema]
    return ", ".join([_PLAIN[kind], *bounds])
