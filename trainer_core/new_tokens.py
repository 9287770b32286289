"""Tokens that a spec adds: known to the tokenizer, with rows of their own in the embeddings."""

from typing import Any

from trainer_core.errors import InvalidSpec
from trainer_core.spec import ModelRef


def with_new_tokens(tokenizer: Any, model: ModelRef) -> Any:
    """The tokenizer, which knows `model.add_tokens` and `model.add_special_tokens` afterwards.

    Raises InvalidSpec for a token that it has already. What reads no text (None) stays None.
    """
    if tokenizer is None:
        return None
    from transformers import AddedToken

    known = set(tokenizer.get_vocab())
    for field, special in (("add_tokens", False), ("add_special_tokens", True)):
        for token in getattr(model, field):
            if token in known:
                raise InvalidSpec(
                    f"model.{field} has {token!r}, which the tokenizer knows already: take it out",
                    f"model.{field}",
                )
            known.add(token)
            added = AddedToken(token, special=special, normalized=False)
            tokenizer.add_tokens([added], special_tokens=special)
    return tokenizer


def fit_embeddings(model: Any, tokenizer: Any, reference: str, *, grows: bool) -> None:
    """Give every token of the tokenizer a row in the model's embeddings.

    Rows beyond the tokenizer's length, as many models have them, stay. New rows are drawn around
    the mean of the others. Raises InvalidSpec where rows lack though no token is new.
    """
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) <= rows:
        return
    if not grows:
        raise InvalidSpec(
            f"the tokenizer of '{reference}' has {len(tokenizer)} tokens, its model"
            f" {rows}: they do not belong together",
            "model.name_or_path",
        )
    model.resize_token_embeddings(len(tokenizer))
