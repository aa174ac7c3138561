"""OpenAPI entries of routes whose bodies and answers FastAPI does not read or write itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from service.formats.json_tensors import dumps
from service.http.request_body import JSON, NDJSON, SAFETENSORS
from service.problems import responses
from service.schemas.gradients import OP, PROGRAM
from service.schemas.stream import DoneEvent, ErrorEvent, GradientEvent

__all__ = ["FILE", "HOT_PROBLEMS", "accepts", "answers", "lines"]

REFERENCES = {"Program": PROGRAM, "Op": OP}
"""Components of the document, and the placeholders that they replace."""
FILE = {"schema": {"type": "string", "format": "binary"}}

HOT_PROBLEMS = (
    "invalid-json",
    "invalid-tensor-file",
    "not-acceptable",
    "body-timeout",
    "body-too-large",
    "unsupported-media-type",
    "unsupported-encoding",
    "invalid-request",
    "limit-exceeded",
    "shape-mismatch",
    "dtype-mismatch",
    "iteration-limit",
    "execution-failed",
    "queue-full",
    "no-capacity",
    "worker-lost",
    "device-out-of-memory",
    "storage-unavailable",
    "deadline-exceeded",
)


def accepts(
    model: type[BaseModel], required: bool = True, binary: bool = True, **examples: tuple[str, Any]
) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is `model`, as JSON or (`binary`) in a safetensors file.

    examples: name=(summary, body).
    """
    shown = {name: {"summary": summary, "value": value} for name, (summary, value) in examples.items()}
    content: dict[str, Any] = {JSON: {"schema": _schema(model), "examples": shown}}
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
        events = [_schema(event) for event in (GradientEvent, DoneEvent, ErrorEvent)]
        content[NDJSON] = {"schema": {"description": "One line of the stream.", "oneOf": events}, "example": stream}
    good: dict[int | str, dict[str, Any]] = {
        status: {"model": model, "description": (model.__doc__ or "").partition("\n")[0], "content": content}
    }
    return good | responses(*problems)


def lines(answer: Mapping[str, Any], **ready_at: int) -> str:
    """`answer` as a stream. ready_at: its gradients in the order of the stream, and the op that completes each."""
    gradients = answer["gradients"]
    events: list[dict[str, Any]] = [
        {"event": "gradient", "name": name, "ready_at": at, "gradient": gradients[name]}
        for name, at in ready_at.items()
    ]
    events.append({"event": "done", **{name: value for name, value in answer.items() if name != "gradients"}})
    return "".join(dumps(event).decode() + "\n" for event in events)


def _schema(model: type[BaseModel]) -> Any:
    """The schema of `model` without references: FastAPI collects definitions of models that it declares itself only."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inlined(value: Any) -> Any:
        for name, schema in REFERENCES.items():
            if value == schema:
                return {"$ref": f"#/components/schemas/{name}"}
        if isinstance(value, dict):
            if "$ref" in value:
                value = {**definitions[value["$ref"].rpartition("/")[2]], **value}
                value.pop("$ref")
            return {name: inlined(each) for name, each in value.items()}
        return [inlined(each) for each in value] if isinstance(value, list) else value

    return inlined(schema)
