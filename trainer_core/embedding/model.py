"""A sentence transformer around a loaded transformer: pooling, and what the model's folder adds."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from trainer_core.embedding.losses import MAX_LENGTH
from trainer_core.errors import InvalidSpec, ModelUnavailable
from trainer_core.loading import model_errors
from trainer_core.model_source import FIELD, ModelSource
from trainer_core.spec import SentenceTransformerTask, TrainSpec
from trainer_core.task_facts import block_of

_WEIGHTS = "model.safetensors"
_WITH_WEIGHTS = ("Dense", "LayerNorm")
_KNOWN = ("Transformer", "Pooling", "Normalize", "Dropout", *_WITH_WEIGHTS)
# Texts alone: with a chat template the library would render them through it.
_MODALITIES = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}


def assemble(model: Any, tokenizer: Any, source: ModelSource, spec: TrainSpec | None) -> Any:
    """A SentenceTransformer of a loaded (perhaps adapted) model and the modules of its folder.

    Without `spec` it is as published (a guide). Raises InvalidSpec for a model of another
    architecture, ModelUnavailable for modules that are not whole.
    """
    from sentence_transformers import SentenceTransformer

    if model.config.is_encoder_decoder:
        raise InvalidSpec(
            f"'{source.reference}' is an encoder with a decoder, which cannot be trained as a"
            " sentence transformer: use an encoder, or a causal language model",
            FIELD,
        )
    if any(hasattr(model.config, f"{sense}_config") for sense in ("vision", "audio")):
        raise InvalidSpec(
            f"'{source.reference}' is a model of more than texts, which cannot be trained as a"
            " sentence transformer here: use an encoder of texts, or a causal language model",
            FIELD,
        )
    task = None if spec is None else block_of(spec, SentenceTransformerTask)
    own = _mapping(source, "sentence_bert_config.json")
    _refuse_lowering(own, tokenizer, source)
    limit = own.get("max_seq_length") if task is None else task.max_length or MAX_LENGTH
    if limit is not None:
        tokenizer.model_max_length = min(limit, tokenizer.model_max_length)
    first = _transformer(model, tokenizer)
    settings = _mapping(source, "config_sentence_transformers.json")
    return SentenceTransformer(
        modules=[first, *_further(first, source, task)],
        device="cpu",
        prompts=_prompts(settings, task),
        default_prompt_name=_default_prompt(settings, task),
        similarity_fn_name=settings.get("similarity_fn_name"),
    )


def complete(model: Any, folder: Path) -> None:
    """Write what the library needs beside the transformer's weights and its tokenizer."""
    first = model[0]
    first.save = lambda path, **_: first.save_config(path)  # its weights are there already
    model.save_pretrained(str(folder), create_model_card=False)


def _transformer(model: Any, tokenizer: Any) -> Any:
    """The library's module around a model that is loaded already."""
    from sentence_transformers.sentence_transformer.modules import Transformer

    base = model.get_base_model() if hasattr(model, "peft_config") else model

    class Loaded(Transformer):  # type: ignore[misc]  # the library ships no types for us
        def _load_config(self, *_: Any) -> tuple[Any, bool]:
            return base.config, False

        def _load_model(self, *_: Any, **__: Any) -> Any:
            return base

    with tempfile.TemporaryDirectory() as folder:
        base.config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        made = Loaded(folder, modality_config=_MODALITIES, module_output_name="token_embeddings")
    made.__class__ = Transformer  # whose name is published
    made.model = model
    made.processor = tokenizer
    return made


def _further(
    first: Any, source: ModelSource, task: SentenceTransformerTask | None
) -> Iterator[Any]:
    """Pooling and what follows it: from the model's folder, changed as the task wishes."""
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    found = list(_published(source)) or [
        Pooling(first.get_embedding_dimension(), _usual_pooling(first))
    ]
    for module in found:
        if isinstance(module, Normalize) and task is not None and task.normalize is not None:
            continue
        if isinstance(module, Pooling) and task is not None and task.pooling_mode is not None:
            yield Pooling(module.embedding_dimension, task.pooling_mode, module.include_prompt)
        else:
            yield module
    if task is not None and task.normalize:
        yield Normalize()


def _usual_pooling(first: Any) -> str:
    """As the library does it for a model that was no sentence transformer."""
    architectures = first.config.architectures or [""]
    causal = architectures[0].endswith("ForCausalLM") and getattr(first.config, "is_causal", True)
    return "lasttoken" if causal else "mean"


def _published(source: ModelSource) -> Iterator[Any]:
    """Modules behind the transformer, as `modules.json` lists them."""
    from sentence_transformers.sentence_transformer import modules

    listed = _json(source, "modules.json")
    if listed is None:
        return
    for number, entry in enumerate(listed):
        name = str(entry["type"]).rpartition(".")[2]
        trusted = str(entry["type"]).startswith("sentence_transformers.") and name in _KNOWN
        if not trusted or (name == "Transformer") != (number == 0):
            raise InvalidSpec(
                f"'{source.reference}' has a module {entry['type']} in place {number + 1}, which"
                " cannot be trained: known are a Transformer and behind it"
                f" {', '.join(_KNOWN[1:])}",
                FIELD,
            )
        if number:
            folder = _module_folder(source, str(entry["path"]), name)
            with model_errors(source, f"module {name}", "a sentence transformer"):
                yield getattr(modules, name).load(str(folder))


def _module_folder(source: ModelSource, path: str, name: str) -> Path:
    """The local folder of a module, fetched where the model is on the hub."""
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise InvalidSpec(f"modules.json of '{source.reference}' leads out of the model", FIELD)
    wanted = ["config.json", _WEIGHTS] if name in _WITH_WEIGHTS else ["config.json"]
    found = [_file(source, f"{path}/{file}") for file in wanted]
    if name in _WITH_WEIGHTS and found[-1] is None:
        raise ModelUnavailable(
            f"the module {path} of '{source.reference}' has no {_WEIGHTS}: it must hold its"
            " weights as safetensors",
            FIELD,
        )
    if found[0] is not None:
        return found[0].parent
    if name == "Normalize":  # it has nothing to say
        return Path(source.path) / path
    raise ModelUnavailable(f"the module {path} of '{source.reference}' has no config.json", FIELD)


def _refuse_lowering(own: Mapping[str, Any], tokenizer: Any, source: ModelSource) -> None:
    """Rows were prepared with the tokenizer alone."""
    if own.get("do_lower_case") and tokenizer("A").input_ids != tokenizer("a").input_ids:
        raise InvalidSpec(
            f"'{source.reference}' lower-cases texts outside of its tokenizer (do_lower_case),"
            " which cannot be trained: publish it with a tokenizer that lower-cases",
            FIELD,
        )


def _prompts(settings: Mapping[str, Any], task: SentenceTransformerTask | None) -> dict[str, str]:
    prompts = dict(settings.get("prompts") or {})
    given = None if task is None else task.prompts
    if isinstance(given, str):
        return {**prompts, "default": given, "query": given, "document": given}
    names = {"anchor": "query", "positive": "document"}
    return prompts | {names.get(column, column): text for column, text in (given or {}).items()}


def _default_prompt(
    settings: Mapping[str, Any], task: SentenceTransformerTask | None
) -> str | None:
    if task is not None and isinstance(task.prompts, str):
        return "default"
    name = settings.get("default_prompt_name")
    return name if name in (settings.get("prompts") or {}) else None


def _mapping(source: ModelSource, name: str) -> Mapping[str, Any]:
    found = _json(source, name)
    return found if isinstance(found, dict) else {}


def _json(source: ModelSource, name: str) -> Any:
    path = _file(source, name)
    if path is None:
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelUnavailable(f"{name} of '{source.reference}' is no JSON", FIELD) from error


def _file(source: ModelSource, name: str) -> Path | None:
    """A file of the model, fetched from the hub where it is not local; None where it has none."""
    if source.is_folder:
        path = Path(source.path) / name
        return path if path.is_file() else None
    from transformers.utils import cached_file

    with model_errors(source, name, "a sentence transformer"):
        found = cached_file(
            source.path, name, _raise_exceptions_for_missing_entries=False, **source.options
        )
    return None if found is None else Path(found)
