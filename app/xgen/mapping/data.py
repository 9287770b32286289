"""The rows: where they lie, what their columns mean, and which of them are held out."""

from typing import Any

from app.xgen.mapping.draft import Draft, shown
from app.xgen.mapping.embedding import loss_of
from app.xgen.mapping.places import Found, Place, place_of, source
from trainer_core.embedding.losses import LOSSES, NONE

_COLUMNS = (
    "dataset_main_column",
    "dataset_sub_column",
    "dataset_minor_column",
    "dataset_last_column",
)
MEANING: dict[str, tuple[str, tuple[str, ...]]] = {
    "sft": ("query_response", ("query", "response")),
    "dpo": ("preference", ("prompt", "chosen", "rejected")),
    "kto": ("preference", ("prompt", "chosen", "rejected")),
    "grpo": ("prompt", ("prompt", "answer")),
    "clm": ("text", ("text",)),
    "mlm": ("text", ("text",)),
    "text_classification": ("classification", ("text", "label")),
}
"""By task: the format of the rows, and what main, sub, minor and last column are in it."""
_ANOTHER = "fill the field as the loss has it, or choose another st_loss_func"
_HELD = ("test_data_dir", "test_data_split")


def describe(draft: Draft) -> None:
    """Fill the block `data`."""
    form = draft.form
    format_, meaning = _meaning(draft)
    columns = dict(_named(draft, meaning))
    train = _source(draft, "train", format_, columns)
    draft.put("data.train", [train], "train_data")
    _origins(draft, "/data/train/0", "train")
    _held_out(draft, format_, columns)
    draft.put("data.on_bad_row", "drop" if form.data_filtering else "error", "data_filtering")
    if draft.task not in ("clm", "mlm"):  # theirs are joined, and none is too long
        cut = "drop" if draft.task == "grpo" else "truncate_right"
        draft.put("data.over_length", cut, "tokenizer_max_len")
    if form.dataset_load_method != "minio":
        draft.without_effect(["minio_data_load_bucket"], "dataset_load_method is 'huggingface'")


def _meaning(draft: Draft) -> tuple[str, tuple[str, ...]]:
    if draft.task != "sentence_transformer":
        return MEANING[draft.task]
    loss = loss_of(draft)
    if loss.startswith("batch_"):
        return "classification", ("text", "label")
    if loss == "contrastive_tension":
        return "text", ("text",)
    _check_columns(draft, loss)
    if not draft.form.dataset_last_column:
        return "anchor_positive", ("anchor", "positive", "negative")
    told = "label" if loss in ("contrastive", "online_contrastive", "softmax") else "score"
    return "sentence_pair", ("sentence1", "sentence2", "sentence3", told)


def _check_columns(draft: Draft, loss: str) -> None:
    """Refuse a third text or a score that the loss has no use for, or cannot do without."""
    if loss not in LOSSES:  # auto
        return
    form, needs = draft.form, LOSSES[loss]
    name, scored = f"loss {shown(form.st_loss_func)}", NONE not in needs.labels
    for field, what, needed, taken in (
        ("dataset_minor_column", "third text", needs.texts[0] > 2, needs.texts[1] > 2),
        ("dataset_last_column", "score or label", scored, scored),
    ):
        given = getattr(form, field)
        if needed and not given:
            draft.refuse(field, f"is missing: {name} needs a {what}; {_ANOTHER}")
        if given and not taken:
            draft.refuse(field, f"is {shown(given)}, but {name} takes no {what}; {_ANOTHER}")


def _named(draft: Draft, meaning: tuple[str, ...]) -> list[tuple[str, str]]:
    found = []
    for place, field in enumerate(_COLUMNS):
        name = getattr(draft.form, field)
        if place < len(meaning) and name:
            found.append((meaning[place], name))
        elif place >= len(meaning):
            draft.without_effect([field], f"the rows of this training are {', '.join(meaning)}")
        elif meaning[place] == "rejected":
            draft.refuse(field, "is missing: it names the column with the rejected answer")
    return found


def _source(draft: Draft, part: str, format_: str, columns: dict[str, str]) -> dict[str, Any]:
    form = draft.form
    name, folder, split = (getattr(form, f"{part}_data{end}") for end in ("", "_dir", "_split"))
    wanted = Place(form.dataset_load_method, form.minio_data_load_bucket, name, folder)
    found = place_of(draft, wanted)
    described = source(found) | {"format": format_, "columns": columns}
    if found.source == "hub":
        described["split"] = split
    else:
        draft.without_effect([f"{part}_data_split"], "it is for data of a hub")
    _check_folder(draft, f"{part}_data_dir", found, folder)
    return described


def _check_folder(draft: Draft, field: str, found: Found, folder: str) -> None:
    if folder and found.source == "hub":
        draft.refuse(
            field,
            f"is {folder[:80]!r}, but of a hub whole data sets are read: leave it empty and name a"
            " data set that holds these rows alone, or lay the folder into the store (minio)",
        )


def _held_out(draft: Draft, format_: str, columns: dict[str, str]) -> None:
    form = draft.form
    if not form.do_eval:
        names = ("test_data", *_HELD, "train_test_split_ratio")
        draft.without_effect(names, "do_eval is false")
    elif form.test_data:
        draft.put("data.validation", [_source(draft, "test", format_, columns)], "test_data")
        _origins(draft, "/data/validation/0", "test")
        draft.without_effect(["train_test_split_ratio"], "test_data names the validation rows")
    else:
        draft.without_effect(_HELD, "test_data is empty: a share of the training rows is held out")
        if form.train_test_split_ratio:
            share = {"split_ratio": form.train_test_split_ratio}
            draft.put("data.validation", share, "train_test_split_ratio")


def _origins(draft: Draft, pointer: str, part: str) -> None:
    draft.origins |= {
        pointer: f"{part}_data",
        f"{pointer}/source": "dataset_load_method",
        f"{pointer}/split": f"{part}_data_split",
        f"{pointer}/columns": "dataset_main_column",
        f"{pointer}/token": "hugging_face_token"
        if draft.form.dataset_load_method == "huggingface"
        else "minio_access_key",
    }
