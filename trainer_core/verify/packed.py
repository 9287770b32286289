"""Whether the samples of the spec's own packed rows keep apart in the spec's own model."""

import json
from pathlib import Path
from typing import Any

from trainer_core.backend import backend_of
from trainer_core.data.prepared import open_prepared
from trainer_core.errors import TrainerError
from trainer_core.machine import take_share
from trainer_core.prepare import PREPARED
from trainer_core.ranks import Seat
from trainer_core.spec import Launch, TrainSpec
from trainer_core.verify.trials import Trial, Trials, in_child

_ROWS, _LOOKED_AT = 2, 64
_FOUND = "isolation.json"


def isolation(trials: Trials, plain: Trial) -> float:
    """The largest difference of a logit, as a share of the largest one, or of 1.

    In a process of its own, on the rows that the run `plain` has prepared.
    """
    [prepared] = (plain.work / PREPARED).iterdir()
    spec = TrainSpec.model_validate(_locked(plain)["spec"])
    paths = trials.launch.paths.model_copy(update={"prepared": str(prepared)})
    launch = trials.launch.model_copy(update={"spec": spec, "paths": paths})
    found = plain.work / _FOUND

    def work() -> int:
        found.write_text(json.dumps(_measured(launch, trials.secrets)))
        return 0

    if in_child(work, plain.work / "output.log"):
        raise TrainerError("the packed rows could not be compared")
    return float(json.loads(found.read_text()))


def _locked(trial: Trial) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((trial.work / "model" / "run_lock.json").read_text())
    return found


def _measured(launch: Launch, secrets: Any) -> float:
    import torch

    take_share(launch, Seat())
    data = open_prepared(Path(launch.paths.prepared or ""))
    facts = data.report.facts
    model = backend_of(launch.spec).load(launch.spec, launch.paths, secrets, facts).model.eval()
    worst = 0.0
    with torch.no_grad():
        for row in _fullest(data.train):
            worst = max(worst, _difference(model, row))
    return worst


def _fullest(rows: Any) -> list[dict[str, list[int]]]:
    """Those of the first rows that hold the most samples."""
    first = [rows[number] for number in range(min(_LOOKED_AT, len(rows)))]
    return sorted(first, key=lambda row: -row["position_ids"].count(0))[:_ROWS]


def _difference(model: Any, row: dict[str, list[int]]) -> float:
    import torch

    ids = torch.tensor([row["input_ids"]], device=model.device)
    positions = torch.tensor([row["position_ids"]], device=model.device)
    packed = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0].float()
    starts = [i for i, position in enumerate(row["position_ids"]) if position == 0]
    worst = 0.0
    for start, end in zip(starts, [*starts[1:], len(row["input_ids"])], strict=True):
        alone = model(input_ids=ids[:, start:end], use_cache=False).logits[0].float()
        largest = max(1.0, alone.abs().max().item())
        worst = max(worst, (packed[start:end] - alone).abs().max().item() / largest)
    return worst
