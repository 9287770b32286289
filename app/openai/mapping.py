"""From a request for a fine-tuning job to the spec that `POST /jobs` would get."""

from dataclasses import dataclass, field
from math import gcd
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from app.errors import FieldProblem, InvalidPayload
from app.jobs.hardware import Host
from app.jobs.resolution import resolve_spec
from app.jobs.service import merge_patch
from app.jobs.spec import JobSpec
from app.openai import ids, store
from app.openai.models import model_of, new_name
from app.openai.request import DpoHyperparameters, Hyperparameters, JobRequest
from trainer_core.problems import explain

LABELS = "openai/"
"""What the labels of metadata begin with."""
_REINFORCEMENT = (
    "there is no reinforcement method at this door: graders are OpenAI's own. POST /jobs trains "
    'with rewards (`{"task": {"type": "grpo"}}`)'
)
_INTEGRATIONS = (
    "nothing is sent to Weights and Biases from here: leave it out. Runs are in the MLflow of this "
    "service, and a job's `result_files` hold its metrics"
)
_OTHER_TASK = (
    "a job with task {!r} could not be shown at this door: send its spec to POST /jobs, or leave "
    "the task to `method`"
)


@dataclass
class Draft:
    """A spec that grows; it remembers which parameter each part comes from."""

    spec: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def put(self, path: str, value: Any, origin: str) -> None:
        """Set a part of the spec, `training.seed`; `origin` points at the parameter behind it."""
        *blocks, name = path.split(".")
        block = self.spec
        for each in blocks:
            block = block.setdefault(each, {})
        block[name] = value
        self.origins["/" + path.replace(".", "/")] = origin

    def in_its_words(self, problems: list[FieldProblem]) -> InvalidPayload:
        """Return the same problems, each at the parameter that it comes from."""
        told = [p.model_copy(update={"pointer": self._origin(p.pointer)}) for p in problems]
        return InvalidPayload(told)

    def _origin(self, pointer: str) -> str:
        parts = pointer.split("/")
        for end in range(len(parts), 1, -1):
            if (origin := self.origins.get("/".join(parts[:end]))) is not None:
                return origin
        return f"/polar{pointer}"


def spec_of(
    session: Session, project_id: str, request: JobRequest, hosts: list[Host]
) -> tuple[JobSpec, Draft]:
    """Return the job's spec; raises InvalidPayload with the request's parameters."""
    method, where = _method(request)
    asked, below = _hyperparameters(request, method, where)
    draft = _draft(session, project_id, request, method)
    if asked.n_epochs not in (None, "auto"):
        draft.put("training.num_train_epochs", asked.n_epochs, f"{below}/n_epochs")
    if isinstance(asked, DpoHyperparameters) and asked.beta not in (None, "auto"):
        draft.put("task.beta", asked.beta, f"{below}/beta")
    draft.spec = merge_patch(draft.spec, request.polar or {})
    _settle_numbers(draft, asked, below, hosts)
    spec = _valid(draft)
    if spec.task.type not in store.TASKS:
        raise _wrong("/polar/task/type", _OTHER_TASK.format(spec.task.type))
    return spec, draft


def _method(request: JobRequest) -> tuple[str, str]:
    """The method's type, and where its block stands."""
    if request.integrations:
        raise _wrong("/integrations", _INTEGRATIONS)
    method = request.method
    if method is None:
        return "supervised", "/method"
    if method.type == "reinforcement":
        raise _wrong("/method/type", _REINFORCEMENT)
    for other in {"supervised", "dpo", "reinforcement"} - {method.type}:
        if getattr(method, other) is not None:
            message = f"the method's type is {method.type!r}: take the block of {other!r} out"
            raise _wrong(f"/method/{other}", message)
    return method.type, f"/method/{method.type}"


def _hyperparameters(request: JobRequest, method: str, where: str) -> tuple[Hyperparameters, str]:
    """What was asked for, and where it stands."""
    block = request.method and getattr(request.method, method)
    given = block and block.hyperparameters
    old = request.hyperparameters
    if old is not None and (given is not None or method != "supervised"):
        message = f"give them in one place, `method.{method}.hyperparameters`"
        raise _wrong("/hyperparameters", message)
    if old is not None:
        return old, "/hyperparameters"
    return given or Hyperparameters(), f"{where}/hyperparameters"


def _draft(session: Session, project_id: str, request: JobRequest, method: str) -> Draft:
    draft = Draft()
    name = new_name(request.model, request.suffix)
    draft.put("name", name, "/suffix")
    draft.put("publish.name", name, "/suffix")
    draft.put("task.type", "sft" if method == "supervised" else "dpo", "/method/type")
    draft.put("model", model_of(session, project_id, request.model), "/model")
    for block, parameter in (("train", "training_file"), ("validation", "validation_file")):
        if (given := getattr(request, parameter)) is not None:
            source = {"source": "dataset", "path": ids.dataset_of(given) or given}
            draft.put(f"data.{block}", [source], f"/{parameter}")
    if request.seed is not None:
        draft.put("training.seed", request.seed, "/seed")
    if request.metadata:
        labels = {f"{LABELS}{key}": value for key, value in request.metadata.items()}
        draft.put("labels", labels, "/metadata")
    return draft


def _settle_numbers(draft: Draft, asked: Hyperparameters, below: str, hosts: list[Host]) -> None:
    """Turn multiplier and batch size into what they are of: the usual rate, rows of a device."""
    multiplier, rows = asked.learning_rate_multiplier, asked.batch_size
    if multiplier in (None, "auto") and rows in (None, "auto"):
        return
    spec = _valid(draft)
    try:
        usual, _ = resolve_spec(spec, hosts)
    except InvalidPayload as error:
        raise draft.in_its_words(error.problems) from error
    if isinstance(multiplier, float):
        rate = usual["training"]["learning_rate"] * multiplier
        draft.put("training.learning_rate", rate, f"{below}/learning_rate_multiplier")
    if isinstance(rows, int):
        _settle_batch(draft, rows, f"{below}/batch_size", usual)


def _settle_batch(draft: Draft, rows: int, origin: str, usual: dict[str, Any]) -> None:
    """As many rows at once as divide the batch and fit the machine; nobody knows it yet: one."""
    processes = usual["distributed"]["processes"] or 1
    if rows % processes:
        message = f"{rows} rows cannot be shared out to {processes} processes: use a multiple"
        raise _wrong(origin, message)
    of_each = rows // processes
    at_once = gcd(of_each, usual["training"]["per_device_train_batch_size"] or 1)
    draft.put("training.per_device_train_batch_size", at_once, origin)
    draft.put("training.gradient_accumulation_steps", of_each // at_once, origin)


def _valid(draft: Draft) -> JobSpec:
    try:
        return JobSpec.model_validate(draft.spec)
    except ValidationError as error:
        found = explain(error, (), JobSpec)
        problems = [FieldProblem(**problem.model_dump()) for problem in found]
        raise draft.in_its_words(problems) from error


def _wrong(pointer: str, message: str) -> InvalidPayload:
    return InvalidPayload([FieldProblem(pointer=pointer, message=message)], "unsupported_value")
