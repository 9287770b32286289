"""`GET /capabilities`."""

from fastapi import APIRouter

from app.auth import Caller, Role, require
from app.capabilities import service
from app.capabilities.schemas import CapabilitiesOut

router = APIRouter(prefix="/capabilities", tags=["capabilities"])


@router.get("", summary="What can be combined")
def get_capabilities(_: Caller = require(Role.VIEWER)) -> CapabilitiesOut:
    """Return what can be combined, and each refusal with its reason."""
    return service.capabilities()
