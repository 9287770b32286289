"""`number_gpu` and DeepSpeed: devices and processes."""

from pathlib import Path

from app.xgen.mapping.draft import Draft, shown
from trainer_core.task import TASKS

_SETTINGS = (
    "ds_jsonpath",
    "ds_preset",
    "ds_stage2_bucket_size",
    "ds_stage3_sub_group_size",
    "ds_stage3_max_live_parameters",
    "ds_stage3_max_reuse_distance",
)


def devices(draft: Draft) -> None:
    """More than one GPU means as many processes on one host, where the task can be spread."""
    count = draft.form.number_gpu
    if not draft.form.ddp_find_unused_parameters:
        draft.without_effect(
            ["ddp_find_unused_parameters"], "parameters without a gradient are found by themselves"
        )
    if count == 1:
        return
    if (reason := TASKS[draft.task].FACTS.ddp) is not None:
        draft.refuse(
            "number_gpu",
            f"is {count}, but task {shown(draft.task)} trains in one process ({reason}): use 1",
        )
        return
    draft.put("compute.gpus.count", count, "number_gpu")
    draft.put("distributed.strategy", "ddp", "number_gpu")
    draft.put("distributed.processes", count, "number_gpu")


def deepspeed(draft: Draft) -> None:
    """There is no ZeRO here: a warning says what is done instead."""
    form = draft.form
    if form.ds_jsonpath and not _is_allowed(draft, form.ds_jsonpath):
        allowed = ", ".join(map(str, draft.around.settings.data_folders)) or "none"
        draft.refuse(
            "ds_jsonpath",
            f"is {shown(form.ds_jsonpath)}, which is not below a folder of POLAR_DATA_FOLDERS"
            f" ({allowed}): leave it empty",
        )
    if not form.use_deepspeed:
        draft.without_effect(_SETTINGS, "use_deepspeed is false")
        return
    if form.number_gpu == 1:
        instead = "is true, but one process has nothing to share out: it trains without DeepSpeed"
    else:
        instead = (
            f"is true, but there is no DeepSpeed here: {form.number_gpu} processes share the rows "
            "of each step (ddp), and each holds all weights and the whole state of the optimizer"
        )
    draft.warn("use_deepspeed", instead)
    draft.without_effect(_SETTINGS, "there is no DeepSpeed here")


def _is_allowed(draft: Draft, path: str) -> bool:
    if "\0" in path or ".." in Path(path).parts:
        return False
    try:
        real = Path(path).resolve()
    except (OSError, RuntimeError):
        return False
    return any(real.is_relative_to(f.resolve()) for f in draft.around.settings.data_folders)
