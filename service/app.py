"""The ASGI application: engine, stores, middleware and routes put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware

from service import __version__, problems
from service.engine import EmbeddedPool, Engine, EngineError
from service.http import middleware
from service.http.access_log import AccessLog
from service.http.auth import Auth
from service.http.deferred import Deferred
from service.http.fast_path import Direct
from service.http.head import Head
from service.http.idempotency import Idempotent
from service.http.query_params import known_parameters
from service.observability.tracing import Tracing
from service.parts import add_parts, origins_of
from service.routes import (
    checkpoint_content,
    checkpoints,
    console,
    datasets,
    evaluations,
    gradients,
    graph,
    guide,
    health,
    insight,
    jobs,
    keys,
    live,
    on_tape,
    onnx_models,
    operations,
    ops,
    optimizer,
    parameters,
    program_values,
    programs,
    registration,
    session_checkpoints,
    sessions,
    system,
    tapes,
    tenants,
    training,
    uploads,
)
from service.routes.in_session import SESSION_ID
from service.routes.named_programs import PROGRAM_ID, register_sample
from service.routes.on_tape import TAPE_ID
from service.routes.samples import restored_samples
from service.schemas.examples import EXAMPLES, SAMPLE_SESSION, SAMPLE_TAPE
from service.schemas.openapi import openapi_of
from service.settings import Settings
from service.store.errors import StorageError
from service.store.file_directory import take_directory
from service.store.programs import TooManyPrograms
from service.tenants.actions import key_actions

__all__ = ["create_app"]

log = logging.getLogger("backpass.app")

DESCRIPTION = """Backpass compiles and executes backward passes.

POST a program (blocks of ops, nested for `while` and `if_else`) to get the gradients of its parameters, or open a
session and train it. All examples on this page can be sent as they are: the service makes
their programs, their session and their tape. The [guide](guide/) explains the service from the first steps on.
"""
ROUTES = (
    gradients,
    sessions,
    training,
    onnx_models,
    parameters,
    optimizer,
    session_checkpoints,
    checkpoints,
    checkpoint_content,
    live,
    tapes,
    on_tape,
    registration,
    programs,
    program_values,
    evaluations,
    graph,
    health,
    insight,
    datasets,
    uploads,
    jobs,
    operations,
    ops,
    keys,
    tenants,
    console,
    guide,
    system,
)
TAGS = [
    {"name": "gradients", "description": "One-shot gradients: a program and values in, gradients out."},
    {"name": "sessions", "description": "Training: a worker keeps parameters and optimizer state between calls."},
    {"name": "checkpoints", "description": "Sessions as files: keep, copy, share and continue them."},
    {"name": "tapes", "description": "Programs written op by op, computed immediately or lazily."},
    {
        "name": "programs",
        "description": "Registered programs, their forward and backward pass, graphs and analysis.",
    },
    {"name": "datasets", "description": "Stored tables for training jobs, and uploads of large files."},
    {"name": "jobs", "description": "Training on stored datasets, in the queue of the service."},
    {"name": "operations", "description": "Long calls that go on after their client got 202."},
    {"name": "ops", "description": "The ops that programs consist of."},
    {"name": "service", "description": "Version and limits, health, workers and metrics."},
    {"name": "tenants", "description": "API keys, quotas, usage and the audit log."},
    {"name": "problems", "description": "The error codes and their meaning."},
]


def create_app(settings: Settings, engine: Engine | None = None, tracing: Tracing | None = None) -> FastAPI:
    """The service as an ASGI application.

    engine: executes calls; by default a pool of worker processes. tracing: makes spans; by default as in the settings.
    Raises UnusableSettings.
    """
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
        redirect_slashes=False,  # `problems` redirects requests that read, and no others
        dependencies=[Depends(known_parameters), Depends(restored_samples)],
        # generated clients have methods of these names
        generate_unique_id_function=lambda route: route.name,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
        },  # the middleware has its own, at a tenth of the cost
    )
    add_parts(app.state, settings, engine, tracing)
    problems.install(app)
    app.add_middleware(Head)  # the innermost
    app.add_middleware(
        Direct,
        routes=[*training.router.routes, *gradients.router.routes, *on_tape.DIRECT],
        ids={
            "session_id": rf"(?!{SAMPLE_SESSION}$){SESSION_ID}",  # those of samples have to be restored
            "tape_id": rf"(?!{SAMPLE_TAPE}$){TAPE_ID}",
            "program_id": PROGRAM_ID,
        },
    )
    app.add_middleware(Deferred, operations=app.state.operations)
    app.add_middleware(Idempotent, keys=app.state.idempotency)
    app.add_middleware(
        Auth, gatekeeper=app.state.gatekeeper, usage=app.state.tenancy.usage, audit=app.state.tenancy.audit
    )
    access, state = AccessLog(settings.access_log), app.state
    middleware.install(app, state.metrics, state.codec, access, state.drain, state.tracing)
    if origins := origins_of(settings):
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
            max_age=600,
        )
    for each in ROUTES:
        app.include_router(each.router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    await app.state.store.open()
    await take_directory(app.state.store, app.state.objects)
    with contextlib.suppress(StorageError):  # on a full disk the service starts, and renews its row later
        await app.state.presence.start()
    await app.state.tenancy.start()
    app.state.admin.actions |= key_actions(app.state.tenancy.ring)
    await app.state.admin.start()
    await asyncio.to_thread(app.state.objects.sweep, shared=bool(app.state.settings.objects_url))
    await asyncio.to_thread(app.state.ingest.sweep)
    await asyncio.to_thread(app.state.copies.delete_unfinished)
    with contextlib.suppress(OSError):  # with PostgreSQL, nothing else makes it; requests that need it are refused
        app.state.settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if app.state.settings.cache_dir is not None:
        with contextlib.suppress(OSError):  # the cache logs that it cannot store machine code; no call fails
            app.state.settings.cache_dir.parent.mkdir(parents=True, exist_ok=True)
    await app.state.engine.start()
    watching = [
        asyncio.create_task(app.state.metrics.watch_event_loop()),
        asyncio.create_task(app.state.sessions.watch()),
        asyncio.create_task(app.state.tapes.watch()),
        asyncio.create_task(app.state.checkpoints.watch()),
        asyncio.create_task(app.state.orphans.watch()),
        asyncio.create_task(app.state.copies.watch()),
        asyncio.create_task(app.state.programs.collect_all()),
        asyncio.create_task(app.state.presence.watch()),
        asyncio.create_task(app.state.idempotency.watch()),
        asyncio.create_task(app.state.datasets.watch()),
        asyncio.create_task(app.state.uploads.watch()),
        asyncio.create_task(app.state.operations.watch()),
        asyncio.create_task(app.state.operations.listen()),
        asyncio.create_task(app.state.erasing.watch()),
    ]
    try:
        app.state.begun = True
        await _register_examples(app)
        await app.state.runner.start()
        yield
    finally:
        app.state.streams.close()
        for task in watching:
            task.cancel()
        await app.state.runner.stop()
        await app.state.sessions.stop()
        await app.state.engine.stop()
        await app.state.codec.stop()
        await app.state.ingest.stop()
        await app.state.importer.stop()
        await app.state.admin.stop()
        await app.state.presence.stop()
        await app.state.tenancy.stop()
        if app.state.tracing is not None:
            await asyncio.to_thread(app.state.tracing.close)
        await app.state.store.close()


async def _register_examples(app: FastAPI) -> None:
    """Register the programs of the documentation. The service starts even if no worker or no disk can take them."""
    for id in EXAMPLES:
        try:
            await register_sample(app, id)
        except (EngineError, StorageError, TooManyPrograms) as error:
            log.warning("a program of the documentation is not registered: %s", error)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, made once."""
    if app.openapi_schema is None:
        app.openapi_schema = openapi_of(app)
    return app.openapi_schema
