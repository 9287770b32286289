"""When is saved, and when is measured."""

from app.xgen.mapping.draft import Draft, shown

_FEWEST = 2


def checkpoints(draft: Draft) -> None:
    """Fill the block `checkpoint`."""
    form = draft.form
    draft.put("checkpoint.save_strategy", form.save_strategy, "save_strategy")
    if form.save_strategy == "steps":
        draft.put("checkpoint.save_steps", form.save_steps, "save_steps")
    else:
        draft.without_effect(["save_steps"], f"save_strategy is {shown(form.save_strategy)}")
    kept = max(form.save_total_limit, _FEWEST)
    draft.put("checkpoint.save_total_limit", kept, "save_total_limit")
    if kept != form.save_total_limit and "save_total_limit" in form.model_fields_set:
        draft.warn(
            "save_total_limit",
            f"is {form.save_total_limit}, but {_FEWEST} checkpoints are kept: the newest may be "
            "damaged by whatever ended the run",
        )


def evaluations(draft: Draft) -> None:
    """Fill the block `evaluation`; without validation rows there is nothing to measure."""
    form = draft.form
    if "validation" not in draft.spec["data"]:
        why = "do_eval is false" if not form.do_eval else "there are no validation rows"
        draft.without_effect(["eval_strategy", "eval_steps"], why)
        return
    draft.put("evaluation.strategy", form.eval_strategy, "eval_strategy")
    if form.eval_strategy == "steps":
        draft.put("evaluation.steps", form.eval_steps, "eval_steps")
    else:
        draft.without_effect(["eval_steps"], f"eval_strategy is {shown(form.eval_strategy)}")
