"""Loading tokenizers and models with Transformers, safely and with clear errors."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer_core.errors import InvalidSpec, ModelUnavailable
from trainer_core.model_source import FIELD, ModelSource
from trainer_core.task_facts import PROCESSOR, ModelKind

_UNREACHABLE = (OSError, ValueError, LookupError, ImportError)
"""What the libraries raise for files that are missing, also because the hub is."""
_PAD_CANDIDATES = ("<|pad|>", "<pad>", "[PAD]", "<|padding|>", "<|finetune_right_pad_id|>")


def load_reader(kind: ModelKind, source: ModelSource) -> tuple[Any, Any]:
    """Tokenizer and processor of a model, each None where its kind has none.

    Raises ModelUnavailable.
    """
    if not kind.sees_images:
        return load_tokenizer(source), None
    # Where torchvision is missing, `transformers` itself gives an empty class under this name.
    from transformers.models.auto.image_processing_auto import AutoImageProcessor
    from transformers.models.auto.processing_auto import AutoProcessor

    loader = AutoProcessor if kind.reader == PROCESSOR else AutoImageProcessor
    with model_errors(source, "processor"):
        processor = loader.from_pretrained(source.path, trust_remote_code=False, **source.options)
    if kind.reader != PROCESSOR:
        return None, processor
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None or getattr(processor, "image_processor", None) is None:
        raise InvalidSpec(f"'{source.reference}' is not {kind.what}", FIELD)
    if tokenizer.chat_template is None:
        tokenizer.chat_template = processor.chat_template
    return ready(tokenizer), processor


def load_tokenizer(source: ModelSource) -> Any:
    """The tokenizer of a model, padding on the right, with a pad token that is not its EOS.

    Raises ModelUnavailable.
    """
    from transformers import AutoTokenizer

    with model_errors(source, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(
            source.path, trust_remote_code=False, **source.options
        )
    return ready(tokenizer)


def ready(tokenizer: Any) -> Any:
    """The tokenizer, padding on the right, with a pad token that is not its EOS."""
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None or tokenizer.pad_token == tokenizer.eos_token:
        tokenizer.pad_token = _unused_token(tokenizer)
    return tokenizer


def files_of(source: ModelSource) -> Path:
    """The folder with a loaded model's files: its own, or its snapshot in the hub's cache.

    It is the model's root, above `model.subfolder`.
    """
    if source.is_folder:
        folder = Path(source.path)
    else:
        from transformers.utils import cached_file

        with model_errors(source, "configuration"):
            folder = Path(cached_file(source.path, "config.json", **source.options)).parent
    return folder.parents[source.depth - 1] if source.depth else folder


@dataclass(frozen=True)
class LoadingWish:
    """Which kind of model is wanted, and how it is held; `options` are `from_pretrained`'s.

    `frozen_head`: an adapter is to be trained and nothing beside it, unless PEFT knows the head.
    `whole`: nothing is to be trained, so that no weight may be missing.
    """

    kind: ModelKind
    dtype: Any
    attention: str
    options: dict[str, Any] = field(default_factory=dict)
    replaces_head: bool = False
    frozen_head: bool = False
    whole: bool = False

    def arguments(self) -> dict[str, Any]:
        """Arguments of Transformers' auto classes."""
        # Unasked, Transformers takes `sdpa` for every model that has it, and others as they are.
        unasked = self.attention in ("auto", "sdpa")
        attention = {} if unasked else {"attn_implementation": self.attention}
        return {"dtype": self.dtype, "trust_remote_code": False, **attention, **self.options}


def load_model(source: ModelSource, wish: LoadingWish) -> Any:
    """A model from safetensors; no code of the model's repository is run.

    Raises ModelUnavailable, also for weights that do not fill the whole model (but for a new
    head), and InvalidSpec for a model of another kind, or for an adapter.
    """
    import transformers

    _refuse_adapter(source)
    with model_errors(source, "model", wish.kind.what):
        model, info = getattr(transformers, wish.kind.auto_class).from_pretrained(
            source.path,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below, in our words
            **source.options,
            **wish.arguments(),
        )
    mismatched = {name for name, *_ in info["mismatched_keys"]}
    missing = sorted(n for n in {*info["missing_keys"], *mismatched} if not _is_pooler(n))
    if wish.kind.new_head:
        _require_trained_head(source, wish, [name for name in missing if is_head(model, name)])
        missing = [name for name in missing if not is_head(model, name)]
        if mismatched and not missing and not wish.replaces_head:
            raise InvalidSpec(
                f"'{source.reference}' has a head for another number of labels ({min(mismatched)}):"
                " declare its labels in task.label_names, or set task.ignore_mismatched_sizes to"
                " true to begin with a new head",
                "task.ignore_mismatched_sizes",
            )
    if missing:
        raise ModelUnavailable(
            f"the weights of '{source.reference}' lack {missing[0]} and {len(missing) - 1} more:"
            " they belong to another kind of model",
            FIELD,
        )
    _repair_generation(model)
    return model


def skeleton(source: ModelSource, wish: LoadingWish) -> Any:
    """A model without weights, whose modules can be looked at; raises as `load_model` does."""
    import torch
    import transformers

    _refuse_adapter(source)
    with model_errors(source, "configuration", wish.kind.what):
        config = transformers.AutoConfig.from_pretrained(
            source.path, trust_remote_code=False, **source.options
        )
        with torch.device("meta"):
            return getattr(transformers, wish.kind.auto_class).from_config(config)


def _require_trained_head(source: ModelSource, wish: LoadingWish, head: list[str]) -> None:
    """An adapter would leave a head that begins at random as it is."""
    if head and wish.whole:
        raise InvalidSpec(
            f"'{source.reference}' has no head for this task ({head[0]} is missing), so there is"
            " nothing to measure: train one first",
            FIELD,
        )
    trained = wish.kind.adapter_task is not None or wish.kind.trains_head
    if head and wish.frozen_head and not trained:
        raise InvalidSpec(
            f"'{source.reference}' has no head for this task ({head[0]} is missing), and an adapter"
            " would leave a random one as it is: train without an adapter, or name the head in"
            " adapter.modules_to_save",
            "adapter",
        )


def require_labels(source: ModelSource, options: Mapping[str, Any]) -> None:
    """Raise InvalidSpec unless a model's labels are those of the rows, in the same order."""
    config = json.loads((files_of(source) / "config.json").read_bytes())
    own = [name for _, name in sorted((int(i), n) for i, n in config.get("id2label", {}).items())]
    wanted = list(options.get("id2label", {}).values())
    if wanted and own and own != wanted and own != [f"LABEL_{i}" for i in range(len(own))]:
        raise InvalidSpec(
            f"the labels of '{source.reference}' are {own[:20]}, and those of the rows"
            f" {wanted[:20]}: give the model's in task.of.label_names, in its order",
            "task.of.label_names",
        )


def is_head(model: Any, name: str) -> bool:
    """Whether a weight stands outside of the base model; poolers count as part of the head."""
    return not name.startswith(f"{model.base_model_prefix}.") or _is_pooler(name)


def _is_pooler(name: str) -> bool:
    """Whether a weight belongs to the pooler of an encoder, which most checkpoints lack."""
    return ".pooler." in f".{name}"


def new_model(
    source: ModelSource, config: dict[str, Any], wish: LoadingWish, tokenizer: Any
) -> Any:
    """A model from its configuration, with random weights: `config` over the one of `source`.

    With `model_type` in it the configuration of `source` is not read. Raises InvalidSpec.
    """
    import torch
    import transformers

    given = {"vocab_size": len(tokenizer), **_special_ids(tokenizer), **config}
    if "model_type" in config:
        with _config_errors():
            made = transformers.AutoConfig.for_model(**given)
    else:
        with model_errors(source, "configuration", wish.kind.what):
            base = transformers.AutoConfig.from_pretrained(
                source.path, trust_remote_code=False, **source.options
            )
        with _config_errors():
            made = type(base).from_dict({**base.to_dict(), **given})
    with _config_errors():
        model = getattr(transformers, wish.kind.auto_class).from_config(made, **wish.arguments())
        with torch.no_grad():  # sizes that do not fit each other show in the first step alone
            model.eval()(input_ids=torch.zeros((1, 2), dtype=torch.long))
    return model


@contextmanager
def _config_errors() -> Iterator[None]:
    """Turn what a configuration of the user's own raises into InvalidSpec."""
    from huggingface_hub.errors import StrictDataclassError

    own = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError)
    try:
        yield
    except (*own, RuntimeError, StrictDataclassError) as error:
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise InvalidSpec(f"task.from_config makes no model: {text}", "task.from_config") from error


def _special_ids(tokenizer: Any) -> dict[str, int]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: i for name in names if (i := getattr(tokenizer, name)) is not None}


def _refuse_adapter(source: ModelSource) -> None:
    """Transformers would load whatever path the adapter names as its base, and freeze the adapter.

    A published adapter in a folder never comes here: its base does (`backends.hf`).
    """
    from transformers.utils import find_adapter_config_file

    with model_errors(source, "model"):
        found = find_adapter_config_file(source.path, **source.options)
    if found is not None:
        raise InvalidSpec(
            f"'{source.reference}' is an adapter, not a whole model: name its base model, merge it"
            " into one, or download it and use source 'folder'",
            FIELD,
        )


def _repair_generation(model: Any) -> None:
    """Many models come with sampling settings but without `do_sample`; saving refuses those."""
    if getattr(model, "generation_config", None) is None:
        return
    try:
        model.generation_config.validate(strict=True)
    except ValueError:
        model.generation_config.do_sample = True


@contextmanager
def model_errors(
    source: ModelSource, what: str, wanted: str = "a causal language model"
) -> Iterator[None]:
    """Turn the libraries' errors about a model into ours; `wanted` is the kind needed."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise ModelUnavailable(
            f"the weights of '{source.reference}' are damaged: {error}", FIELD
        ) from error
    except (*_UNREACHABLE, TypeError, AttributeError, StrictDataclassError) as error:
        raise _explained(error, source, what, wanted) from error


def _explained(
    error: Exception, source: ModelSource, what: str, wanted: str
) -> InvalidSpec | ModelUnavailable:
    text = str(error)
    name = source.reference
    if "trust_remote_code" in text:
        return InvalidSpec(f"'{name}' needs code of its own to run, which is not allowed", FIELD)
    if "Unrecognized configuration class" in text:
        return InvalidSpec(f"'{name}' is not {wanted}", FIELD)
    if source.is_folder or not isinstance(error, _UNREACHABLE):
        return ModelUnavailable(
            f"the {what} in {source.path} cannot be loaded ({type(error).__name__}:"
            f" {_first_line(text)}): its files must be whole, and those of such a model",
            FIELD,
        )
    if any(mark in text for mark in ("gated repo", "401 ", "403 ")):
        way_out = "ask for access there and set model.token to a secret with your hub token"
    elif "is not a valid model identifier" in text or "404 " in text:
        way_out = "check the name and model.revision; for a private model set model.token"
    elif "safetensors" in text:
        way_out = "it must hold its weights as safetensors"
    else:
        way_out = "if the hub cannot be reached from here, use source 'folder' or fill HF_HOME"
    return ModelUnavailable(
        f"the {what} of '{name}' cannot be loaded from the hub ({_first_line(text)}): {way_out}",
        FIELD,
    )


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else "no reason given"


def _unused_token(tokenizer: Any) -> str:
    """A token for padding; a special one that texts never hold, EOS only where there is none."""
    vocabulary = tokenizer.get_vocab()
    eos = tokenizer.eos_token
    known = [t for t in _PAD_CANDIDATES if t in vocabulary]
    reserved = [t for t in tokenizer.added_tokens_encoder if "reserved" in t or "pad" in t.lower()]
    unknown = [tokenizer.unk_token] if tokenizer.unk_token else []
    for token in [*known, *sorted(reserved), *unknown]:
        if token != eos:
            return str(token)
    return str(eos)
