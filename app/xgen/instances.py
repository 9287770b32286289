"""XGen's calls on machines: a device of a host that has joined, held for the project's next job."""

from functools import partial

from sqlalchemy.orm import Session

from app.holds import service
from app.holds.service import Hold
from app.jobs.schemas import Warn
from app.settings import get_settings
from app.xgen.schemas import InstanceList, InstanceOut, InstanceRequest
from app.xgen.secret_names import SecretNames, keep_one
from app.xgen.words import WORD_OF_HOLD

_MESSAGES = {
    "held": "{name} is held for the next job of the project until {until} UTC",
    "used": "{name} was given to job {job}, and goes free after it",
    "given_back": "{name} was given back before a job used it",
    "over": "{name} is not held any more: no job used it until {until} UTC",
    "host_gone": "{name} is not held any more: its host was drained, or went away",
}


def rent(session: Session, project_id: str, asked: InstanceRequest) -> InstanceOut:
    """Hold the offered device; raises NotFound or Conflict with why it cannot be had."""
    keep = partial(_keep_token, session, project_id, asked)
    held, again = service.hold(session, project_id, asked.offer_id, keep)
    found = show(held)
    said = "; it was held already, and nothing else is" if again else ""
    return found.model_copy(
        update={"message": found.message + said, "warnings": list(_warnings(asked))}
    )


def _keep_token(session: Session, project_id: str, asked: InstanceRequest) -> str | None:
    value = asked.hf_hub_token.get_secret_value() if asked.hf_hub_token else ""
    if not value:
        return None
    name = SecretNames(get_settings())(value)
    keep_one(session, project_id, name, "hf_hub_token", value)
    return name


def _warnings(asked: InstanceRequest) -> list[Warn]:
    found = []
    if asked.template_name:
        message = "template_name has no effect: a device that has joined is as it is"
        found.append(Warn(code="xgen_template_name", message=message))
    if asked.auto_destroy is False:
        message = "auto_destroy false has no effect: a device goes free after the job"
        found.append(Warn(code="xgen_auto_destroy", message=message))
    return found


def show(held: Hold) -> InstanceOut:
    """Return a hold in the words of XGen."""
    values = {"name": f"{held.device_name} of {held.worker_id}", "job": held.job_id}
    until = held.expires_at.strftime("%H:%M:%S")
    return InstanceOut(
        instance_id=held.id,
        status=WORD_OF_HOLD[held.state],
        polar_status=held.state,
        message=_MESSAGES[held.state].format(**values, until=until),
        offer_id=held.offer_id,
        worker_id=held.worker_id,
        device=held.device,
        device_name=held.device_name,
        hf_hub_token=held.secret,
        created_at=held.created_at,
        expires_at=held.expires_at,
        ended_at=held.ended_at,
        attempt_id=held.attempt_id,
        job_id=held.job_id,
    )


def list_instances(session: Session, project_id: str) -> InstanceList:
    """Return the project's newest holds."""
    return InstanceList(instances=[show(held) for held in service.list_holds(session, project_id)])
