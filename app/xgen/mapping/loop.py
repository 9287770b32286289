"""The loop, its optimizer and its precision."""

from app.xgen.mapping.draft import Draft, shown
from app.xgen.mapping.embedding import accumulates, loss_of

_SAME = (
    "learning_rate",
    "num_train_epochs",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "weight_decay",
    "max_grad_norm",
    "gradient_checkpointing",
    "logging_steps",
)
_ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")
_WITHOUT_ADAM = ("sgd", "adafactor")


def describe(draft: Draft) -> None:
    """Fill the block `training`, but for the optimizer."""
    form = draft.form
    if not form.do_train:
        draft.refuse(
            "do_train",
            "is false, but this trains models: set it to true, or measure a model with POST /jobs"
            " and task {type: evaluation}",
        )
    draft.copy("training", [(name, name) for name in _SAME])
    _accumulation(draft)
    draft.put("training.warmup_steps", form.warmup_ratio, "warmup_ratio")
    draft.without_effect(["is_resume"], _RESUME)
    draft.without_effect(
        ["output_dir", "overwrite_output_dir"],
        "each attempt has a folder of its own, and nothing is overwritten",
    )


def _accumulation(draft: Draft) -> None:
    """Batches that a loss looks at as a whole are not one large batch when they are added up."""
    name = "gradient_accumulation_steps"
    steps = getattr(draft.form, name)
    if steps > 1 and draft.task == "sentence_transformer" and not accumulates(loss_of(draft)):
        draft.warn(
            name,
            f"is {steps}, but loss {shown(loss_of(draft))} compares the rows of a batch, so that 1 "
            "is used: raise per_device_train_batch_size for larger steps",
        )
        steps = 1
    draft.put(f"training.{name}", steps, name)


_RESUME = (
    "a run that is lost goes on from its newest checkpoint by itself; POST /jobs/{id}/retry goes "
    "on from that of a job that has ended"
)


def optimizer(draft: Draft) -> None:
    """`use_stableadamw` wins, unless only `optim` was given."""
    form = draft.form
    chosen: str = form.optim
    only_optim = form.is_set("optim") and "use_stableadamw" not in form.model_fields_set
    if form.use_stableadamw and not only_optim:
        chosen = "stable_adamw"
        if form.is_set("optim") and form.optim != chosen:
            draft.without_effect(["optim"], "use_stableadamw is true, and wins")
        draft.put("training.optim", chosen, "use_stableadamw")
    else:
        draft.put("training.optim", chosen, "optim")
    if chosen in _WITHOUT_ADAM:
        draft.without_effect(_ADAM, f"optimizer {shown(chosen)} has no such setting")
    else:
        draft.copy("training", [(name, name) for name in _ADAM])


def precision(draft: Draft) -> None:
    """What the hardware has not becomes `auto`; both are refused where both were given."""
    form = draft.form
    both = form.bf16 and form.fp16
    if both and "bf16" in form.model_fields_set:
        draft.refuse("bf16", "and fp16 are both true: set one of them to false")
        return
    name = "fp16" if form.fp16 else "bf16"
    if not getattr(form, name):
        draft.put("precision", "fp32", "bf16")
        return
    hardware = draft.around.hardware
    there = draft.around.gpus > 0 and (name == "fp16" or bool(hardware and hardware.bf16))
    draft.put("precision", name if there else "auto", name)
    if not there:
        missing = "no host is online" if hardware is None else f"no GPU here has {name}"
        draft.warn(name, f"is true, but {missing}: 'auto' takes what the machine computes best in")
