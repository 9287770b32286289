"""The model: where it comes from and how it is held."""

from app.xgen.mapping.draft import Draft
from app.xgen.mapping.places import Place, place_of, unused_keys

_OWN = "the model's own is used"


def describe(draft: Draft) -> None:
    """Fill the block `model`."""
    form = draft.form
    origin = "model_name_or_path"
    wanted = Place(form.model_load_method, form.minio_model_load_bucket, form.model_name_or_path)
    found = place_of(draft, wanted)
    draft.put("model.source", found.source, "model_load_method")
    draft.put("model.name_or_path", found.path, origin)
    if found.token is not None:
        draft.put("model.token", found.token, found.token_field)
    if form.model_subfolder:
        draft.put("model.subfolder", form.model_subfolder, "model_subfolder")
    if form.model_load_method != "minio":
        draft.without_effect(["minio_model_load_bucket"], "model_load_method is 'huggingface'")
    for name in ("config_name", "tokenizer_name"):
        if getattr(form, name) not in ("", form.model_name_or_path):
            draft.without_effect([name], _OWN)
    draft.without_effect(["cache_dir"], "each host keeps a cache of its own")
    draft.without_effect(
        ["language_model_class"], "the model's own configuration and chat template decide"
    )
    _attention(draft)
    unused_keys(draft)


def _attention(draft: Draft) -> None:
    form = draft.form
    if not form.use_attn_implementation:
        draft.without_effect(["attn_implementation"], "use_attn_implementation is false")
        draft.put("model.attn_implementation", "auto", "use_attn_implementation")
    elif form.attn_implementation == "flash_attention_2":
        draft.warn(
            "attn_implementation",
            "is 'flash_attention_2', and hosts do not tell whether they have its kernels: 'auto' is"
            " used. POST /jobs takes it in model.attn_implementation, for hosts that have them",
        )
        draft.put("model.attn_implementation", "auto", "attn_implementation")
    else:
        draft.put("model.attn_implementation", form.attn_implementation, "attn_implementation")
