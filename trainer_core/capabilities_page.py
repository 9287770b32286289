"""`docs/capabilities.md`: the table of what can be combined, as people read it.

Everything in it comes from what refuses specs: `capabilities.TABLE`, `NEEDS_GPU`, the rules with
their docstrings, and each task's `FACTS`.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from trainer_core.capabilities import (
    NEEDS_GPU,
    QUANTIZATIONS,
    RULES,
    STRATEGIES,
    TABLE,
    Capability,
)
from trainer_core.task import TASKS, Task
from trainer_core.task_rules import dotted

_HEAD = """# Capabilities

What can be combined, and why the rest is refused. This page is written by `make docs` from the
table that `POST /jobs` refuses by and that `GET /capabilities` answers
(`trainer_core/capabilities.py`); a test fails when it is stale.

✓ works; a number stands for the reason below the table. `1` is a training in one process, `ddp`
one in several.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD, *(_of_task(name, task) for name, task in TASKS.items()), _on_a_cpu(), _rules()]
    return "\n".join(parts)


def _of_task(name: str, task: Task) -> str:
    rows = [row for row in TABLE if row.task == name]
    reasons = list(dict.fromkeys(row.reason for row in rows if row.reason is not None))
    lines = [f"## `{name}`", "", *_facts(task), "", *_grid(rows, reasons)]
    lines += ["", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))]
    return "\n".join([*lines, ""] if reasons else lines)


def _facts(task: Task) -> Iterator[str]:
    facts = task.FACTS
    yield f"- Model: {facts.model.what}"
    if facts.trains:
        yield f"- Row formats: {_listed(facts.formats)}"
        yield f"- `data.over_length`: {_listed(facts.over_length)}"
        streams = "yes" if facts.streams else "no"
        yield f"- `data.streaming`: {streams}"
        measured = [name for name in facts.metrics if not name.endswith("/mean")]
        yield f"- Measures: {_listed(('loss', *measured))}"
    yield f"- Refused beside the table: {_said(task.problems)}"


def _grid(rows: Sequence[Capability], reasons: Sequence[str]) -> Iterator[str]:
    columns = list(product(QUANTIZATIONS, STRATEGIES))
    heads = [f"{_base(q)} · {'1' if s == 'none' else s}" for q, s in columns]
    yield _row("adapter", *heads)
    yield _row(*["---"] * (len(heads) + 1))
    for adapter in dict.fromkeys(row.adapter for row in rows):
        found = {(r.quantization, r.strategy): r.reason for r in rows if r.adapter == adapter}
        cells = [found[column] for column in columns]
        name = "none (every weight)" if adapter == "none" else adapter
        yield _row(name, *("✓" if r is None else str(reasons.index(r) + 1) for r in cells))


def _on_a_cpu() -> str:
    lines = ["## Refused without a GPU", "", _row("field", "value", "why, and what to use")]
    lines.append(_row("---", "---", "---"))
    for need in NEEDS_GPU:
        field, why = f"`{dotted(need.pointer)}`", f"{need.why}: use {need.instead}"
        lines.append(_row(field, f"`{need.value}`", why))
    return "\n".join([*lines, ""])


def _rules() -> str:
    lines = ["## Rules for every task", ""]
    lines += [f"- {_said(rule)}" for rule in RULES]
    return "\n".join([*lines, ""])


def _said(rule: Callable[..., Any]) -> str:
    """A rule in its own words, on one line."""
    return " ".join((inspect.getdoc(rule) or "").split())


def _base(quantization: str) -> str:
    return "16 or 32 bits" if quantization == "none" else quantization


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
