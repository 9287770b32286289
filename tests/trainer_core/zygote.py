"""A process that imported the training stack once and forks a run for each request.

Requests and answers are JSON lines on stdin and stdout. A request may ask for signals at events
(the run sends them to itself, or to its launcher or the other ranks where it trains in several
processes, so that they come at an exact step), for a small disk or for little
memory. The answer is the child's exit code, the modules that it imported late, its `exit.json`
and its files.
"""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainer_core.events import RunEvent
from trainer_core.runner import run_launch
from trainer_core.spec import Launch
from trainer_core.warm import preload

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000


def main() -> None:
    preload()
    threads = len([*Path("/proc/self/task").iterdir()])
    _say({"ready": True, "threads": threads, "uid": os.getuid()})
    for line in sys.stdin:
        _say(_serve(json.loads(line)))


def _serve(request: dict[str, Any]) -> dict[str, Any]:
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receive)
        with os.fdopen(send, "w") as answer:
            code = _child(request, answer)
        os._exit(code)
    os.close(send)
    with os.fdopen(receive) as answer:
        told = json.loads(answer.read() or "{}")
    _, status = os.waitpid(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status), "told": told}


def _child(request: dict[str, Any], answer: Any) -> int:
    launch = Launch.model_validate(request["launch"])
    work = Path(launch.paths.work)
    work.mkdir(parents=True, exist_ok=True)
    if request.get("disk"):
        _small_disk(work, request["disk"])
    _redirect(work / "output.log")
    if request.get("memory"):
        _little_memory(request["memory"])
    if request.get("short"):
        _short_of_memory(**request["short"])
    before = set(sys.modules)
    code = run_launch(launch, request.get("secrets", {}), _listener(request.get("signals", [])))
    told = {
        "late": sorted(set(sys.modules) - before),
        "exit": (work / "exit.json").read_text(),
        "files": sorted(path.relative_to(work).as_posix() for path in work.rglob("*")),
    }
    json.dump(told, answer)
    return code


def _listener(wanted: list[dict[str, Any]]) -> Callable[[RunEvent], None]:
    def listen(event: RunEvent) -> None:
        for signals in wanted:
            at = signals["at"]
            if event.type == at["type"] and at["data"].items() <= event.data.items():
                for _ in range(signals.get("times", 1)):
                    for pid in _WHO[signals.get("who", "self")]():
                        os.kill(pid, getattr(signal, signals["signal"]))

    return listen


def _siblings() -> list[int]:
    """The other ranks: children of this process's own parent, their launcher."""
    children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
    return [int(pid) for pid in children if int(pid) != os.getpid()]


_WHO: dict[str, Callable[[], list[int]]] = {
    "self": lambda: [os.getpid()],
    "launcher": lambda: [os.getppid()],
    "peers": _siblings,
}


def _redirect(path: Path) -> None:
    log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _small_disk(folder: Path, size: int) -> None:
    """Mount a tmpfs of `size` bytes at `folder`, in a name space of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)


def _little_memory(more: int) -> None:
    """Let this process map only `more` bytes beyond what it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _short_of_memory(
    *,
    rows: int | None = None,
    calls: Sequence[int] = (),
    evaluating: bool = False,
    optimizer: bool = False,
) -> None:
    """Have looking up embeddings, where a step begins, fail as CUDA does when memory is exhausted:
    for batches of more than `rows` rows, or at these calls (counted from 1). With `evaluating` only
    while no gradient is wanted, else only while one is. With `optimizer` its states do not fit.
    """
    import torch

    look_up, count = torch.nn.functional.embedding, 0

    def embedding(input: Any, *arguments: Any, **named: Any) -> Any:  # noqa: A002 - torch's name
        nonlocal count
        if torch.is_grad_enabled() != evaluating:
            count += 1
            if count in calls or (rows is not None and len(input) > rows):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return look_up(input, *arguments, **named)

    def step(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    torch.nn.functional.embedding = embedding
    if optimizer:
        torch.optim.AdamW.step = step


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
