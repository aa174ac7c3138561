"""Problems in the OpenAPI document: their schema, the responses of operations, and an example of each response."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from service.problems.document import MEDIA_TYPE, FieldError, HttpProblem, problem_body
from service.problems.types import CODES

__all__ = ["HEADERS", "components", "is_problem", "responses", "show"]

EXAMPLE_ID = "req_5f3a9c1e07d24b86a1c95e3f70"
LOCATION = {"type": "object", "description": "Position in the program: block, op, type, slot, variable."}
MORE: dict[str, Any] = {
    "reason": {"type": "string", "description": "A more specific code."},
    "location": LOCATION,
    "offset": {
        "type": "integer",
        "description": "With 400 the character or byte of the body at which reading failed, with 409 the bytes that "
        "an upload has.",
    },
    "limit": {"type": "number", "description": "The limit that the request exceeds."},
    "quota": {"type": "string", "description": "The quota that is reached: a member of `quotas` of `GET /v1/me`."},
    "used": {"type": "number", "description": "How much of it is used."},
    "wanted_bytes": {"type": "integer", "description": "Bytes that the call needs."},
    "allowed_bytes": {"type": "integer", "description": "Bytes that it may have."},
    "expected_seq": {"type": "integer", "description": "`seq` of the next call of the session or tape."},
    "weights_version": {"type": "string", "description": "Version of the parameters of the session."},
    "etag": {"type": "string", "description": "The present ETag, for If-Match."},
    "step": {"type": "integer", "description": "Step at which the session goes on."},
    "durable_step": {"type": "integer", "description": "The last step that no loss undoes."},
    "state": {"type": "string", "description": "The present state, which does not allow the request."},
    "allowed_states": {"type": "array", "items": {"type": "string"}, "description": "The states that allow it."},
    "jobs": {"type": "array", "items": {"type": "string"}, "description": "Jobs that use it."},
    "sessions": {"type": "array", "items": {"type": "string"}, "description": "Sessions that use it."},
    "session": {"type": "string", "description": "The session whose worker ended."},
    "tape": {"type": "string", "description": "The tape whose worker ended."},
    "worker": {"type": "string", "description": "The worker that ended."},
    "waited": {"type": "boolean", "description": "Whether the deadline passed before the call began."},
    "program_id": {"type": "string", "description": "Program from which to open the session again."},
    "checkpoint": {"type": "string", "description": "Checkpoint from which to open the session again."},
    "checkpoint_step": {"type": "integer", "description": "Step of that checkpoint."},
}
"""Members that some problems have. Tests check that answers have no others."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "A problem document (RFC 9457): why the service could not do as the request says.",
    "required": ["type", "title", "status", "detail", "instance", "code", "request_id", "retryable"],
    "properties": {
        "type": {"type": "string", "description": "Path of the page that explains this code."},
        "title": {"type": "string", "description": "Short name of the code."},
        "status": {"type": "integer", "description": "The HTTP status."},
        "detail": {"type": "string", "description": "The cause of this problem, for humans."},
        "instance": {"type": "string", "description": "Path and id of the request."},
        "code": {
            "type": "string",
            "enum": sorted(CODES),
            "description": "The kind of problem. `GET /problems/{code}` explains it.",
        },
        "request_id": {"type": "string", "description": "Id of the request, as in the log of the service."},
        "retryable": {"type": "boolean", "description": "Whether the same request may succeed when it is sent again."},
        "errors": {
            "type": "array",
            "description": "The single mistakes of the request, at most 50.",
            "maxItems": 50,
            "items": {
                "type": "object",
                "required": ["pointer", "code", "detail"],
                "properties": {
                    "pointer": {
                        "type": "string",
                        "description": "JSON pointer into the body; empty if the error is elsewhere.",
                    },
                    "parameter": {
                        "type": "string",
                        "description": "The path, query or header parameter with the error.",
                    },
                    "code": {"type": "string", "description": "The kind of mistake, a stable word."},
                    "detail": {"type": "string", "description": "The mistake as a sentence, without the value."},
                    "location": LOCATION,
                    "suggestion": {"type": "string", "description": "A name or value that would be valid."},
                },
            },
        },
        "errors_truncated": {"type": "boolean", "description": "Whether there are more errors than listed."},
        **MORE,
    },
}

KIND: dict[str, Any] = {
    "type": "object",
    "description": "A kind of problem.",
    "required": ["code", "title", "statuses", "retryable", "meaning", "remedy", "href"],
    "properties": {
        "code": {"type": "string", "description": "The code, as in a problem."},
        "title": {"type": "string", "description": "Short name of the code."},
        "statuses": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "HTTP statuses, the usual one first.",
        },
        "retryable": {"type": "boolean", "description": "Whether the same request may succeed when it is sent again."},
        "meaning": {"type": "string", "description": "The cause."},
        "remedy": {"type": "string", "description": "The action that a client can take."},
        "href": {"type": "string", "description": "Path of the page that explains this code."},
    },
}
KINDS: dict[str, Any] = {
    "type": "object",
    "description": "All kinds of problems.",
    "required": ["problems"],
    "properties": {
        "problems": {
            "type": "array",
            "items": {"$ref": "#/components/schemas/ProblemKind"},
            "description": "All kinds of problems, by subject.",
        }
    },
}

PROBLEM = {"$ref": "#/components/schemas/Problem"}
RESPONSE = {"$ref": "#/components/responses/Problem"}
"""Marks an entry of `responses` until `show` replaces it."""

HEADERS: dict[str, dict[str, Any]] = {
    "Retry-After": {
        "schema": {"type": "integer"},
        "description": "Seconds to wait before the next try, if the same request may succeed.",
    },
    "WWW-Authenticate": {"schema": {"type": "string"}, "description": "The scheme of keys: `Bearer`."},
    "Accept": {"schema": {"type": "string"}, "description": "The media types that the body may have."},
    "Content-Range": {"schema": {"type": "string"}, "description": "The size of the content, `bytes */size`."},
}
"""Headers of problems, in the document under the same names without hyphens."""
AGAIN = ("Retry-After",)
OF_STATUS = {
    401: ("WWW-Authenticate",),
    409: AGAIN,
    415: ("Accept",),
    416: ("Content-Range",),
    429: AGAIN,
    503: AGAIN,
}


def responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` argument of a route that may answer with these codes: one entry per status.

    Its description lists the codes: responses("invalid-json", "invalid-program") -> {400: {...}, 422: {...}}. `show`
    writes the entries of the document from them.
    """
    answers: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        entry = answers.setdefault(CODES[code].status, {**RESPONSE, "description": ""})
        entry["description"] = f"{entry['description']} `{code}`".strip()
    return answers


def is_problem(response: Mapping[str, Any]) -> bool:
    """Whether a response is an entry of `responses`."""
    return response.get("$ref") == RESPONSE["$ref"]


def show(response: Mapping[str, Any], status: int, examples: dict[str, Any]) -> dict[str, Any]:
    """An entry of `responses` in whole: with the headers of its status, and an example of its first code.

    examples: those of the OpenAPI document by name; gets the one of the code.
    """
    (code,) = re.findall("`([a-z-]+)`", response["description"])[:1]
    name = code if status == CODES[code].status else f"{code}-{status}"
    problem = HttpProblem(code, CODES[code].meaning, status=status)
    examples[name] = {"value": problem_body(problem, EXAMPLE_ID, "/v1")}
    content = {"schema": PROBLEM, "examples": {code: {"$ref": f"#/components/examples/{name}"}}}
    headers = {name: {"$ref": f"#/components/headers/{_key(name)}"} for name in OF_STATUS.get(status, ())}
    return {
        "description": response["description"],
        "content": {MEDIA_TYPE: content},
        **({"headers": headers} if headers else {}),
    }


def components() -> dict[str, dict[str, Any]]:
    """The parts of an OpenAPI document to which the `responses` of all routes refer."""
    kind = CODES["shape-mismatch"]
    error = FieldError("/feeds/x/data", kind.code, "'x': the shape has 6 elements, but data has 5")
    problem = HttpProblem(kind.code, error.detail, errors=[error], reason=kind.code)
    example = problem_body(problem, EXAMPLE_ID, "/v1/gradients")
    return {
        "schemas": {"Problem": {**SCHEMA, "examples": [example]}, "ProblemKind": KIND, "ProblemKinds": KINDS},
        "headers": {_key(name): header for name, header in HEADERS.items()},
    }


def _key(header: str) -> str:
    """The name of a header in the document."""
    return header.replace("-", "")
