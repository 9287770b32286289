"""`python -m app.housekeeping [--dry-run]`: one round now, its report as JSON on stdout."""

import argparse
import json
import sys

from app.housekeeping.service import keep_house
from app.storage import get_store


def main() -> int:
    """Throw away what nobody needs, or only say what that is; 1 while someone else is at it."""
    parser = argparse.ArgumentParser(prog="python -m app.housekeeping", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="say what would go, remove nothing")
    done = keep_house(get_store(), dry_run=parser.parse_args().dry_run, scan=True)
    if done is None:
        print("another process is at it: try again later", file=sys.stderr)  # noqa: T201
        return 1
    print(json.dumps(done.document(), indent=2, ensure_ascii=False))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
