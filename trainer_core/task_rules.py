"""Rules that several task types share; each task names those that hold for it."""

from collections.abc import Iterator

from trainer_core.problems import Problem
from trainer_core.spec import DataSource, TrainSpec


def template_problem(template: str) -> Iterator[Problem]:
    """A `task.chat_template` that is neither a known word nor a Jinja template."""
    if template not in ("auto", "tokenizer") and "{{" not in template and "{%" not in template:
        shown = repr(template[:60])
        text = (
            f"task.chat_template is {shown}, which is neither 'auto', 'tokenizer' nor a Jinja "
            "template: give one of these"
        )
        yield Problem(pointer="/task/chat_template", message=text, value=shown)


def sources_with_pointers(spec: TrainSpec) -> Iterator[tuple[str, DataSource]]:
    """Every source with its JSON pointer, training first."""
    parts = {"train": spec.data.train}
    if isinstance(spec.data.validation, list):
        parts["validation"] = spec.data.validation
    for part, sources in parts.items():
        for number, source in enumerate(sources):
            yield f"/data/{part}/{number}", source


def dotted(pointer: str) -> str:
    """A pointer as people write it: `data.train[0].path`."""
    parts = pointer.removeprefix("/").split("/")
    return "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in parts).removeprefix(".")
