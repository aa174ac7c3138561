"""The parts of the service, made from its settings and put together: stores, registries, gates, queues."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.datastructures import State

from service.caller import Caller
from service.checkpoints import Checkpoints
from service.checkpoints.checkpoints import FOLDER as CLIENT_CHECKPOINTS
from service.datasets import Datasets
from service.datasets.forgetting import Forgetting
from service.datasets.ingest import Ingest
from service.datasets.uploads import FOLDER as UPLOADED
from service.datasets.uploads import Uploads
from service.engine import Barred, Engine
from service.http import recorded
from service.http.admission import Admission
from service.http.auth import Gatekeeper
from service.http.codec import Codec
from service.http.deferred import Operations
from service.http.drain import Drain
from service.http.idempotency import Idempotency
from service.http.sse import Streams
from service.http.worker_calls import Calls
from service.ids import new_id
from service.jobs import Checkpointer, JobStore, Runner
from service.models import Importer
from service.objects import Objects
from service.observability.host import HostCollector
from service.observability.metrics import Metrics
from service.observability.tracing import Tracing, open_tracing
from service.sessions import files as session_files
from service.sessions.live import LiveMetrics
from service.sessions.registry import SessionRegistry
from service.sessions.session import SESSIONS
from service.sessions.tape import TAPES
from service.settings import Settings
from service.store.admin import AdminSocket
from service.store.backup import snapshot
from service.store.copies import Copies
from service.store.file_directory import take_directory
from service.store.orphans import Orphans
from service.store.presence import Presence
from service.store.programs import ProgramStore
from service.store.store import Store
from service.tenants.erasing import Erasing, Files
from service.tenants.tenancy import Tenancy

__all__ = ["add_parts", "origins_of"]

IN_MEMORY = "{} are in the memory of the process that created them, so send all their requests to that one"
"""The rule for clients of several processes."""


def add_parts(state: State, settings: Settings, engine: Engine, tracing: Tracing | None) -> None:
    """Make each part an attribute of `state`. Nothing runs before the lifespan of the application starts it.

    tracing: makes spans; by default as in the settings. Raises UnusableSettings.
    """
    state.settings, state.engine = settings, engine
    state.instance = new_id("api_")
    _add_calls(state, settings, engine, tracing)
    _add_stores(state, settings, engine)
    _add_tenants(state, settings, engine)
    _add_sessions(state, settings, engine)
    _add_requests(state, settings)
    _add_erasing(state)


def _add_calls(state: State, settings: Settings, engine: Engine, tracing: Tracing | None) -> None:
    """The way of a request to a worker and back: gates, calls, large bodies, metrics and traces."""
    state.tracing = open_tracing(settings) if tracing is None else tracing
    state.metrics = Metrics(engine)
    state.drain = drain = Drain()
    host = HostCollector(settings.data_dir, settings.disk_floor, lambda: drain.announced)
    state.metrics.registry.register(host)
    state.calls = Calls(engine, state.metrics)
    state.codec = Codec(settings, getattr(engine, "room", None))
    state.admission = Admission(
        settings, lambda method, route, status: state.metrics.request(method, route, status, 0.0, 0)
    )


def _add_stores(state: State, settings: Settings, engine: Engine) -> None:
    """Rows and files: programs, checkpoints, datasets, uploads, models."""
    state.store = Store(settings.data_dir, settings.database_url)
    state.admin = AdminSocket(state.store, settings.data_dir)
    state.admin.actions["store.snapshot"] = snapshot
    state.objects = Objects(settings.objects)
    state.admin.actions["files.take"] = lambda store, _: take_directory(store, state.objects)
    state.checkpoints = Checkpoints(state.store, state.objects)
    state.programs = ProgramStore(state.store, settings.programs, state.objects, settings.data_dir)
    state.datasets = Datasets(state.store, state.objects, settings.data_dir, settings.datasets)
    state.datasets.deleted = Forgetting(engine).soon
    state.copies = Copies(state.store, settings.data_dir, state.datasets.deleted)
    state.uploads = Uploads(settings, state.store, state.objects)
    state.ingest = Ingest(settings, state.datasets, state.uploads)
    state.importer = Importer(settings)
    state.samples = asyncio.Lock()
    state.presence = Presence(state.store, state.instance, f"{settings.host}:{settings.port}")


def _add_tenants(state: State, settings: Settings, engine: Engine) -> None:
    """Keys, quotas and usage."""
    state.tenancy = tenancy = Tenancy(settings, state.store)
    state.gatekeeper = Gatekeeper(tenancy.ring, tenancy.quotas, state.metrics, origins_of(settings))
    state.streams = Streams(settings.streams, tenancy.ring.allows)
    state.metrics.registry.register(tenancy.usage)
    engine.on_spent(lambda tenant, seconds: tenancy.usage.add(tenant, "compute_seconds", seconds))

    def barred(caller: Caller) -> Barred | None:
        """Calls without a key are those of the service itself, such as the saving of a session."""
        state = None if caller.key is None else tenancy.ring.states.get(caller.tenant)
        return None if state is None else Barred(state.detail(caller.tenant), state.reason)

    engine.on_turn(barred)
    state.uploads.suspended = lambda: tenancy.ring.states
    state.programs.limit_of = lambda tenant: tenancy.quotas.limits(tenant).programs
    state.ingest.room = lambda tenant, size: tenancy.quotas.room_for(tenant, "dataset_bytes", size)


def _add_sessions(state: State, settings: Settings, engine: Engine) -> None:
    """Sessions, tapes, and the jobs that train sessions."""
    usage, quotas = state.tenancy.usage, state.tenancy.quotas
    shared = bool(settings.database_url)
    state.tapes = SessionRegistry(
        settings,
        engine,
        state.metrics,
        TAPES,
        elsewhere=f"in this process of the service; {IN_MEMORY.format('tapes')}" if shared else "",
    )
    state.sessions = SessionRegistry(
        settings,
        engine,
        state.metrics,
        SESSIONS,
        state.store,
        state.objects,
        state.instance,
        elsewhere=f"in the store; {IN_MEMORY.format('those with durability `none`')}" if shared else "",
    )
    state.live = LiveMetrics()
    state.sessions.closed = state.live.wake
    state.sessions.stepped = lambda tenant, steps: usage.add(tenant, "steps", steps)
    state.sessions.quota = state.tapes.quota = quotas.limits
    state.sessions.suspended = suspended = lambda: state.tenancy.ring.states
    state.runner = Runner(
        JobStore(state.store, state.instance),
        state.sessions,
        Checkpointer(
            state.store,
            state.sessions,
            lambda tenant, size: quotas.room_for(tenant, "checkpoint_bytes", size),
            state.checkpoints.sweep,
            settings.max_step_deadline,
        ),
        limit=settings.running_jobs,
        longest_call=settings.max_step_deadline,
        has_compute=quotas.has_compute,
        suspended=suspended,
    )


def _add_requests(state: State, settings: Settings) -> None:
    """Answers that outlive their request, and the deletion of files that nothing names."""
    state.idempotency = Idempotency(settings, state.store, state.objects, state.instance)
    state.operations = Operations(settings, state.store, state.objects, state.instance)
    state.orphans = Orphans(
        state.objects,
        {
            CLIENT_CHECKPOINTS: state.checkpoints.named,
            UPLOADED: state.uploads.named,
            **dict.fromkeys(session_files.FOLDERS, state.sessions.named),
            recorded.FOLDER: lambda keys: recorded.kept(keys, state.objects),
        },
    )


def _add_erasing(state: State) -> None:
    """The erasure of deleted tenants: the files of their rows, and what this process keeps or runs for them."""
    objects, gatekeeper = state.objects, state.gatekeeper

    async def delete_file(row: Any) -> None:
        await asyncio.to_thread(objects.delete, row.key)

    async def delete_answer(row: Any) -> None:
        if row.answer is not None:
            await recorded.delete_stored(row.answer, objects)

    async def forget(tenant: str) -> None:
        state.programs.forget_recent()
        state.live.forget_tenant(tenant)
        await state.operations.stop_deleted()

    state.erasing = Erasing(
        state.store,
        state.tenancy.ring,
        files={
            "sessions": Files(("id",), lambda row: state.sessions.delete_files(row.id)),
            "checkpoints": Files(("key",), delete_file),
            "uploads": Files(("about",), state.uploads.delete_files),
            "operations": Files(("answer",), delete_answer),
            "idempotency": Files(("answer",), delete_answer),
            "datasets": Files(("key",), collect=lambda row: state.datasets.collect(row.key)),
            "program_values": Files(("key",), collect=lambda row: state.programs.collect(row.key)),
        },
        leaving=(state.sessions.close_all, state.tapes.close_all, forget),
        busy=lambda: set(+gatekeeper.running + +state.operations.running + +state.runner.tenants),
    )


def origins_of(settings: Settings) -> list[str]:
    """The origins of web pages that may call the service."""
    return [origin.strip() for origin in settings.cors_origins.split(",") if origin.strip()]
