"""Language modelling on plain documents, on TRL's SFTTrainer: continued, or from scratch."""

from collections.abc import Iterator
from typing import Any

from trainer_core.context import TrainContext
from trainer_core.errors import InvalidSpec
from trainer_core.hardware import Hardware
from trainer_core.loop import ExactLoop, Scores
from trainer_core.measures import Perplexity
from trainer_core.problems import Problem
from trainer_core.spec import ClmTask, TrainSpec
from trainer_core.task_facts import (
    OVER_LENGTH,
    CardText,
    Defaults,
    ModelKind,
    TaskFacts,
    block_of,
    guess_of_token,
)
from trainer_core.task_rules import from_config_problems
from trainer_core.token_trainer import token_trainer


def _from_config(spec: TrainSpec) -> dict[str, Any] | None:
    return block_of(spec, ClmTask).from_config


def _joins(spec: TrainSpec) -> str:
    packing = block_of(spec, ClmTask).packing
    return "task.packing is 'wrapped': use 'bfd' or 'none'" if packing == "wrapped" else ""


FACTS = TaskFacts(
    formats=("text",),
    rows="documents",
    model=ModelKind(
        "AutoModelForCausalLM", "a causal language model", "CAUSAL_LM", from_config=_from_config
    ),
    defaults=Defaults(
        learning_rate=1e-5,
        adapter_learning_rate=1e-4,
        scratch_learning_rate=5e-4,
        max_length=1024,
        num_train_epochs=1.0,
        over_length="split",
    ),
    card=CardText(
        pipeline_tag="text-generation",
        made_by="language modelling on plain documents",
        results={
            "loss": "training loss (last)",
            "eval_loss": "validation loss",
            "eval_perplexity": "validation perplexity",
            "eval_mean_token_accuracy": "validation token accuracy",
        },
    ),
    metrics=("mean_token_accuracy", "perplexity"),
    guess=guess_of_token,
    over_length=(*OVER_LENGTH, "split"),
    streams=True,
    joins=_joins,
)


def open_fields(spec: TrainSpec) -> dict[str, Any]:  # noqa: ARG001 - the protocol's
    """The length of a row."""
    return {"max_length": FACTS.defaults.max_length}


def problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:  # noqa: ARG001 - the protocol's
    """What does not go with an adapter, and configurations that name code."""
    task = block_of(spec, ClmTask)
    yield from from_config_problems(spec, task.from_config)
    if (
        spec.adapts
        and task.from_config is None
        and task.embedding_learning_rate is not None
        and not getattr(spec.adapter, "modules_to_save", [])
        and not spec.model.new_tokens
    ):
        text = (
            "task.embedding_learning_rate has no effect, because an adapter trains no embeddings: "
            "name them in adapter.modules_to_save, such as ['embed_tokens', 'lm_head']"
        )
        yield Problem(pointer="/task/embedding_learning_rate", message=text)


def build_trainer(context: TrainContext) -> Any:
    """TRL's SFTTrainer on prepared documents, with a learning rate of the embeddings' own."""
    trainer = token_trainer(context, DocumentLoop)
    trainer.embedding_rate = block_of(context.spec, ClmTask).embedding_learning_rate
    return trainer


class DocumentLoop(ExactLoop):
    """Measures perplexity; may train the embeddings at a rate of their own."""

    embedding_rate: float | None

    def scores(self) -> Scores:
        """Perplexity."""
        return Perplexity()

    def create_optimizer(self, model: Any = None) -> Any:
        """The library's optimizer; embeddings are moved to groups with their own rate."""
        optimizer = super().create_optimizer(model)  # type: ignore[misc]
        if self.embedding_rate is not None:
            trainer: Any = self
            separate(optimizer, _embeddings(trainer.model), self.embedding_rate)
        return optimizer


def separate(optimizer: Any, parameters: list[Any], rate: float) -> None:
    """Move parameters to groups with the learning rate `rate`; all else of a group stays."""
    chosen = {id(parameter) for parameter in parameters}
    for group in list(optimizer.param_groups):
        moved = [p for p in group["params"] if id(p) in chosen]
        if moved:
            group["params"] = [p for p in group["params"] if id(p) not in chosen]
            settings = {name: value for name, value in group.items() if name != "params"}
            optimizer.add_param_group({**settings, "params": moved, "lr": rate})


def _embeddings(model: Any) -> list[Any]:
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    found = [p for layer in layers if layer is not None for p in layer.parameters()]
    trained = [p for p in found if p.requires_grad]
    if not trained:
        raise InvalidSpec(
            "task.embedding_learning_rate has no effect, because no embedding is trained: name "
            "embeddings in adapter.modules_to_save, such as ['embed_tokens', 'lm_head']",
            "task.embedding_learning_rate",
        )
    return trained
