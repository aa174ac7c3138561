"""OpenAPI entries of routes whose bodies and answers FastAPI does not read or write itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from service.formats.json_tensors import dumps
from service.http.request_body import JSON, NDJSON, SAFETENSORS
from service.problems import responses
from service.schemas.components import component
from service.schemas.components import model as reference
from service.schemas.stream import DoneEvent, ErrorEvent, GradientEvent

__all__ = ["FILE", "HOT_PROBLEMS", "accepts", "answers", "empty_answer", "lines"]

FILE = {"schema": {"type": "string", "format": "binary"}}
LINE = component(
    "StreamEvent",
    {
        "description": "One line of a stream.",
        "oneOf": [reference(event) for event in (GradientEvent, DoneEvent, ErrorEvent)],
    },
)

HOT_PROBLEMS = (
    "invalid-request",
    "limit-exceeded",
    "shape-mismatch",
    "dtype-mismatch",
    "iteration-limit",
    "execution-failed",
    "numeric-error",
    "queue-full",
    "no-capacity",
    "worker-lost",
    "device-out-of-memory",
    "storage-unavailable",
    "deadline-exceeded",
)
"""Codes of calls of a worker. `service.schemas.common_answers` adds those of bodies and of the header Accept."""


def accepts(
    model: type[BaseModel], required: bool = True, binary: bool = True, **examples: tuple[str, Any]
) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is `model`, as JSON or (`binary`) in a safetensors file.

    examples: name=(summary, body).
    """
    shown = {name: {"summary": summary, "value": value} for name, (summary, value) in examples.items()}
    content: dict[str, Any] = {JSON: {"schema": reference(model), "examples": shown}}
    if binary:
        content[SAFETENSORS] = FILE
    return {"requestBody": {"required": required, "content": content}}


def answers(
    model: type[BaseModel], example: Any, *problems: str, status: int = 200, stream: str | None = None
) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that answers with `model` as JSON or in a safetensors file, or with a problem.

    stream: an example of its streamed answer, if it can stream.
    """
    content = {JSON: {"example": example}, SAFETENSORS: FILE}
    if stream is not None:
        content[NDJSON] = {"schema": LINE, "example": stream}
    good: dict[int | str, dict[str, Any]] = {
        status: {"model": model, "description": (model.__doc__ or "").partition("\n")[0], "content": content}
    }
    return good | responses(*problems)


def empty_answer(description: str, *problems: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that answers 204 without a body, or with a problem."""
    return {204: {"description": description}} | responses(*problems)


def lines(answer: Mapping[str, Any], **ready_at: int) -> str:
    """`answer` as a stream. ready_at: its gradients in the order of the stream, and the op that completes each."""
    gradients = answer["gradients"]
    events: list[dict[str, Any]] = [
        {"event": "gradient", "name": name, "ready_at": at, "gradient": gradients[name]}
        for name, at in ready_at.items()
    ]
    events.append({"event": "done", **{name: value for name, value in answer.items() if name != "gradients"}})
    return "".join(dumps(event).decode() + "\n" for event in events)
