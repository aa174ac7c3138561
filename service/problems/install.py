"""Problems in an application: exception handlers, the page of each code, OpenAPI responses."""

from __future__ import annotations

import html
import logging
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from core.ir.errors import CoreError
from service.engine.protocol import EngineError
from service.problems.document import (
    MEDIA_TYPE,
    FieldError,
    HttpProblem,
    new_request_id,
    problem_body,
    problem_response,
)
from service.problems.resources import allowed, without_slash
from service.problems.translate import from_exception
from service.problems.types import CODES, ProblemType

__all__ = ["EXPECTED", "answer", "components", "install", "responses"]

log = logging.getLogger("backpass.problems")

PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
EXAMPLE_ID = "req_5f3a9c1e07d24b86a1c95e3f70"
LOCATION = {"type": "object", "description": "Position in the program: block, op, type, slot, variable."}
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
        "reason": {"type": "string", "description": "A more specific code."},
        "location": LOCATION,
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

EXPECTED = (
    HttpProblem,
    EngineError,
    CoreError,
    ValidationError,
    RequestValidationError,
    HTTPException,
    ClientDisconnect,
)
"""Exceptions that endpoints raise and `answer` turns into documents."""


def install(app: FastAPI) -> None:
    """Answer every error of `app` with a problem document, and serve the pages of the codes."""
    for kind in (*EXPECTED, Exception):
        app.add_exception_handler(kind, answer)
    app.add_api_route(
        "/problems",
        list_problems,
        methods=["GET"],
        tags=["problems"],
        summary="List problem codes",
        responses={
            200: {
                "description": "All codes.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ProblemKinds"}}},
            }
        },
    )
    app.add_api_route(
        "/problems/{code}",
        get_problem,
        methods=["GET"],
        tags=["problems"],
        summary="Read about a problem code",
        response_class=Response,
        responses={
            200: {
                "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/ProblemKind"}},
                    "text/html": {"schema": {"type": "string"}},
                },
                "description": "The code as JSON, or as text/html if the Accept header asks for it.",
            },
            **responses("not-found", "invalid-request"),
        },
    )


async def answer(request: Request, error: Exception) -> Response:
    """The problem document for an exception raised while `request` was served.

    A request to read a path with one slash too many at its end is sent to the path without it. Other methods are not:
    some clients drop the body of a redirected POST.
    """
    problem = from_exception(error)
    if isinstance(error, HTTPException):  # of the router; our own code raises HttpProblem
        if error.status_code == 405:
            methods = ", ".join(allowed(request))
            problem.headers = {**problem.headers, "Allow": methods}
            if methods:
                problem.detail = f"this path has no {request.method}; it has {methods}"
            if request.method == "OPTIONS" and "access-control-request-method" in request.headers:
                problem.detail = (
                    "pages of other origins may not call this service; its setting BACKPASS_CORS_ORIGINS lists those "
                    "that may"
                )
        elif error.status_code == 404 and (found := without_slash(request)) is not None:
            path, known = found
            if request.method == "GET" and "GET" in known:
                query = f"?{request.url.query}" if request.url.query else ""
                return Response(status_code=308, headers={"Location": f"{path}{query}"})
            problem.detail = "no route has this path; there is one without the slash at its end"
        elif error.status_code == 404:
            problem.detail = "no route has this path; GET /v1 names the collections, and GET /openapi.json all routes"
    if problem.code == "internal":
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    request_id = request.scope.get("state", {}).get("request_id") or new_request_id()
    return problem_response(problem, request_id, request.url.path)


def responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` argument of a route that may answer with these codes: one entry per status.

    Each refers to the one response of the document for problems, and its description lists the codes:
    responses("invalid-json", "invalid-program") -> {400: {...}, 422: {...}}
    """
    answers: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        entry = answers.setdefault(CODES[code].status, {**RESPONSE, "description": ""})
        entry["description"] = f"{entry['description']} `{code}`".strip()
    return answers


def components() -> dict[str, dict[str, Any]]:
    """The parts of an OpenAPI document to which the `responses` of all routes refer."""
    kind = CODES["shape-mismatch"]
    error = FieldError("/feeds/x/shape", kind.code, "the shape [3, 2] needs 6 numbers, and data has 5")
    example = problem_body(HttpProblem(kind.code, error.detail, errors=[error]), EXAMPLE_ID, "/v1/gradients")
    response = {
        "description": "A problem document (RFC 9457).",
        "content": {MEDIA_TYPE: {"schema": PROBLEM}},
        "headers": {"Retry-After": {"$ref": "#/components/headers/RetryAfter"}},
    }
    wait = {"schema": {"type": "integer"}, "description": "Seconds to wait before the next try, with 429 and 503."}
    return {
        "schemas": {"Problem": {**SCHEMA, "examples": [example]}, "ProblemKind": KIND, "ProblemKinds": KINDS},
        "responses": {"Problem": response},
        "headers": {"RetryAfter": wait},
    }


def _facts(kind: ProblemType) -> dict[str, Any]:
    return {
        "code": kind.code,
        "title": kind.title,
        "statuses": list(kind.statuses),
        "retryable": kind.retryable,
        "meaning": kind.meaning,
        "remedy": kind.remedy,
        "href": f"/problems/{kind.code}",
    }


async def list_problems() -> JSONResponse:
    return JSONResponse({"problems": [_facts(kind) for kind in CODES.values()]}, headers=CACHED)


Code = Annotated[
    str, Path(max_length=64, description="Code of a problem.", openapi_examples={"gone": {"value": "gone"}})
]


async def get_problem(request: Request, code: Code) -> Response:
    kind = CODES.get(code)
    if kind is None:
        raise HttpProblem("not-found", "no problem has this code")
    if "text/html" not in ",".join(request.headers.getlist("accept")):
        return JSONResponse(_facts(kind), headers=CACHED)
    headers = {**CACHED, "Content-Security-Policy": PAGE_POLICY}
    return Response(_html(kind), headers=headers, media_type="text/html; charset=utf-8")


CACHED = {"Cache-Control": "public, max-age=3600", "Vary": "Accept"}


def _html(kind: ProblemType) -> str:
    title, meaning, remedy = html.escape(kind.title), html.escape(kind.meaning), html.escape(kind.remedy)
    statuses = ", ".join(map(str, kind.statuses))
    again = "may succeed" if kind.retryable else "will fail again"
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }}</style>
<h1>{title}</h1>
<p><code>{kind.code}</code>, status {statuses}. Sent again, the same request {again}.</p>
<h2>Cause</h2>
<p>{meaning}</p>
<h2>Remedy</h2>
<p>{remedy}</p>
</html>
"""
