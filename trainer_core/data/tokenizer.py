"""Which tokenizer it is: hashes of a loaded one and of the files of one."""

import hashlib
import json
from pathlib import Path
from typing import Any

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
)


def tokenizer_hash(tokenizer: Any) -> str:
    """sha256 over what decides which tokens a text becomes, and the chat template.

    Empty for what reads no text (None).
    """
    if tokenizer is None:
        return ""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = {
        # Truncation and padding are the state of the last call, not of the tokenizer.
        "backend": {k: v for k, v in backend.items() if k not in ("truncation", "padding")},
        "special": dict(tokenizer.special_tokens_map),
        "template": tokenizer.chat_template,
    }
    canonical = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def folder_hash(folder: Path) -> str:
    """sha256 over the tokenizer's files of a model folder, without loading them."""
    digest = hashlib.sha256()
    for name in FILES:
        path = folder / name
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{name}:{len(content)}:".encode() + content)
    return digest.hexdigest()
