"""Tiny vision models and images for tests: shapes and colours that are quickly told apart."""

import io
import json
import random
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.trainer_core.tiny import make_tokenizer

SIZE = 16


def make_tiny_vit(path: Path, *, seed: int = 0, **config: Any) -> Path:
    """Write a random ViT without a head (about 20,000 parameters) and its image processor."""
    import torch
    from transformers import ViTConfig, ViTModel
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "image_size": SIZE,
        "patch_size": 4,
        "hidden_dropout_prob": 0.1,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ViTModel(ViTConfig(**(sizes | config)))
    model.save_pretrained(path)
    ViTImageProcessorPil(size={"height": SIZE, "width": SIZE}).save_pretrained(path)
    return path


PARTS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}{{ '<image>' }}{% else %}{{ p['text'] }}{% endif %}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tiny_llava(
    path: Path, *, seed: int = 0, dropout: float = 0.1, width: int = 32, layers: int = 2
) -> Path:
    """Write a random LLaVA (about 50,000 parameters) with its processor: 16 tokens an image."""
    import torch
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = make_tokenizer(chat_template=None)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    side = {"height": SIZE, "width": SIZE}
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size=side),
        tokenizer,
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=PARTS,
    )
    vision = CLIPVisionConfig(
        hidden_size=width // 2,
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        image_size=SIZE,
        patch_size=4,
    )
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        attention_dropout=dropout,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlavaForConditionalGeneration(config).save_pretrained(path)
    processor.save_pretrained(path)
    return path


def visual_questions(count: int, seed: int = 0, *, pairs: bool = False) -> list[dict[str, Any]]:
    """Questions about what an image (or the second of two) shows, with the files."""
    made = list(pictures(count, seed))
    rows = []
    for number, (label, name, data) in enumerate(made):
        files = {f"{label}/{name}": data}
        if pairs:
            other, also, more = made[(number * 7 + 1) % count]
            files = {f"{other}/{also}": more} | files
        places = "<image>" * len(files)
        rows.append(
            {
                "messages": [
                    {"role": "user", "content": f"{places}Where is my order?"},
                    {"role": "assistant", "content": _ANSWERS[label]},
                ],
                "images": list(files),
                "files": files,
            }
        )
    return rows


_ANSWERS = {"cat": "tomorrow", "dog": "shoes", "고래": "영수증"}


def picture(label: str, rng: random.Random, size: tuple[int, int] = (24, 20)) -> Any:
    """A noisy image that is mostly red (`cat`), green (`dog`) or blue (`고래`)."""
    from PIL import Image

    main = {"cat": 0, "dog": 1, "고래": 2}[label]
    image = Image.new("RGB", size)
    pixels = []
    for _ in range(size[0] * size[1]):
        colour = [rng.randrange(90) for _ in range(3)]
        colour[main] += 120
        pixels.append(tuple(colour))
    image.putdata(pixels)
    return image


def encoded(image: Any, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def pictures(
    count: int, seed: int = 0, labels: Iterable[str] = ("cat", "dog", "고래")
) -> Iterator[tuple[str, str, bytes]]:
    """(label, file name, content), the labels in turn."""
    rng = random.Random(seed)  # noqa: S311 - test data
    names = list(labels)
    for number in range(count):
        label = names[number % len(names)]
        kind = ("png", "jpg")[number % 2]
        data = encoded(picture(label, rng), {"png": "PNG", "jpg": "JPEG"}[kind])
        yield label, f"그림 {number:03d}.{kind}", data


def write_folder(root: Path, count: int, seed: int = 0, **options: Any) -> Path:
    """A folder of images for each label; a folder's name has Korean letters."""
    for label, name, data in pictures(count, seed, **options):
        path = root / label / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def write_zip(path: Path, count: int, seed: int = 0, around: str = "", **options: Any) -> Path:
    """The same in an archive, perhaps below a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for label, name, data in pictures(count, seed, **options):
            archive.writestr(f"{around}{label}/{name}", data)
    return path


def labelled_images(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows with their files, for `write_archive`."""
    return [
        {"image": f"{label}/{name}", "label": label, "files": {f"{label}/{name}": data}}
        for label, name, data in pictures(count, seed)
    ]


def write_archive(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """An archive of rows and the `files` that they name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    with zipfile.ZipFile(path, "w") as archive:
        for row in rows:
            told = {name: value for name, value in row.items() if name != "files"}
            lines.append(json.dumps(told, ensure_ascii=False))
            for name in row["files"].keys() - set(archive.namelist()):
                archive.writestr(name, row["files"][name])
        archive.writestr("rows.jsonl", "\n".join(lines))
    return path


def image_launch(
    folder: Path, name: str, train: Path, validation: Path | None = None, **changes: Any
) -> dict[str, Any]:
    """A launch of `image_classification` on a tiny ViT, two epochs of batches of 4."""
    model = folder / "vit"
    if not model.exists():
        make_tiny_vit(model)
    data: dict[str, Any] = {"train": [{"source": "folder", "path": str(train)}]}
    if validation is not None:
        data["validation"] = [{"source": "folder", "path": str(validation)}]
    spec: dict[str, Any] = {
        "task": {"type": "image_classification"},
        "model": {"source": "folder", "name_or_path": str(model)},
        "data": data,
        "training": {
            "learning_rate": 0.003,
            "num_train_epochs": 2,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 1,
        },
        "checkpoint": {"save_steps": 4},
    }
    for block, values in changes.items():
        merge = isinstance(spec.get(block), dict) and isinstance(values, dict)
        spec[block] = spec[block] | values if merge else values
    return {
        "attempt_id": name,
        "job_id": "job",
        "job_name": "small",
        "spec": spec,
        "paths": {"work": str(folder / name)},
        "threads": 1,
    }
