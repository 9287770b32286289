"""Image classification: images read, labels by name, losses, augmentation, what is published."""

import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, Zygote
from tests.trainer_core.small_images import (
    encoded,
    image_launch,
    make_tiny_vit,
    picture,
    pictures,
    write_folder,
    write_zip,
)
from tests.trainer_core.small_tasks import Small, write_rows
from tests.trainer_core.test_text_classification import PLAIN
from trainer_core.publish.manifest import verify
from trainer_core.spec import TrainSpec

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def folder(small: Small) -> Path:
    """Images of three labels for training, and an archive for validation."""
    write_folder(small.folder / "images", 60)
    write_zip(small.folder / "held.zip", 15, seed=1, around="held/")
    return small.folder


def run(zygote: Zygote, folder: Path, name: str, **changes: Any) -> Outcome:
    train, held = folder / "images", folder / "held.zip"
    return zygote.run(image_launch(folder, name, train, held, **changes))


def report(outcome: Outcome) -> dict[str, Any]:
    [path] = (outcome.work / "prepared").glob("*/report.json")
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def test_it_learns_and_keeps_its_labels(folder: Path, zygote: Zygote) -> None:
    """A23: the names come back from a pipeline that knows nothing but the published folder."""
    from transformers import pipeline

    augmentation = {"random_resized_crop": 0.5, "horizontal_flip": 0.5, "color_jitter": 0.2}
    done = run(
        zygote,
        folder,
        "vit-learns",
        task={"augmentation": augmentation},
        training={"max_steps": 45},
    )
    assert done.code == 0, done.log
    evaluation = [m for m in done.of("metrics") if "eval_loss" in m][-1]
    assert evaluation["eval_accuracy"] >= 0.95
    assert evaluation["eval_f1_macro"] >= 0.95
    published = done.work / "model"
    verify(published)
    classify = pipeline("image-classification", model=str(published))
    rng = random.Random(9)  # noqa: S311 - test data
    for label in ("고래", "cat", "dog"):
        assert classify(picture(label, rng))[0]["label"] == label
    card = (published / "README.md").read_text()
    assert "pipeline_tag: image-classification" in card
    assert "| labels | cat, dog, 고래 |" in card
    assert 'pipeline("image-classification", model=folder)' in card
    assert "tokens" not in card.split("## Settings")[0].split("## Data")[1]


def test_a24_validation_folders_map_by_name(folder: Path, zygote: Zygote) -> None:
    """A validation folder that lacks the first label must not move the others' ids."""
    from trainer_core.data.prepared import open_prepared

    write_folder(folder / "fewer", 8, seed=2, labels=["고래", "dog"])
    launch = image_launch(
        folder, "by-name", folder / "images", folder / "fewer", training={"max_steps": 1}
    )
    done = zygote.run(launch)
    assert done.code == 0, done.log
    [path] = (done.work / "prepared").glob("*/report.json")
    data = open_prepared(path.parent)
    assert data.report.facts["labels"] == ["cat", "dog", "고래"]
    assert data.validation is not None
    assert sorted(set(data.validation["labels"][:])) == [1, 2]
    write_folder(folder / "more", 4, seed=2, labels=["cat", "고래"])
    shutil.copytree(folder / "more/cat", folder / "more/bird")
    launch = image_launch(folder, "new-name", folder / "images", folder / "more")
    refused = zygote.run(launch)
    assert refused.code == 64
    assert "`label` is 'bird', which no training row has" in refused.exit["message"]
    assert "bird/" in refused.exit["message"]


def rows_of(kind: str, folder: Path) -> Path:
    """Six images as Parquet (bytes as `datasets` writes them) or as JSONL with paths."""
    made = [(label, name, data) for label, name, data in pictures(6)]
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = {
            "img": [{"bytes": data, "path": name} for _, name, data in made],
            "labels": [("cat", "dog", "고래").index(label) for label, *_ in made],
        }
        pq.write_table(pa.table(table), folder / "images.parquet")
        return folder / "images.parquet"
    for _, name, data in made:
        (folder / "files").mkdir(exist_ok=True)
        (folder / "files" / name).write_bytes(data)
    rows = [{"img": f"files/{name}", "labels": label} for label, name, _ in made]
    write_rows(folder / "rows.jsonl", rows)
    return folder


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_columns_of_images(folder: Path, zygote: Zygote, kind: str, tmp_path: Path) -> None:
    """Other names are mapped; whole numbers are positions in `label_names`."""
    source = {
        "source": "folder",
        "path": str(rows_of(kind, tmp_path)),
        "columns": {"image": "img", "label": "labels"},
    }
    names = ["cat", "dog", "고래"]
    launch = image_launch(
        folder,
        f"columns-{kind}",
        tmp_path,
        data={"train": [source]},
        task={"label_names": names},
        training={"max_steps": 1},
    )
    done = zygote.run(launch)
    assert done.code == 0, done.log
    assert report(done)["facts"]["labels"] == names
    assert report(done)["train_rows"] == 6


BROKEN = {
    "no image": (b"not an image at all", "none of JPEG, PNG"),
    "cut": (None, "is no image that can be read"),
    "bomb": ("bomb", "has more than 89,478,485 pixels"),
}


def bad_image(kind: str) -> bytes:
    content = BROKEN[kind][0]
    if isinstance(content, bytes):
        return content
    whole = encoded(picture("cat", random.Random(1)), "PNG")  # noqa: S311 - test data
    if content is None:
        return whole[: len(whole) // 2]
    from PIL import Image

    return encoded(Image.new("1", (12_000, 9_000)))


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_image_is_a_bad_row(
    folder: Path, zygote: Zygote, kind: str, tmp_path: Path
) -> None:
    """Refused with the file's name, or dropped and noted in the ledger; a bomb is never decoded."""
    write_folder(tmp_path, 40)
    (tmp_path / "cat" / "깨진.png").write_bytes(bad_image(kind))
    launch = image_launch(folder, f"broken-{kind}", tmp_path, training={"max_steps": 1})
    refused = zygote.run(launch)
    assert refused.code == 64
    assert BROKEN[kind][1] in refused.exit["message"]
    assert "'cat/깨진.png'" in refused.exit["message"]
    launch = image_launch(
        folder,
        f"dropped-{kind}",
        tmp_path,
        training={"max_steps": 1},
        data={"on_bad_row": "drop"},
    )
    done = zygote.run(launch)
    assert done.code == 0, done.log
    assert (report(done)["rows_in"], report(done)["rows_dropped"]) == (41, 1)
    [ledger] = (done.work / "prepared").glob("*/ledger.jsonl")
    assert "깨진.png" in ledger.read_text()


def test_images_stand_upright_in_rgb() -> None:
    """EXIF's orientation is applied, as Transformers' pipelines do; other modes become RGB."""
    from PIL import Image

    from trainer_core.data.images import decoded

    image = Image.new("RGB", (4, 2), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", exif=exif)
    assert decoded(buffer.getvalue(), "x").size == (2, 4)
    for mode in ("L", "P", "RGBA", "LA", "1", "I;16", "CMYK"):
        kind = "JPEG" if mode == "CMYK" else "PNG"
        shown = decoded(encoded(Image.new(mode, (3, 3)), kind), "x")
        assert (shown.mode, shown.size) == ("RGB", (3, 3))


def test_an_adapter_leaves_a_base_alone_that_has_a_pooler() -> None:
    """BEiT's pooler counts as a part of the head and stands inside of the base: it is trained whole
    beside the adapter, and nothing else of the base."""
    from transformers import BeitConfig, BeitForImageClassification

    from trainer_core.adapters import attach
    from trainer_core.tasks import image_classification

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32}
    small = BeitConfig(**sizes, num_attention_heads=2, image_size=32, patch_size=8)
    spec = TrainSpec.model_validate(
        {
            "task": {"type": "image_classification"},
            "model": {"name_or_path": "owner/beit"},
            "data": {"train": [{"source": "folder", "path": "images"}]},
            "adapter": {"type": "lora", "target_modules": ["q_proj"]},
        }
    )
    kind = image_classification.FACTS.model
    adapted, _ = attach(BeitForImageClassification(small), spec, kind)
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    whole = {name for name in trained if ".lora_" not in name}
    assert len(trained) > len(whole)
    assert all(".classifier." in name or ".pooler." in name for name in whole)
    assert len(whole) == 4  # weight and bias of both


@pytest.mark.parametrize(("batch", "accumulated"), [(8, 1), (3, 3)])
def test_a6_the_loss_is_the_mean_over_a_step(
    folder: Path, zygote: Zygote, batch: int, accumulated: int, tmp_path: Path
) -> None:
    """Against plain PyTorch, with weights and smoothing; 3 + 3 + 2 rows are as 8 at once."""
    import torch
    from transformers import AutoModelForImageClassification, set_seed
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    calm = folder / "calm-vit"
    if not calm.exists():
        make_tiny_vit(calm, hidden_dropout_prob=0.0)
    write_folder(tmp_path, 8)
    training = PLAIN | {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulated,
    }
    launch = image_launch(
        folder,
        f"vit-loss-{batch}",
        tmp_path,
        model={"name_or_path": str(calm)},
        task={"class_weights": [0.5, 2.0, 1.0], "label_smoothing_factor": 0.1},
        training=training,
    )
    done = zygote.run(launch)
    assert done.code == 0, done.log
    set_seed(42)
    model = AutoModelForImageClassification.from_pretrained(calm, num_labels=3)
    processor = AutoImageProcessor.from_pretrained(calm)
    from PIL import Image

    made = list(pictures(8))
    images = [Image.open(io.BytesIO(data)).convert("RGB") for *_, data in made]
    given = processor(images=images, return_tensors="pt")
    truth = torch.tensor([("cat", "dog", "고래").index(label) for label, *_ in made])
    weights = torch.tensor([0.5, 2.0, 1.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in (1, 2):
        loss = torch.nn.functional.cross_entropy(
            model(**given).logits, truth, weights, label_smoothing=0.1
        )
        assert done.losses[step] == pytest.approx(loss.item(), abs=2e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_augmentation_follows_seed_epoch_and_row() -> None:
    """The same row in the same epoch is the same image, another epoch's is not; ranges hold."""
    from trainer_core.augment import augmented
    from trainer_core.row_draws import generator
    from trainer_core.spec import Augmentation

    image = picture("cat", random.Random(1), (40, 30))  # noqa: S311 - test data
    wish = Augmentation(random_resized_crop=0.5, horizontal_flip=0.5, color_jitter=0.3)

    def made(epoch: int, row: int) -> Any:
        return augmented(image, wish, generator((42, epoch, row)))

    assert made(1, 3).tobytes() == made(1, 3).tobytes()
    assert len({made(epoch, row).tobytes() for epoch in (1, 2) for row in range(10)}) == 20
    for row in range(50):
        wide, high = made(1, row).size
        assert 0.45 <= wide * high / 1200 <= 1.0
        assert 0.7 <= wide / high <= 1.4
    always = Augmentation(horizontal_flip=1.0)
    flipped = augmented(image, always, generator((42, 1, 0)))
    assert [flipped.getpixel((x, 0)) for x in range(40)] == [
        image.getpixel((39 - x, 0)) for x in range(40)
    ]
    still = augmented(image, Augmentation(), generator((42, 1, 0)))
    assert still.tobytes() == image.tobytes()


def test_a23_an_adapter_keeps_labels_and_head(folder: Path, zygote: Zygote) -> None:
    """A new head is trained whole beside LoRA, and PEFT alone loads both on the unchanged base."""
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForImageClassification
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    done = run(
        zygote,
        folder,
        "vit-lora",
        adapter={"type": "lora", "r": 4},
        training={"num_train_epochs": 3, "learning_rate": 0.01},
    )
    assert done.code == 0, done.log
    evaluation = [m for m in done.of("metrics") if "eval_loss" in m][-1]
    assert evaluation["eval_accuracy"] >= 0.95
    published = done.work / "model"
    config = AutoConfig.from_pretrained(published)
    assert config.id2label == {0: "cat", 1: "dog", 2: "고래"}
    base = AutoModelForImageClassification.from_pretrained(folder / "vit", config=config)
    model = PeftModel.from_pretrained(base, published).eval()
    processor = AutoImageProcessor.from_pretrained(published)
    image = picture("dog", random.Random(3))  # noqa: S311 - test data
    inputs = processor(images=image, return_tensors="pt")
    assert config.id2label[model(**inputs).logits.argmax(-1).item()] == "dog"
    card = (published / "README.md").read_text()
    assert "processor = AutoImageProcessor.from_pretrained(folder)" in card


def test_a21_merged_classifier_equals_its_adapter(folder: Path, zygote: Zygote) -> None:
    from transformers import AutoModelForImageClassification

    done = run(
        zygote,
        folder,
        "vit-merged",
        adapter={"type": "lora", "r": 4},
        training={"max_steps": 8},
        publish={"merge": "always"},
    )
    assert done.code == 0, done.log
    model = AutoModelForImageClassification.from_pretrained(done.work / "model")
    assert model.config.id2label == {0: "cat", 1: "dog", 2: "고래"}
    assert "Merging changed the logits by at most" in (done.work / "model/README.md").read_text()


def test_a_frozen_backbone_stays_as_it_is(folder: Path, zygote: Zygote) -> None:
    from safetensors.torch import load_file

    done = run(
        zygote, folder, "vit-frozen", task={"freeze_backbone": True}, training={"max_steps": 3}
    )
    assert done.code == 0, done.log
    before = load_file(folder / "vit/model.safetensors")
    after = load_file(done.work / "model/model.safetensors")
    same = {name for name, value in after.items() if (value == before.get(name[4:], 0.5)).all()}
    assert {name for name in after if name.startswith("vit.")} == same


def test_a_network_without_attention_trains(folder: Path, zygote: Zygote) -> None:
    """Most vision models of the hub are of this kind: no `sdpa`, no `image_size` in the config."""
    import torch
    from transformers import ResNetConfig, ResNetModel
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    path = folder / "resnet"
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ResNetModel(config).save_pretrained(path)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(path)
    done = run(
        zygote,
        folder,
        "resnet-run",
        model={"name_or_path": str(path)},
        training={"num_train_epochs": 3},
    )
    assert done.code == 0, done.log
    evaluation = [m for m in done.of("metrics") if "eval_loss" in m][-1]
    assert evaluation["eval_accuracy"] >= 0.9


def test_a23_a_model_with_another_head_is_refused_or_replaced(folder: Path, zygote: Zygote) -> None:
    first = run(zygote, folder, "vit-3", training={"max_steps": 2})
    write_folder(folder / "two", 8, labels=["cat", "dog"])
    model = {"source": "folder", "name_or_path": str(first.work / "model")}
    refused = zygote.run(image_launch(folder, "vit-2", folder / "two", model=model))
    assert refused.code == 64
    assert "set task.ignore_mismatched_sizes to true" in refused.exit["message"]
    launch = image_launch(
        folder,
        "vit-new",
        folder / "two",
        model=model,
        task={"ignore_mismatched_sizes": True},
        training={"max_steps": 2},
    )
    replaced = zygote.run(launch)
    assert replaced.code == 0, replaced.log


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"task": {"label_names": ["a", "a"]}}, "/task/label_names"),
    ({"task": {"label_names": ["a", "b"], "class_weights": [1.0]}}, "/task/class_weights"),
    (
        {"task": {"freeze_backbone": True}, "adapter": {"type": "lora"}},
        "/task/freeze_backbone",
    ),
    ({"model": {"add_tokens": ["x"]}}, "/model/add_tokens"),
    ({"training": {"neftune_noise_alpha": 5.0}}, "/training/neftune_noise_alpha"),
    ({"data": {"over_length": "drop"}}, "/data/over_length"),
    ({"data": {"train": [{"source": "folder", "path": "x", "format": "text"}]}}, "format"),
]


@pytest.mark.parametrize(("changes", "pointer"), REFUSED, ids=[p for _, p in REFUSED])
def test_refusals(changes: dict[str, Any], pointer: str) -> None:
    from trainer_core.capabilities import check

    spec: dict[str, Any] = {
        "task": {"type": "image_classification"},
        "model": {"name_or_path": "owner/model"},
        "data": {"train": [{"source": "folder", "path": "images"}]},
    }
    for block, values in changes.items():
        spec[block] = spec.get(block, {}) | values
    found = [problem.pointer for problem in check(TrainSpec.model_validate(spec))]
    assert [p for p in found if p.endswith(pointer)], found
