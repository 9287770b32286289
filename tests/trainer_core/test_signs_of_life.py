"""What keeps a watchdog quiet while nothing is trained."""

from types import SimpleNamespace

import pytest

from trainer_core import report
from trainer_core.callbacks import Flow
from trainer_core.errors import Interrupted
from trainer_core.evaluation.base import Evaluated
from trainer_core.evaluation.bootstrap import RESAMPLES
from trainer_core.evaluation.report import compared
from trainer_core.loop import ExactLoop
from trainer_core.report import Reporter
from trainer_core.spec import TrainSpec
from trainer_core.stop import StopSignal

numpy = pytest.importorskip("numpy")
pytestmark = pytest.mark.train
BATCHES = 5


class Said:
    """An event writer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def emit(self, kind: str, /, **data: object) -> None:
        self.events.append((kind, data))


def _spec(**blocks: object) -> TrainSpec:
    document = {
        "task": {"type": "sft"},
        "model": {"source": "folder", "name_or_path": "/models/tiny"},
        "data": {"train": [{"source": "folder", "path": "rows.jsonl"}]},
    }
    return TrainSpec.model_validate(document | blocks)


def _flow(spec: TrainSpec, said: Said, stop: StopSignal) -> Flow:
    flow = Flow(spec, Reporter(said, stop), stop, evaluates=True)  # type: ignore[arg-type] - stand-ins that have what is asked of them
    flow.step = 7
    return flow


def test_b15_an_evaluation_says_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """With each batch, when they take long: an evaluation of hours is not taken for stalled."""
    monkeypatch.setattr(report, "PROGRESS_SECONDS", 0.0)
    said, stop = Said(), StopSignal()
    loop = ExactLoop()
    loop.flow = _flow(_spec(), said, stop)
    trainer = SimpleNamespace(
        model=SimpleNamespace(eval=lambda: None),
        state=SimpleNamespace(max_steps=9, epoch=0.5),
        prediction_step=lambda *_, **__: (SimpleNamespace(item=lambda: 2.0), None, None),
    )
    for name, value in vars(trainer).items():
        monkeypatch.setattr(loop, name, value, raising=False)
    batches = [{"labels": numpy.array([[1, 2, 3]])}] * BATCHES
    assert loop._measure(batches) == {"loss": 2.0}
    assert said.events == [("progress", {"step": 7, "total_steps": 9, "epoch": 0.5})] * BATCHES


def test_b15_a_comparison_says_that_it_lives_and_hears_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With each resampling of the rows: a metric may take a second for one."""
    monkeypatch.setattr(report, "PROGRESS_SECONDS", 0.0)
    said, stop = Said(), StopSignal()
    spec = _spec(evaluation={"metrics": ["loss"]})
    context = SimpleNamespace(spec=spec, flow=_flow(spec, said, stop))
    context.flow.say_it_lives(SimpleNamespace(max_steps=9, epoch=1.0))
    ours, base = (Evaluated({}, [{"loss": [float(i + k) for i in range(10)]}]) for k in range(2))
    compared(context, ours, base)  # type: ignore[arg-type] - stand-ins that have what is asked of them
    progress = ("progress", {"step": 7, "total_steps": 9, "epoch": 1.0})
    assert said.events == [progress] * (1 + RESAMPLES)
    stop.requested = True
    with pytest.raises(Interrupted):
        compared(context, ours, base)  # type: ignore[arg-type] - stand-ins that have what is asked of them
