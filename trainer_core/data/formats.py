"""Row formats: detecting them from columns, and turning a row into a sample unaltered."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer_core.data.messages import (
    checked,
    kind,
    listed,
    message,
    nearest,
    parsed,
    read_turns,
)
from trainer_core.data.rows import BadRow, Conversation, Message, PlainText, Row, Sample
from trainer_core.errors import InvalidData, InvalidSpec
from trainer_core.spec import DataSource

COLUMNS: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations"),
    "sharegpt": ("conversations", "messages", "system"),
    "alpaca": ("instruction", "input", "output", "system", "history"),
    "prompt_completion": ("prompt", "completion"),
    "text": ("text",),
}
_REQUIRED = {
    "alpaca": ("instruction", "output"),
    "prompt_completion": ("prompt", "completion"),
    "text": ("text",),
}
_NEEDS = {
    "messages": "`messages` (role, content)",
    "sharegpt": "`conversations` (from, value)",
    "alpaca": "`instruction` and `output`",
    "prompt_completion": "`prompt` and `completion`",
    "text": "`text`",
}


def rename(values: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Apply `columns` (ours → theirs); a column that is missing stays missing."""
    if not columns:
        return values
    theirs = {v: k for k, v in columns.items()}
    renamed = {k: v for k, v in values.items() if k not in theirs and k not in columns}
    return renamed | {ours: values[name] for name, ours in theirs.items() if name in values}


def detect(rows: Sequence[Row], source: DataSource, field: str) -> str:
    """The format of a source, from its first readable rows; never a guess.

    Raises InvalidData where no format fits, several do, or rows differ, and names the way out.
    """
    if problem := mapping_problem(source, field):
        raise InvalidSpec(problem, f"{field}.columns")
    _check_mapping(rows, source, field)
    if source.format != "auto":
        _check_required(rows[0], source, field)
        return source.format
    first = _candidates(rename(rows[0].values, source.columns))
    for row in rows[1:]:
        other = _candidates(rename(row.values, source.columns))
        if other != first:
            raise InvalidData(
                f"{field}: its rows differ: {rows[0].place} looks like {listed(first)}, "
                f"{row.place} looks like {listed(other)}: split the source, or say which it is "
                f"in {field}.format",
                field,
            )
    if len(first) != 1:
        raise _undecided(first, rows[0], source, field)
    return first[0]


def to_sample(values: dict[str, Any], format_: str, default_system: str | None) -> Sample:
    """Turn a (renamed) row into a sample, its content untouched; raises BadRow."""
    sample = _CONVERTERS[format_](values)
    if (
        default_system is not None
        and isinstance(sample, Conversation)
        and sample.messages[0]["role"] not in ("system", "developer")
    ):
        system = {"role": "system", "content": default_system}
        prompt = sample.prompt_messages
        return Conversation([system, *sample.messages], None if prompt is None else prompt + 1)
    return sample


def _candidates(values: Mapping[str, Any]) -> list[str]:
    found = [name for name, needed in _REQUIRED.items() if all(c in values for c in needed)]
    for column in ("messages", "conversations"):
        if column in values:
            spelling = _kind_of_turns(values[column])
            found.insert(0, spelling)
    return list(dict.fromkeys(found))


def _kind_of_turns(turns: Any) -> str:
    turns = parsed(turns)
    first = turns[0] if isinstance(turns, list) and turns else None
    return "sharegpt" if isinstance(first, dict) and "from" in first else "messages"


def _check_mapping(rows: Sequence[Row], source: DataSource, field: str) -> None:
    seen = list(dict.fromkeys(name for row in rows for name in row.values))
    for ours, theirs in source.columns.items():
        if theirs not in seen:
            raise InvalidData(
                f"{field}.columns says that `{ours}` is the column '{theirs}', but the source has "
                f"no such column{nearest(theirs, seen)}; it has {listed(seen)}",
                f"{field}.columns",
            )


def _check_required(row: Row, source: DataSource, field: str) -> None:
    values = rename(row.values, source.columns)
    missing = missing_column(values, source.format)
    if missing:
        seen = list(row.values)
        raise InvalidData(
            f"{field}.format is '{source.format}', which needs {_NEEDS[source.format]}, but "
            f"{row.place} has no column '{missing}'{nearest(missing, seen)}; it has "
            f"{listed(seen)}: map it in {field}.columns, such as {{'{missing}': "
            f"'{seen[0] if seen else 'name'}'}}",
            f"{field}.columns",
        )


def missing_column(values: Mapping[str, Any], format_: str) -> str | None:
    """The first column that a format needs and a row lacks."""
    if format_ in ("messages", "sharegpt"):
        either = COLUMNS[format_][:2]
        return None if any(c in values for c in either) else either[0]
    return next((c for c in _REQUIRED[format_] if c not in values), None)


def _undecided(found: list[str], row: Row, source: DataSource, field: str) -> InvalidData:
    columns = listed(rename(row.values, source.columns))
    if found:
        return InvalidData(
            f"{field} fits several formats: {listed(found)} (columns {columns}): say which it is "
            f"in {field}.format",
            f"{field}.format",
        )
    wanted = [c for names in _REQUIRED.values() for c in names] + ["messages", "conversations"]
    hint = next((h for c in row.values if (h := nearest(c, wanted, "is `{}` meant by it?"))), "")
    return InvalidData(
        f"{field} fits no format: {row.place} has the columns {columns}{hint}. Formats need "
        f"{', '.join(_NEEDS.values())}: map columns in {field}.columns, such as "
        "{'prompt': 'question', 'completion': 'answer'}",
        f"{field}.format",
    )


def _messages(values: dict[str, Any]) -> Sample:
    if values.get("tools"):
        raise BadRow("it has `tools`, but this task cannot learn tool calls: take them out")
    return Conversation(read_turns(_column(values, "messages"), "messages"))


def _sharegpt(values: dict[str, Any]) -> Sample:
    if values.get("tools"):
        raise BadRow("it has `tools`, but this task cannot learn tool calls: take them out")
    turns = read_turns(_column(values, "sharegpt"), "conversations")
    system = values.get("system")
    if system is not None and system != "":
        if turns[0]["role"] == "system":
            raise BadRow("it has a system message both in `system` and in its turns: keep one")
        turns = [message("system", system, "system"), *turns]
    return Conversation(turns)


def _alpaca(values: dict[str, Any]) -> Sample:
    turns: list[Message] = []
    if system := _optional_text(values, "system"):
        turns.append(message("system", system, "system"))
    history = parsed(values.get("history"))
    if history is not None and history != "" and not isinstance(history, list):
        raise BadRow(f"`history` must be a list of [question, answer], not {kind(history)}")
    for pair in history or ():
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRow("`history` must be a list of [question, answer]")
        turns.append(message("user", pair[0], "history"))
        turns.append(message("assistant", pair[1], "history"))
    question = _text(values, "instruction")
    if given := _optional_text(values, "input"):
        question = f"{question}\n{given}"
    turns.append(message("user", question, "instruction"))
    turns.append(message("assistant", _text(values, "output"), "output"))
    return Conversation(turns)


def _prompt_completion(values: dict[str, Any]) -> Sample:
    prompt, completion = (_existing(values, name) for name in ("prompt", "completion"))
    if isinstance(prompt, str) and isinstance(completion, str):
        return PlainText(checked(prompt, "prompt"), checked(completion, "completion"))
    if isinstance(prompt, list) and isinstance(completion, list):
        before, after = read_turns(prompt, "prompt"), read_turns(completion, "completion")
        return Conversation([*before, *after], len(before))
    raise BadRow(
        "`prompt` and `completion` must both be strings or both be lists of messages; they are "
        f"{kind(prompt)} and {kind(completion)}"
    )


def _plain_text(values: dict[str, Any]) -> Sample:
    return PlainText("", _text(values, "text"))


def _column(values: Mapping[str, Any], format_: str) -> Any:
    for name in COLUMNS[format_][:2]:
        if name in values:
            return values[name]
    return _existing(values, COLUMNS[format_][0])


def _text(values: Mapping[str, Any], column: str) -> str:
    return checked(_existing(values, column), column)


def _optional_text(values: Mapping[str, Any], column: str) -> str:
    """The text of a column that may be missing, null or empty; nothing else is left out."""
    value = values.get(column)
    return "" if value is None else checked(value, column)


def _existing(values: Mapping[str, Any], column: str) -> Any:
    if column not in values:
        raise BadRow(
            f"the column `{column}` is missing{nearest(column, list(values))}; the row has "
            f"{listed(values)}"
        )
    return values[column]


def mapping_problem(source: DataSource, field: str) -> str | None:
    """What is wrong with `columns` by itself; None where nothing is."""
    formats = COLUMNS if source.format == "auto" else {source.format: COLUMNS[source.format]}
    known = list(dict.fromkeys(name for names in formats.values() for name in names))
    unknown = next((name for name in source.columns if name not in known), None)
    if unknown is not None:
        return (
            f"{field}.columns maps '{unknown}'{nearest(unknown, known)}, which no format reads: "
            f"it maps our column names, {listed(known)}, to the source's"
        )
    if len(set(source.columns.values())) < len(source.columns):
        return f"{field}.columns maps one column of the source to several names: map it once"
    return None


_CONVERTERS: dict[str, Callable[[dict[str, Any]], Sample]] = {
    "messages": _messages,
    "sharegpt": _sharegpt,
    "alpaca": _alpaca,
    "prompt_completion": _prompt_completion,
    "text": _plain_text,
}
