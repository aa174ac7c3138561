"""The ASGI application: engine, stores, middleware and routes put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from service import __version__, problems
from service.engine import EmbeddedPool, Engine, EngineError
from service.http import middleware
from service.http.admission import Admission
from service.http.codec import Codec
from service.http.fast_path import Direct
from service.http.query_params import known_parameters
from service.http.worker_calls import Calls
from service.observability.metrics import Metrics
from service.routes import (
    gradients,
    graph,
    insight,
    on_tape,
    ops,
    parameters,
    programs,
    sessions,
    system,
    tapes,
    training,
)
from service.routes.common import register_sample
from service.routes.in_session import SESSION_ID
from service.routes.samples import restored_samples
from service.schemas.examples import EXAMPLES, SAMPLE_SESSION
from service.schemas.programs import Registration
from service.sessions.registry import SessionRegistry
from service.sessions.tape import TAPES
from service.settings import Settings
from service.store.errors import StorageError
from service.store.programs import ProgramStore, TooManyPrograms

__all__ = ["create_app"]

log = logging.getLogger("backpass.app")

DESCRIPTION = """Backpass compiles and executes backward passes.

POST a program (blocks of ops, nested for `while` and `if_else`) to get the gradients of its parameters, or open a
session and train it. All examples on this page can be sent as they are: the service makes
their programs, their session and their tape.
"""
ROUTES = (gradients, sessions, training, parameters, tapes, on_tape, programs, graph, insight, ops, system)
TAGS = [
    {"name": "gradients", "description": "One-shot gradients: a program and values in, gradients out."},
    {"name": "sessions", "description": "Training: a worker keeps parameters and optimizer state between calls."},
    {"name": "tapes", "description": "Programs written op by op, computed immediately or lazily."},
    {
        "name": "programs",
        "description": "Registered programs, their backward pass, graphs and analysis.",
    },
    {"name": "ops", "description": "The ops that programs consist of."},
    {"name": "service", "description": "Version and limits, health, workers and metrics."},
    {"name": "problems", "description": "The error codes and their meaning."},
]


def create_app(settings: Settings, engine: Engine | None = None) -> FastAPI:
    """The service as an ASGI application. engine: executes calls; by default a pool of worker processes."""
    engine = EmbeddedPool(settings) if engine is None else engine
    app = FastAPI(
        title="Backpass",
        version=__version__,
        description=DESCRIPTION,
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # `system` serves the document as bytes
        lifespan=_lifespan,
        # an unknown path is a 404: some clients drop the body of a redirected POST
        redirect_slashes=False,
        dependencies=[Depends(known_parameters), Depends(restored_samples)],
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
        },  # the middleware has its own, at a tenth of the cost
    )
    app.state.settings = settings
    app.state.engine = engine
    app.state.metrics = Metrics(engine)
    app.state.calls = Calls(engine, app.state.metrics)
    app.state.codec = Codec(settings, getattr(engine, "room", None))
    app.state.admission = Admission(
        settings, lambda method, route, status: app.state.metrics.request(method, route, status, 0.0, 0)
    )
    app.state.programs = ProgramStore(settings.data_dir, settings.programs)
    app.state.sessions = SessionRegistry(settings, engine, app.state.metrics)
    app.state.samples = asyncio.Lock()
    app.state.tapes = SessionRegistry(settings, engine, app.state.metrics, TAPES)
    problems.install(app)
    app.add_middleware(Direct, routes=training.router.routes, id=rf"(?!{SAMPLE_SESSION}$){SESSION_ID}")
    middleware.install(app, app.state.metrics, app.state.codec)
    for each in ROUTES:
        app.include_router(each.router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    await app.state.programs.open()
    if app.state.settings.cache_dir is not None:
        with contextlib.suppress(OSError):  # the cache logs that it cannot store machine code; no call fails
            app.state.settings.cache_dir.parent.mkdir(parents=True, exist_ok=True)
    await app.state.engine.start()
    watching = [
        asyncio.create_task(app.state.metrics.watch_event_loop()),
        asyncio.create_task(app.state.sessions.watch()),
        asyncio.create_task(app.state.tapes.watch()),
    ]
    try:
        await _register_examples(app)
        yield
    finally:
        for task in watching:
            task.cancel()
        await app.state.engine.stop()
        await app.state.codec.stop()
        await app.state.programs.close()


async def _register_examples(app: FastAPI) -> None:
    """Register the programs of the documentation. The service starts even if no worker or no disk can take them."""
    for id in EXAMPLES:
        try:
            await register_sample(app, id)
        except (EngineError, StorageError, TooManyPrograms) as error:
            log.warning("a program of the documentation is not registered: %s", error)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the schemas that hand-written bodies refer to."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, tags=app.openapi_tags, routes=app.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        nested = Registration.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(nested.get("$defs", {}))
        app.openapi_schema = _without_defs(document)
    return app.openapi_schema


def _without_defs(value: Any) -> Any:
    """`value` without `$defs`: references point to the components of the document."""
    if isinstance(value, dict):
        return {k: _without_defs(v) for k, v in value.items() if k != "$defs"}
    if isinstance(value, list):
        return [_without_defs(v) for v in value]
    return value
