"""A reward model as a function of answers: a sequence classifier with one output."""

import json
from collections.abc import Sequence
from typing import Any

from trainer_core.data.templates import Template, choose_template
from trainer_core.errors import InvalidSpec
from trainer_core.reward_columns import ASKED, PREFIX
from trainer_core.task_facts import ModelKind

KIND = ModelKind(
    "AutoModelForSequenceClassification",
    "a sequence classifier",
    "SEQ_CLS",
)


class JudgingModel:
    """Called as every reward is; renders prompt and answer with the model's own template."""

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        if model.config.num_labels != 1:
            raise InvalidSpec(
                f"the reward model '{name}' has {model.config.num_labels} outputs: it must have"
                " one",
                "task.rewards.model",
            )
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._batch_size = 1
        self._template = (
            choose_template("tokenizer", tokenizer) if tokenizer.chat_template else None
        )

    def placed(self, device: str, batch_size: int) -> "JudgingModel":
        """On a device, where it judges `batch_size` answers at once."""
        self._model.to(device)
        self._batch_size = batch_size
        return self

    def __call__(self, completions: Sequence[str], **columns: Sequence[Any]) -> list[float]:
        """One number an answer."""
        import torch

        asked = columns[PREFIX + ASKED]
        texts = [
            _text(json.loads(question), said, self._template)
            for question, said in zip(asked, completions, strict=True)
        ]
        found: list[float] = []
        for start in range(0, len(texts), self._batch_size):
            batch = self._tokenizer(
                texts[start : start + self._batch_size],
                add_special_tokens=self._template is None,
                padding=True,
                truncation=self._tokenizer.model_max_length < _LONGEST,
                return_tensors="pt",
            )
            with torch.no_grad():
                logits = self._model(**batch.to(self._model.device)).logits
            found += logits[:, 0].float().tolist()
        return found


_LONGEST = 1 << 20
"""Tokenizers without a limit say a number above this one."""


def _text(question: Any, said: str, template: Template | None) -> str:
    if isinstance(question, str):
        return question + said
    turns = [*question, {"role": "assistant", "content": said}]
    if template is None:
        return "\n".join(turn["content"] for turn in turns)
    return template.render(turns)
