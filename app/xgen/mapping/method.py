"""`training_method` and the `use_…trainer` switches: which task is trained."""

from app.xgen.mapping.draft import Draft, shown

_SWITCHES = {
    "use_sfttrainer": "sft",
    "use_custom_kl_sfttrainer": "sft",
    "use_dpotrainer": "dpo",
    "use_grpotrainer": "grpo",
}
_EMBEDDING = "sentence_transformer"
_COLUMNS = ("dataset_minor_column", "dataset_last_column")


def choose(draft: Draft) -> None:
    """Set the task's type; refuses switches that contradict it or each other."""
    form = draft.form
    if form.use_ppotrainer:
        draft.refuse(
            "use_ppotrainer",
            "is true, but there is no PPO here: use training_method 'grpo' or 'dpo'",
        )
    on = [name for name in _SWITCHES if getattr(form, name)]
    method = form.training_method
    if "training_method" not in form.model_fields_set and on:
        method = _SWITCHES[on[0]]  # type: ignore[assignment]
    for name in on:
        if _SWITCHES[name] != method:
            draft.refuse(
                name,
                f"is true, but training_method is {shown(method)}: set {name} to false, or "
                f"training_method to {shown(_SWITCHES[name])}",
            )
    draft.task = _task(draft, method)
    draft.put("task.type", draft.task, "training_method")


def _task(draft: Draft, method: str) -> str:
    """The rule for `cls` is the form's description of `training_method`."""
    if method == "cls":
        return _EMBEDDING if _means_embedding(draft) else "text_classification"
    if method == "dpo" and draft.form.dpo_loss_type == "kto_pair":
        return "kto"
    return method


def _means_embedding(draft: Draft) -> bool:
    form = draft.form
    wanted = [name for name in type(form).model_fields if name.startswith("st_")]
    return any(form.is_set(name) for name in (*wanted, *_COLUMNS))
