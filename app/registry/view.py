"""Models and their versions as they look from outside."""

from urllib.parse import quote

from app.models import ModelVersion
from app.registry.schemas import FileOut, VersionDetail, VersionOut
from trainer_core.publish.manifest import Manifest


def version_url(version: ModelVersion) -> str:
    """Return the version's address below the API's."""
    return f"/models/{version.name}/versions/{version.version}"


def of_version(version: ModelVersion, bucket: str) -> VersionOut:
    """Return a version without its files."""
    here = version_url(version)
    links = {"self": here, "archive": f"{here}/files.tar", "card": f"{here}/files/README.md"}
    if version.job_id:
        links["job"] = f"/jobs/{version.job_id}"
    return VersionOut(
        id=version.id,
        name=version.name,
        version=version.version,
        kind=version.kind,
        base_model=version.base_model,
        template_hash=version.template_hash,
        metrics=version.metrics,
        size=version.size,
        manifest_sha256=version.manifest_sha256,
        location=f"s3://{bucket}/{version.prefix}",
        job_id=version.job_id,
        created_at=version.created_at,
        links=links,
    )


def of_detail(version: ModelVersion, bucket: str, manifest: Manifest) -> VersionDetail:
    """Return a version with its files."""
    here = version_url(version)
    files = [
        FileOut(
            path=entry.path,
            size=entry.size,
            sha256=entry.sha256,
            url=f"{here}/files/{quote(entry.path)}",
        )
        for entry in manifest.files
    ]
    return VersionDetail(**of_version(version, bucket).model_dump(), files=files)
