"""The API's description and its page, behind the key like everything else."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse

from app.auth import Caller, Role, require

# The page's program and style come from where FastAPI says.
_CSP = (
    "default-src 'none'; frame-ancestors 'none'; connect-src 'self'; "
    "script-src https://cdn.jsdelivr.net 'unsafe-inline'; "
    "style-src https://cdn.jsdelivr.net 'unsafe-inline'; img-src https://fastapi.tiangolo.com data:"
)
router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def description(request: Request, _: Caller = require(Role.VIEWER)) -> dict[str, Any]:
    """Return the OpenAPI document."""
    document: dict[str, Any] = request.app.openapi()
    return document


@router.get("/docs")
async def page(request: Request, _: Caller = require(Role.VIEWER)) -> HTMLResponse:
    """Return a page for people."""
    answer = get_swagger_ui_html(openapi_url="/openapi.json", title=request.app.title)
    answer.headers["Content-Security-Policy"] = _CSP
    return answer
