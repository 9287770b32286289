"""The API: which routers it has, and what stands around them."""

import contextlib
import importlib.metadata
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, FastAPI
from starlette.middleware.cors import CORSMiddleware

from app import docs, openapi
from app.artifacts.routes import router as artifacts
from app.capabilities.routes import router as capabilities
from app.comparison.routes import router as comparison
from app.datasets.routes import router as datasets
from app.datasets.temporary import clean_uploads
from app.db import LoopStatements
from app.doors.door import Door
from app.doors.routes import router as doors
from app.doors.tickets import Tickets
from app.events.feed import Feed
from app.events.routes import router as events
from app.health.routes import router as health
from app.health.service import Looks
from app.http import handle_errors
from app.hub.routes import router as hub
from app.jobs.routes import router as jobs
from app.keys.routes import router as keys
from app.logs.routes import router as logs
from app.middleware import BodyLimit, KeyCheck, RequestContext
from app.openai import errors as openai_errors
from app.openai.file_routes import router as openai_files
from app.openai.job_routes import router as openai_jobs
from app.plans.routes import router as plans
from app.presets.routes import router as presets
from app.ratelimit import RateLimit
from app.registry.routes import router as models
from app.secrets.routes import router as secrets
from app.series.routes import router as series
from app.settings import Settings, get_settings
from app.sweeps.routes import router as sweeps
from app.targets.routes import router as targets
from app.uploads.routes import router as uploads
from app.webhooks.routes import router as webhooks
from app.xgen.routes import router as xgen

# Every router of the API; there is no discovery.
ROUTERS: tuple[APIRouter, ...] = (
    jobs,
    hub,
    events,
    logs,
    series,
    comparison,
    sweeps,
    artifacts,
    datasets,
    uploads,
    models,
    capabilities,
    plans,
    presets,
    targets,
    secrets,
    webhooks,
    keys,
    doors,
    xgen,
    openai_files,
    openai_jobs,
    health,
    docs.router,
)


@contextlib.asynccontextmanager
async def _lifespan(
    settings: Settings, tickets: Tickets, limit: RateLimit | None, app: FastAPI
) -> AsyncIterator[None]:
    to_thread.current_default_thread_limiter().total_tokens = settings.threads
    clean_uploads(settings.home)
    app.state.statements = LoopStatements(settings)
    app.state.looks = Looks()
    app.state.tickets = tickets
    try:
        async with Feed(settings).running() as app.state.feed:
            yield
    finally:
        await app.state.statements.close()
        await tickets.close()
        if limit is not None:
            await limit.close()


class Api(FastAPI):
    """FastAPI with our description of errors."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, made once."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi.describe(self)
        return self.openapi_schema


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the API."""
    settings = settings or get_settings()
    limit = RateLimit(settings) if settings.rate_limit else None
    tickets = Tickets(settings)
    app = Api(
        title="POLAR Trainer",
        version=importlib.metadata.version("polar-trainer"),
        description="Submit training jobs, watch them, and fetch what they made.",
        lifespan=partial(_lifespan, settings, tickets, limit),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in ROUTERS:
        app.include_router(router)
    handle_errors(app, ROUTERS)
    door = Door(settings, tickets) if settings.auth == "keys" else None
    app.add_middleware(KeyCheck, door=door, limit=limit)
    app.add_middleware(BodyLimit)
    if settings.cors_origins:  # before the key: a browser asks without one whether it may
        app.add_middleware(CORSMiddleware, **_cors(settings))
    app.add_middleware(RequestContext, shaped=openai_errors.shaped)  # added last: the outermost
    return app


def _cors(settings: Settings) -> dict[str, Any]:
    return {
        "allow_origins": settings.cors_origins,
        "allow_credentials": True,
        "allow_methods": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
        "allow_headers": [
            *("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"),
            *("X-Request-ID", "Tus-Resumable", "Upload-Length", "Upload-Metadata"),
            *("Upload-Offset", "X-User-ID"),
        ],
        "expose_headers": [
            *("Location", "Retry-After", "X-Request-ID"),
            *("Tus-Resumable", "Upload-Offset", "Upload-Length"),
        ],
    }
