"""Importing the training stack once, deeply, for processes that are forked from this one."""

import gc
import importlib
import os
from contextlib import suppress

from trainer_core.run_lock import package_versions

STACK = (
    "torch",
    "numpy",
    "pyarrow",
    "safetensors.torch",
    "tokenizers",
    "transformers",
    "accelerate",
    "datasets",
    "peft",
    "trl",
    "sentence_transformers",
)
"""What a run cannot do without; a missing one is an error."""

LATE = (
    "PIL.BmpImagePlugin",
    "PIL.GifImagePlugin",
    "PIL.ImageEnhance",
    "PIL.ImageOps",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
    "PIL.PpmImagePlugin",
    "PIL.TiffImagePlugin",
    "PIL.WebPImagePlugin",
    "encodings.cp437",
    "encodings.unicode_escape",
    "encodings.utf_8_sig",
    "huggingface_hub.utils._telemetry",
    "jinja2.ext",
    "jinja2.sandbox",
    "optimi",
    "peft.tuners.adalora.bnb",
    "peft.tuners.ia3.bnb",
    "peft.tuners.lora.bnb",
    "peft.tuners.vera.bnb",
    "peft.utils.transformers_weight_conversion",
    "rich.columns",
    "rich.panel",
    "sacrebleu.metrics.bleu",
    "sacrebleu.tokenizers.tokenizer_13a",
    "torch.profiler._cupti_monitor",
    "torch.utils.checkpoint",
    "torch.utils.serialization.config",
    "transformers.generation.utils",
    "transformers.models.auto.image_processing_auto",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.align",
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
    "transformers.models.bert.tokenization_bert_legacy",
    "transformers.models.auto.processing_auto",
    "transformers.models.clip.image_processing_pil_clip",
    "transformers.models.clip.modeling_clip",
    "transformers.models.convnext.modeling_convnext",
    "transformers.models.dinov2.modeling_dinov2",
    "transformers.models.distilbert.modeling_distilbert",
    "transformers.models.mpnet.modeling_mpnet",
    "transformers.models.roberta.modeling_roberta",
    "transformers.models.xlm_roberta.modeling_xlm_roberta",
    "transformers.models.gemma.tokenization_gemma",
    "transformers.models.gemma2.modeling_gemma2",
    "transformers.models.gemma3.modeling_gemma3",
    "transformers.models.llama.modeling_llama",
    "transformers.models.llama.tokenization_llama",
    "transformers.models.llava.modeling_llava",
    "transformers.models.llava.processing_llava",
    "transformers.models.mistral.modeling_mistral",
    "transformers.models.phi3.modeling_phi3",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen2.tokenization_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.resnet.modeling_resnet",
    "transformers.models.siglip.modeling_siglip",
    "transformers.models.smollm3.modeling_smollm3",
    "transformers.models.swin.modeling_swin",
    "transformers.models.vit.image_processing_pil_vit",
    "transformers.models.vit.modeling_vit",
    "transformers.integrations.bitsandbytes",
    "transformers.quantizers.auto",
    "transformers.trainer",
    "transformers.utils.chat_template_utils",
    "trl.models.activation_offloading",
    "trl.models.selective_activation_checkpointing",
    "trl.trainer.dpo_trainer",
    "trl.trainer.grpo_trainer",
    "trl.trainer.kto_trainer",
    "trl.trainer.sft_trainer",
)
"""What the libraries import inside of functions, so that no run pays for it; a version of a
library that lacks one has put it somewhere else."""


def preload() -> None:
    """Import everything that a run imports late; afterwards `os.fork` is ready for runs.

    One thread, no tensor arithmetic and no CUDA here: a child with threads of its own would hang
    after either. What was made so far is taken out of the garbage collector's sight, so that
    children share its memory.
    """
    quiet_libraries()
    for name in STACK:
        importlib.import_module(name)
    for name in LATE:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    _compile_weight_names()
    importlib.import_module("trainer_core.session")
    package_versions()
    gc.collect()
    gc.freeze()


def _compile_weight_names() -> None:
    """Have Transformers compile its patterns for names of weights: else each first load does."""
    with suppress(ModuleNotFoundError, AttributeError):  # a version that has none
        module = importlib.import_module("transformers.conversion_mapping")
        module.get_checkpoint_conversion_mapping("llama")


def quiet_libraries() -> None:
    """Settings that the libraries read when they are imported; what is set already stays."""
    for name, value in {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DISABLE_MLFLOW_INTEGRATION": "TRUE",  # TRL would import all of it: the service tracks runs
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",  # one thread, so that forking is safe
        # Threads that spin while they wait for each other crawl on a host with other work: steps
        # took 4 to 6 times as long on two busy cores.
        "OMP_WAIT_POLICY": "PASSIVE",
    }.items():
        os.environ.setdefault(name, value)
