"""The console: a page to watch and use the service in a browser, its files, and the numbers of its overview."""

from __future__ import annotations

import asyncio
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi import Path as PathParameter
from pydantic import Field

from service.http.entity_tags import unchanged
from service.observability.statistics import statistics
from service.problems import HttpProblem, responses
from service.routes.common import json_answer
from service.routes.state import engine, metrics
from service.schemas.programs import Strict

__all__ = ["CONSOLE", "POLICY", "router"]

router = APIRouter()

CONSOLE = Path(__file__).parent.parent / "static" / "console"
MEDIA = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STATISTICS: dict[str, Any] = {
    "active_requests": 1,
    "waiting_calls": 0,
    "phases": {"queue": {"count": 12, "mean": 0.0001, "median": 0.0005, "p95": 0.0005}},
    "compile": {"count": 2, "mean": 0.021, "median": 0.025, "p95": 0.025},
    "compile_cache": {"hits": 10, "misses": 2},
    "requests": {"2xx": 14, "4xx": 1},
    "service_bytes": 104857600,
    "workers": [{"id": "wrk_mfrggzdfmztwq2lknnwg23tpob", "bytes": 157286400}],
}


class Duration(Strict):
    """A distribution of times in seconds."""

    count: int = Field(description="Number of observations.")
    mean: float | None = Field(None, description="Mean, in seconds; null before the first observation.")
    median: float | None = Field(
        None, description="Upper bound of the interval with the median, in seconds; null before the first one."
    )
    p95: float | None = Field(None, description="The same of the 95th percentile.")


class WorkerMemory(Strict):
    """The memory of one worker process."""

    id: str = Field(description="Id of the worker process.")
    bytes: int | None = Field(description="Resident memory in bytes; null if the process has just ended.")


class Statistics(Strict):
    """Numbers of the whole service since its start."""

    active_requests: int = Field(description="Number of requests that are being answered.")
    waiting_calls: int = Field(description="Number of calls that wait for a worker.")
    phases: dict[str, Duration] = Field(description="Phase of a worker call -> its duration.")
    compile: Duration = Field(description="Time that a call spent compiling programs.")
    compile_cache: dict[str, int] = Field(description="Calls with (`hits`) and without (`misses`) a compiled program.")
    requests: dict[str, int] = Field(description="Class of the status -> number of answered requests.")
    service_bytes: int | None = Field(description="Resident memory in bytes of the process that serves HTTP.")
    workers: list[WorkerMemory] = Field(description="The memory of each worker process.")


@router.get("/", include_in_schema=False)
async def console(request: Request) -> Response:
    """The page of the console. Its views are at `#/...`, so that links to them can be shared."""
    return await _file(request, "index.html")


@router.get("/static/console/{name:path}", include_in_schema=False, responses=responses("not-found"))
async def console_file(
    request: Request, name: Annotated[str, PathParameter(pattern=r"^(views/)?[a-z0-9-]+\.(js|css|svg)$")]
) -> Response:
    """A file of the console. The pattern of names keeps paths inside the folder."""
    return await _file(request, name)


@router.get(
    "/v1/workers/statistics",
    tags=["service"],
    summary="Read statistics",
    response_model=Statistics,
    responses={
        200: {"description": "The numbers.", "content": {"application/json": {"example": STATISTICS}}},
    },
)
async def get_worker_statistics(request: Request) -> Response:
    """Queues, compile times and memory of the service: the main numbers of the metrics, for people.

    Percentiles come from histograms, so they are upper bounds of the interval that contains them.
    """
    found = statistics(metrics(request))
    memory = [{"id": each.id, "bytes": _resident(each.pid)} for each in engine(request).workers()]
    return json_answer({**found, "service_bytes": _resident(os.getpid()), "workers": memory})


def _resident(pid: int | None) -> int | None:
    """Resident bytes of a process; None if it does not exist or the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


async def _file(request: Request, name: str) -> Response:
    try:
        content, tag = await asyncio.to_thread(_content, name)
    except OSError:
        raise HttpProblem("not-found", "no file has this name") from None
    # revalidated at each use: the files of a page must be of one version
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
    if (known := unchanged(request, tag, "file", headers)) is not None:
        return known
    return Response(content, media_type=MEDIA[Path(name).suffix], headers={"ETag": tag, **headers})


@cache
def _content(name: str) -> tuple[bytes, str]:
    """A file and its ETag, read once."""
    content = (CONSOLE / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'
