"""What a finished model says: chats, labels of texts and images, likeness of two texts.

`python -m trainer_core answer FOLDER` loads the model once and answers requests, one JSON object a
line, until its input ends:

    {"ready": "chat"}                                        which kind it is, first of all
    ← {"messages": [...], "max_tokens": 256, "temperature": 0}
    → {"piece": "It"} {"piece": " was sent"} … {"done": {"text": "It was sent"}}
    ← {"text": "…"} or {"image": "cat.png"}     → {"done": {"labels": [{"label", "score"}, …]}}
    ← {"texts": ["…", "…"]}                     → {"done": {"similarity": 0.93}}
    → {"error": "…"} for a request that cannot be answered
"""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trainer_core.errors import InvalidSpec, ModelUnavailable
from trainer_core.model_source import adapter_base

Tell = Callable[[dict[str, Any]], None]
Answer = Callable[[dict[str, Any], Tell], dict[str, Any]]

_HEADS = (
    ("ForSequenceClassification", "classify"),
    ("ForImageClassification", "images"),
    ("ForCausalLM", "chat"),
)
_ADAPTED = {"CAUSAL_LM": "chat", "SEQ_CLS": "classify"}


def kind_of(folder: Path) -> str:
    """`chat`, `classify`, `images` or `embed`; raises ModelUnavailable for anything else."""
    if (folder / "modules.json").is_file():
        return "embed"
    config, adapter = _json(folder / "config.json"), _json(folder / "adapter_config.json")
    if (kind := _ADAPTED.get(str(adapter.get("task_type")))) is not None:
        return kind
    if adapter and (folder / "preprocessor_config.json").is_file():
        return "images"
    named = " ".join(map(str, config.get("architectures") or []))
    for head, kind in _HEADS:
        if head in named:
            return kind
    what = named or "no model's configuration"
    raise ModelUnavailable(f"{folder} holds {what}: it neither chats, nor classifies, nor embeds")


def answer_command(folder: Path, base: str | None) -> int:
    """Load the model and answer the lines of stdin; `base` is where an adapter's base lies now."""
    kind = kind_of(folder)
    answer = _LOADERS[kind](folder, base)
    _tell({"ready": kind})
    for line in sys.stdin:
        _answered(answer, line)
    return 0


def _answered(answer: Answer, line: str) -> None:
    try:
        _tell({"done": answer(json.loads(line), _tell)})
    except (InvalidSpec, OSError, ValueError, KeyError) as error:
        _tell({"error": f"{type(error).__name__}: {error}"})


def _tell(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


def _load(auto_class: Any, folder: Path, base: str | None) -> Any:
    """The model, ready to be asked; an adapter lies on its base, which keeps the labels' names."""
    import torch
    from transformers import AutoConfig

    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = adapter_base(folder)
    if found is None:
        return auto_class.from_pretrained(folder).to(device).eval()
    from peft import PeftModel

    place, revision = (base, None) if base is not None else found
    options: dict[str, Any] = {"revision": revision} if revision else {}
    if (folder / "config.json").is_file():
        options["config"] = AutoConfig.from_pretrained(folder)
    try:
        whole = auto_class.from_pretrained(place, **options)
    except OSError as error:
        raise ModelUnavailable(
            f"the adapter's base {place} is not here: name its folder by --base"
        ) from error
    return PeftModel.from_pretrained(whole, folder).to(device).eval()


def _chat(folder: Path, base: str | None) -> Answer:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = _load(AutoModelForCausalLM, folder, base)

    def answer(request: dict[str, Any], tell: Tell) -> dict[str, Any]:
        inputs = _rendered(tokenizer, request["messages"]).to(model.device)
        heat = float(request.get("temperature", 0))
        output = model.generate(
            **inputs,
            max_new_tokens=int(request.get("max_tokens", 256)),
            do_sample=heat > 0,
            temperature=heat if heat > 0 else None,
            top_p=None,
            top_k=None,
            streamer=_streamer(tokenizer, tell),
        )
        new = output[0][inputs["input_ids"].shape[1] :]
        return {"text": tokenizer.decode(new, skip_special_tokens=True).strip()}

    return answer


def _rendered(tokenizer: Any, messages: Iterable[dict[str, str]]) -> Any:
    """What the model is asked, as it learned to be: by its template, or the bare texts."""
    if tokenizer.chat_template is None:
        text = "\n".join(message["content"] for message in messages)
        return tokenizer(text, return_tensors="pt")
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )


def _streamer(tokenizer: Any, tell: Tell) -> Any:
    from transformers import TextStreamer

    class Teller(TextStreamer):  # type: ignore[misc]
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
            if text:
                tell({"piece": text})

    return Teller(tokenizer, skip_prompt=True, skip_special_tokens=True)


def _classify(folder: Path, base: str | None) -> Answer:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = _load(AutoModelForSequenceClassification, folder, base)

    def answer(request: dict[str, Any], tell: Tell) -> dict[str, Any]:
        del tell
        inputs = tokenizer(request["text"], truncation=True, return_tensors="pt")
        return _labels(model, inputs)

    return answer


def _images(folder: Path, base: str | None) -> Answer:
    from PIL import Image  # noqa: PLC0415 - heavy
    from transformers import AutoModelForImageClassification
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(folder)
    model = _load(AutoModelForImageClassification, folder, base)

    def answer(request: dict[str, Any], tell: Tell) -> dict[str, Any]:
        del tell
        with Image.open(request["image"]) as picture:
            return _labels(model, processor(picture.convert("RGB"), return_tensors="pt"))

    return answer


def _labels(model: Any, inputs: Any) -> dict[str, Any]:
    """Every label with its score, the best first; a number for a model that learned numbers."""
    import torch

    with torch.inference_mode():
        logits = model(**inputs.to(model.device)).logits[0].float().cpu()
    config = model.config
    if config.num_labels == 1:
        return {"value": float(logits[0])}
    several = config.problem_type == "multi_label_classification"
    scores = logits.sigmoid() if several else logits.softmax(-1)
    named = [
        {"label": config.id2label[index], "score": float(score)}
        for index, score in enumerate(scores)
    ]
    return {"labels": sorted(named, key=lambda each: -each["score"])}


def _embed(folder: Path, base: str | None) -> Answer:
    from sentence_transformers import SentenceTransformer

    if base is not None:
        raise InvalidSpec("--base is for adapters of language models and classifiers", "base")
    model = SentenceTransformer(str(folder))

    def answer(request: dict[str, Any], tell: Tell) -> dict[str, Any]:
        del tell
        first, second = model.encode(list(request["texts"]))
        return {"similarity": float(model.similarity(first, second)[0][0])}

    return answer


_LOADERS: dict[str, Callable[[Path, str | None], Answer]] = {
    "chat": _chat,
    "classify": _classify,
    "images": _images,
    "embed": _embed,
}
