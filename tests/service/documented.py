"""Every answer that a test gets is one that the OpenAPI document promises."""

from __future__ import annotations

import re

import httpx

from tests.service.openapi import OPERATIONS

__all__ = ["check_documented"]

ROUTES = [
    (re.compile(re.sub(r"\{name\}", ".+", re.sub(r"\{(?!name)\w+\}", "[^/]+", path))), method.upper(), operation)
    for path, method, operation in OPERATIONS
]

PROBLEM = "application/problem+json"
BEFORE_ROUTING = (421, 431)
"""Statuses of answers to requests that never reach an operation."""


def check_documented(answer: httpx.Response) -> None:
    """Assert that the status, the code of a problem and the header ETag are in the document.

    An answer of a route that is not there, or to a method that it lacks, is not checked.
    """
    method, path = answer.request.method, answer.request.url.path
    for pattern, of, operation in ROUTES:
        if of == method and pattern.fullmatch(path) and "default" not in operation["responses"]:
            where = f"{method} {pattern.pattern} {answer.status_code}"
            promised = operation["responses"].get(str(answer.status_code))
            if answer.status_code < 400:
                assert promised is not None, f"{where} is not in the OpenAPI document"
                assert "etag" not in answer.headers or "ETag" in promised.get("headers", {}), f"ETag of {where}"
            elif answer.headers.get("content-type") == PROBLEM and answer.status_code not in BEFORE_ROUTING:
                code = answer.json()["code"] if answer.read() else ""  # HEAD has no content
                shown = "" if promised is None else promised["description"]
                assert f"`{code}`" in shown or not code, f"{where} {code} is not in the OpenAPI document"
            return
