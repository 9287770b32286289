"""`python -m worker …`: one table of what this room can run."""

import importlib
import sys
from collections.abc import Callable, Sequence

from app.journal import write_json_lines

# What is asked for → module and function, called with the arguments that are left. A module is
# imported only when it is asked for: supervisors and the fork server must not load Celery.
TABLE: dict[str, tuple[str, str]] = {
    "reconciler": ("worker.reconciler", "main"),
    "celery": ("worker.celery_app", "main"),
    "beat": ("worker.beat", "main"),
    "warm": ("worker.warm", "main"),
    "supervisor": ("worker.supervisor", "main"),
    "push": ("worker.push", "main"),
}
USAGE = (
    "usage: python -m worker reconciler | celery control|host|prepare | beat | warm |"
    " supervisor attempt|prepare ID | push"
)


def main(arguments: Sequence[str]) -> int:
    """Run what the command line names; 2 for something that is not in the table."""
    write_json_lines()
    found = TABLE.get(arguments[0] if arguments else "")
    if found is None:
        sys.stderr.write(f"{USAGE}\n")
        return 2
    module, function = found
    call: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
    return call(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
