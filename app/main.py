"""The API: which routers it has, and what stands around them."""

import contextlib
import importlib.metadata
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, FastAPI

from app import docs, openapi
from app.artifacts.routes import router as artifacts
from app.capabilities.routes import router as capabilities
from app.datasets.routes import router as datasets
from app.datasets.temporary import clean_uploads
from app.db import LoopStatements
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
from app.ratelimit import RateLimit
from app.registry.routes import router as models
from app.secrets.routes import router as secrets
from app.series.routes import router as series
from app.settings import Settings, get_settings
from app.targets.routes import router as targets
from app.uploads.routes import router as uploads
from app.xgen.routes import router as xgen

# Every router of the API; there is no discovery.
ROUTERS: tuple[APIRouter, ...] = (
    jobs,
    hub,
    events,
    logs,
    series,
    artifacts,
    datasets,
    uploads,
    models,
    capabilities,
    targets,
    secrets,
    keys,
    xgen,
    health,
    docs.router,
)


@contextlib.asynccontextmanager
async def _lifespan(
    settings: Settings, limit: RateLimit | None, app: FastAPI
) -> AsyncIterator[None]:
    to_thread.current_default_thread_limiter().total_tokens = settings.threads
    clean_uploads(settings.home)
    app.state.statements = LoopStatements(settings)
    app.state.looks = Looks()
    try:
        async with Feed(settings).running() as app.state.feed:
            yield
    finally:
        await app.state.statements.close()
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
    app = Api(
        title="POLAR Trainer",
        version=importlib.metadata.version("polar-trainer"),
        description="Submit training jobs, watch them, and fetch what they made.",
        lifespan=partial(_lifespan, settings, limit),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in ROUTERS:
        app.include_router(router)
    handle_errors(app, ROUTERS)
    app.add_middleware(KeyCheck, required=settings.auth == "keys", limit=limit)
    app.add_middleware(BodyLimit)
    app.add_middleware(RequestContext)  # added last: the outermost
    return app
