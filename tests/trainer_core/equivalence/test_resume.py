"""A8 for every task type: killed at any step and resumed, the same to the last digit."""

import secrets

import pytest

from tests.trainer_core.equivalence.variants import TRAINED, VARIANTS, evaluations
from tests.trainer_core.runs import Outcome, Zygote, signal_at
from tests.trainer_core.small_tasks import Small
from trainer_core.plans.plan import plan
from trainer_core.publish.manifest import read_manifest
from trainer_core.spec import Launch

pytestmark = pytest.mark.train


def _weights(outcome: Outcome) -> list[str]:
    manifest = read_manifest(outcome.work / "model")
    return [f.sha256 for f in manifest.files if f.path.endswith(".safetensors")]


@pytest.mark.parametrize("name", VARIANTS)
def test_a8_kill_and_resume_is_exact(name: str, small: Small, zygote: Zygote) -> None:
    """Dropout is on; checkpoints every 4 steps; the kill comes at any step after the first of them.

    Tolerance: none. Every state is restored, and the same operations follow on the same numbers.
    """
    task, rows, changes = VARIANTS[name]
    document = small.launch(f"{name}-whole", task, rows, rows[:6], **changes)
    whole = zygote.run(document)
    assert whole.code == 0, whole.log
    # A warm start has imported everything; `…_fast` are names that Transformers gives away.
    assert [module for module in whole.told["late"] if not module.endswith("_fast")] == []
    last = max(whole.losses)
    assert {p["total_steps"] for p in whole.of("progress")} == {last}  # planned steps are run
    planned = plan(Launch.model_validate(document), {}).steps
    assert planned is not None
    assert planned.total == last
    step = 5 + secrets.randbelow(last - 5)

    launch = small.launch(f"{name}-killed", task, rows, rows[:6], **changes)
    launch["spec"]["data"] = small.launch(f"{name}-whole", task, rows, rows[:6])["spec"]["data"]
    killed = zygote.run(launch, signals=[signal_at("metrics", "SIGKILL", step=step)])
    assert killed.code == -9
    assert killed.losses == {s: loss for s, loss in whole.losses.items() if s <= step}

    saved = (step - 1) // 4 * 4
    launch["attempt_id"] = f"{name}-resumed"
    launch["paths"] |= {
        "work": str(small.folder / f"{name}-resumed"),
        "resume_from": str(killed.work / "checkpoints" / f"step-{saved:08d}"),
    }
    resumed = zygote.run(launch)
    assert resumed.code == 0, resumed.log
    assert resumed.of("resumed") == [{"step": saved}]
    assert resumed.losses == {s: loss for s, loss in whole.losses.items() if s > saved}
    assert _weights(resumed) == _weights(whole)
    assert evaluations(resumed)[-1] == evaluations(whole)[-1]


def test_every_task_is_here() -> None:
    """A task type without a variant would not be killed by anybody."""
    assert {task["type"] for task, *_ in VARIANTS.values()} == TRAINED
