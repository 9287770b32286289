"""Row formats: the table of them, detecting one from columns, and turning a row into a sample."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainer_core.data import (
    chat_formats,
    image_formats,
    judged_formats,
    labelled_formats,
    preference_formats,
    prompt_formats,
    text_formats,
)
from trainer_core.data.messages import MESSAGE_COLUMNS, listed, nearest, parsed
from trainer_core.data.row_format import RowFormat
from trainer_core.data.rows import (
    Conversation,
    Judged,
    Pictured,
    PlainText,
    Preference,
    Prompt,
    Row,
    Sample,
)
from trainer_core.errors import InvalidData, InvalidSpec
from trainer_core.spec import DataSource

FORMATS: dict[str, RowFormat] = {
    "messages": chat_formats.MESSAGES,
    "sharegpt": chat_formats.SHAREGPT,
    "alpaca": chat_formats.ALPACA,
    "query_response": chat_formats.QUERY_RESPONSE,
    "prompt_completion": chat_formats.PROMPT_COMPLETION,
    "preference": preference_formats.PREFERENCE,
    "openai_preference": preference_formats.OPENAI_PREFERENCE,
    "prompt": prompt_formats.PROMPT,
    "classification": labelled_formats.CLASSIFICATION,
    "labelled_images": image_formats.LABELLED_IMAGES,
    "image_messages": image_formats.IMAGE_MESSAGES,
    "image_prompt_completion": image_formats.IMAGE_PROMPT_COMPLETION,
    "segments": chat_formats.SEGMENTS,
    "unpaired_preference": judged_formats.UNPAIRED_PREFERENCE,
    "judged_messages": judged_formats.JUDGED_MESSAGES,
    "anchor_positive": text_formats.ANCHOR_POSITIVE,
    "sentence_pair": text_formats.SENTENCE_PAIR,
    "text": chat_formats.TEXT,
}
ALL = tuple(FORMATS)


def rename(values: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Apply `columns` (ours → theirs); a column that is missing stays missing."""
    if not columns:
        return values
    theirs = {v: k for k, v in columns.items()}
    renamed = {k: v for k, v in values.items() if k not in theirs and k not in columns}
    return renamed | {ours: values[name] for name, ours in theirs.items() if name in values}


def detect(
    rows: Sequence[Row], source: DataSource, field: str, accepted: Sequence[str] = ALL
) -> str:
    """The format of a source, from its first readable rows; never a guess.

    Only formats that the task has `accepted` are thought of. Raises InvalidData where none fits,
    several do, or rows differ, and names the way out.
    """
    if problem := format_problem(source, field, accepted):
        raise InvalidSpec(problem, f"{field}.format")
    if problem := mapping_problem(source, field, accepted):
        raise InvalidSpec(problem, f"{field}.columns")
    _check_mapping(rows, source, field)
    if source.format != "auto":
        _check_required(rows[0], source, field)
        return source.format
    first = _candidates(rename(rows[0].values, source.columns), accepted)
    for row in rows[1:]:
        other = _candidates(rename(row.values, source.columns), accepted)
        if other != first:
            raise InvalidData(
                f"{field}: its rows differ: {rows[0].place} looks like {listed(first)}, "
                f"{row.place} looks like {listed(other)}: split the source, or say which it is "
                f"in {field}.format",
                field,
            )
    if len(first) != 1:
        raise _undecided(first, rows[0], source, field, accepted)
    return first[0]


def to_sample(values: dict[str, Any], format_: str, default_system: str | None) -> Sample:
    """Turn a (renamed) row into a sample, its content untouched; raises BadRow."""
    sample = FORMATS[format_].convert(values)
    return sample if default_system is None else _with_system(sample, default_system)


def _with_system(sample: Sample, text: str) -> Sample:
    if isinstance(sample, Preference):
        sides = (_told(side, text) for side in (sample.chosen, sample.rejected))
        return Preference(*sides)
    if isinstance(sample, Prompt):
        return replace(sample, asked=_told(sample.asked, text))
    if isinstance(sample, Judged):
        return Judged(_told(sample.answered, text), sample.desirable)
    if isinstance(sample, Pictured):
        return Pictured(_begun(sample.conversation, text), sample.images)
    return _begun(sample, text) if isinstance(sample, Conversation) else sample


def _told(sample: Conversation | PlainText, text: str) -> Conversation | PlainText:
    return sample if isinstance(sample, PlainText) else _begun(sample, text)


def _begun(sample: Conversation, text: str) -> Conversation:
    """The conversation with a system message, unless it has one."""
    if sample.messages[0]["role"] in ("system", "developer"):
        return sample
    system = {"role": "system", "content": text}
    prompt = sample.prompt_messages
    return replace(
        sample,
        messages=[system, *sample.messages],
        prompt_messages=None if prompt is None else prompt + 1,
        silent=frozenset(turn + 1 for turn in sample.silent),
    )


def _candidates(values: Mapping[str, Any], accepted: Sequence[str]) -> list[str]:
    """Formats whose columns are all there, but none that another one contains."""
    found = [
        name
        for name, format_ in FORMATS.items()
        if format_.required and all(c in values for c in format_.required)
    ]
    for column in MESSAGE_COLUMNS:
        if column in values:
            found.insert(0, _kind_of_turns(values, column, accepted))
    found = [name for name in dict.fromkeys(found) if name in accepted]
    if any(name in chat_formats.TURNS for name in found):  # a `prompt` beside turns is in them
        found = [name for name in found if name != "prompt"]
    return [name for name in found if not any(_within(name, other) for other in found)]


def _within(name: str, other: str) -> bool:
    return set(FORMATS[name].required) < set(FORMATS[other].required) and bool(
        FORMATS[name].required
    )


def _kind_of_turns(values: Mapping[str, Any], column: str, accepted: Sequence[str]) -> str:
    pictured = "messages" not in accepted or any(c in values for c in image_formats.IMAGE_COLUMNS)
    if pictured and "image_messages" in accepted:
        return "image_messages"
    turns = parsed(values[column])
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
            f"{field}.format is '{source.format}', which needs {FORMATS[source.format].needs}, but "
            f"{row.place} has no column '{missing}'{nearest(missing, seen)}; it has "
            f"{listed(seen)}: map it in {field}.columns, such as {{'{missing}': "
            f"'{seen[0] if seen else 'name'}'}}",
            f"{field}.columns",
        )


def missing_column(values: Mapping[str, Any], format_: str) -> str | None:
    """The first column that a format needs and a row lacks."""
    if format_ in chat_formats.TURNS:
        either = chat_formats.TURNS[format_]
        return None if any(c in values for c in either) else either[0]
    return next((c for c in FORMATS[format_].required if c not in values), None)


def _undecided(
    found: list[str], row: Row, source: DataSource, field: str, accepted: Sequence[str]
) -> InvalidData:
    columns = listed(rename(row.values, source.columns))
    if found:
        return InvalidData(
            f"{field} fits several formats: {listed(found)} (columns {columns}): say which it is "
            f"in {field}.format",
            f"{field}.format",
        )
    formats = [FORMATS[name] for name in accepted]
    wanted = [c for f in formats for c in f.required] + [c for f in formats for c in f.columns]
    hint = next((h for c in row.values if (h := nearest(c, wanted, "is `{}` meant by it?"))), "")
    return InvalidData(
        f"{field} fits no format: {row.place} has the columns {columns}{hint}. Formats need "
        f"{', '.join(f.needs for f in formats)}: map columns in {field}.columns, such as "
        f"{_example_mapping(formats[0].columns, accepted)}",
        f"{field}.format",
    )


def _example_mapping(columns: Sequence[str], accepted: Sequence[str]) -> str:
    if "prompt_completion" in accepted:
        return "{'prompt': 'question', 'completion': 'answer'}"
    pairs = zip(columns, ("their_name", "another"), strict=False)  # a format may have one
    return str(dict(pairs))


def format_problem(source: DataSource, field: str, accepted: Sequence[str]) -> str | None:
    """Why a task does not take the format that a source names; None where it does."""
    if source.format in ("auto", *accepted):
        return None
    return (
        f"{field}.format is '{source.format}', which this task does not take: use 'auto' or one of "
        f"{listed(accepted)}"
    )


def mapping_problem(source: DataSource, field: str, accepted: Sequence[str] = ALL) -> str | None:
    """What is wrong with `columns` by itself; None where nothing is."""
    names = accepted if source.format == "auto" else (source.format,)
    known = list(dict.fromkeys(c for name in names for c in FORMATS[name].columns))
    unknown = next((name for name in source.columns if name not in known), None)
    if unknown is not None:
        return (
            f"{field}.columns maps '{unknown}'{nearest(unknown, known)}, which no format reads: "
            f"it maps our column names, {listed(known)}, to the source's"
        )
    if len(set(source.columns.values())) < len(source.columns):
        return f"{field}.columns maps one column of the source to several names: map it once"
    return None
