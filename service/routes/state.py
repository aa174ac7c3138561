"""The parts of the application that routes call: `service.app` builds them and keeps them in its state."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import Request

from service.checkpoints import Checkpoints
from service.datasets import Datasets
from service.datasets.ingest import Ingest
from service.datasets.uploads import Uploads
from service.engine import Engine
from service.http.deferred import Operations
from service.http.sse import Streams
from service.http.worker_calls import Calls
from service.jobs import JobStore, Runner
from service.models import Importer
from service.objects import Objects
from service.observability.metrics import Metrics
from service.sessions.live import LiveMetrics
from service.settings import Settings
from service.store.programs import ProgramStore
from service.store.store import Store
from service.tenants.quotas import Quotas
from service.tenants.tenancy import Tenancy

if TYPE_CHECKING:
    from service.sessions.registry import SessionRegistry

__all__ = [
    "calls",
    "checkpoints",
    "datasets",
    "engine",
    "importer",
    "ingest",
    "job_store",
    "live",
    "metrics",
    "objects",
    "operations",
    "programs",
    "quotas",
    "runner",
    "samples_lock",
    "sessions",
    "settings",
    "store",
    "streams",
    "tapes",
    "tenancy",
    "uploads",
]


def settings(request: Request) -> Settings:
    return request.app.state.settings


def engine(request: Request) -> Engine:
    return request.app.state.engine


def store(request: Request) -> Store:
    return request.app.state.store


def datasets(request: Request) -> Datasets:
    return request.app.state.datasets


def importer(request: Request) -> Importer:
    return request.app.state.importer


def objects(request: Request) -> Objects:
    return request.app.state.objects


def checkpoints(request: Request) -> Checkpoints:
    return request.app.state.checkpoints


def tenancy(request: Request) -> Tenancy:
    return request.app.state.tenancy


def quotas(request: Request) -> Quotas:
    return tenancy(request).quotas


def calls(request: Request) -> Calls:
    return request.app.state.calls


def metrics(request: Request) -> Metrics:
    return request.app.state.metrics


def programs(request: Request) -> ProgramStore:
    return request.app.state.programs


def sessions(request: Request) -> SessionRegistry:
    return request.app.state.sessions


def live(request: Request) -> LiveMetrics:
    return request.app.state.live


def tapes(request: Request) -> SessionRegistry:
    return request.app.state.tapes


def ingest(request: Request) -> Ingest:
    return request.app.state.ingest


def uploads(request: Request) -> Uploads:
    return request.app.state.uploads


def runner(request: Request) -> Runner:
    return request.app.state.runner


def job_store(request: Request) -> JobStore:
    return runner(request).jobs


def operations(request: Request) -> Operations:
    return request.app.state.operations


def streams(request: Request) -> Streams:
    return request.app.state.streams


def samples_lock(request: Request) -> asyncio.Lock:
    """The lock of the requests that make the sample resources again."""
    return request.app.state.samples
