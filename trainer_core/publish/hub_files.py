"""Which files of a model's or a checkpoint's folder may leave for a hub.

Of a checkpoint only what is known to be a model's is one: whatever a task or an adapter writes
beside it, now or later, may hold rows of the user's data.
"""

import re

from trainer_core.evaluation.base import BASE_FILE

RUN_LOCK = "run_lock.json"
# A module's folder of sentence-transformers: its place in the chain, and its kind.
_MODULE = re.compile(r"(?:\w+_)?\d+_[A-Z]\w*/")
_WEIGHTS = r"(?:adapter_)?model(?:-\d{5}-of-\d{5})?\.safetensors(?:\.index\.json)?"
_CONFIGURATION = (
    r"(?:adapter_|generation_|router_|(?:audio_|video_|image_)?(?:pre)?processor_)?config\.json"
    r"|modules\.json|config_sentence_transformers\.json|sentence_\w+_config\.json"
)
# As the tokenizers of Transformers name them.
_TOKENIZER = (
    r"(?:audio_)?tokenizer(?:_config)?\.json|special_tokens_map\.json|added_tokens\.json"
    r"|(?:[a-z]+_)?vocab(?:-src|-tgt)?\.(?:json|txt)|merges\.txt|bpe\.codes|dict\.txt"
    r"|[\w.]+\.(?:model|spm|tokenizer)|emoji\.json|normalizer\.json|byte_maps\.json"
    r"|word_(?:shape|pronunciation)\.json"
    r"|chat_template\.(?:jinja|json)|additional_chat_templates/[\w.-]+\.jinja"
)
_OF_A_MODEL = re.compile(f"{_WEIGHTS}|{_CONFIGURATION}|{_TOKENIZER}")


def is_of_the_model(path: str) -> bool:
    """Whether a file of a checkpoint is what a model is loaded from."""
    module = _MODULE.match(path)
    return _OF_A_MODEL.fullmatch(path, module.end() if module else 0) is not None


def goes_with_a_checkpoint(path: str) -> bool:
    """Whether a file belongs into a whole checkpoint on a hub: all but the base model's answers.

    They stand beside rows of the validation data, and training goes on without them.
    """
    return path != BASE_FILE


def goes_with_the_model(path: str, *, private: bool) -> bool:
    """Whether a file of a finished model belongs on a hub.

    The run lock is not for everybody: it holds the whole spec, with paths and names of secrets.
    """
    return private or path != RUN_LOCK
