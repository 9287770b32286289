"""Row formats: detecting them from columns, and turning a row into a sample unaltered."""

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "system": "system",
}
_READ = {"role", "content", "from", "value"}
_ROLES = ("system", "developer", "user", "assistant")
_MEANINGFUL = ("tool_calls", "function_call", "tool_call_id", "weight", "loss", "train")


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
                f"{field}: its rows differ: {rows[0].place} looks like {_listed(first)}, "
                f"{row.place} looks like {_listed(other)}: split the source, or say which it is "
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
            kind = _kind_of_turns(values[column])
            found.insert(0, kind)
    return list(dict.fromkeys(found))


def _kind_of_turns(turns: Any) -> str:
    turns = _parsed(turns)
    first = turns[0] if isinstance(turns, list) and turns else None
    return "sharegpt" if isinstance(first, dict) and "from" in first else "messages"


def _check_mapping(rows: Sequence[Row], source: DataSource, field: str) -> None:
    seen = list(dict.fromkeys(name for row in rows for name in row.values))
    for ours, theirs in source.columns.items():
        if theirs not in seen:
            raise InvalidData(
                f"{field}.columns says that `{ours}` is the column '{theirs}', but the source has "
                f"no such column{_nearest(theirs, seen)}; it has {_listed(seen)}",
                f"{field}.columns",
            )


def _check_required(row: Row, source: DataSource, field: str) -> None:
    values = rename(row.values, source.columns)
    missing = missing_column(values, source.format)
    if missing:
        seen = list(row.values)
        raise InvalidData(
            f"{field}.format is '{source.format}', which needs {_NEEDS[source.format]}, but "
            f"{row.place} has no column '{missing}'{_nearest(missing, seen)}; it has "
            f"{_listed(seen)}: map it in {field}.columns, such as {{'{missing}': "
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
    columns = _listed(rename(row.values, source.columns))
    if found:
        return InvalidData(
            f"{field} fits several formats: {_listed(found)} (columns {columns}): say which it is "
            f"in {field}.format",
            f"{field}.format",
        )
    wanted = [c for names in _REQUIRED.values() for c in names] + ["messages", "conversations"]
    hint = next((h for c in row.values if (h := _nearest(c, wanted, "is `{}` meant by it?"))), "")
    return InvalidData(
        f"{field} fits no format: {row.place} has the columns {columns}{hint}. Formats need "
        f"{', '.join(_NEEDS.values())}: map columns in {field}.columns, such as "
        "{'prompt': 'question', 'completion': 'answer'}",
        f"{field}.format",
    )


def _messages(values: dict[str, Any]) -> Sample:
    if values.get("tools"):
        raise BadRow("it has `tools`, but this task cannot learn tool calls: take them out")
    return Conversation(_turns(_column(values, "messages"), "messages"))


def _sharegpt(values: dict[str, Any]) -> Sample:
    if values.get("tools"):
        raise BadRow("it has `tools`, but this task cannot learn tool calls: take them out")
    turns = _turns(_column(values, "sharegpt"), "conversations")
    system = values.get("system")
    if system is not None and system != "":
        if turns[0]["role"] == "system":
            raise BadRow("it has a system message both in `system` and in its turns: keep one")
        turns = [_message("system", system, "system"), *turns]
    return Conversation(turns)


def _alpaca(values: dict[str, Any]) -> Sample:
    turns: list[Message] = []
    if values.get("system"):
        turns.append(_message("system", values["system"], "system"))
    history = _parsed(values.get("history")) or []
    if not isinstance(history, list):
        raise BadRow("`history` must be a list of [question, answer]")
    for pair in history:
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRow("`history` must be a list of [question, answer]")
        turns.append(_message("user", pair[0], "history"))
        turns.append(_message("assistant", pair[1], "history"))
    question = _text(values, "instruction")
    if values.get("input"):
        question = f"{question}\n{_text(values, 'input')}"
    turns.append(_message("user", question, "instruction"))
    turns.append(_message("assistant", _text(values, "output"), "output"))
    return Conversation(turns)


def _prompt_completion(values: dict[str, Any]) -> Sample:
    prompt, completion = (_existing(values, name) for name in ("prompt", "completion"))
    if isinstance(prompt, str) and isinstance(completion, str):
        return PlainText(_checked(prompt, "prompt"), _checked(completion, "completion"))
    if isinstance(prompt, list) and isinstance(completion, list):
        before, after = _turns(prompt, "prompt"), _turns(completion, "completion")
        return Conversation([*before, *after], len(before))
    raise BadRow(
        "`prompt` and `completion` must both be strings or both be lists of messages; they are "
        f"{_kind(prompt)} and {_kind(completion)}"
    )


def _plain_text(values: dict[str, Any]) -> Sample:
    return PlainText("", _text(values, "text"))


def _column(values: Mapping[str, Any], format_: str) -> Any:
    for name in COLUMNS[format_][:2]:
        if name in values:
            return values[name]
    return _existing(values, COLUMNS[format_][0])


def ignored_keys(values: Mapping[str, Any], format_: str) -> set[str]:
    """Keys of a row's messages that nothing reads; columns beside the format's are usual."""
    if format_ not in ("messages", "sharegpt"):
        return set()
    turns = _parsed(next((values[c] for c in COLUMNS[format_][:2] if c in values), None))
    keys = (
        key
        for turn in (turns if isinstance(turns, list) else [])
        for key, value in (turn.items() if isinstance(turn, dict) else ())
        if value is not None
    )
    return set(keys) - _READ


def _turns(turns: Any, column: str) -> list[Message]:
    turns = _parsed(turns)
    if not isinstance(turns, list) or not turns:
        raise BadRow(f"`{column}` must be a list of messages that is not empty, not {_kind(turns)}")
    return [_turn(turn, f"{column}[{i}]") for i, turn in enumerate(turns)]


def _turn(turn: Any, where: str) -> Message:
    if not isinstance(turn, dict):
        raise BadRow(f"`{where}` must be an object with `role` and `content`, not {_kind(turn)}")
    role_key, content_key = ("from", "value") if turn.get("from") is not None else _OPENAI
    for key in _MEANINGFUL:
        if turn.get(key) not in (None, [], {}):
            raise BadRow(f"`{where}.{key}` is set, but this task cannot learn from it: take it out")
    if turn.get(role_key) is None:
        raise BadRow(f"`{where}` has no `role` (or `from`)")
    role = _SPEAKERS.get(turn[role_key]) if role_key == "from" else turn[role_key]
    if role not in _ROLES:
        known = _SPEAKERS if role_key == "from" else _ROLES
        raise BadRow(
            f"`{where}.{role_key}` is {turn[role_key]!r}, which this task does not know: use one "
            f"of {_listed(known)}"
        )
    return _message(role, turn.get(content_key), f"{where}.{content_key}")


_OPENAI = ("role", "content")


def _message(role: str, content: Any, where: str) -> Message:
    return {"role": role, "content": _checked(content, where)}


def _text(values: Mapping[str, Any], column: str) -> str:
    return _checked(_existing(values, column), column)


def _existing(values: Mapping[str, Any], column: str) -> Any:
    if column not in values:
        raise BadRow(
            f"the column `{column}` is missing{_nearest(column, list(values))}; the row has "
            f"{_listed(values)}"
        )
    return values[column]


def _checked(content: Any, where: str) -> str:
    if not isinstance(content, str):
        raise BadRow(f"`{where}` must be a string, not {_kind(content)}")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise BadRow(f"`{where}` holds half a character (a lone surrogate)") from None
    return content


def _parsed(value: Any) -> Any:
    """CSV has strings only: a list arrives as its JSON."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {str: "a string", list: "a list", dict: "an object", bool: "a boolean"}
    return names.get(
        type(value), "a number" if isinstance(value, int | float) else "something else"
    )


def _nearest(name: str, known: Sequence[str], wording: str = "is '{}' meant?") -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" ({wording.format(close[0])})" if close else ""


def _listed(names: Any) -> str:
    names = list(names)
    shown = ", ".join(f"'{name}'" for name in names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown or "nothing"


def mapping_problem(source: DataSource, field: str) -> str | None:
    """What is wrong with `columns` by itself; None where nothing is."""
    formats = COLUMNS if source.format == "auto" else {source.format: COLUMNS[source.format]}
    known = list(dict.fromkeys(name for names in formats.values() for name in names))
    unknown = next((name for name in source.columns if name not in known), None)
    if unknown is not None:
        return (
            f"{field}.columns maps '{unknown}'{_nearest(unknown, known)}, which no format reads: "
            f"it maps our column names, {_listed(known)}, to the source's"
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
