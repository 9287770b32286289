"""Whole checkpoints: written aside, sealed by a manifest, renamed into place, resumed exactly."""

import errno
import json
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trainer_core.errors import DiskFull, InvalidSpec, TrainerError
from trainer_core.optimizers import state_bytes
from trainer_core.publish.manifest import (
    BrokenFolder,
    make_durable,
    sync_folder,
    verify,
    write_manifest,
)
from trainer_core.report import Reporter

FOLDER = "checkpoints"
STAGING = ".writing"
LOOP_STATE = "loop_state.json"
_SLACK_BYTES = 256 * 1024


@dataclass(frozen=True)
class LoopState:
    """What the libraries do not keep: the open window of losses, an evaluation that is still due,
    the newest metrics, the commit of the base model on the hub, the metrics before the first step,
    the best evaluation (`trainer_core.best`), whether training ended early, what was stepped
    down to for lack of memory (`trainer_core.ladder`), the losses so far (`trainer_core.watch`),
    and what the spec was resolved to (`trainer_core.identity`)."""

    loss_sum: float = 0.0
    loss_steps: int = 0
    evaluation_due: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    revision: str | None = None
    base: dict[str, float] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    ended_early: bool = False
    ladder: dict[str, Any] = field(default_factory=dict)
    watch: dict[str, Any] = field(default_factory=dict)
    resolved: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resume:
    """A verified checkpoint to go on from."""

    folder: Path
    step: int
    state: LoopState


@dataclass
class Checkpointer:
    """Writes, counts and prunes the checkpoints of one attempt.

    `hashes` are (spec_hash, data_hash); `keep` is at least 2 and an old checkpoint is deleted only
    after the new one is safe on the disk; `needed_bytes` is the estimated size of one checkpoint.

    A checkpoint is there, and reported, as soon as it is whole. That the disk holds it is waited
    for beside the training: what a power cut tears is known by its manifest, and passed over.
    """

    work: Path
    hashes: tuple[str, str]
    keep: int
    report: Reporter
    needed_bytes: int = 0
    seconds: float = field(default=0.0, init=False)
    newest: Path | None = field(default=None, init=False)
    _disk: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1), init=False)
    _safe: Future[None] | None = field(default=None, init=False)

    @property
    def staging(self) -> Path:
        """Where an unfinished checkpoint lives."""
        return self.work / FOLDER / STAGING

    def clear_staging(self) -> None:
        """Remove what a killed run left half-written."""
        shutil.rmtree(self.staging, ignore_errors=True)

    def save(self, step: int, write: Callable[[], None], state: LoopState) -> None:
        """Write one checkpoint with `write` (into `staging`), seal it, then prune old ones.

        Raises DiskFull before anything is written where there is no room for it.
        """
        self.settle()
        began = time.monotonic()
        require_space(self.work, self.needed_bytes, f"the checkpoint of step {step}")
        self.clear_staging()
        self.staging.mkdir(parents=True)
        try:
            with disk_errors(self.work, self.needed_bytes):
                write()
                folder = self._seal(step, state)
        finally:
            self.clear_staging()
        self.newest = folder
        self._safe = self._disk.submit(self._secure, folder, began)

    def settle(self) -> None:
        """Wait until the disk holds the newest checkpoint; raises DiskFull where it has no room,
        and TrainerError where it fails."""
        safe, self._safe = self._safe, None
        if safe is None:
            return
        try:
            with disk_errors(self.work, self.needed_bytes):
                safe.result()
        except OSError as error:
            raise TrainerError(
                f"the disk at {self.work} did not keep the newest checkpoint: {error}"
            ) from error

    def let_go(self) -> None:
        """The same behind an error, which says more than the disk: that is only logged."""
        try:
            self.settle()
        except TrainerError as error:
            self.report.log(error.message, "warning")

    def _seal(self, step: int, state: LoopState) -> Path:
        [written] = self.staging.iterdir()
        (written / "training_args.bin").unlink(missing_ok=True)  # a pickle that nobody reads
        (written / LOOP_STATE).write_text(json.dumps(vars(state)))
        manifest = write_manifest(written, "checkpoint", step, self.hashes)
        folder = self.work / FOLDER / f"step-{step:08d}"
        if folder.exists():
            shutil.rmtree(folder)
        written.rename(folder)
        relative = folder.relative_to(self.work).as_posix()
        self.report.emit("checkpoint", step=step, path=relative, bytes=manifest.total_bytes)
        return folder

    def _secure(self, folder: Path, began: float) -> None:
        make_durable(folder)
        sync_folder(folder.parent)
        self.seconds = time.monotonic() - began
        self._prune()

    def _prune(self) -> None:
        folders = sorted((self.work / FOLDER).glob("step-*"))
        for folder in folders[: -self.keep]:
            shutil.rmtree(folder)


class disk_errors:  # noqa: N801 - reads as a verb where it is used, like contextlib's
    """Turn the libraries' many ways of saying ENOSPC into DiskFull."""

    def __init__(self, folder: Path, needed: int) -> None:
        self._folder = folder
        self._needed = needed

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and _says_disk_full(error):
            raise _disk_full(self._folder, self._needed, "the files") from error


def _says_disk_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    text = str(error)
    # torch's zip writer and safetensors do not keep errno.
    return any(s in text for s in ("No space left", "file write failed", "unexpected pos"))


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise DiskFull unless `needed` bytes (and a little slack) are free at `folder`."""
    if shutil.disk_usage(folder).free < needed + _SLACK_BYTES:
        raise _disk_full(folder, needed, what)


def _disk_full(folder: Path, needed: int, what: str) -> DiskFull:
    free = shutil.disk_usage(folder).free
    return DiskFull(
        f"no room for {what}: {needed + _SLACK_BYTES} bytes needed, {free} bytes free at {folder};"
        " free some, or keep fewer with checkpoint.save_total_limit"
    )


def estimate_bytes(model: Any, optim: str, values_beside: int = 0) -> int:
    """Bytes of a checkpoint: what is saved of the model, and the states of optimizer `optim`.

    `values_beside` counts what else is kept in fp32 for each trainable parameter.
    """
    trained = (int(p.numel()) for p in model.parameters() if p.requires_grad)
    return checkpoint_bytes(saved_bytes(model), trained, optim, values_beside)


def checkpoint_bytes(saved: int, trained: Iterable[int], optim: str, values_beside: int) -> int:
    """As `estimate_bytes`, from the bytes that are saved and the values of trained parameters."""
    beside = 4 * values_beside
    return saved + sum(round(values * (state_bytes(optim, values) + beside)) for values in trained)


def saved_bytes(model: Any) -> int:
    """Bytes of what is saved of a model: all of it, or the adapter that it has."""
    adapter = hasattr(model, "peft_config")
    saved = (p for p in model.parameters() if p.requires_grad or not adapter)
    return sum(int(p.numel() * p.element_size()) for p in saved)


def open_checkpoint(folder: Path, hashes: tuple[str, str]) -> Resume:
    """Verify a checkpoint and that it belongs to this spec and data.

    Raises InvalidSpec when it is damaged or belongs to something else.
    """
    try:
        manifest = verify(folder)
    except BrokenFolder as error:
        raise InvalidSpec(f"cannot resume: {error}", "paths.resume_from") from error
    for name, ours, theirs in zip(
        ("spec", "data"), hashes, (manifest.spec_hash, manifest.data_hash), strict=True
    ):
        if ours != theirs:
            raise InvalidSpec(
                f"cannot resume from {folder.name}: its {name} is another one ({name} hash"
                f" {theirs[:12]} instead of {ours[:12]}); start from scratch with"
                " checkpoint.resume: never",
                "paths.resume_from",
            )
    state = LoopState(**json.loads((folder / LOOP_STATE).read_text()))
    return Resume(folder, manifest.step, state)


def resolved_in(folder: Path) -> dict[str, Any]:
    """What the spec of a checkpoint's run was resolved to; empty where that cannot be read, which
    `open_checkpoint` then tells."""
    try:
        found: dict[str, Any] = json.loads((folder / LOOP_STATE).read_text())["resolved"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found


def newest_checkpoint(work: Path) -> Path | None:
    """The newest whole checkpoint of an attempt's folder; one that is damaged is passed over."""
    for folder in sorted((work / FOLDER).glob("step-*"), reverse=True):
        try:
            verify(folder)
        except BrokenFolder:
            continue
        return folder
    return None
