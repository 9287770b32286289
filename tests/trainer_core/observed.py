"""What of a launch reaches a trainer: everything is built as a run builds it, and looked at.

`observe` prepares the data, loads the model, builds the task's own trainer and returns what these
hold, as JSON-able values by name. Two launches that differ in a field that reaches any of them
differ here; the spec itself is never looked at.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trainer_core.backend import backend_of
from trainer_core.checkpoints import Checkpointer
from trainer_core.data.sources import Source, sources_of
from trainer_core.data.tokenizer import tokenizer_hash
from trainer_core.errors import BelowGate, TrainerError
from trainer_core.evaluation.metrics import chosen
from trainer_core.evaluation.run import evaluate
from trainer_core.model_source import locate
from trainer_core.publish.manifest import verify
from trainer_core.report import Reporter
from trainer_core.runner import processes_of
from trainer_core.session import Session
from trainer_core.spec import Launch
from trainer_core.stop import StopSignal
from trainer_core.task import task_of

STEPS_OF_AN_EPOCH = 4
_STEPS_OF_A_BUDGET = 100
Seen = dict[str, Any]


class Heard(Reporter):
    """A reporter that remembers."""

    def __init__(self, stop: StopSignal) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._stop = stop
        self._phase: str | None = None
        self._next_progress = 0.0

    def emit(self, kind: Any, /, **data: Any) -> None:
        self.events.append((kind, data))


class Built:
    """One launch, stage by stage as `Session.run` calls them, up to where it would train."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        _forget()
        self.launch = Launch.model_validate(document)
        stop = StopSignal()
        self.heard = Heard(stop)
        session = Session(self.launch, {}, self.heard, stop)
        self.spec = session._resolve()
        self.data = session._open_data(self.spec)
        paths = self.launch.paths.model_copy(update={"prepared": str(self.data.folder)})
        self.loaded = backend_of(self.spec).load(self.spec, paths, {}, self.data.report.facts)
        session._agree_on_ends(self.spec, self.loaded)
        self.context = session._context(self.spec, self.loaded, self.data, ("s" * 64, "d" * 64))
        self.trainer = task_of(self.spec).build_trainer(self.context)
        self.session = session


def observe(document: Mapping[str, Any]) -> Seen:
    """Everything that a trainer is built of; raises TrainerError where it cannot be built."""
    return _observed(Built(document))


def _observed(built: Built) -> Seen:
    trainer, context = built.trainer, built.context
    budget = trainer.budget
    if budget is not None:
        budget.begin(_STEPS_OF_A_BUDGET)
    seen = _rows(built)
    seen |= {f"args.{n}": plain(v) for n, v in trainer.args.to_dict().items()}
    seen |= {f"trainer.{n}": v for n, v in _plain_attributes(trainer) if n != "args"}
    seen |= {f"collator.{n}": v for n, v in _plain_attributes(trainer.data_collator)}
    seen |= _model(built)
    seen["tokenizer"] = tokenizer_hash(context.loaded.tokenizer)
    seen["processes"] = processes_of(built.launch.spec, 0)
    seen |= _flow(context.flow, trainer)
    seen |= {f"checkpoints.{n}": v for n, v in _plain_attributes(context.checkpointer)}
    seen |= {"best": _best(context.flow.best)}
    seen["base is measured"] = context.flow.base_evaluation is not None
    return seen | _rewards(built) | _first_batch(built)


def observe_measuring(document: Mapping[str, Any]) -> Seen:
    """What the trainer of an evaluated task is built of."""
    spec = document["spec"]
    task = spec["task"].get("of", {"type": "sft"})
    return observe({**document, "spec": {**spec, "task": task}})


def observe_report(document: Mapping[str, Any]) -> Seen:
    """What the evaluation at the end gives: measures, the report's metrics, and the answers."""
    built = Built(document)
    trainer, wish = built.trainer, built.spec.evaluation
    trainer.evaluate()
    measured = dict(built.context.flow.evaluated)
    found = evaluate(trainer, built.context, measured)
    return {
        "measured": {n: v for n, v in measured.items() if "second" not in n and "time" not in n},
        "answers": found.answers,
        "metrics": len(chosen(wish.metrics)) if wish.metrics else None,
    }


def observe_run(document: Mapping[str, Any]) -> Seen:
    """What a whole run of an evaluation tells: its report and its answers; raises TrainerError."""
    launch = Launch.model_validate(document)
    stop = StopSignal()
    heard = Heard(stop)
    _forget()
    Session(launch, {}, heard, stop).run()
    folder = Path(launch.paths.work) / "evaluation"
    report = json.loads((folder / "report.json").read_text())
    answers = folder / "answers.jsonl"
    return {
        "report": {n: v for n, v in report.items() if n not in ("created", "seconds")},
        "answers": answers.read_text() if answers.exists() else None,
        "warnings": [data["code"] for kind, data in heard.events if kind == "warning"],
    }


def _forget() -> None:
    """What accelerate keeps for a whole process, such as the precision of its first trainer."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def observe_publication(document: Mapping[str, Any]) -> Seen:
    """The published folder of a model after no step at all, or which gate it does not reach."""
    built = Built(document)
    flow = built.context.flow
    flow.last_metrics = {"eval_loss": 2.0, "eval_mean_token_accuracy": 0.5}
    flow.base = {"eval_loss": 3.0}
    _as_if_trained(built.trainer.model)
    try:
        built.session._publish(built.context, built.trainer.model)
    except BelowGate as gate:
        return {"below the gate": gate.message}
    folder = Path(built.launch.paths.work) / "model"
    card = (folder / "README.md").read_text()
    files = sorted(entry.path for entry in verify(folder).files)
    codes = [data["code"] for kind, data in built.heard.events if kind == "warning"]
    titles = [line for line in card.splitlines() if line.startswith("# ")]
    return {"files": files, "title": titles, "warnings": codes}


def observe_resume(document: Mapping[str, Any]) -> Seen:
    """Whether a checkpoint in the work folder is gone on from (it is none: that is an error)."""
    launch = Launch.model_validate(document)
    stop = StopSignal()
    session = Session(launch, {}, Heard(stop), stop)
    paths = launch.paths.model_copy(update={"resume_from": str(Path(launch.paths.work) / "none")})
    session._launch = launch.model_copy(update={"paths": paths})
    try:
        return {"resumes": session._find_checkpoint(("", "")) is not None}
    except TrainerError as error:
        return {"resumes": error.message}


def observe_location(document: Mapping[str, Any]) -> Seen:
    """Where the model is looked for, and with which arguments."""
    launch = Launch.model_validate(document)
    found = locate(launch.spec.model, launch.paths, {"hub": "hf_secret"})
    return {"path": found.path, "options": found.options, "depth": found.depth}


def observe_source(document: Mapping[str, Any]) -> Seen:
    """Where the first source of each part is looked for, and what the hub's library is asked."""
    launch = Launch.model_validate(document)
    parts = sources_of(launch, {"hub": "hf_secret"}, Path())
    return {part: _asked_for(sources[0]) for part, sources in parts.items()}


def _asked_for(source: Source) -> Seen:
    import datasets

    if source.spec.source != "hub":
        return {"local": str(source.local())}
    asked: Seen = {}
    own = datasets.load_dataset_builder
    datasets.load_dataset_builder = lambda *given, **named: _Asked(asked, given, named)
    try:
        next(iter(source.rows()), None)
    finally:
        datasets.load_dataset_builder = own
    return asked


class _Asked:
    """Stands where the hub's answer would: remembers what it was asked for, and has no rows."""

    __module__ = "datasets.packaged_modules.json.json"  # a reader that is allowed

    def __init__(self, asked: Seen, given: Any, named: Any) -> None:
        self._asked = asked
        asked |= {"given": plain(given), "named": plain(named)}
        self.config = SimpleNamespace(data_files=None)

    def download_and_prepare(self) -> None:
        """Nothing is fetched."""

    def as_dataset(self, split: str) -> Any:
        from datasets import Dataset

        self._asked["split"] = split
        return Dataset.from_dict({"text": []})


def plain(value: Any, depth: int = 3) -> Any:
    """A value without what cannot be compared, and without blocks of the spec, which say nothing
    of what becomes of them; None where nothing is left."""
    if isinstance(value, bool | int | float | str) or depth == 0:
        return value if depth else None
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        return [plain(v, depth - 1) for v in value]
    if is_dataclass(value) and not isinstance(value, type | Checkpointer):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(n): plain(v, depth - 1) for n, v in value.items()}
    return None


_CLOCKS = ("seconds", "time", "_saved_at")


def _plain_attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """Own attributes that can be compared; never the task's block, which is the spec itself."""
    for name, value in vars(thing).items() if hasattr(thing, "__dict__") else ():
        if name == "task" or any(clock in name for clock in _CLOCKS):
            continue
        yield name, plain(value)


def _rows(built: Built) -> Seen:
    report = built.data.report
    names = ("data_hash", "validation_hash", "facts", "rows_kept", "rows_dropped", "rows_cut")
    seen = {f"rows.{name}": getattr(report, name) for name in names}
    return seen | {"rows.validation": len(built.data.validation or ())}


def _model(built: Built) -> Seen:
    model = built.trainer.model
    digest = hashlib.sha256()
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype} {value.requires_grad}".encode())
        digest.update(_bytes(value))
    rates = [m.p for m in model.modules() if type(m).__name__ == "Dropout"]
    numbers = [
        v for m in model.modules() for n, v in vars(m).items() if "dropout" in n and _is_number(v)
    ]
    inner = getattr(model, "transformers_model", model)
    adapters = getattr(inner, "peft_config", {})
    groups = [
        {n: plain(v) for n, v in group.items() if n != "params"} | {"count": len(group["params"])}
        for group in built.trainer.create_optimizer().param_groups
    ]
    reference = getattr(built.trainer, "ref_model", None)
    return {
        "model.weights": digest.hexdigest(),
        "model.dropout": [rates, numbers],
        "model.attention": inner.config._attn_implementation,
        "model.adapter": {n: plain(c.to_dict(), 4) for n, c in adapters.items()},
        "model.packed": _packed(model),
        "model.reference": None if reference is None else _hash(reference),
        "model.reference attention": str(
            getattr(reference, "config", None) and reference.config._attn_implementation
        ),
        "model.ends": str(getattr(getattr(inner, "generation_config", None), "eos_token_id", None)),
        "optimizer": [type(built.trainer.optimizer).__name__, groups],
        "penalty": float(built.trainer.budget.penalty()) if built.trainer.budget else None,
        "embedding": [f"{type(m).__name__} {_config_of(m)}" for m in _further(model)],
        "prompts": getattr(model, "prompts", None),
        "loss": _described_loss(getattr(built.trainer, "loss", None)),
    }


def _packed(model: Any) -> list[Any]:
    """How the layers of a base in 4 bits are held, and what they compute in."""
    layers = [m for m in model.modules() if hasattr(m, "compute_dtype")]
    states = [layer.weight.quant_state for layer in layers]
    return [
        [state.quant_type, state.nested, str(layer.compute_dtype)]
        for layer, state in zip(layers, states, strict=True)
    ]


_SAID = ("fast", " FAST", "it was 5", "{}", "[5]", "a b c d e", "")
"""Answers that each reward judges."""


def _rewards(built: Built) -> Seen:
    """What `grpo`'s rewards say of a few answers to the first prompt."""
    row = built.data.train[0]
    columns = {n: [v] * len(_SAID) for n, v in row.items() if n.startswith("given_")}
    judges = getattr(built.trainer, "reward_funcs", [])
    ids = [[1] * len(text.split()) for text in _SAID]
    return {
        f"reward.{judge.__name__}": judge(
            [row["prompt"]] * len(_SAID), completions=[*_SAID], completion_ids=ids, **columns
        )
        for judge in judges
    }


def _further(model: Any) -> list[Any]:
    """Modules of a sentence transformer behind its transformer."""
    return list(model)[1:] if type(model).__name__ == "SentenceTransformer" else []


def _config_of(module: Any) -> Any:
    return plain(module.get_config_dict()) if hasattr(module, "get_config_dict") else None


def _described_loss(loss: Any) -> Any:
    """A sentence transformer's loss with those that it stands around of."""
    found = []
    while loss is not None:
        found.append([type(loss).__name__, dict(_plain_attributes(loss))])
        guide = getattr(loss, "guide", None)
        attention = None if guide is None else guide.transformers_model.config._attn_implementation
        found.append(None if guide is None else [_hash(guide), attention])
        loss = getattr(loss, "loss", None)
        loss = loss if hasattr(loss, "parameters") else None
    return found


def _hash(model: Any) -> str:
    digest = hashlib.sha256()
    for value in model.parameters():
        digest.update(f"{value.dtype}".encode() + _bytes(value))
    return digest.hexdigest()


def _bytes(value: Any) -> bytes:
    plain_value = value.detach().cpu().contiguous()
    if plain_value.is_floating_point():
        plain_value = plain_value.float()
    return bytes(plain_value.numpy().tobytes())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _best(best: Any) -> Any:
    """How the best model is followed through losses that fall twice, stay, and rise."""
    if best is None:
        return None
    values = (3.0, 2.8, *[2.7] * 10, 4.0)
    followed = []
    for value in values:
        if better := best._is_better(value):
            best.value = value
        followed.append([better, best._without_gain, best.is_exhausted])
    return [best.metric, best.publishes, followed]


def _flow(flow: Any, trainer: Any) -> Seen:
    """What is decided after each of eight steps, four of which are an epoch."""
    batches = [None] * STEPS_OF_AN_EPOCH * trainer.args.gradient_accumulation_steps
    state = SimpleNamespace(global_step=0, max_steps=100, epoch=0.0)
    flow.on_train_begin(trainer.args, state, None, train_dataloader=batches)
    decided = []
    for step in range(1, 2 * STEPS_OF_AN_EPOCH + 1):
        control = SimpleNamespace(should_training_stop=False)
        state.global_step = step
        flow.on_step_begin(trainer.args, state, control)
        flow.meter.fetched(1, 1)
        flow.add_loss(1.0)
        flow.on_step_end(trainer.args, state, control)
        wanted = ("should_log", "should_evaluate", "should_save")
        decided.append([getattr(control, name) for name in wanted])
    flow.step = 0
    return {"flow": decided}


def _first_batch(built: Built) -> Seen:
    """The first batch of the first epoch, and its loss; `grpo` has none before it has answers."""
    import torch

    trainer = built.trainer
    torch.manual_seed(trainer.args.seed)
    batch = next(iter(trainer.get_train_dataloader()))
    seen: Seen = {"batch": _hashed(batch)}
    if isinstance(batch, dict):
        trainer.model.eval()
        with torch.no_grad(), trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(trainer.model, trainer._prepare_inputs(dict(batch)))
        seen["first loss"] = round(
            float(loss), 4
        )  # sums of several threads differ in the last digits
    return seen


def _hashed(value: Any) -> Any:
    if hasattr(value, "numpy"):
        return [list(value.shape), hashlib.sha256(_bytes(value)).hexdigest()]
    if isinstance(value, Mapping):
        return {n: _hashed(v) for n, v in value.items()}
    if isinstance(value, list):
        return [_hashed(v) for v in value]
    return plain(value)


def _as_if_trained(model: Any) -> None:
    """Move an adapter's weights a little, so that publishing finds something trained."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.01)
