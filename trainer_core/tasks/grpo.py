"""Group relative policy optimization on rewards of a closed set, on TRL's GRPOTrainer."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from trainer_core.arguments import loop_arguments
from trainer_core.context import TrainContext
from trainer_core.data.prepared import Prepared
from trainer_core.dropout import switch_off_dropout
from trainer_core.errors import InvalidData
from trainer_core.groups import GroupLoop
from trainer_core.hardware import Hardware
from trainer_core.loop import attach, trainer_class
from trainer_core.loss_kernel import ensure_loss_kernel
from trainer_core.problems import Problem
from trainer_core.rewards import names_of, numbered, reward_problems, scores_of
from trainer_core.spec import GrpoTask, TrainSpec
from trainer_core.spec.rewards import REWARD_TYPES, Reward, RewardModel
from trainer_core.task_facts import CardText, Defaults, ModelKind, TaskFacts, block_of
from trainer_core.task_rules import dotted, lasting_base_problems, template_problem

_MOST_REWARDS = 16


def _frozen_copies(spec: TrainSpec) -> int:
    return int(block_of(spec, GrpoTask).beta > 0 and not spec.adapts)


def _group(spec: TrainSpec) -> int:
    return block_of(spec, GrpoTask).num_generations


def _batches(spec: TrainSpec, data: Prepared, rows: int) -> int:  # noqa: ARG001 - the protocol's
    """Prompts that do not fill a step wait for the next epoch; answers may serve several steps."""
    accumulated = spec.training.gradient_accumulation_steps or 1
    answers = (spec.training.per_device_train_batch_size or 1) * accumulated
    prompts = _require_prompts(rows, answers, _group(spec))
    steps = rows // prompts * block_of(spec, GrpoTask).num_iterations
    return steps * accumulated


FACTS = TaskFacts(
    formats=("prompt",),
    rows="prompts",
    model=ModelKind("AutoModelForCausalLM", "a causal language model", "CAUSAL_LM"),
    defaults=Defaults(
        learning_rate=1e-6,
        adapter_learning_rate=1e-5,
        max_length=1024,
        num_train_epochs=1.0,
    ),
    card=CardText(
        pipeline_tag="text-generation",
        made_by="group relative policy optimization",
        results={
            "reward": "training reward (last)",
            "eval_reward": "validation reward",
            "eval_completions/mean_length": "validation answers' mean length",
        },
    ),
    metrics=(
        "reward",
        "reward_std",
        "frac_reward_zero_std",
        "kl",
        "clip_ratio/region_mean",
        "completions/mean_length",
        "completions/clipped_ratio",
        *(
            f"rewards/{numbered(kind, number)}/mean"
            for kind in REWARD_TYPES
            for number in range(1, _MOST_REWARDS + 1)
        ),
    ),
    over_length=("error", "drop"),
    frozen_copies=_frozen_copies,
    step_multiple=_group,
    batches=_batches,
    loss_falls=False,
    ddp="answers are drawn and kept for further steps by one process, whose checkpoints hold them",
)


def open_fields(spec: TrainSpec) -> dict[str, Any]:
    """Lengths: half of a row is the answer's."""
    task = block_of(spec, GrpoTask)
    length = task.max_length or FACTS.defaults.max_length
    return {
        "max_length": length,
        "max_completion_length": length // 2,
        "num_generations_eval": task.num_generations,
    }


def problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:  # noqa: ARG001 - the protocol's
    """Rewards that cannot judge, lengths without room, and steps that tear groups apart."""
    task, training = block_of(spec, GrpoTask), spec.training
    for field, message in reward_problems(task):
        named = dotted(f"task/rewards/{field}")
        yield Problem(pointer=f"/task/rewards/{field}", message=f"{named} {message}")
    if task.prompt_length is not None and task.prompt_length < 1:
        text = (
            f"task.max_completion_length is {task.max_completion_length}, which leaves no room for"
            f" a prompt in task.max_length, which is {task.max_length}: lower it"
        )
        yield Problem(pointer="/task/max_completion_length", message=text)
    if task.epsilon_high is not None and task.epsilon_high < task.epsilon:
        text = f"task.epsilon_high is below task.epsilon, which is {task.epsilon}: raise it"
        yield Problem(pointer="/task/epsilon_high", message=text)
    batch, accumulated = training.per_device_train_batch_size, training.gradient_accumulation_steps
    if batch and accumulated and batch * accumulated % task.num_generations:
        text = (
            f"a step takes {batch} × {accumulated} answers, which is no multiple of"
            f" task.num_generations, {task.num_generations}: groups must stay whole"
        )
        yield Problem(pointer="/training/per_device_train_batch_size", message=text)
    if task.beta:
        yield from lasting_base_problems(spec, "set task.beta to 0")
    yield from template_problem(task.chat_template)


def build_trainer(context: TrainContext) -> Any:
    """TRL's GRPOTrainer on prepared prompts; the model that is started from is the reference."""
    from trl import GRPOConfig, GRPOTrainer

    ensure_loss_kernel()
    task = block_of(context.spec, GrpoTask)
    if task.disable_dropout:
        switch_off_dropout(context.loaded.model)
    reference = copy.deepcopy(context.loaded.model) if _frozen_copies(context.spec) else None
    config = GRPOConfig(
        **loop_arguments(context) | _evaluation_batch(context.spec, task),
        **{name: getattr(task, name) for name in _PASSED_ON},
        beta=0.0,  # else the library would load a reference by the model's name
        reward_weights=[reward.weight for reward in task.rewards],
    )
    _require_prompts(len(context.data.train), config.generation_batch_size, task.num_generations)
    trainer = trainer_class(GRPOTrainer, GroupLoop)(
        model=context.loaded.model,
        reward_funcs=_judges(context, task.rewards),
        args=config,
        train_dataset=context.data.train,
        eval_dataset=context.data.validation,
        processing_class=context.loaded.tokenizer,
    )
    attach(trainer, context)
    trainer.beta = task.beta
    if reference is not None:
        trainer.ref_model = _frozen(trainer, reference)
    return trainer


_PASSED_ON = (
    "num_generations",
    "num_generations_eval",
    "max_completion_length",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "epsilon",
    "epsilon_high",
    "loss_type",
    "scale_rewards",
    "num_iterations",
    "importance_sampling_level",
    "mask_truncated_completions",
    "disable_dropout",
)


def _evaluation_batch(spec: TrainSpec, task: GrpoTask) -> dict[str, int]:
    """Groups stay whole in evaluations too, which need no smaller batch for it."""
    group = task.num_generations_eval or task.num_generations
    wanted = spec.training.per_device_eval_batch_size or 1
    return {"per_device_eval_batch_size": -(-wanted // group) * group}


def _require_prompts(there: int, answers: int, group: int) -> int:
    """Prompts of a step of so many answers: with fewer there would be no step."""
    prompts = answers // group
    if there < prompts:
        raise InvalidData(
            f"a step takes {answers} answers to {prompts} prompts, and there are {there}: add"
            " prompts, or lower training.gradient_accumulation_steps",
            "data.train",
        )
    return prompts


def _judges(context: TrainContext, rewards: list[Reward]) -> list[Callable[..., list[float]]]:
    """One function a reward, under the name of its measure."""
    found = []
    for name, reward in zip(names_of(rewards), rewards, strict=True):
        judge = _model(context, reward) if isinstance(reward, RewardModel) else scores_of(reward)
        found.append(_named(judge, name))
    return found


def _named(judge: Callable[..., list[float]], name: str) -> Callable[..., list[float]]:
    def called(prompts: Any, **values: Any) -> list[float]:  # noqa: ARG001 - the library's signature
        return judge(**values)

    called.__name__ = name
    return called


def _model(context: TrainContext, reward: RewardModel) -> Callable[..., list[float]]:
    if context.load_judge is None:
        raise TypeError("a reward model needs something that loads it")
    size = context.spec.training.per_device_train_batch_size or 1
    judge: Callable[..., list[float]] = context.load_judge(reward.model).placed(
        "cpu" if context.use_cpu else "cuda", size
    )
    return judge


def _frozen(trainer: Any, model: Any) -> Any:
    from trl.trainer.utils import add_fused_lm_head

    model.requires_grad_(False)
    add_fused_lm_head(model, temperature=trainer.temperature)
    return trainer.accelerator.prepare_model(model, evaluation_mode=True)
