"""Problems that operations have because of what they are, for the OpenAPI document: routes list only their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from service.http.direct_answers import LIVE
from service.http.idempotency import SECRETS
from service.http.request_body import JSON, SAFETENSORS
from service.problems import CODES, responses

__all__ = ["add_common_answers"]

ALL = ("invalid-request",)
"""Codes of all operations: they refuse query parameters that they do not declare."""
EVERY = ("draining", "storage-unavailable")
"""Codes of all operations below /v1: the service ends, or its store does not answer."""
BODY = ("body-timeout", "body-too-large", "unsupported-media-type", "unsupported-encoding", "invalid-request")
"""Codes of operations with a body."""
OF_JSON = ("invalid-json", "limit-exceeded")
"""Codes of operations whose body can be JSON."""
OF_FILES = ("invalid-tensor-file",)
"""Codes of operations whose body can be a safetensors file."""
NEGOTIATED = ("not-acceptable",)
"""Codes of operations that answer with JSON or with a safetensors file, as the header Accept says."""
LIMITED = ("quota-exceeded",)
"""Codes of operations that may compute, store or go on as an operation of their own."""
REPEATED = ("idempotency-in-flight", "outcome-unknown", "idempotency-conflict")
"""Codes of POST, which takes an Idempotency-Key."""
OF_SESSION = ("gone", "rolled-back", "recovering", "no-capacity", "worker-lost", "deadline-exceeded")
"""Codes of calls of a session, which may have to be rebuilt first."""


def add_common_answers(document: dict[str, Any]) -> None:
    """Add these codes to all operations of an OpenAPI document that may answer with them."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for code in _codes(path, method, operation):
                for status in CODES[code].statuses:
                    _add(operation["responses"], str(status), code)


def _codes(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield from ALL if path != LIVE else ()  # the protocol answers that one, whatever its query
    if path.startswith("/v1/"):
        yield from EVERY
    if path.startswith("/v1/") and not path.startswith(SECRETS):
        yield from LIMITED if method in ("post", "put", "patch") else ()
        yield from REPEATED if method == "post" else ()
    if "requestBody" in operation:
        yield from BODY
        if JSON in operation["requestBody"]["content"]:
            yield from OF_JSON
        if SAFETENSORS in operation["requestBody"]["content"]:
            yield from OF_FILES
    if any({JSON, SAFETENSORS} <= answer.get("content", {}).keys() for answer in operation["responses"].values()):
        yield from NEGOTIATED
    if path.startswith("/v1/sessions/{session_id}"):
        yield from OF_SESSION


def _add(answers: dict[str, Any], status: str, code: str) -> None:
    present = answers.get(status, {"description": ""})
    if f"`{code}`" not in present["description"]:
        entry = next(iter(responses(code).values()))
        answers[status] = {**entry, **present, "description": f"{present['description']} `{code}`".strip()}
