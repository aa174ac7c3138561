"""Health: whether the process lives, whether it has started, and whether it can take work now.

The paths below /v2 are those of the Open Inference Protocol, for probes that know only these.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from service import __version__
from service.http.drain import Drain
from service.routes.common import json_answer
from service.routes.state import engine, objects, settings, store
from service.schemas.programs import Strict
from service.settings import Settings
from service.store.errors import StorageError
from service.store.file_directory import why_unusable
from service.store.store import HEALTH_S

__all__ = ["router"]

router = APIRouter()

HEALTHY = {
    "data_directory": "the data directory is in its place and can be written",
    "store": "the store can be written",
    "objects": "the stored files are in their place",
}


class Check(Strict):
    """One condition of readiness."""

    ok: bool = Field(description="Whether the condition holds.")
    detail: str = Field(description="The state of the condition, as a sentence.")


class Health(Strict):
    """Whether the service can take work."""

    status: str = Field(description="The state in a word: alive, started, starting, ready or not ready.")
    checks: dict[str, Check] = Field({}, description="Each condition.")


class Server(Strict):
    """The service, in the form of the Open Inference Protocol."""

    name: str = Field(description="Name of the service: `backpass`.")
    version: str = Field(description="Version of the service.")
    extensions: list[str] = Field(description="Extensions of the protocol: none.")


def unhealthy(text: str) -> dict[int | str, dict[str, Any]]:
    return {503: {"model": Health, "description": text}}


@router.get("/healthz/live", tags=["service"], summary="Check that the process is alive", response_model=Health)
@router.get(
    "/v2/health/live",
    tags=["service"],
    summary="Check that the process is alive (OIP)",
    operation_id="check_server_live",
    response_model=Health,
)
async def check_live() -> Response:
    """Always 200 while the process serves requests; nothing else is checked."""
    return json_answer({"status": "alive"})


@router.get(
    "/healthz/startup",
    tags=["service"],
    summary="Check that the service has started",
    response_model=Health,
    responses=unhealthy("Not started; the body lists the checks."),
)
async def check_started(request: Request) -> Response:
    """200 from the moment when the store is open with all its migrations, and a first worker is ready; else 503."""
    state = request.app.state
    begun = getattr(state, "begun", False)  # the lifespan has opened the store
    if not getattr(state, "first_worker", False):
        state.first_worker = any(worker.state in ("idle", "busy") for worker in engine(request).workers())
    checks = {
        "migrations": _check(begun, "the store is open, all migrations are done", "the store is not open yet"),
        "first_worker": _check(state.first_worker, "a worker has become ready", "no worker has become ready yet"),
    }
    return _answer("started", "starting", checks)


@router.get(
    "/healthz/ready",
    tags=["service"],
    summary="Check that the service is ready",
    response_model=Health,
    responses=unhealthy("Not ready; the body lists the failed checks."),
)
@router.get(
    "/v2/health/ready",
    tags=["service"],
    summary="Check that the service is ready (OIP)",
    operation_id="check_server_ready",
    response_model=Health,
    responses=unhealthy("Not ready; the body lists the failed checks."),
)
async def check_ready(request: Request) -> Response:
    """200 if the service is not shutting down, a worker is up, the service can store data, and the disk has space left;
    else 503. The body lists each check."""
    drain: Drain = request.app.state.drain
    workers = engine(request).workers()
    up = sum(w.state in ("idle", "busy") and w.heartbeat_age < settings(request).heartbeat_timeout for w in workers)
    checks = {
        "running": _check(not drain.announced, "the service accepts work", "the service is shutting down"),
        "workers": {"ok": up > 0, "detail": f"{up} of {len(workers)} workers are up"},
    }
    if drain.announced:  # at once, even if the disk is slow
        return _answer("ready", "not ready", checks)
    found = await store(request).health()
    found["objects"] = await _files(request, knows_id=not any(found.values()))
    for name, reason in found.items():
        checks[name] = _check(reason is None, HEALTHY[name], reason or "")
    checks["disk"] = await asyncio.to_thread(disk, settings(request))
    return _answer("ready", "not ready", checks)


@router.get("/v2", tags=["service"], summary="Read name and version (OIP)", response_model=Server)
async def get_server() -> Response:
    """Name and version in the form of the Open Inference Protocol. Programs and sessions have no paths below /v2."""
    return json_answer({"name": "backpass", "version": __version__, "extensions": []})


def disk(settings: Settings) -> dict[str, Any]:
    """The check of free space in the data directory, and in the directory of objects if there is one."""
    places = [settings.data_dir] if "://" in settings.objects else [settings.data_dir, Path(settings.objects)]
    free: list[int] = []
    for place in places:
        try:
            about = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError as error:
            return {"ok": False, "detail": f"the free space cannot be read: {error.strerror}"}
        free.append(about.f_bavail * about.f_frsize)
    if not free:
        return {"ok": True, "detail": "no directory to check"}
    least, floor = min(free), settings.disk_floor
    compared = f"{least / 2**20:.0f} MiB are free, the floor is {floor / 2**20:.0f} MiB"
    return {"ok": least >= floor, "detail": compared}


async def _files(request: Request, knows_id: bool) -> str | None:
    """The reason why the stored files cannot be used; None if they can. knows_id: whether the database, which has the
    id of their directory, answers now."""
    try:
        await asyncio.to_thread(objects(request).require)
        if not knows_id:
            return None
        async with asyncio.timeout(HEALTH_S):
            found = await why_unusable(store(request), objects(request))
    except (TimeoutError, StorageError):
        return None  # the next probe tells that of the database
    except OSError as error:
        return error.strerror or type(error).__name__
    return None if found is None else found.detail


def _check(ok: bool, well: str, wrong: str) -> dict[str, Any]:
    return {"ok": ok, "detail": well if ok else wrong}


def _answer(well: str, wrong: str, checks: dict[str, Any]) -> Response:
    ok = all(check["ok"] for check in checks.values())
    return json_answer({"status": well if ok else wrong, "checks": checks}, 200 if ok else 503)
