"""The block `task`, but for that of sentence transformers."""

from app.xgen.mapping.draft import Draft

_COMPARED = ("dpo", "kto")


def describe(draft: Draft) -> None:
    """Fill what the tasks of texts and answers have."""
    form = draft.form
    draft.put("task.max_length", form.tokenizer_max_len, "tokenizer_max_len")
    _switches(draft)
    if draft.task == "mlm":
        draft.put("task.mlm_probability", form.mlm_probability, "mlm_probability")
    else:
        draft.without_effect(["mlm_probability"], "it is for training_method 'mlm'")
    draft.without_effect(["num_labels"], "the labels that the rows have are counted")
    if draft.task in _COMPARED:
        _compared(draft)
    else:
        _not_compared(draft)


def _switches(draft: Draft) -> None:
    form = draft.form
    if form.use_sfttrainer and form.use_custom_kl_sfttrainer:
        draft.warn("use_sfttrainer", "has no effect beside use_custom_kl_sfttrainer, which wins")
    if draft.task == "sft" and form.use_custom_kl_sfttrainer:
        draft.put("task.kl_beta", form.dpo_beta, "dpo_beta")


def _not_compared(draft: Draft) -> None:
    weighs = draft.task == "sft" and draft.form.use_custom_kl_sfttrainer
    names = ["dpo_loss_type", "dpo_label_smoothing", "ref_model_path", "dpo_beta"]
    draft.without_effect(names[: 3 if weighs else 4], "it is for training_method 'dpo'")


def _compared(draft: Draft) -> None:
    form = draft.form
    draft.put("task.beta", form.dpo_beta, "dpo_beta")
    if draft.task == "dpo":
        draft.put("task.loss_type", [form.dpo_loss_type], "dpo_loss_type")
    draft.without_effect(
        ["dpo_label_smoothing"],
        "none of the form's losses is smoothed; POST /jobs has 'robust', which is",
    )
    _reference(draft)


def _reference(draft: Draft) -> None:
    name = draft.form.ref_model_path
    if name in ("", draft.form.model_name_or_path):
        return  # the model that is started from is the reference
    where = "folder" if name.startswith("/") else "hub"
    draft.put("task.ref_model", {"source": where, "name_or_path": name}, "ref_model_path")
