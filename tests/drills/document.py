"""docs/faults.md: what each cell of the fault matrix must do, and what it did."""

import re
from collections.abc import Mapping
from pathlib import Path

from tests.drills import cells
from tests.drills.cells import MOMENTS, Moment
from tests.drills.checks import Outcome
from tests.drills.stack import SCALE
from tests.services import ROOT

PATH = ROOT / "docs" / "faults.md"
Cell = tuple[str, str, Moment]
_ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \| (\w+) \|", re.MULTILINE)

HEAD = """# Faults: what breaks, when, and what becomes of the job

Written by `make drill` from what its tests saw; do not edit. Real processes: the embedded stack as
`polar up` runs it, with a tiny model on the CPU. Each fault hits seven jobs at once, one in each
moment of a job's life, and all of them are held to the same:

* the job ends in the right state within {patience:g} s: `succeeded`, or `cancelled` where that was
  asked for;
* no two attempts held the lease at the same time, and nothing of a fenced attempt was accepted;
* the job's events are numbered without a gap, and every RunEvent of the trainer up to the last
  accepted number is among them once, the last one of the successful attempt included;
* every loss ever reported equals that of the undisturbed run, step by step and to the last digit;
* one model version when it succeeded, none when it was cancelled; no process, device, hint or
  working folder is left.

Time is scaled by {scale:g}: a minute of the real world is {minute:g} s here, and with it leases,
their renewals, heartbeats, grace times, stall and start time-outs, hints that are sent again, the
patience with the store and the first back-off of a retry. What is not scaled: the back-off of the
process supervisor (from 0.5 s), and the time-outs of connections to Postgres, the broker and the
store.

| moment | where the job is when the fault comes |
|---|---|
| submit | its `POST /jobs` is on the way; the client tries again with the same idempotency key |
| queue | its data is ready and every device is taken |
| prepare | its data is being tokenised |
| training | its trainer is between two steps |
| checkpoint | the trainer has written a checkpoint that is not in the store yet |
| publish | the trainer has ended; its last events, checkpoints and model are to be carried up |
| cancel | it is training, and its cancellation is asked for |

A component that a moment does not involve is broken all the same: nothing may come of it.

Some reasons are those of the scale: a worker that starts again needs some seconds for it, which are
a tenth of what a host may be silent in the real world and all of it here; a job that was placed on
it meanwhile says `machine_lost`. The job that is cancelled would run for ever otherwise; its losses
are compared up to the last step of the undisturbed run.

`make test` runs a sixteenth of the waves, chosen by `POLAR_DRILL_SEED` (0 where it is not set),
from those that share one stack: disks of their own and other dates need stacks of their own and are
left to `make drill`. The seed also chooses the moment of each `kill`, `reset`, `failover` and
`flush` within the first {lead:g} s.

| fault | what it is |
|---|---|
"""


def listed() -> list[Cell]:
    """Return the cells that the document has a row for, in its order."""
    text = PATH.read_text(encoding="utf-8")
    return [(c, f, _moment(m)) for c, f, m in _ROW.findall(text)]


def _moment(name: str) -> Moment:
    return MOMENTS[MOMENTS.index(name)]  # type: ignore[arg-type]


def render(outcomes: Mapping[Cell, Outcome], patience: float, lead: float) -> str:
    """Return the document; every cell must have its outcome."""
    lines = [HEAD.format(patience=patience, lead=lead, scale=SCALE, minute=60 / SCALE).rstrip("\n")]
    lines += [f"| `{name}` | {what} |" for name, what in cells.FAULTS.items()]
    lines += ["", "A full disk is not drilled where there is none to fill:", ""]
    lines += [f"* `{name}`: {why}." for name, why in cells.NO_DISK.items()]
    lines += [
        "",
        "## The matrix",
        "",
        "| component | fault | moment | outcome | attempts ended by |",
    ]
    lines += ["|---|---|---|---|---|"]
    for component, fault, moment in cells.cells():
        outcome = outcomes[component, fault, moment]
        attempts = " · ".join(outcome.attempts) or "never begun"
        lines.append(f"| `{component}` | `{fault}` | {moment} | {outcome.status} | {attempts} |")
    return "\n".join(lines) + "\n"


def write(text: str, path: Path = PATH) -> None:
    """Put the document in its place in one step."""
    draft = path.with_suffix(".md.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
