"""Asks osv.dev, in one request, which pinned packages have known vulnerabilities.

Exit code 0: none, or nobody could be asked (said on stderr; with AUDIT_REQUIRED=1 that is 2);
1: some, listed with their ids. `.ci/audit-accepted` names ids that were looked at and accepted,
one a line with the reason behind it.
"""

import os
import re
import sys
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]
ADDRESS = "https://api.osv.dev/v1/querybatch"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)


def pinned(lock: str) -> list[tuple[str, str]]:
    """Return name and version of every package of a lock."""
    return _PIN.findall(lock)


def accepted(path: Path) -> set[str]:
    """Return the ids that somebody has looked at."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}


def ask(packages: list[tuple[str, str]], address: str) -> dict[str, list[str]]:
    """Return the ids of vulnerabilities by package; raises httpx.HTTPError and ValueError."""
    queries = [
        {"package": {"name": name, "ecosystem": "PyPI"}, "version": version}
        for name, version in packages
    ]
    answer = httpx.post(address, json={"queries": queries}, timeout=30).raise_for_status()
    results = answer.json()["results"]
    return {
        f"{name} {version}": [v["id"] for v in result.get("vulns", ())]
        for (name, version), result in zip(packages, results, strict=True)
    }


def main() -> int:
    """Audit requirements.lock."""
    packages = pinned((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    address = os.environ.get("AUDIT_URL", ADDRESS)
    try:
        answer = ask(packages, address)
    except (httpx.HTTPError, ValueError, KeyError) as error:
        reason = str(error) or type(error).__name__
        sys.stderr.write(f"dependencies were NOT audited: {address} does not answer ({reason})\n")
        return 2 if os.environ.get("AUDIT_REQUIRED") == "1" else 0
    known = accepted(ROOT / ".ci" / "audit-accepted")
    found = {package: sorted(set(ids) - known) for package, ids in answer.items()}
    found = {package: ids for package, ids in found.items() if ids}
    for package, ids in found.items():
        sys.stderr.write(f"{package}: {', '.join(ids)} (https://osv.dev/{ids[0]})\n")
    if not found:
        sys.stderr.write(f"{len(packages)} pinned packages have no known vulnerability\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
