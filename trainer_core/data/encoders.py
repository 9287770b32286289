"""How rows are encoded: the table of encoders, by the kind of rows that a task trains on.

Heavy, so that preparation alone imports it; a task names its kind in `TaskFacts.rows`.
"""

from collections.abc import Callable

from trainer_core.data.document_rows import DocumentRows
from trainer_core.data.image_rows import LabelledImageRows
from trainer_core.data.judged_rows import JudgedRows
from trainer_core.data.labelled_rows import LabelledRows
from trainer_core.data.masked_rows import MaskedRows
from trainer_core.data.pictured_rows import PicturedRows
from trainer_core.data.preference_rows import PreferenceRows
from trainer_core.data.prompt_rows import PromptRows
from trainer_core.data.row_encoder import EncodingSetup, RowEncoder
from trainer_core.data.text_rows import TextRows
from trainer_core.data.token_rows import TokenRows

WITHOUT_TOKENIZER = frozenset({"labelled_images"})
"""Kinds of rows that hold no text for the model."""
ENCODERS: dict[str, Callable[[EncodingSetup], RowEncoder]] = {
    "tokens": TokenRows,
    "documents": DocumentRows,
    "masked_documents": MaskedRows,
    "labelled_texts": LabelledRows,
    "labelled_images": LabelledImageRows,
    "pictured_texts": PicturedRows,
    "preferences": PreferenceRows,
    "judged_answers": JudgedRows,
    "texts": TextRows,
    "prompts": PromptRows,
}
