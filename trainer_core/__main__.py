"""`python -m trainer_core run|prepare|plan|verify|resolve|answer`, and what it says of itself:
`schema`, `capabilities`, `reference`. No service.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from trainer_core import capabilities_page, confine, outbound, reference_page
from trainer_core.answering import answer_command
from trainer_core.console import Console
from trainer_core.endings import as_trainer_error, ending_of, message_of, write_exit
from trainer_core.errors import InvalidSpec, TrainerError
from trainer_core.launch import is_launch, read_launch, read_secrets
from trainer_core.machine import detect_hardware, with_own_devices
from trainer_core.plans.command import PLAN, Wishes, plan_command
from trainer_core.prepare import prepare_command
from trainer_core.problems import explain
from trainer_core.publish.by_hand import push_model, require_token
from trainer_core.resolve import resolve
from trainer_core.runner import run_launch
from trainer_core.spec import TrainSpec
from trainer_core.stop import StopSignal
from trainer_core.verify.command import verify_command
from trainer_core.warm import quiet_libraries
from trainer_core.words import flush, say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the process's exit code (see docs/architecture.md)."""
    options = _parser().parse_args(arguments)
    quiet_libraries()
    outbound.guard()
    if options.file is not None:
        confine.confine(options.file)
    try:
        return int(options.command(options))
    except ValidationError as error:
        problems = explain(error)
        for problem in problems:
            _say(f"{problem.pointer}: {problem.message}")
        return _end(options, InvalidSpec("; ".join(p.message for p in problems)))
    except TrainerError as error:
        _say(message_of(error))
        return _end(options, error)
    except OSError as error:
        _say(str(error))
        return _end(options, as_trainer_error(error) or TrainerError(str(error)))
    except Exception as error:  # noqa: BLE001 - the process's one: a supervisor is told why
        return _end(options, error)


def _run(options: argparse.Namespace) -> int:
    launch = read_launch(options.file, options.out)
    secrets = read_secrets()
    if is_launch(options.file):
        code = run_launch(launch, secrets)
    else:
        require_token(launch, secrets)
        code = run_launch(with_own_devices(launch), secrets, Console())
        if code == 0:
            push_model(launch, secrets)
    flush()
    return code


def _prepare(options: argparse.Namespace) -> int:
    with StopSignal():
        return prepare_command(options.file, options.out)


def _plan(options: argparse.Namespace) -> int:
    launch = with_own_devices(read_launch(options.file, options.out))
    wishes = Wishes(options.first, options.samples, options.probe, options.json)
    save = options.file.with_name(PLAN) if is_launch(options.file) else None
    return plan_command(launch, wishes, save)


def _verify(options: argparse.Namespace) -> int:
    return verify_command(options.file, as_json=options.json)


def _resolve(options: argparse.Namespace) -> int:
    launch = with_own_devices(read_launch(options.file))
    resolved = resolve(launch.spec, detect_hardware(launch))
    sys.stdout.write(resolved.spec.model_dump_json(indent=2) + "\n")
    for warning in resolved.warnings:
        _say(f"warning: {warning.message}")
    return 0


def _answer(options: argparse.Namespace) -> int:
    return answer_command(options.folder, options.base)


def _schema(options: argparse.Namespace) -> int:  # noqa: ARG001 - every command takes its options
    sys.stdout.write(json.dumps(TrainSpec.model_json_schema(), indent=2) + "\n")
    return 0


def _capabilities(options: argparse.Namespace) -> int:  # noqa: ARG001 - as above
    sys.stdout.write(capabilities_page.page())
    return 0


def _reference(options: argparse.Namespace) -> int:  # noqa: ARG001 - as above
    sys.stdout.write(reference_page.page())
    return 0


def _say(line: str) -> None:
    say(line.replace("\n", " "))


def _end(options: argparse.Namespace, error: Exception) -> int:
    """The exit code for an error; a supervisor finds it in `exit.json` beside its launch file."""
    ending = ending_of(error)
    if options.file is not None and is_launch(options.file):
        write_exit(options.file.parent, ending)
    return ending.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer_core", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, command, text in (
        ("run", _run, "train; FILE is a TrainSpec or a Launch"),
        ("prepare", _prepare, "tokenise the data of a TrainSpec or a Launch"),
        ("plan", _plan, "say what a TrainSpec will do and need: steps, tokens, memory, disk"),
        ("verify", _verify, "prove the numbers of a TrainSpec on a sample of its data"),
        ("resolve", _resolve, "print a TrainSpec with every default filled in"),
        ("answer", _answer, "load a finished model and answer lines of JSON"),
        ("schema", _schema, "print the JSON schema of a TrainSpec"),
        ("capabilities", _capabilities, "print what can be combined, as docs/capabilities.md"),
        ("reference", _reference, "print every field of a spec, as docs/reference.md"),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command, file=None)
        if name == "answer":
            sub.add_argument("folder", type=Path, metavar="FOLDER")
            sub.add_argument("--base", metavar="MODEL", help="where an adapter's base lies now")
        elif name not in ("schema", "capabilities", "reference"):
            sub.add_argument("file", type=Path, metavar="FILE")
        if name in ("run", "prepare", "plan"):
            sub.add_argument("--out", type=Path, metavar="DIR", required=name == "prepare")
        if name in ("verify", "plan"):
            sub.add_argument("--json", action="store_true", help="say it as JSON")
        if name == "plan":
            _add_wishes(sub)
    return parser


def _add_wishes(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--samples", type=int, metavar="N", help="show the first N samples, and what is learned"
    )
    sub.add_argument(
        "--first", type=int, metavar="N", help="say it at once, by the first N rows, with bounds"
    )
    sub.add_argument("--probe", action="store_true", help="measure memory by two real steps")


if __name__ == "__main__":
    code = main()
    # The training stack needs seconds to take itself apart; everything is written already.
    os._exit(code)
