"""The model card: what a model is, what it was made from and how to load it."""

import json
from dataclasses import dataclass
from typing import Any

from trainer_core.spec import DataSource, TrainSpec, is_repo_id
from trainer_core.task import task_of
from trainer_core.task_facts import IMAGE_PROCESSOR, PROCESSOR, TOKENIZER, ModelKind

_NOT_SETTINGS = {"type", "chat_template", "default_system", "loss_on", "label_names"}
_SHOWN_LABELS = 20
_ADAPTERS = {
    "lora": "A LoRA adapter",
    "adalora": "An AdaLoRA adapter",
    "ia3": "An (IA)³ adapter",
    "vera": "A VeRA adapter",
    "layernorm": "Trained norms",
}
_EMBEDDING = """from sentence_transformers import SentenceTransformer

folder = "…"  # this folder
model = SentenceTransformer(folder)
vectors = model.encode(["a text", "another one"])
similarities = model.similarity(vectors, vectors)"""

_OF_IMAGES = """from transformers import pipeline

folder = "…"  # this folder
classify = pipeline("image-classification", model=folder)
print(classify("image.png"))"""


@dataclass(frozen=True)
class CardFacts:
    """What the card says beside the spec.

    `kind` is `adapter`, `merged` or `full`; `merge_drift` the largest difference of logits that
    merging made, `quantization_drift` that to the model on its quantized base, as shares of the
    largest logit; `base` the reference of the base model.
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
    quantization_drift: float | None = None


def model_card(spec: TrainSpec, facts: CardFacts) -> str:
    """The card as Markdown with the hub's front matter."""
    sections = [
        _front_matter(spec, facts),
        f"# {facts.name}\n\n{_summary(spec, facts)}",
        _table("Results", _results(spec, facts)),
        _table("Data", _data(spec, facts)),
        _table("Settings", _settings(spec)),
        f"## How to load it\n\n```python\n{_loading(spec, facts)}\n```",
        _table("Made with", facts.versions),
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(spec: TrainSpec, facts: CardFacts) -> str:
    library = task_of(spec).FACTS.model.framework
    if facts.kind == "adapter" and library == "transformers":
        library = "peft"
    lines = [
        "---",
        f"library_name: {library}",
        f"pipeline_tag: {task_of(spec).FACTS.card.pipeline_tag}",
        f"tags: [polar-trainer, {spec.task.type}]",
    ]
    if is_repo_id(facts.base) and not _is_from_scratch(spec):
        lines.append(f"base_model: {json.dumps(facts.base)}")
    return "\n".join([*lines, "---"])


def _summary(spec: TrainSpec, facts: CardFacts) -> str:
    adapter = _ADAPTERS.get(spec.adapter.type if spec.adapter else "", "")
    what = {
        "adapter": f"{adapter} for",
        "merged": f"{adapter} merged into",
        "full": "A partial fine-tuning of" if spec.adapter else "A full fine-tuning of",
    }[facts.kind]
    made_by = task_of(spec).FACTS.card.made_by
    if _is_from_scratch(spec):
        what = "A model that began at random, with the tokenizer of"
    text = f"{what} `{facts.base}`, made by {made_by} ({facts.steps} steps)."
    if facts.merge_drift is not None:
        text += (
            f" Merging changed the logits by at most {facts.merge_drift:.3g} of the largest one."
        )
    if facts.quantization_drift is not None:
        text += (
            " It was trained on a quantized base and merged onto the whole one: between the two the"
            f" logits differ by at most {facts.quantization_drift:.3g} of the largest one."
        )
    return text


def _is_from_scratch(spec: TrainSpec) -> bool:
    return task_of(spec).FACTS.model.from_config(spec) is not None


def _results(spec: TrainSpec, facts: CardFacts) -> dict[str, Any]:
    return {
        label: f"{facts.metrics[name]:.4f}"
        for name, label in task_of(spec).FACTS.card.results.items()
        if name in facts.metrics
    }


def _data(spec: TrainSpec, facts: CardFacts) -> dict[str, Any]:
    report = facts.report
    rows = {f"source {i}": _source(s) for i, s in enumerate(spec.data.train)}
    has_tokens = task_of(spec).FACTS.model.reader != IMAGE_PROCESSOR
    counted = {
        "rows": report.get("rows_kept"),
        "tokens": report.get("total_tokens") if has_tokens else None,
        "tokens with loss": report.get("trained_tokens") if has_tokens else None,
        "loss on": getattr(spec.task, "loss_on", None),
        "labels": _labels(report),
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
    settings |= spec.task.model_dump(exclude=_NOT_SETTINGS, exclude_none=True)
    if spec.adapter is not None:
        settings |= {f"adapter.{k}": v for k, v in spec.adapter.model_dump().items()}
    if spec.quantization is not None:
        settings |= {f"quantization.{k}": v for k, v in spec.quantization.model_dump().items()}
    if spec.model.new_tokens:
        settings["new tokens"] = ", ".join(spec.model.new_tokens[:_SHOWN_LABELS])
    return settings


def _table(title: str, rows: dict[str, Any]) -> str:
    body = "\n".join(f"| {k} | {_cell(v)} |" for k, v in rows.items())
    return f"## {title}\n\n| | |\n|---|---|\n{body}"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _labels(report: dict[str, Any]) -> str | None:
    labels = report.get("facts", {}).get("labels")
    if not labels:
        return None
    more = f" and {len(labels) - _SHOWN_LABELS} more" if len(labels) > _SHOWN_LABELS else ""
    return ", ".join(map(str, labels[:_SHOWN_LABELS])) + more


def _loading(spec: TrainSpec, facts: CardFacts) -> str:
    kind = task_of(spec).FACTS.model
    if kind.framework == "sentence-transformers":
        return _EMBEDDING
    auto_class = kind.auto_class
    if facts.kind != "adapter" and kind.reader == IMAGE_PROCESSOR:
        return _OF_IMAGES
    if facts.kind != "adapter":
        imports = f"from transformers import {auto_class}, {kind.reader}"
        return _snippet(imports, auto_class, kind.reader)
    if kind.new_head or kind.reader != TOKENIZER:
        return _beside_base(kind, facts.base)
    peft_class = auto_class.replace("AutoModel", "AutoPeftModel")
    imports = f"from peft import {peft_class}\nfrom transformers import AutoTokenizer"
    return _snippet(imports, peft_class)


def _beside_base(kind: ModelKind, base: str) -> str:
    """For kinds of models that PEFT has no class of its own for, or whose labels the folder has."""
    config, given, labels = "", "", ""
    reader, reading = ", AutoTokenizer", "tokenizer = AutoTokenizer.from_pretrained(folder)"
    if kind.reader == PROCESSOR:
        reader, reading = f", {PROCESSOR}", f"processor = {PROCESSOR}.from_pretrained(folder)"
    if kind.reader == IMAGE_PROCESSOR:
        reader = f"\nfrom transformers.models.auto.image_processing_auto import {IMAGE_PROCESSOR}"
        reading = f"processor = {IMAGE_PROCESSOR}.from_pretrained(folder)"
    if kind.keeps_labels:
        config, given = "AutoConfig, ", ", config=config"
        labels = "config = AutoConfig.from_pretrained(folder)  # with the names of the labels\n"
    return (
        "from peft import PeftModel\n"
        f"from transformers import {config}{kind.auto_class}{reader}\n\n"
        'folder = "…"  # this folder\n'
        f"{labels}base = {kind.auto_class}.from_pretrained({json.dumps(base)}{given})\n"
        "model = PeftModel.from_pretrained(base, folder)\n"
        f"{reading}"
    )


def _snippet(imports: str, auto_class: str, reader: str = TOKENIZER) -> str:
    name = "tokenizer" if reader == TOKENIZER else "processor"
    return (
        f"{imports}\n\n"
        'folder = "…"  # this folder\n'
        f"model = {auto_class}.from_pretrained(folder)\n"
        f"{name} = {reader}.from_pretrained(folder)"
    )
