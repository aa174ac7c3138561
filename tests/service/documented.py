"""Every answer that a test gets is one that the OpenAPI document promises."""

from __future__ import annotations

import re

import httpx

from tests.service.openapi import DOCUMENT, OPERATIONS

__all__ = ["check_documented"]

ROUTES = [
    (re.compile(re.sub(r"\{name\}", ".+", re.sub(r"\{(?!name)\w+\}", "[^/]+", path))), method.upper(), operation)
    for path, method, operation in OPERATIONS
]

PROBLEM = "application/problem+json"
MEMBERS = DOCUMENT["components"]["schemas"]["Problem"]["properties"].keys()
OF_PROBLEMS = {"Retry-After", "WWW-Authenticate", "Accept", "Content-Range"}
"""Headers that tell a client what to do next."""
BEFORE_ROUTING = (421, 431)
"""Statuses of answers to requests that never reach an operation."""


def check_documented(answer: httpx.Response) -> None:
    """Assert that the status, the header ETag, and the code, members and headers of a problem are in the document.

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
                document = answer.json() if answer.read() else {"code": ""}  # HEAD has no content
                code, shown = document["code"], "" if promised is None else promised["description"]
                assert document.keys() <= MEMBERS or not code, f"members of {where} that no schema has"
                sent = {name for name in OF_PROBLEMS if name in answer.headers}
                headers = {} if promised is None else promised.get("headers", {})
                assert sent <= headers.keys(), f"headers of {where} {code}"
                assert "Retry-After" in sent or not (answer.status_code in (429, 503) and document.get("retryable"))
                assert f"`{code}`" in shown or not code, f"{where} {code} is not in the OpenAPI document"
            return
