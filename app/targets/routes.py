"""`GET /targets`."""

from fastapi import APIRouter

from app.auth import Caller, Role, require
from app.db import transaction
from app.targets import service
from app.targets.schemas import TargetList

router = APIRouter(prefix="/targets", tags=["targets"])


@router.get("", summary="Hosts, devices and load")
def list_targets(caller: Caller = require(Role.VIEWER)) -> TargetList:
    """Return where jobs can run: the processes that are online, their devices, the queue."""
    with transaction() as session:
        return service.list_targets(session, caller.project_id)
