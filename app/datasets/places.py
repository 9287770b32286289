"""Which `s3://` places a job may read: its project's own, those that are open to all, or with keys
of its owner."""

import re

from app.settings import Settings

# What S3 takes today, and what old buckets and other stores have.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")


def parse(location: str) -> tuple[str, str] | None:
    """Return bucket and key of an `s3://` address; None for anything else."""
    bucket, _, key = location.removeprefix("s3://").partition("/")
    if not location.startswith("s3://") or not bucket or not key:
        return None
    return bucket, key


def not_a_place(location: str) -> str | None:
    """Return why an address cannot be one of an object; None when it can."""
    place = parse(location)
    if place is None:
        return "an S3 address is `s3://bucket/key`"
    if not _BUCKET.fullmatch(place[0]) or ".." in place[0]:
        return (
            f"{place[0][:80]!r} cannot be a bucket's name: 3 to 63 letters, digits, dots, hyphens "
            "and underscores, a letter or a digit first and last"
        )
    return None


def is_foreign(project_id: str, location: str, bucket: str) -> bool:
    """Say whether an `s3://` address lies in the service's own bucket, outside of the project."""
    named, key = parse(location) or ("", "")
    inside = key.startswith(f"{project_id}/") and ".." not in key.split("/")
    return named == bucket and not inside


def refusal(
    project_id: str, location: str, settings: Settings, *, with_keys: bool = False
) -> str | None:
    """Return why a job of the project may not read this place; None when it may.

    The service's keys open the project's own part of the service's bucket, and what
    `POLAR_S3_BUCKETS` lists. `with_keys`: the job brings keys of its owner, whose rights decide.
    """
    if reason := not_a_place(location):
        return reason
    place = parse(location) or ("", "")
    if ".." in place[1].split("/"):
        return "an S3 address must not climb: leave `..` out"
    if is_foreign(project_id, location, settings.s3_bucket):
        return "this part of the bucket belongs to another project; name one of your own"
    if place[0] == settings.s3_bucket or with_keys or _is_open(place, settings.s3_buckets):
        return None
    return (
        f"the bucket {place[0]!r} is not open to jobs here: name a secret of yours that holds "
        f"ACCESS_KEY:SECRET_KEY as `token`, copy the data to s3://{settings.s3_bucket}/"
        f"{project_id}/…, or ask the operator to add the bucket to POLAR_S3_BUCKETS"
    )


def _is_open(place: tuple[str, str], allowed: list[str]) -> bool:
    path = "/".join(place)
    entries = (entry.strip("/") for entry in allowed)
    return any(entry and path.startswith(f"{entry}/") for entry in entries)
