"""The model card: what a model is, what it was made from and how to load it."""

import json
from dataclasses import dataclass
from typing import Any

from trainer_core.spec import DataSource, TrainSpec


@dataclass(frozen=True)
class CardFacts:
    """What the card says beside the spec.

    `kind` is `adapter`, `merged` or `full`; `merge_drift` the largest difference of logits that
    merging made; `base` the reference of the base model.
    """

    name: str
    base: str
    kind: str
    steps: int
    metrics: dict[str, Any]
    report: dict[str, Any]
    template_hash: str | None
    versions: dict[str, str]
    merge_drift: float | None = None


def model_card(spec: TrainSpec, facts: CardFacts) -> str:
    """The card as Markdown with the hub's front matter."""
    sections = [
        _front_matter(facts),
        f"# {facts.name}\n\n{_summary(facts)}",
        _table("Results", _results(facts)),
        _table("Data", _data(spec, facts)),
        _table("Settings", _settings(spec)),
        f"## How to load it\n\n```python\n{_loading(facts)}\n```",
        _table("Made with", facts.versions),
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(facts: CardFacts) -> str:
    library = "peft" if facts.kind == "adapter" else "transformers"
    lines = [
        "---",
        f"library_name: {library}",
        "pipeline_tag: text-generation",
        "tags: [polar-trainer, sft]",
    ]
    if "/" in facts.base and not facts.base.startswith(("/", ".", "s3:")):
        lines.append(f"base_model: {json.dumps(facts.base)}")
    return "\n".join([*lines, "---"])


def _summary(facts: CardFacts) -> str:
    what = {
        "adapter": "A LoRA adapter for",
        "merged": "A LoRA adapter merged into",
        "full": "A full fine-tuning of",
    }[facts.kind]
    text = f"{what} `{facts.base}`, made by supervised fine-tuning ({facts.steps} steps)."
    if facts.merge_drift is not None:
        text += f" Merging changed the logits by at most {facts.merge_drift:.3g}."
    return text


def _results(facts: CardFacts) -> dict[str, Any]:
    names = {
        "loss": "training loss (last)",
        "eval_loss": "validation loss",
        "eval_mean_token_accuracy": "validation token accuracy",
    }
    return {
        label: f"{facts.metrics[name]:.4f}"
        for name, label in names.items()
        if name in facts.metrics
    }


def _data(spec: TrainSpec, facts: CardFacts) -> dict[str, Any]:
    report = facts.report
    rows = {f"source {i}": _source(s) for i, s in enumerate(spec.data.train)}
    counted = {
        "rows": report.get("rows_kept"),
        "tokens": report.get("total_tokens"),
        "tokens with loss": report.get("trained_tokens"),
        "loss on": spec.task.loss_on,
        "data hash": report.get("data_hash"),
        "chat template hash": facts.template_hash,
    }
    return rows | {k: v for k, v in counted.items() if v is not None}


def _source(source: DataSource) -> str:
    revision = f" @ {source.revision}" if source.revision else ""
    return f"`{source.path}`{revision} ({source.source})"


def _settings(spec: TrainSpec) -> dict[str, Any]:
    settings: dict[str, Any] = spec.training.model_dump(exclude_none=True)
    settings["precision"] = spec.precision
    settings["max_length"] = spec.task.max_length
    settings["packing"] = spec.task.packing
    if spec.adapter is not None:
        settings |= {f"adapter.{k}": v for k, v in spec.adapter.model_dump().items()}
    return settings


def _table(title: str, rows: dict[str, Any]) -> str:
    body = "\n".join(f"| {k} | {_cell(v)} |" for k, v in rows.items())
    return f"## {title}\n\n| | |\n|---|---|\n{body}"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _loading(facts: CardFacts) -> str:
    if facts.kind == "adapter":
        return (
            "from peft import AutoPeftModelForCausalLM\n"
            "from transformers import AutoTokenizer\n\n"
            'folder = "…"  # this folder\n'
            "model = AutoPeftModelForCausalLM.from_pretrained(folder)\n"
            "tokenizer = AutoTokenizer.from_pretrained(folder)"
        )
    return (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'folder = "…"  # this folder\n'
        "model = AutoModelForCausalLM.from_pretrained(folder)\n"
        "tokenizer = AutoTokenizer.from_pretrained(folder)"
    )
