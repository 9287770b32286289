"""The loop's settings as every Trainer class of Transformers and TRL takes them."""

from typing import Any

from trainer_core.context import TrainContext


def loop_arguments(context: TrainContext) -> dict[str, Any]:
    """Keyword arguments for a TrainingArguments class; logging, evaluation and saving are ours."""
    spec, training = context.spec, context.spec.training
    return {
        "output_dir": str(context.checkpointer.staging),
        "per_device_train_batch_size": training.per_device_train_batch_size,
        "per_device_eval_batch_size": training.per_device_eval_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "learning_rate": training.learning_rate,
        "num_train_epochs": training.num_train_epochs,
        "max_steps": training.max_steps or -1,
        "optim": training.optim,
        "adam_beta1": training.adam_beta1,
        "adam_beta2": training.adam_beta2,
        "adam_epsilon": training.adam_epsilon,
        "lr_scheduler_type": training.lr_scheduler_type,
        "warmup_steps": _steps_or_share(training.warmup_steps),
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "seed": training.seed,
        "data_seed": training.seed if training.data_seed is None else training.data_seed,
        "gradient_checkpointing": bool(training.gradient_checkpointing),
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "neftune_noise_alpha": training.neftune_noise_alpha,
        "bf16": spec.precision == "bf16",
        "fp16": spec.precision == "fp16",
        "use_cpu": context.use_cpu,
        **_OURS,
        "dataloader_pin_memory": not context.use_cpu,
    }


_OURS: dict[str, Any] = {
    "logging_strategy": "no",
    "eval_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "logging_nan_inf_filter": False,  # a NaN must not be logged as the average of the others
    "remove_unused_columns": False,
    "dataloader_num_workers": 0,
    "average_tokens_across_devices": False,  # `trainer_core.rank_loop` does it for every task
    # Every trained weight has a part in every loss; looking for others would cost a walk each step.
    "ddp_find_unused_parameters": False,
}


def _steps_or_share(value: float) -> float | int:
    return value if value < 1 else round(value)
