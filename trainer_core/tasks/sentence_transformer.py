"""Embeddings of texts, on Sentence Transformers' own trainer."""

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer_core.arguments import loop_arguments
from trainer_core.context import TrainContext
from trainer_core.data.prepared import Prepared
from trainer_core.embedding.batches import LABEL, Shuffled, TextCollator
from trainer_core.embedding.loss_modules import loss_module
from trainer_core.embedding.losses import (
    MAX_LENGTH,
    Shape,
    loss_problems,
    needs_others,
    sampler_of,
    settled_loss,
)
from trainer_core.embedding.measures import METRICS, EmbeddingScores, evaluators_for
from trainer_core.embedding.model import assemble, complete
from trainer_core.errors import InvalidData, InvalidSpec
from trainer_core.hardware import Hardware
from trainer_core.loop import ExactLoop, Scores, attach, trainer_class
from trainer_core.problems import Problem
from trainer_core.spec import SentenceTransformerTask, TrainSpec
from trainer_core.task_facts import CardText, Defaults, ModelKind, TaskFacts, block_of
from trainer_core.task_rules import dotted, further_model_problems

_TRAINED = "trained.safetensors"
_SMALLEST_GROUPED = 4  # rows of a batch


def _batches(spec: TrainSpec, data: Prepared, rows: int) -> int:
    """Grouped batches leave rows out of which no group can be made: the library counts them."""
    size = spec.training.per_device_train_batch_size or 1
    task = block_of(spec, SentenceTransformerTask)
    loss = settled_loss(spec, Shape.of(data.report.facts))
    if sampler_of(task, loss) != "group_by_label":
        return -(-rows // size)
    from sentence_transformers.base.sampler import GroupByLabelBatchSampler

    here = len(data.train)
    # For other rows than these the last batch, which may be part of one, is not to count as whole.
    counted = size if rows == here else _SMALLEST_GROUPED
    with _group_errors():
        sampler = GroupByLabelBatchSampler(
            data.train, batch_size=counted, drop_last=False, valid_label_columns=[LABEL]
        )
    return -(-len(sampler) * counted * rows // (here * size))


FACTS = TaskFacts(
    formats=("anchor_positive", "sentence_pair", "classification", "text"),
    rows="texts",
    model=ModelKind(
        "AutoModel",
        "a model that makes vectors of tokens",
        "FEATURE_EXTRACTION",
        framework="sentence-transformers",
        assemble=assemble,
        complete=complete,
    ),
    defaults=Defaults(
        learning_rate=2e-5,
        adapter_learning_rate=2e-4,
        max_length=MAX_LENGTH,
        num_train_epochs=1.0,
        lr_scheduler_type="linear",
        sequences=2,
        accumulates=False,
    ),
    card=CardText(
        pipeline_tag="sentence-similarity",
        made_by="training on texts that belong together",
        results={
            "loss": "training loss (last)",
            "eval_loss": "validation loss",
            "eval_spearman_cosine": "validation correlation of ranks (cosine)",
            "eval_cosine_ap": "validation average precision of pairs (cosine)",
            "eval_cosine_accuracy": "validation accuracy (cosine)",
            "eval_cosine_ndcg_at_10": "validation NDCG@10 (cosine)",
            "eval_cosine_mrr_at_10": "validation MRR@10 (cosine)",
        },
    ),
    metrics=METRICS,
    over_length=("error", "truncate_right", "drop"),
    batches=_batches,
    ddp="losses compare the rows of one batch and have weights of their own, which DDP would leave"
    " apart",
)


def open_fields(spec: TrainSpec) -> dict[str, Any]:  # noqa: ARG001 - the protocol's
    """The length of a text."""
    return {"max_length": FACTS.defaults.max_length}


def problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:  # noqa: ARG001 - the protocol's
    """Settings that do not go with the loss, as far as it is said, or with each other."""
    task = block_of(spec, SentenceTransformerTask)
    if task.loss != "auto":
        for field, message in loss_problems(spec, task.loss):
            yield Problem(pointer="/" + field.replace(".", "/"), message=message)
    for field, message in (*_matryoshka(task), *_guide(task), *_patterns(task)):
        yield Problem(pointer=f"/task/{field}", message=f"task.{dotted(field)} {message}")
    if spec.training.neftune_noise_alpha is not None:
        text = "training.neftune_noise_alpha has no effect on sentence embeddings: leave it out"
        yield Problem(pointer="/training/neftune_noise_alpha", message=text)


def _matryoshka(task: SentenceTransformerTask) -> Iterator[tuple[str, str]]:
    dims, weights, drawn = (
        task.matryoshka_dims,
        task.matryoshka_weights,
        task.matryoshka_dims_per_step,
    )
    if dims is None:
        for field in ("matryoshka_weights", "matryoshka_dims_per_step"):
            if task.differs(field):
                yield field, "has no effect without matryoshka_dims: leave it out"
        return
    if len(set(dims)) < len(dims):
        yield "matryoshka_dims", "names a length twice: name each once"
    if weights is not None and len(weights) != len(dims):
        text = f"has {len(weights)} numbers for {len(dims)} lengths: give one for each"
        yield "matryoshka_weights", text
    if drawn == 0 or drawn > len(dims):
        text = f"is {drawn}, but matryoshka_dims has {len(dims)}: draw fewer, or -1 for all"
        yield "matryoshka_dims_per_step", text


def _guide(task: SentenceTransformerTask) -> Iterator[tuple[str, str]]:
    if task.guide is not None:
        yield from further_model_problems("guide", task.guide)


def _patterns(task: SentenceTransformerTask) -> Iterator[tuple[str, str]]:
    for pattern in task.learning_rate_mapping:
        try:
            re.compile(pattern)
        except re.error as error:
            yield "learning_rate_mapping", f"has '{pattern}', which is no pattern: {error}"


def build_trainer(context: TrainContext) -> Any:
    """Sentence Transformers' trainer on prepared tokens."""
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

    task = block_of(context.spec, SentenceTransformerTask)
    shape = Shape.of(context.data.report.facts)
    name = settled_loss(context.spec, shape)
    if needs_others(name, shape):
        _require_others(context.data.train, name)
    evaluators = _evaluators(task, shape)
    model, tokenizer = context.loaded.model, context.loaded.tokenizer
    loss = loss_module(model, _frozen_guide(context, task), task, name, shape)
    _require_matches(task, loss)
    trainer = trainer_class(SentenceTransformerTrainer, EmbeddingLoop)(
        model=model,
        args=SentenceTransformerTrainingArguments(
            **loop_arguments(context),
            batch_sampler=sampler_of(task, name),
            learning_rate_mapping=dict(task.learning_rate_mapping),
        ),
        loss=loss,
        data_collator=_collator(context, task),
        train_dataset=context.data.train,
        eval_dataset=context.data.validation,
        processing_class=tokenizer,
    )
    attach(trainer, context)
    trainer.model_accepts_loss_kwargs = True  # `compute_loss` divides by the rows of a step
    trainer.evaluators = evaluators
    if sampler_of(task, name) == "group_by_label":
        _require_groups(trainer)
    return trainer


def _require_others(rows: Any, loss: str) -> None:
    """Raise InvalidData where no row has another one to be compared with."""
    if any(rows[number] != rows[0] for number in range(1, len(rows))):
        return
    found = "one row" if len(rows) == 1 else f"{len(rows)} rows that are all the same"
    text = f"data.train has {found}, but loss '{loss}' compares rows with others: add other rows"
    raise InvalidData(text, "data.train")


def _frozen_guide(context: TrainContext, task: SentenceTransformerTask) -> Any:
    if task.guide is None or context.load_frozen is None:
        return None
    return context.load_frozen(task.guide).eval()


def _evaluators(task: SentenceTransformerTask, shape: Shape) -> list[str]:
    """What is measured; raises InvalidSpec for what the rows have nothing for."""
    possible = evaluators_for(shape)
    if task.evaluator == "auto":
        return possible
    if task.evaluator == "none":
        return []
    if task.evaluator not in possible:
        ways = " or ".join(f"'{name}'" for name in [*possible, "auto"])
        raise InvalidSpec(
            f"task.evaluator is '{task.evaluator}', but the rows have {shape}: use {ways}",
            "task.evaluator",
        )
    return [task.evaluator]


def _collator(context: TrainContext, task: SentenceTransformerTask) -> TextCollator:
    """With the lengths of prompts, where the model's pooling leaves them out."""
    tokenizer = context.loaded.tokenizer
    skips = any(getattr(module, "include_prompt", True) is False for module in context.loaded.model)
    lengths = {}
    for number, name in enumerate(context.data.report.facts["columns"] if skips else ()):
        if prompt := task.prompt(name):
            ids = tokenizer(prompt)["input_ids"]
            lengths[f"text_{number}"] = len(ids) - (ids[-1] in tokenizer.all_special_ids)
    return TextCollator(tokenizer.pad_token_id, context.flow.meter, lengths)


def _require_matches(task: SentenceTransformerTask, loss: Any) -> None:
    names = [name for name, _ in loss.named_parameters()]
    for pattern in task.learning_rate_mapping:
        if not any(re.search(pattern, name) for name in names):
            raise InvalidSpec(
                f"task.learning_rate_mapping has '{pattern}', but no parameter's name fits it; they"
                f" are such as {', '.join(names[:3])}",
                "task.learning_rate_mapping",
            )


def _require_groups(trainer: Any) -> None:
    with _group_errors():
        trainer.get_train_dataloader()


@contextmanager
def _group_errors() -> Iterator[None]:
    """The library's sampler says in its own words what it cannot group."""
    try:
        yield
    except ValueError as error:
        raise InvalidData(f"rows cannot be grouped by label: {error}", "data.train") from error


class EmbeddingLoop(ExactLoop):
    """Losses of rows; what is saved are all weights that are trained, those of the loss too."""

    rows_stand_alone = False
    evaluators: Sequence[str] = ()

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,  # noqa: FBT001, FBT002 - Trainer's signature
        num_items_in_batch: Any = None,
    ) -> Any:
        """The library's mean over a batch, as its share of the step's mean."""
        loss = super().compute_loss(model, inputs, return_outputs)  # type: ignore[misc]
        if num_items_in_batch is None or return_outputs:
            return loss
        return loss * (self.batch_weight(inputs) / num_items_in_batch)

    def batch_weight(self, inputs: Mapping[str, Any]) -> float:
        """Rows."""
        return float(len(inputs["text_0_input_ids"]))

    def scores(self) -> Scores:
        """What the shape of the rows allows to measure, or what the task asks for."""
        return EmbeddingScores(self._vectors, self.evaluators)

    def get_batch_sampler(self, dataset: Any, **options: Any) -> Any:
        """The library's, but validation rows keep their order, and epochs have one of their own
        that a resumed run finds again."""
        from sentence_transformers.base.sampler import BatchSamplers, DefaultBatchSampler

        trainer: Any = self
        kind, validating = trainer.args.batch_sampler, dataset is trainer.eval_dataset
        in_order = validating and kind == BatchSamplers.GROUP_BY_LABEL
        if kind != BatchSamplers.BATCH_SAMPLER and not in_order:
            return super().get_batch_sampler(dataset, **options)  # type: ignore[misc]
        count = len(dataset)
        order = range(count) if validating else Shuffled(count, trainer.args.data_seed)
        return DefaultBatchSampler(order, **options)

    def add_model_card_callback(self, default_args_dict: Any) -> None:
        """Nothing: the card is ours, and the library would read texts that are tokens here."""

    def _vectors(self, inputs: Mapping[str, Any]) -> list[Any]:
        import torch
        from torch.nn import functional

        trainer: Any = self
        features, _ = trainer.collect_features(trainer._prepare_inputs(dict(inputs)))
        with torch.no_grad(), trainer.compute_loss_context_manager():
            found = [trainer.model(feature)["sentence_embedding"] for feature in features]
        return [functional.normalize(vectors.float(), dim=-1).cpu() for vectors in found]

    @contextmanager
    def measuring(self, batches: Iterable[Any]) -> Iterator[None]:
        """As always, but what losses draw of Python's generator is not missing in training."""
        state = random.getstate()
        random.seed(0)
        try:
            with super().measuring(batches):
                yield
        finally:
            random.setstate(state)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:  # noqa: ARG002 - Trainer's signature
        return sum(self.batch_weight(batch) for batch in batch_samples)

    def _trained(self) -> dict[str, Any]:
        trainer: Any = self
        return {name: p for name, p in trainer.loss.named_parameters() if p.requires_grad}

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:  # noqa: ARG002 - Trainer's signature
        from safetensors.torch import save_file

        trainer: Any = self
        folder = Path(output_dir or trainer.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: p.detach().contiguous() for name, p in self._trained().items()}
        save_file(weights, folder / _TRAINED)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:  # noqa: ARG002 - Trainer's signature
        import torch
        from safetensors.torch import load_file

        folder = Path(resume_from_checkpoint)
        saved = load_file(folder / _TRAINED)
        with torch.no_grad():
            for name, parameter in self._trained().items():
                parameter.copy_(saved.pop(name))
        if saved:
            raise InvalidSpec(f"the checkpoint has weights that this run has not: {min(saved)}")
        self.load_more(folder)
