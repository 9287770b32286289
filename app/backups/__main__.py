"""`python -m app.backups references SNAPSHOT | settle`: what `polar backup` and `restore` ask."""

import json
import sys
from collections.abc import Sequence

from app.backups import service
from app.db import transaction

USAGE = "usage: python -m app.backups references SNAPSHOT | settle\n"


def main(arguments: Sequence[str]) -> int:
    """Print references as JSON, one a line; or end what ran in another world."""
    match list(arguments):
        case ["references", snapshot]:
            print_references(snapshot)
        case ["settle"]:
            with transaction() as session:
                sys.stdout.write(f"{service.settle(session)}\n")
        case _:
            sys.stderr.write(USAGE)
            return 2
    return 0


def print_references(snapshot: str) -> None:
    """Print what the snapshot refers to."""
    with transaction() as session:
        for reference in service.references(session, snapshot):
            sys.stdout.write(json.dumps(reference, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
