"""What a spec names must exist: data sets, secrets, folders, models, jobs, devices."""

from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.datasets.places import refusal
from app.errors import FieldProblem
from app.jobs.hardware import Host
from app.jobs.spec import JobSpec
from app.models import Dataset, Job, ModelVersion, Secret
from app.settings import Settings
from trainer_core.data.jinja import syntax_problem
from trainer_core.data.named_templates import WORDS
from trainer_core.moved import present_place
from trainer_core.spec import DataSource, ModelRef, SecretRef

_STORED = ("upload", "dataset")


def check_references(
    session: Session, project_id: str, spec: JobSpec, settings: Settings
) -> list[FieldProblem]:
    """Return one problem for each thing that the spec names and the project does not have."""
    sources = dict(_sources(spec))
    problems = [
        *_template(spec.task.template or WORDS[0]),
        *_folders(sources, spec.model, settings),
        *_places(project_id, sources, spec.model, settings),
        *_datasets(session, project_id, sources, settings),
        *_secrets(session, project_id, sources, spec),
        *_model(session, project_id, spec.model),
    ]
    if spec.compute.target == "fake" and not settings.fake_target:
        problems.append(
            FieldProblem(
                pointer="/compute/target",
                message="the target fake is for drills and is not switched on here; use local",
                value="fake",
            )
        )
    return problems


def _template(text: str) -> list[FieldProblem]:
    """Return what is wrong with a chat template's syntax; it is parsed, nothing of it runs."""
    reason = None if text in WORDS else syntax_problem(text)
    pointer, shown = "/task/chat_template", text[:80]
    return [FieldProblem(pointer=pointer, message=f"it {reason}", value=shown)] if reason else []


def check_devices(spec: JobSpec, hosts: list[Host]) -> list[FieldProblem]:
    """Return a problem when hosts are online and none could ever give what is asked for."""
    wanted = spec.compute.gpus
    if wanted is None or not hosts or any(host.could_run(wanted) for host in hosts):
        return []
    have = sorted({name for host in hosts for name, _ in host.gpus}) or ["no GPU"]
    message = (
        f"no host that is online could give {wanted.count} × {wanted.name or 'GPU'}"
        f"{f' with {wanted.min_memory_gb:g} GiB' if wanted.min_memory_gb else ''}; "
        f"they have: {', '.join(have)}. Ask for less, or leave compute.gpus out"
    )
    return [FieldProblem(pointer="/compute/gpus", message=message)]


def _sources(spec: JobSpec) -> Iterator[tuple[str, DataSource]]:
    yield from ((f"/data/train/{i}", source) for i, source in enumerate(spec.data.train))
    if isinstance(spec.data.validation, list):
        for i, source in enumerate(spec.data.validation):
            yield f"/data/validation/{i}", source


def _folders(
    sources: dict[str, DataSource], model: ModelRef, settings: Settings
) -> list[FieldProblem]:
    asked = [
        (f"{pointer}/path", source.path, settings.data_folders, "data_folders")
        for pointer, source in sources.items()
        if source.source == "folder"
    ]
    if model.source == "folder":
        place = present_place(model.name_or_path, settings.moved_folders)
        asked.append(("/model/name_or_path", place, settings.model_folders, "model_folders"))
    return [
        FieldProblem(pointer=pointer, message=reason, value=path)
        for pointer, path, allowed, setting in asked
        if (reason := _refusal(path, allowed, setting))
    ]


def _refusal(path: str, allowed: list[Path], setting: str) -> str | None:
    """Return why this path may not be read; links are followed before it is judged."""
    if "\0" in path or ".." in Path(path).parts:
        return "a path must not climb: leave `..` out"
    if not allowed:
        return f"folders are not open here: set {setting}, or upload the data"
    try:
        real = Path(path).resolve()
    except (OSError, RuntimeError):
        return "this is a link that leads to itself"
    if not any(real.is_relative_to(folder.resolve()) for folder in allowed):
        known = ", ".join(map(str, allowed))
        return f"this is outside of the folders that {setting} allows: {known}"
    try:
        return None if real.exists() else "there is no such file or folder"
    except OSError:
        return "there is no such file or folder"


def _places(
    project_id: str, sources: dict[str, DataSource], model: ModelRef, settings: Settings
) -> Iterator[FieldProblem]:
    asked = {f"{p}/path": (s.path, s.token) for p, s in sources.items() if s.source == "s3"}
    if model.source == "s3":
        asked["/model/name_or_path"] = (model.name_or_path, model.token)
    for pointer, (location, token) in asked.items():
        if message := refusal(project_id, location, settings, with_keys=token is not None):
            yield FieldProblem(pointer=pointer, message=message, value=location)


def _datasets(
    session: Session, project_id: str, sources: dict[str, DataSource], settings: Settings
) -> Iterator[FieldProblem]:
    named = {p: s for p, s in sources.items() if s.source in _STORED}
    if not named:
        return
    query = select(Dataset.id, Dataset.source, Dataset.location).where(
        Dataset.project_id == project_id,
        Dataset.id.in_({source.path for source in named.values()}),
        Dataset.deleted_at.is_(None),
    )
    there = {row.id: row for row in session.execute(query)}
    for pointer, source in named.items():
        found = there.get(source.path)
        if found is None:
            message: str | None = (
                f"there is no data set {source.path} in this project: name one by its id, "
                "GET /datasets lists them"
            )
        elif found.source == "s3":
            keys = source.token is not None
            message = refusal(project_id, found.location, settings, with_keys=keys)
        else:
            continue
        if message is not None:
            yield FieldProblem(pointer=f"{pointer}/path", message=message, value=source.path)


def secret_names(spec: JobSpec) -> dict[str, str]:
    """Return the secrets that a spec names for its run: JSON pointer → name.

    That of `publish.hub` is none of them: the service pushes, and no trainer gets its token.
    """
    return _secret_names(dict(_sources(spec)), spec.model)


def _secret_names(sources: dict[str, DataSource], model: ModelRef) -> dict[str, str]:
    tokens: dict[str, SecretRef | None] = {p: s.token for p, s in sources.items()}
    tokens["/model"] = model.token
    return {f"{p}/token/secret": token.secret for p, token in tokens.items() if token}


def _secrets(
    session: Session, project_id: str, sources: dict[str, DataSource], spec: JobSpec
) -> list[FieldProblem]:
    named = _secret_names(sources, spec.model)
    if spec.publish.hub is not None:
        named["/publish/hub/token/secret"] = spec.publish.hub.token.secret
    if not named:
        return []
    query = select(Secret.name).where(
        Secret.project_id == project_id, Secret.name.in_(set(named.values()))
    )
    there = set(session.scalars(query))
    return [
        FieldProblem(
            pointer=pointer,
            message=f"there is no secret {name} in this project; PUT /secrets/{name} makes it",
            value=name,
        )
        for pointer, name in named.items()
        if name not in there
    ]


def _model(session: Session, project_id: str, model: ModelRef) -> list[FieldProblem]:
    if model.source == "registry":
        reason = _registry_refusal(session, project_id, model)
    elif model.source == "job":
        reason = _job_refusal(session, project_id, model.name_or_path)
    else:
        return []
    if reason is None:
        return []
    return [FieldProblem(pointer="/model/name_or_path", message=reason, value=model.name_or_path)]


def _registry_refusal(session: Session, project_id: str, model: ModelRef) -> str | None:
    query = select(ModelVersion.version).where(
        ModelVersion.project_id == project_id,
        ModelVersion.name == model.name_or_path,
        ModelVersion.deleted_at.is_(None),
    )
    versions = {str(version) for version in session.scalars(query)}
    if not versions:
        return f"there is no model {model.name_or_path} in this project; GET /models lists them"
    if model.revision is not None and model.revision not in versions:
        return (
            f"model {model.name_or_path} has no version {model.revision}; it has "
            f"{', '.join(sorted(versions, key=int)[-10:])}"
        )
    return None


def _job_refusal(session: Session, project_id: str, job_id: str) -> str | None:
    status = session.scalar(
        select(Job.status).where(Job.project_id == project_id, Job.id == job_id)
    )
    if status is None:
        return f"there is no job {job_id} in this project"
    published = session.scalar(
        select(ModelVersion.id).where(
            ModelVersion.job_id == job_id, ModelVersion.deleted_at.is_(None)
        )
    )
    if published is None:
        return f"job {job_id} has published no model (it is {status}); wait until it has succeeded"
    return None
