"""The report of an evaluation: metrics with intervals, and the answers, as files of a folder."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer_core.context import TrainContext
from trainer_core.evaluation.answers import told
from trainer_core.evaluation.base import Evaluated
from trainer_core.evaluation.bootstrap import CONFIDENCE, RESAMPLES, Compared, compare
from trainer_core.evaluation.metrics import chosen, fitting
from trainer_core.evaluation.protocol import Metric
from trainer_core.evaluation.run import questions_of, references_of
from trainer_core.measured import can_be_given
from trainer_core.publish.manifest import sync_folder, write_durably
from trainer_core.report import Reporter

FOLDER = "evaluation"
REPORT = "report.json"
ANSWERS = "answers.jsonl"
_STAGING = ".evaluation.writing"


def compared(context: TrainContext, ours: Evaluated, base: Evaluated | None) -> dict[str, Compared]:
    """Every metric that the rows allow, or those that the spec names; a warning tells of a named
    one whose columns these rows do not give.

    Resamplings may take long: the run says that it lives, and raises Interrupted when a signal asks
    to stop.
    """

    def between() -> None:
        context.flow.stop.check()
        context.flow.say_it_lives()

    wanted = context.spec.evaluation.metrics
    found = {}
    for metric in chosen(wanted):
        columns = fitting(metric, ours.groups)
        if columns is None or not can_be_given(context.spec, metric.name):
            if wanted is not None:
                context.flow.report.warn("metric_left_out", _lacking(metric, ours))
            continue
        theirs = None if base is None else fitting(metric, base.groups)
        found[metric.name] = compare(metric, columns, theirs, context.spec.training.seed, between)
    return found


def _lacking(metric: Metric, ours: Evaluated) -> str:
    have = sorted({name for columns in ours.groups for name in columns})
    needs = ", ".join(metric.needs)
    return (
        f"the report has no '{metric.name}', which evaluation.metrics names: it needs {needs} of"
        f" the rows, and these give {', '.join(have)}"
    )


def report_on(
    work: Path,
    context: TrainContext,
    models: tuple[Evaluated, Evaluated | None],
    names: dict[str, Any],
) -> dict[str, Compared]:
    """Compare a model with its base where there is one, and write the folder `evaluation`.

    `names` are further facts of the report. Whole or not at all. Raises InvalidSpec.
    """
    ours, base = models
    found = compared(context, ours, base)
    report = {
        "version": 1,
        **names,
        "task": context.spec.task.type,
        "rows": len(context.data.validation or ()),
        "data_hash": context.data.data_hash,
        "metrics": {name: each.plain() for name, each in found.items()},
        "measured": ours.measured,
        "measured_base": None if base is None else base.measured,
        "bootstrap": {"resamples": RESAMPLES, "confidence": CONFIDENCE}
        | {"seed": context.spec.training.seed},
        "generation": None,
    }
    if (wish := context.spec.evaluation.generation) is not None:
        report["generation"] = wish.model_dump() | {"answers": len(ours.answers)}
    staging = work / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    if ours.answers:
        lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in _answers(context, models))
        write_durably(staging / ANSWERS, "".join(lines).encode("utf-8", "backslashreplace"))
    write_durably(staging / REPORT, json.dumps(report, indent=1, ensure_ascii=False).encode())
    shutil.rmtree(work / FOLDER, ignore_errors=True)
    staging.rename(work / FOLDER)
    sync_folder(work)
    return found


def _answers(
    context: TrainContext, models: tuple[Evaluated, Evaluated | None]
) -> Iterator[dict[str, str]]:
    ours, base = models
    tokenizer = context.loaded.tokenizer
    references = references_of(context)
    for number, question in enumerate(questions_of(context)):
        line = {
            "prompt": told(tokenizer, question.prompt, special=True),
            "reference": references[number],
            "answer": ours.answers[number],
        }
        yield line if base is None else line | {"base": base.answers[number]}


def tell(report: Reporter, work: Path, found: dict[str, Compared], step: int) -> None:
    """Say what was found: one event of metrics, a line for people, and the report as artifact."""
    values = {f"eval_{name}": each.value for name, each in found.items() if each.value is not None}
    report.emit("metrics", step=step, **values)
    for name, each in found.items():
        if each.base is None or each.interval is None:
            continue
        low, high = each.interval
        report.log(
            f"{name}: {each.value:.6g} after {each.base:.6g}, a difference of"
            f" {each.difference:+.4g} (95 % of resampled rows: {low:+.4g} to {high:+.4g})"
        )
    size = sum(path.stat().st_size for path in (work / FOLDER).iterdir())
    report.emit("artifact", path=FOLDER, kind="report", bytes=size)
