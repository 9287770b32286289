"""PEFT: the block `adapter`."""

from app.xgen.mapping.draft import Draft, shown

_TYPES = {
    "lora": "lora",
    "adalora": "adalora",
    "ia3": "ia3",
    "vera": "vera",
    "ln": "layernorm",
    "lntuning": "layernorm",
    "layernorm": "layernorm",
    "layernormtuning": "layernorm",
}
_LLAMA = ("llama", "llamaadapter", "adaptionprompt")
_LORA = ("lora_alpha", "lora_dropout")
_FIELDS: dict[str, dict[str, str]] = {
    "lora": {"r": "lora_r", **{name: name for name in _LORA}},
    "adalora": {
        "init_r": "adalora_init_r",
        "target_r": "adalora_target_r",
        "tinit": "adalora_tinit",
        "tfinal": "adalora_tfinal",
        "delta_t": "adalora_delta_t",
        "orth_reg_weight": "adalora_orth_reg_weight",
        **{name: name for name in _LORA},
    },
    "ia3": {},
    "vera": {},
    "layernorm": {},
}
_LISTS: dict[str, dict[str, str]] = {
    "lora": {"target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"},
    "adalora": {"target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"},
    "ia3": {"target_modules": "ia3_target_modules", "feedforward_modules": "feedforward_modules"},
    "vera": {"target_modules": "vera_target_modules"},
    "layernorm": {"target_modules": "ln_target_modules"},
}
_ALL = (
    *dict.fromkeys(
        name for each in (_FIELDS, _LISTS) for of in each.values() for name in of.values()
    ),
    "adapter_layers",
    "adapter_len",
)


def describe(draft: Draft) -> None:
    """Fill the block; refuses kinds that are not known."""
    form = draft.form
    if not form.use_peft:
        draft.without_effect(("peft_type", *_ALL), "use_peft is false")
        return
    kind = _kind(draft)
    if kind is None:
        return
    draft.put("adapter.type", kind, "peft_type")
    draft.copy("adapter", _FIELDS[kind].items())
    for name, origin in _LISTS[kind].items():
        if given := _names(getattr(form, origin)):
            draft.put(f"adapter.{name}", given, origin)
    used = {*_FIELDS[kind].values(), *_LISTS[kind].values()}
    others = [name for name in _ALL if name not in used]
    draft.without_effect(others, f"peft_type {shown(form.peft_type)} has no such setting")


def _kind(draft: Draft) -> str | None:
    given = draft.form.peft_type
    plain = "".join(letter for letter in given.lower() if letter.isalnum())
    if plain in _TYPES:
        return _TYPES[plain]
    ways = "use lora, adalora, ia3, vera or ln"
    if plain in _LLAMA:
        ways = f"which serves models of 2023 alone and is not here: {ways}"
    draft.refuse("peft_type", f"is {shown(given)}, which is not known: {ways}")
    return None


def _names(given: str) -> list[str] | str:
    """What a comma list names; `all-linear` is a word of its own."""
    names = [name.strip() for name in given.split(",") if name.strip()]
    return names[0] if names == ["all-linear"] else names
