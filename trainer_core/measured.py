"""Names of what is measured on validation rows, and which way each is better."""

from trainer_core.evaluation.names import ROWS, TEXT_METRICS
from trainer_core.spec import SftTask, TextClassificationTask, TrainSpec
from trainer_core.task import task_of

_LOWER = frozenset(
    {
        "loss",
        "perplexity",
        "mse",
        "mae",
        "kl",
        "entropy",
        "frac_reward_zero_std",
        "clip_ratio/region_mean",
        "completions/clipped_ratio",
    }
)

_OF_LABELS = frozenset({"accuracy", "f1_macro", "f1_micro", "auc"})
_OF_NUMBERS = frozenset({"mse", "mae", "pearson"})


def greater_is_better(metric: str) -> bool:
    """Whether a higher value is the better one; losses and errors are better when lower."""
    return metric not in _LOWER


def reported_metrics(spec: TrainSpec) -> tuple[str, ...]:
    """What the report at the end may have beside them; a gate may be about it."""
    wish = spec.evaluation
    text = TEXT_METRICS if wish.generation is not None and wish.metrics is None else ()
    return (*known_metrics(spec), *text, *(wish.metrics or ()))


def known_metrics(spec: TrainSpec) -> tuple[str, ...]:
    """What a run of this spec can measure, without `eval_`; the rows decide what it does."""
    return ("loss", *(name for name in task_of(spec).FACTS.metrics if can_be_given(spec, name)))


def can_be_given(spec: TrainSpec, metric: str) -> bool:
    """Whether rows of this task can give a metric of the report; what the rows at hand do give is
    known only when they are measured. A loss that is no mere likelihood has no perplexity, and
    labels are no numbers."""
    task = spec.task
    if metric == "perplexity" and isinstance(task, SftTask):
        return task.loss_type != "dft" and not task.kl_beta
    if isinstance(task, TextClassificationTask) and metric in _OF_LABELS | _OF_NUMBERS:
        return (metric in _OF_NUMBERS) == (task.problem_type == "regression")
    return metric not in ROWS or task_of(spec).FACTS.rows in ROWS[metric]
