"""Training on rows of tokens, on TRL's SFTTrainer: shared by the tasks that do so."""

from typing import Any

from trainer_core.arguments import loop_arguments
from trainer_core.collator import Collator
from trainer_core.context import TrainContext
from trainer_core.errors import InvalidSpec
from trainer_core.loop import ExactLoop, attach, trainer_class
from trainer_core.loss_kernel import ensure_loss_kernel
from trainer_core.packed_attention import attend_by_sample

# Samples that see each other differ by 0.3 and more; these are rounding errors of the logits.
_TOLERANCE = 1e-3
_TOLERANCE_16_BIT = 5e-2


def token_trainer(context: TrainContext, loop: type = ExactLoop, **settings: Any) -> Any:
    """TRL's SFTTrainer on prepared tokens: rendering, masking and packing are done already.

    `settings` are further ones of SFTConfig.
    """
    from trl import SFTConfig, SFTTrainer

    ensure_loss_kernel()
    config = SFTConfig(
        **loop_arguments(context),
        max_length=None,
        packing=False,  # rows are packed when they are prepared
        dataset_kwargs={"skip_prepare_dataset": True},
        **settings,
    )
    free = _is_padding_free(context)
    trainer = trainer_class(SFTTrainer, loop)(
        model=context.loaded.model,
        args=config,
        data_collator=_collator(context, free=free),
        train_dataset=context.data.train,
        eval_dataset=context.data.validation,
        processing_class=context.loaded.tokenizer,
    )
    attach(trainer, context)
    if free or "position_ids" in context.data.columns:
        if trainer.model.device.type == "cpu":
            attend_by_sample()
        with trainer.compute_loss_context_manager():
            check_isolation(trainer.model)
    return trainer


def _is_padding_free(context: TrainContext) -> bool:
    """Whether batches are laid out as one row: a kernel of variable length runs, and is wanted."""
    if not context.loaded.model.config._attn_implementation.startswith("flash"):
        return False
    return "position_ids" in context.data.columns or bool(
        getattr(context.spec.task, "padding_free", False)
    )


def _collator(context: TrainContext, *, free: bool) -> Collator:
    return Collator(
        context.loaded.tokenizer.pad_token_id,
        context.flow.meter,
        flatten=free,
        multiple=getattr(context.spec.task, "pad_to_multiple_of", None) or 1,
    )


def check_isolation(model: Any) -> None:
    """Raise InvalidSpec unless this model keeps the samples of a packed row apart.

    Compares a sample's logits inside of a packed row with those of the sample alone.
    """
    import torch

    first, second = [1, 2, 3, 4], [3, 1, 2]
    row = torch.tensor([first + second], device=model.device)
    positions = torch.tensor([[*range(len(first)), *range(len(second))]], device=model.device)
    training = model.training
    model.eval()
    with torch.no_grad():
        packed = model(input_ids=row, position_ids=positions, use_cache=False).logits
        alone = model(input_ids=row[:, len(first) :], use_cache=False).logits
    model.train(training)
    difference = (packed[:, len(first) :] - alone).abs().max().item()
    tolerance = _TOLERANCE if alone.dtype == torch.float32 else _TOLERANCE_16_BIT
    if difference > tolerance * max(1.0, alone.abs().max().item()):
        raise InvalidSpec(
            f"this model lets the samples of a packed row see each other (logits differ by"
            f" {difference:.3g}): set task.packing to false",
            "task.packing",
        )
