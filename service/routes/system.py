"""The service itself: version and limits, workers, metrics, documentation."""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi import Path as PathParameter
from fastapi.routing import iter_route_contexts
from pydantic import Field

from service import __version__
from service.caller import tenant
from service.formats import json_tensors as tensors
from service.http.entity_tags import unchanged
from service.http.pieces import PiecedResponse
from service.http.request_body import JSON, NDJSON, ONNX, SAFETENSORS
from service.problems import HttpProblem, responses
from service.routes.state import engine, metrics, settings, tenancy
from service.routes.tenants import quotas_of
from service.schemas.programs import Strict
from service.schemas.tenants import Quota

__all__ = ["router"]

router = APIRouter()

STATIC = Path(__file__).parent.parent / "static"
MEDIA = {".js": "text/javascript", ".css": "text/css", ".png": "image/png", ".onnx": ONNX}
DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'"
)
DOCS_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Backpass API</title>
<link rel="stylesheet" href="static/swagger-ui.css"><link rel="icon" href="static/favicon-32x32.png">
<script src="static/swagger-ui-bundle.js"></script><script src="static/docs.js"></script></head>
<body><div id="swagger-ui"></div></body></html>
"""
NOTES = {
    True: "Every request needs an API key, but those for health and documentation.",
    False: "No API key exists: everyone who reaches the service may do everything.",
}
LIMITS = (
    "step_deadline",
    "max_step_deadline",
    "session_lease",
    "max_session_lease",
    "tape_lease",
    "max_tape_lease",
    "json_body_bytes",
    "binary_body_bytes",
    "body_bytes_in_flight",
    "answer_bytes_in_flight",
    "json_answer_bytes",
    "binary_answer_bytes",
    "json_depth",
    "header_bytes",
    "header_fields",
    "header_deadline",
    "body_deadline",
    "body_bytes_per_second",
    "write_deadline",
    "blocks",
    "block_nesting",
    "ops",
    "variables",
    "name_length",
    "loop_trips",
    "op_executions",
    "tensor_rank",
    "tensor_elements",
    "tensor_bytes",
    "queue_per_worker",
    "sessions",
    "session_bytes",
    "tapes",
    "tape_bytes",
    "session_pipeline",
    "running_jobs",
    "streams",
    "operations",
    "import_deadline",
    "programs",
    "dataset_bytes",
    "dataset_deadline",
    "datasets",
    "uploads",
    "upload_lease",
)


RESOURCE = re.compile(r"/v1/\w+")
PAGES = {"docs": "/docs", "guide": "/guide/", "openapi": "/openapi.json", "problems": "/problems"}


class Access(Strict):
    """The access to the service."""

    keys_required: bool = Field(description="Whether requests need an API key.")
    note: str = Field(description="The rule in a sentence.")


class Root(Strict):
    """Name, version and limits of the service."""

    name: str = Field(description="Name of the service: `backpass`.")
    version: str = Field(description="Version of the service.")
    limits: dict[str, float] = Field(description="Limits by setting: sizes in bytes, times in seconds, else counts.")
    access: Access = Field(description="Whether requests need an API key.")
    quotas: dict[str, Quota] = Field(description="Limits of the caller's tenant and their use, by name.")
    media_types: list[str] = Field(description="Media types of answers.")
    links: dict[str, str] = Field(description="Paths of the parts of the API.")


class Worker(Strict):
    """One worker slot."""

    id: str = Field(description="Id of the worker process; a replacement has another id.")
    slot: int = Field(description="Number of the slot, from 0. It stays when the process is replaced.")
    generation: int = Field(description="Number of processes that the slot has had, this one included.")
    device: str = Field(description="The device that it computes on: `cpu` or `cuda`.")
    state: str = Field(description="State of the process: starting, idle, busy, restarting or stopped.")
    pid: int | None = Field(description="Id of the operating system's process; null while none runs.")
    restarts: int = Field(description="Number of processes of the slot that were replaced.")
    sessions: int = Field(description="Number of sessions and tapes in the worker.")
    heartbeat_age: float = Field(description="Seconds since the last heartbeat.")
    queued: int = Field(description="Number of calls that wait for this worker.")
    last_fatal: str | None = Field(description="Reason why the previous process ended; null for the first one.")
    parked: int = Field(description="Number of calls that wait for a compilation.")
    memory_limit: int | None = Field(description="Private memory that the worker may use, in bytes; null for no limit.")
    device_memory: list[int] = Field(
        description="Bytes of its GPU: all, used, free in the pool of the worker; zeros without a GPU."
    )


class Workers(Strict):
    """All workers."""

    workers: list[Worker] = Field(description="The worker slots, by number.")


@router.get("/v1", tags=["service"], summary="Read version and limits", response_model=Root)
async def get_service(request: Request) -> Response:
    """Name, version and limits of the service, and the paths of the API."""
    current, needed = settings(request), tenancy(request).ring.is_needed
    return _json(
        {
            "name": "backpass",
            "version": __version__,
            "limits": {name: getattr(current, name) for name in LIMITS},
            "access": {"keys_required": needed, "note": NOTES[needed]},
            "quotas": await quotas_of(request, tenant()),
            "media_types": [JSON, SAFETENSORS, NDJSON],
            "links": _links(request),
        }
    )


def _links(request: Request) -> dict[str, str]:
    """Name -> path of the resources directly below /v1, and of the pages for people."""
    paths = [route.path or "" for route in iter_route_contexts(request.app.routes)]
    found = dict.fromkeys(path for path in paths if RESOURCE.fullmatch(path))
    return {path.removeprefix("/v1/"): path for path in found} | PAGES


@router.get("/v1/workers", tags=["service"], summary="List workers", response_model=Workers)
async def list_workers(request: Request) -> Response:
    """Every worker process: its device, state and sessions, and why the previous one ended."""
    return _json({"workers": [asdict(w) for w in engine(request).workers()]})


@router.get(
    "/metrics",
    tags=["service"],
    summary="Read metrics",
    response_class=Response,
    responses={
        200: {
            "content": {"text/plain": {"schema": {"type": "string"}}},
            "description": "Metrics in the Prometheus text format.",
        },
        **responses("not-found"),
    },
)
async def get_metrics(request: Request) -> Response:
    """Metrics for Prometheus: times in seconds, sizes in bytes. 404 if they have a port of their own."""
    if settings(request).metrics_port:
        raise HttpProblem("not-found", "the metrics of this service have a port of their own")
    content, media_type = metrics(request).render()
    return Response(content, media_type=None, headers={"Content-Type": media_type})


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """The OpenAPI document. The first request makes it, in a thread."""
    text, tag = await asyncio.to_thread(_openapi_text, request.app)
    headers = {"Cache-Control": "public, no-cache"}
    if (known := unchanged(request, tag, "document", headers)) is not None:
        return known
    return PiecedResponse([text], 200, {"ETag": tag, **headers}, JSON)


OPENAPI_LOCK = threading.Lock()


def _openapi_text(app: Any) -> tuple[bytes, str]:
    """The document as JSON, and its ETag; made once."""
    with OPENAPI_LOCK:
        if not hasattr(app.state, "openapi_text"):
            text = tensors.dumps(app.openapi())
            app.state.openapi_text = text, f'"{hashlib.sha256(text).hexdigest()[:32]}"'
        return app.state.openapi_text


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    return Response(DOCS_PAGE, media_type="text/html", headers={"Content-Security-Policy": DOCS_POLICY})


@router.get("/static/{name}", include_in_schema=False, responses=responses("not-found"))
async def static(name: Annotated[str, PathParameter(pattern=r"^[a-z0-9-]+\.(js|css|png|onnx)$")]) -> Response:
    """A file of the pages or of the documentation. The pattern of names keeps paths inside the folder."""
    path = STATIC / name
    if not path.is_file():
        raise HttpProblem("not-found", "no file has this name")
    content = await asyncio.to_thread(path.read_bytes)
    return Response(content, media_type=MEDIA[path.suffix], headers={"Cache-Control": "public, max-age=3600"})


def _json(content: Any, status: int = 200) -> Response:
    return Response(tensors.dumps(content), status, media_type=JSON)
