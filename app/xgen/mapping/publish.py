"""What becomes of the model: registry and hub."""

from app.xgen.mapping.draft import Draft, shown

_OF_HUB = ("hub_model_id", "hub_strategy", "hugging_face_user_id")


def describe(draft: Draft) -> None:
    """Fill the block `publish`."""
    form = draft.form
    draft.put("publish.registry", form.push_to_minio, "push_to_minio")
    draft.without_effect(
        ["minio_model_save_bucket"],
        "models lie in this service's own bucket (external_refs.storage)",
    )
    token = form.hugging_face_token.get_secret_value()
    if not form.push_to_hub:
        draft.without_effect(_OF_HUB, "push_to_hub is false")
    elif missing := [n for n in ("hub_model_id", "hugging_face_token") if not _given(draft, n)]:
        draft.warn(
            "push_to_hub",
            f"is true, but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} empty: "
            "the model stays in the store and is pushed nowhere",
        )
        draft.without_effect(_OF_HUB, f"{missing[0]} is empty")
    else:
        _hub(draft, token)
    if token and not any(field == "hugging_face_token" for field, _ in draft.secrets.values()):
        draft.warn("hugging_face_token", "has no effect: nothing is at a hub; it is not kept")


def _given(draft: Draft, name: str) -> bool:
    value = getattr(draft.form, name)
    return bool(value if isinstance(value, str) else value.get_secret_value())


def _hub(draft: Draft, token: str) -> None:
    form = draft.form
    repo_id = form.hub_model_id
    if "/" not in repo_id:
        if not form.hugging_face_user_id:
            draft.refuse(
                "hub_model_id",
                f"is {shown(repo_id)}, which names no owner: write owner/name, or give "
                "hugging_face_user_id",
            )
            return
        repo_id = f"{form.hugging_face_user_id}/{repo_id}"
    else:
        why = "hub_model_id names an owner"
        draft.without_effect(["hugging_face_user_id"], why)
    draft.put("publish.hub.repo_id", repo_id, "hub_model_id")
    draft.put("publish.hub.strategy", form.hub_strategy, "hub_strategy")
    draft.put("publish.hub.token", draft.secret("hugging_face_token", token), "hugging_face_token")
