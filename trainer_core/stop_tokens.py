"""Where a trained model stops: the token that ends texts and turns, agreed upon by all parts."""

from collections.abc import Iterator
from typing import Any

from trainer_core.data.masks import Masker
from trainer_core.data.templates import Template
from trainer_core.errors import InvalidSpec

_FIELD = "task.eos_token"


def use_eos(tokenizer: Any, token: str | None) -> None:
    """Make a token of the vocabulary the tokenizer's EOS; None leaves it as it is."""
    if token is None:
        return
    if token not in tokenizer.get_vocab():
        raise InvalidSpec(
            f"{_FIELD} is '{token}', which is no token of the model's tokenizer: name one of its "
            "tokens, such as the one that ends turns in its chat template",
            _FIELD,
        )
    tokenizer.eos_token = token


def stop_where_turns_end(model: Any, tokenizer: Any, template: Template | None) -> Iterator[str]:
    """Have generation stop at EOS and at the template's end of turn; yields what was missing.

    Engines read it from `generation_config.json`, which adapters are published without.
    """
    settings = getattr(model, "generation_config", None)
    if settings is None:
        return
    ends = [tokenizer.eos_token]
    if template is not None:
        ends.append(Masker(template, tokenizer).end_of_turn())
    known = settings.eos_token_id
    ids = [known] if isinstance(known, int) else list(known or [])
    for token in dict.fromkeys(end for end in ends if end is not None):
        number = tokenizer.convert_tokens_to_ids(token)
        if number not in ids:
            ids.append(number)
            yield token
    settings.eos_token_id = ids[0] if len(ids) == 1 else ids or None
