"""Multimodal fine-tuning: images at their places, masks, frozen parts, what is published."""

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, Zygote
from tests.trainer_core.small_images import (
    encoded,
    make_tiny_llava,
    picture,
    visual_questions,
)
from tests.trainer_core.small_tasks import Small
from tests.trainer_core.test_text_classification import PLAIN
from trainer_core.data.formats import detect, to_sample
from trainer_core.data.parts import MARK
from trainer_core.data.rows import BadRow, Pictured, Place, Row
from trainer_core.publish.manifest import verify
from trainer_core.spec import DataSource

pytestmark = pytest.mark.train

TASK = {"type": "multimodal"}
SEEING = TASK | {"freeze_projector": False}


def report(outcome: Outcome) -> dict[str, Any]:
    [path] = (outcome.work / "prepared").glob("*/report.json")
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    found: dict[str, Any] = load_file(folder / "model.safetensors")
    return found


def image(label: str, seed: int = 7) -> Any:
    return picture(label, random.Random(seed))  # noqa: S311 - test data


def test_it_learns_what_images_show(small: Small, zygote: Zygote) -> None:
    """The published folder answers about new images with Transformers alone."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    rows, held = visual_questions(90), visual_questions(15, seed=1)
    launch = small.launch("seeing", SEEING, rows, held, training={"num_train_epochs": 3})
    launch["spec"]["evaluation"] = {"metrics": ["mean_token_accuracy", "perplexity"]}
    done = zygote.run(launch)
    assert done.code == 0, done.log
    evaluation = [m for m in done.of("metrics") if "eval_loss" in m][-1]
    assert evaluation["eval_mean_token_accuracy"] >= 0.95
    assert evaluation["eval_perplexity"] <= 1.2
    # Row by row: what was measured over all rows at once.
    told = json.loads((done.work / "evaluation/report.json").read_text())
    for metric in ("mean_token_accuracy", "perplexity"):
        value = told["metrics"][metric]["value"]
        assert value == pytest.approx(told["measured"][metric], rel=1e-4)
    folder = done.work / "model"
    verify(folder)
    before, after = weights(small.llava), weights(folder)
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert not {name for name in changed if "vision_tower" in name}
    assert {name for name in changed if "multi_modal_projector" in name}
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    question = [
        {"type": "image"},
        {"type": "text", "text": "Where is my order?"},
    ]
    prompt = processor.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True
    )
    for label, answer in (("cat", "tomorrow"), ("dog", "shoes"), ("고래", "영수증")):
        given = processor(
            text=[prompt], images=[[image(label)]], add_special_tokens=False, return_tensors="pt"
        )
        written = model.generate(**given, max_new_tokens=12, do_sample=False)
        said = processor.tokenizer.decode(written[0, given["input_ids"].shape[1] :])
        assert said == f"{answer}<|im_end|>"
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: image-text-to-text" in card
    assert "processor = AutoProcessor.from_pretrained(folder)" in card


def test_only_answers_carry_loss(small: Small, zygote: Zygote) -> None:
    """Labels are those of the answer and its end, behind the 16 tokens of each image."""
    from trainer_core.data.prepared import open_prepared

    rows = visual_questions(6, pairs=True)
    done = zygote.run(small.launch("mask", TASK, rows, training={"max_steps": 1}))
    assert done.code == 0, done.log
    [path] = (done.work / "prepared").glob("*/report.json")
    data = open_prepared(path.parent)
    assert data.report.example["trained"] == ["tomorrow<|im_end|>"]
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(small.llava)
    token = processor.tokenizer.convert_tokens_to_ids("<image>")
    for row in data.train:
        images = len(row["images"])
        assert row["input_ids"].count(token) == 16 * images
        assert row["text"].count("<image>") == images
        learned = [label for label in row["labels"] if label != -100]
        assert token not in learned
        ids = row["input_ids"]
        assert processor.tokenizer.decode(learned).endswith("<|im_end|>")
        assert [i for i, label in zip(ids, row["labels"], strict=True) if label != -100] == learned


def test_answers_between_images_are_learned(small: Small, zygote: Zygote) -> None:
    """A conversation that goes on with a second image: both answers carry loss, no image does."""
    from trainer_core.data.prepared import open_prepared

    rows = visual_questions(8, pairs=True)
    for row in rows:
        answer = row["messages"][1]["content"]
        row["messages"] = [
            {"role": "user", "content": "<image>And this?"},
            {"role": "assistant", "content": "receipt"},
            {"role": "user", "content": "<image>Where is my order?"},
            {"role": "assistant", "content": answer},
        ]
    done = zygote.run(small.launch("between", TASK, rows, training={"max_steps": 2}))
    assert done.code == 0, done.log
    [path] = (done.work / "prepared").glob("*/report.json")
    data = open_prepared(path.parent)
    assert data.report.example["trained"] == ["receipt<|im_end|>", "tomorrow<|im_end|>"]
    token = max(set(data.train[0]["input_ids"]), key=data.train[0]["input_ids"].count)
    assert data.train[0]["input_ids"].count(token) == 32
    assert token not in data.train[0]["labels"]


@pytest.mark.parametrize(("batch", "accumulated"), [(6, 1), (4, 2)])
def test_a6_the_loss_is_the_mean_over_a_step(
    small: Small, zygote: Zygote, batch: int, accumulated: int
) -> None:
    """Against the model's own loss of all rows at once; 4 + 2 rows in one step are as 6."""
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    calm = small.folder / "calm-llava"
    if not calm.exists():
        make_tiny_llava(calm, dropout=0.0)
    rows = visual_questions(6, pairs=True)
    training = PLAIN | {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulated,
    }
    model = {"source": "folder", "name_or_path": str(calm)}
    done = zygote.run(
        small.launch(f"visual-loss-{batch}", SEEING, rows, training=training, model=model)
    )
    assert done.code == 0, done.log
    torch.manual_seed(0)
    reference = AutoModelForImageTextToText.from_pretrained(calm).train()
    for name, parameter in reference.named_parameters():
        parameter.requires_grad_("vision_tower" not in name)
    processor = AutoProcessor.from_pretrained(calm)
    processor.tokenizer.padding_side = "right"
    given = _plain_inputs(processor, rows)
    optimizer = torch.optim.SGD([p for p in reference.parameters() if p.requires_grad], lr=0.1)
    for step in (1, 2):
        loss = reference(**given).loss
        assert done.losses[step] == pytest.approx(loss.item(), abs=2e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _plain_inputs(processor: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What a user of Transformers would write: labels are everything behind the last header."""
    from PIL import Image

    texts, images = [], []
    for row in rows:
        question, answer = (m["content"] for m in row["messages"])
        texts.append(
            f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
        )
        images.append(
            [Image.open(io.BytesIO(row["files"][n])).convert("RGB") for n in row["images"]]
        )
    given = processor(
        text=texts, images=images, add_special_tokens=False, padding=True, return_tensors="pt"
    )
    labels = given["input_ids"].clone()
    start, end = (
        processor.tokenizer.convert_tokens_to_ids(f"<|im_{n}|>") for n in ("start", "end")
    )
    for row in labels:
        header = (row == start).nonzero()[-1].item()
        size = len(processor.tokenizer("assistant\n", add_special_tokens=False)["input_ids"])
        stop = (row == end).nonzero()[-1].item()
        row[: header + 1 + size] = -100
        row[stop + 1 :] = -100
    return {**given, "labels": labels}


def test_with_all_tokens_learned_no_image_is(small: Small, zygote: Zygote) -> None:
    """`loss_on: all` means every token of the text but its first."""
    from trainer_core.data.prepared import open_prepared

    task = TASK | {"loss_on": "all"}
    done = zygote.run(small.launch("all", task, visual_questions(4), training={"max_steps": 1}))
    assert done.code == 0, done.log
    [path] = (done.work / "prepared").glob("*/report.json")
    for row in open_prepared(path.parent).train:
        assert row["labels"].count(-100) == 17
        assert row["labels"][0] == -100


def test_lora_passes_by_what_is_frozen(small: Small, zygote: Zygote) -> None:
    """PEFT alone loads the adapter, which has weights for the language model and nothing else."""
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForImageTextToText, AutoProcessor

    adapter = {"type": "lora", "r": 4}
    done = zygote.run(
        small.launch(
            "visual-lora", TASK, visual_questions(12), adapter=adapter, training={"max_steps": 3}
        )
    )
    assert done.code == 0, done.log
    folder = done.work / "model"
    names = load_file(folder / "adapter_model.safetensors")
    assert names
    assert all("language_model" in name for name in names)
    base = AutoModelForImageTextToText.from_pretrained(small.llava)
    PeftModel.from_pretrained(base, folder)
    assert AutoProcessor.from_pretrained(folder).image_token == "<image>"
    card = (folder / "README.md").read_text()
    assert "from transformers import AutoModelForImageTextToText, AutoProcessor" in card
    assert "PeftModel.from_pretrained(base, folder)" in card


def test_a21_merged_equals_its_adapter(small: Small, zygote: Zygote) -> None:
    from transformers import AutoModelForImageTextToText

    done = zygote.run(
        small.launch(
            "visual-merged",
            SEEING,
            visual_questions(12),
            adapter={"type": "lora", "r": 4},
            training={"max_steps": 3},
            publish={"merge": "always"},
        )
    )
    assert done.code == 0, done.log
    AutoModelForImageTextToText.from_pretrained(done.work / "model")
    before, after = weights(small.llava), weights(done.work / "model")
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert {n for n in changed if "multi_modal_projector" in n}
    assert not {n for n in changed if "vision_tower" in n}


def test_large_images_are_made_smaller(small: Small, zygote: Zygote) -> None:
    """Above `max_pixels` an image keeps its shape and is stored small; others stay as they are."""
    from PIL import Image

    from trainer_core.data.prepared import open_prepared

    rows = visual_questions(4)
    big = encoded(image("cat").resize((200, 100)), "JPEG")
    rows[0] |= {"images": ["big.jpg"], "files": {"big.jpg": big}}
    task = TASK | {"max_pixels": 5_000}
    done = zygote.run(small.launch("large", task, rows, training={"max_steps": 1}))
    assert done.code == 0, done.log
    [path] = (done.work / "prepared").glob("*/report.json")
    data = open_prepared(path.parent).train
    [stored] = data[0]["images"]
    with Image.open(io.BytesIO(stored)) as shown:
        assert (shown.format, shown.size) == ("PNG", (100, 50))
    [name] = rows[1]["images"]
    assert data[1]["images"] == [rows[1]["files"][name]]


def make_tiny_llava_next(path: Path, llava: Path) -> Path:
    """The tiny LLaVA's parts, for images in as many tiles as their shape asks for."""
    import torch
    from transformers import (
        AutoConfig,
        AutoProcessor,
        LlavaNextConfig,
        LlavaNextForConditionalGeneration,
        LlavaNextProcessor,
    )
    from transformers.models.llava_next.image_processing_pil_llava_next import (
        LlavaNextImageProcessorPil,
    )

    plain, known = AutoConfig.from_pretrained(llava), AutoProcessor.from_pretrained(llava)
    tiles = [[16, 32], [32, 16], [32, 32]]
    side = {"height": 16, "width": 16}
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 16}, crop_size=side, image_grid_pinpoints=tiles
    )
    processor = LlavaNextProcessor(
        images,
        known.tokenizer,
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=known.chat_template,
    )
    config = LlavaNextConfig(
        vision_config=plain.vision_config,
        text_config=plain.text_config,
        image_token_id=plain.image_token_id,
        image_grid_pinpoints=tiles,
        vision_feature_layer=-1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlavaNextForConditionalGeneration(config).save_pretrained(path)
    processor.save_pretrained(path)
    return path


def test_images_in_tiles(small: Small, zygote: Zygote) -> None:
    """Several images a row, of different numbers and shapes, so of different numbers of tokens."""
    model = {
        "source": "folder",
        "name_or_path": str(make_tiny_llava_next(small.folder / "next", small.llava)),
    }
    rows = [*visual_questions(6, pairs=True), *visual_questions(30)]
    wide = encoded(image("cat").resize((60, 20)))
    rows[7] |= {"images": ["wide.png"], "files": {"wide.png": wide}}
    done = zygote.run(small.launch("tiles", SEEING, rows, rows[:4], model=model))
    assert done.code == 0, done.log
    assert done.losses[max(done.losses)] < done.losses[1]
    assert report(done)["example"]["trained"] == ["tomorrow<|im_end|>"]


ROWS: list[tuple[dict[str, Any], str, list[str], int]] = [
    # a row, its format, contents with | where an image stands, images
    (
        {
            "messages": [
                {"role": "user", "content": "a<image>b"},
                {"role": "assistant", "content": "c"},
            ],
            "images": ["1.png"],
        },
        "image_messages",
        ["a|b", "c"],
        1,
    ),
    (
        {
            "conversations": [
                {"from": "human", "value": "<image>\nq"},
                {"from": "gpt", "value": "c"},
            ],
            "image": "1.png",
        },
        "image_messages",
        ["|\nq", "c"],
        1,
    ),
    (
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "c"},
            ],
            "images": ["1.png", "2.png"],
        },
        "image_messages",
        ["s", "||q", "c"],
        2,
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "image", "image": "1.png"}],
                },
                {"role": "assistant", "content": [{"type": "text", "text": "c"}]},
            ]
        },
        "image_messages",
        ["a|", "c"],
        1,
    ),
    (
        {"prompt": "q", "completion": "c", "images": ["1.png"]},
        "image_prompt_completion",
        ["|q", "c"],
        1,
    ),
    (
        {
            "prompt": [
                {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "q"}]}
            ],
            "completion": [{"role": "assistant", "content": "c"}],
            "images": ["1.png"],
        },
        "image_prompt_completion",
        ["|q", "c"],
        1,
    ),
]


@pytest.mark.parametrize(("values", "format_", "contents", "images"), ROWS)
def test_spellings_of_rows(
    values: dict[str, Any], format_: str, contents: list[str], images: int
) -> None:
    """Of TRL, LLaMA-Factory and ms-swift; without a place, images stand before the question."""
    from trainer_core.task import TASKS

    source = DataSource(source="folder", path="x")
    row = Row(Place("data.train[0]", "x", 1), values)
    assert detect([row], source, "data.train[0]", TASKS["multimodal"].FACTS.formats) == format_
    if "images" in values or "image" in values:  # an upload is looked at without a task
        assert detect([row], source, "data.train[0]") == format_
    sample = to_sample(values, format_, None)
    assert isinstance(sample, Pictured)
    assert [m["content"].replace(MARK, "|") for m in sample.conversation.messages] == contents
    assert len(sample.images) == images
    told = to_sample(values, format_, "be brief")
    assert isinstance(told, Pictured)
    assert told.conversation.messages[0]["role"] == "system"


def asked(content: Any, **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "c"}]
    return {"messages": turns, **more}


BAD: list[tuple[dict[str, Any], str]] = [
    (asked("<image><image>q", images=["1.png"]), "2 places for images, but 1 images"),
    (asked("<image>q", images=["1.png", "2.png"]), "1 places for images, but 2 images"),
    (asked("q", images=[]), "has no image: rows of texts alone are for task 'sft'"),
    (asked([{"type": "video"}], images=["1.png"]), "`messages[0].content[0].type` is 'video'"),
    (asked([{"type": "image", "image": "1.png"}], images=["2.png"]), "keep one"),
    (asked(f"a{MARK}", images=["1.png"]), "U+F8F0"),
]


@pytest.mark.parametrize(("values", "words"), BAD)
def test_a26_places_and_images_must_agree(values: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRow) as wrong:
        to_sample(values, "image_messages", None)
    assert words in wrong.value.message


def test_a26_no_image_is_ever_cut(small: Small, zygote: Zygote) -> None:
    """A row that is too long is refused or dropped; policies that cut are none of this task's."""
    rows = visual_questions(12)
    rows[3]["messages"][0]["content"] += " my order" * 40
    task = TASK | {"max_length": 64}
    refused = zygote.run(small.launch("too-long", task, rows))
    assert refused.code == 64
    assert "1 rows are longer than task.max_length (64)" in refused.exit["message"]
    launch = small.launch("long-dropped", task, rows, training={"max_steps": 1})
    launch["spec"]["data"]["over_length"] = "drop"
    done = zygote.run(launch)
    assert done.code == 0, done.log
    assert report(done)["train_rows"] == 11
    launch["spec"]["data"]["over_length"] = "truncate_right"
    launch["paths"]["work"] += "-cut"
    cut = zygote.run(launch)
    assert cut.code == 64
    assert "data.over_length is 'truncate_right'" in cut.exit["message"]


def test_a_template_that_does_not_write_images_is_refused(small: Small, zygote: Zygote) -> None:
    task = TASK | {"chat_template": "chatml"}
    refused = zygote.run(small.launch("no-places", task, visual_questions(8)))
    assert refused.code == 64
    assert "the chat template" in refused.exit["message"]


def test_a_model_without_eyes_is_refused(small: Small, zygote: Zygote) -> None:
    model = {"source": "folder", "name_or_path": str(small.llama)}
    refused = zygote.run(small.launch("blind", TASK, visual_questions(8), model=model))
    assert refused.code == 64
    assert "is not a vision-language model" in refused.exit["message"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"task": TASK | {"freeze_projector": True, "freeze_language_model": True}},
        "nothing to train",
    ),
    ({"adapter": {"type": "vera"}}, "VeRA"),
    ({"adapter": {"type": "freeze", "trainable_patterns": ["*"]}}, "say which parts are trained"),
    ({"task": TASK | {"chat_template": "x"}}, "nor a Jinja template"),
    ({"data": {"train": [{"source": "folder", "path": "x", "format": "messages"}]}}, "format"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_refusals(changes: dict[str, Any], words: str) -> None:
    from trainer_core.capabilities import check
    from trainer_core.spec import TrainSpec

    spec = {
        "task": TASK,
        "model": {"name_or_path": "owner/model"},
        "data": {"train": [{"source": "folder", "path": "rows"}]},
    } | changes
    found = check(TrainSpec.model_validate(spec))
    assert [problem for problem in found if words in problem.message], found
