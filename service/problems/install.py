"""Problems in an application: exception handlers, and the page of each code."""

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
from service.problems.described import responses
from service.problems.document import HttpProblem, new_request_id, problem_response
from service.problems.resources import allowed, without_slash
from service.problems.translate import from_exception
from service.problems.types import CODES, ProblemType

__all__ = ["EXPECTED", "answer", "install"]

log = logging.getLogger("backpass.problems")

PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
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
