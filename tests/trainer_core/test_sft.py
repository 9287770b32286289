"""`sft` in full: what of a turn is learned, further losses, padding-free batches, ends, packing."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core import chat
from tests.trainer_core.runs import World, Zygote
from tests.trainer_core.small_tasks import Small, talks
from tests.trainer_core.test_masks import ANSWERS, PLACE, TURNS, conversation, trained
from tests.trainer_core.test_text_classification import PLAIN
from tests.trainer_core.tiny import make_tiny_model, random_rows, write_prepared
from trainer_core.capabilities import check
from trainer_core.data.encode import Encoder
from trainer_core.data.formats import to_sample
from trainer_core.data.rows import BadRow, Encoded, Sample
from trainer_core.data.template_checks import template_warnings
from trainer_core.data.templates import choose_template
from trainer_core.errors import InvalidSpec
from trainer_core.spec import SftTask, TrainSpec
from trainer_core.stop_tokens import stop_where_turns_end, use_eos

EOT = "<|im_end|>"


def encoded(
    tokenizer: Any, sample: Sample, loss_on: str = "assistant", ends: Any = "turn", **options: str
) -> Encoded:
    template = choose_template(options.get("template", "auto"), tokenizer)
    [(_, outcome)] = Encoder(tokenizer, template, ends).encode([(PLACE, sample)], loss_on)
    if isinstance(outcome, BadRow):
        raise outcome
    return outcome


# ---- what of a conversation is learned ----


@pytest.mark.train
@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("turn", [answer + EOT for answer in ANSWERS]),
        ("last", [ANSWERS[0], ANSWERS[1] + EOT]),
        ("none", ANSWERS),
        ("all", [EOT, EOT, ANSWERS[0] + EOT, EOT, ANSWERS[1] + EOT]),
    ],
)
def test_a2_which_ends_of_turns_are_learned(ends: str, expected: list[str]) -> None:
    """`all` means those of the system message and of questions too."""
    tokenizer = chat.qwen()
    assert trained(tokenizer, encoded(tokenizer, conversation(*TURNS), ends=ends)) == expected


@pytest.mark.train
@pytest.mark.parametrize("key", ["loss", "train", "weight"])
def test_messages_say_themselves_what_is_learned(key: str) -> None:
    """As ms-swift, axolotl and OpenAI write it."""
    messages = [dict(m) for m in conversation(*TURNS).messages]
    messages[1][key] = 0
    messages[0][key] = None
    sample = to_sample({"messages": messages}, "messages", "Be kind.")
    tokenizer = chat.qwen()
    assert trained(tokenizer, encoded(tokenizer, sample)) == [ANSWERS[1] + EOT]
    messages[3][key] = False
    silent = to_sample({"messages": messages}, "messages", None)
    with pytest.raises(BadRow, match="no token would be trained"):
        encoded(tokenizer, silent)


@pytest.mark.train
def test_segments_are_learned_as_they_say() -> None:
    pieces = [("Q: 2 + 2\nA:", False), (" 4", True), ("\nQ: 3 + 3\nA:", False), (" 6", True)]
    row = {"segments": [{"text": text, "label": label} for text, label in pieces]}
    tokenizer = chat.qwen()
    sample = to_sample(row, "segments", None)
    found = encoded(tokenizer, sample, "completion")
    assert trained(tokenizer, found) == [" 4", f" 6{EOT}"]
    assert tokenizer.decode(found.input_ids) == "".join(text for text, _ in pieces) + EOT
    row["segments"][3]["label"] = False
    assert trained(tokenizer, encoded(tokenizer, to_sample(row, "segments", None))) == [" 4"]


@pytest.mark.train
def test_query_and_response_with_history() -> None:
    row = {"query": "c?", "response": "d.", "history": [["a?", "b."]], "system": "S"}
    tokenizer = chat.qwen()
    found = encoded(tokenizer, to_sample(row, "query_response", None))
    assert trained(tokenizer, found) == [f"b.{EOT}", f"d.{EOT}"]


# ---- templates and ends ----

ANSWERED = {
    "chatml": ("qwen", "<|im_start|>assistant\n{}<|im_end|>"),
    "llama3": ("llama3", "<|start_header_id|>assistant<|end_header_id|>\n\n{}<|eot_id|>"),
    "gemma": ("gemma", "<start_of_turn>model\n{}<end_of_turn>"),
    "mistral": ("llama3", "[/INST] {}<|eot_id|>"),
    "zephyr": ("qwen", "<|assistant|>\n{}<|im_end|>"),
    "alpaca": ("llama3", "### Response:\n{}<|eot_id|>"),
    "vicuna": ("llama3", "ASSISTANT: {}<|eot_id|>"),
}


@pytest.mark.train
@pytest.mark.parametrize("name", ANSWERED)
def test_a1_a_template_by_name(name: str) -> None:
    """Contents stay as they are; answers and their ends are learned."""
    family, shape = ANSWERED[name]
    tokenizer = getattr(chat, family)()
    found = encoded(tokenizer, conversation(*TURNS), template=name)
    text = tokenizer.decode(found.input_ids)
    end = shape.partition("{}")[2]
    learned = trained(tokenizer, found)
    for (_, content), answer in zip(TURNS[1::2], learned, strict=True):
        assert answer.strip() == content + end
        assert shape.format(content) in text
    for _, content in TURNS:
        assert content in text


@pytest.mark.train
def test_phi_has_control_tokens_of_its_own() -> None:
    specials = ["<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"]
    tokenizer = chat.byte_level(None, specials, bos=None, eos="<|endoftext|>", pad=None)
    found = encoded(tokenizer, conversation(*TURNS), template="phi3")
    assert trained(tokenizer, found) == [f"{answer}<|end|>" for answer in ANSWERS]


@pytest.mark.train
def test_a_name_whose_tokens_are_missing_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"writes <\|start_header_id\|>, .* has no such token"):
        choose_template("llama3", chat.qwen())


@pytest.mark.train
def test_odd_templates_are_told_of() -> None:
    tokenizer = chat.qwen(chat.THINKING)
    codes = [code for code, _ in template_warnings(choose_template("auto", tokenizer))]
    assert codes == ["template_history_differs"]
    odd = chat.QWEN.replace("assistant\\n' }}{%- endif", "assistant\\nI say: ' }}{%- endif")
    found = list(template_warnings(choose_template(odd, tokenizer)))
    assert [code for code, _ in found] == ["template_prompt_differs"]
    for family in (chat.llama3(), chat.qwen(), chat.gemma()):
        assert list(template_warnings(choose_template("auto", family))) == []


class _Model:
    """Nothing but what generation looks at."""

    def __init__(self, eos: Any) -> None:
        self.generation_config = type("Settings", (), {"eos_token_id": eos})()


@pytest.mark.train
@pytest.mark.parametrize("known", [None, 0, [0]])
def test_a2_the_model_stops_where_turns_end(known: Any) -> None:
    """A base model knows its end of text (0) at most; its turns are learned to end otherwise."""
    specials = ["<|endoftext|>", "<|im_start|>", EOT]
    tokenizer = chat.byte_level(chat.QWEN, specials, bos=None, eos=specials[0], pad=None)
    model = _Model(known)
    added = list(stop_where_turns_end(model, tokenizer, choose_template("auto", tokenizer)))
    assert added == [*(["<|endoftext|>"] if known is None else []), EOT]
    assert model.generation_config.eos_token_id == [0, 2]
    assert list(stop_where_turns_end(model, tokenizer, None)) == []


@pytest.mark.train
def test_another_end_of_text() -> None:
    tokenizer = chat.qwen(None)
    use_eos(tokenizer, "<|endoftext|>")
    assert trained(tokenizer, encoded(tokenizer, conversation(*TURNS[:2]))) == [
        f"{ANSWERS[0]}<|endoftext|>"
    ]
    with pytest.raises(InvalidSpec, match="is no token of the model's tokenizer"):
        use_eos(tokenizer, "<stop>")


# ---- the block ----


def spec(task: dict[str, Any], **blocks: Any) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "task": {"type": "sft"} | task,
            "model": {"name_or_path": "owner/model"},
            "data": {"train": [{"source": "folder", "path": "rows.jsonl"}]},
        }
        | blocks
    )


@pytest.mark.parametrize(
    ("task", "field", "message"),
    [
        ({"padding_free": True}, "padding_free", "or use task.packing, which runs everywhere"),
        ({"packing_strategy": "wrapped"}, "packing_strategy", "no effect without task.packing"),
        (
            {"packing": True, "packing_strategy": "wrapped"},
            "packing_strategy",
            "answers lose their questions: use 'bfd'",
        ),
        ({"loss_on": "all", "train_on_eot": "last"}, "train_on_eot", "trains every token"),
        ({"chat_template": "lama3"}, "chat_template", "nor a Jinja template"),
    ],
)
def test_a4_what_does_not_go_together(task: dict[str, Any], field: str, message: str) -> None:
    [problem] = check(spec(task))
    assert problem.pointer == f"/task/{field}"
    assert message in problem.message


def test_padding_free_runs_where_its_kernel_does() -> None:
    from trainer_core.hardware import Hardware
    from trainer_core.resolve import resolve

    gpu = Hardware(gpus=1, gpu_memory_gb=24, bf16=True)
    flash = {"name_or_path": "owner/model", "attn_implementation": "flash_attention_2"}
    for model, expected in ((flash, True), ({"name_or_path": "owner/model"}, False)):
        task = resolve(spec({}, model=model), gpu).spec.task
        assert isinstance(task, SftTask)
        assert task.padding_free is expected
    assert check(spec({"padding_free": True}, model=flash), gpu) == []


# ---- numbers ----


@pytest.mark.train
def test_a4_a_batch_without_padding_has_the_same_loss(world: World) -> None:
    """Laid out as one row, as kernels of variable length take it: every token's loss is equal."""
    import torch
    from transformers import AutoModelForCausalLM

    from trainer_core.collator import Collator
    from trainer_core.token_trainer import check_isolation

    model = AutoModelForCausalLM.from_pretrained(world.model).eval()
    check_isolation(model)
    rows = random_rows(5, seed=8)
    padded, flat = Collator(0, multiple=16)(rows), Collator(0, flatten=True)(rows)
    assert padded["input_ids"].shape[1] % 16 == 0
    assert flat["input_ids"].shape == (1, sum(len(row["input_ids"]) for row in rows))
    assert (flat["labels"] != -100).sum() == (padded["labels"][:, 1:] != -100).sum()
    losses = []
    for batch in (padded, flat):
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = model(**batch, use_cache=False).logits[:, :-1].flatten(0, 1)
        losses.append(torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten()).item())
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def _plain_losses(folder: Path, rows: list[Any], settings: dict[str, Any]) -> list[float]:
    """Losses of three SGD steps over all rows: likelihood or DFT, and the exact KL."""
    import torch
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(folder).eval()
    frozen = copy.deepcopy(policy)
    optimizer = torch.optim.SGD(policy.parameters(), lr=PLAIN["learning_rate"])
    found = []
    for _ in range(3):
        total, tokens = 0.0, 0
        for row in rows:
            ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"][1:])
            learned = labels != -100
            ours = policy(input_ids=ids).logits[0, :-1][learned].log_softmax(-1)
            with torch.no_grad():
                theirs = frozen(input_ids=ids).logits[0, :-1][learned].log_softmax(-1)
            each = -ours.gather(-1, labels[learned][:, None])[:, 0]
            if settings.get("loss_type") == "dft":
                each = each * (-each).exp().detach()
            kl = torch.nn.functional.kl_div(theirs, ours, log_target=True, reduction="sum")
            total = total + each.sum() + settings.get("kl_beta", 0.0) * kl
            tokens += int(learned.sum())
        loss = total / tokens
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.train
def test_it_learns_to_answer(small: Small, zygote: Zygote) -> None:
    """Nineteen of twenty tokens of the answers to questions that no row asks, each of which names
    what is asked about; before the first step the model guesses among 512 tokens."""
    training, rows = {"num_train_epochs": 4}, talks(120)
    held = [row for row in talks(80, seed=1) if row not in rows]
    launch = small.launch("talks", {"type": "sft"}, rows, held, training=training)
    launch["spec"]["evaluation"] = {"compare_base": True}
    run = zygote.run(launch)
    assert run.code == 0, run.log
    first, *_, last = [m for m in run.of("metrics") if "eval_mean_token_accuracy" in m]
    assert first["eval_mean_token_accuracy"] < 0.1
    assert last["eval_mean_token_accuracy"] >= 0.95
    card = (run.work / "model/README.md").read_text()
    assert "made by supervised fine-tuning" in card


@pytest.mark.train
@pytest.mark.parametrize(
    "settings",
    [{"kl_beta": 5.0}, {"loss_type": "dft"}, {"kl_beta": 5.0, "loss_type": "dft"}],
    ids=["kl", "dft", "kl-dft"],
)
def test_a6_further_losses_are_those_of_plain_pytorch(
    world: World, zygote: Zygote, settings: dict[str, Any]
) -> None:
    """Rows of uneven lengths as 3 + 3 + 2: the mean over all trained tokens of the step."""
    folder = world.folder / "calm-sft"
    if not folder.exists():
        make_tiny_model(folder, initializer_range=0.2)
    rows = random_rows(8, seed=5)
    name = f"further-{'-'.join(settings)}"
    prepared = write_prepared(world.folder / f"{name}-rows", rows)
    training = PLAIN | {
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 3,
        "max_steps": 3,
    }
    model = {"source": "folder", "name_or_path": str(folder)}
    launch = world.launch(name, training=training, model=model, task=settings)
    launch["paths"]["prepared"] = str(prepared)
    del launch["spec"]["data"]["validation"]
    run = zygote.run(launch)
    assert run.code == 0, run.log
    losses = [run.losses[step] for step in sorted(run.losses)]
    assert losses == pytest.approx(_plain_losses(folder, rows, settings), abs=2e-5)
    if "kl_beta" in settings:
        told = [m["kl"] for m in run.of("metrics") if "kl" in m]
        assert told[0] == pytest.approx(0, abs=1e-6)
        assert told[-1] > 1e-5


@pytest.mark.train
def test_kl_keeps_an_adapter_close_to_its_base(world: World, zygote: Zygote) -> None:
    """The reference is the model with its adapter switched off; packed rows work as well."""
    found = []
    for name, beta in (("free", 1e-9), ("close", 100.0)):
        task = {"kl_beta": beta}
        adapter = {"type": "lora", "r": 4, "lora_dropout": 0.1}
        run = zygote.run(world.launch(f"kl-{name}", packed=True, task=task, adapter=adapter))
        assert run.code == 0, run.log
        measured = [m for m in run.of("metrics") if "eval_kl" in m][-1]
        found.append(measured["eval_kl"])
    assert 0 <= found[1] < found[0] / 5
