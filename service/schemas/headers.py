"""Headers that the middleware reads, and those of resources with an ETag, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from service.http.idempotency import SECRETS
from service.problems import responses
from service.schemas.components import model
from service.schemas.operations import Accepted

__all__ = ["ETAG", "IF_MATCH", "add_headers"]

KEY = (
    "A name for this request, such as a UUID. If the request is sent again with the same key within 24 hours, it gets "
    "the answer of the first one and is not executed again."
)
PREFER = (
    "`respond-async` answers 202 with the path of an operation as soon as the body has arrived, and the call goes on; "
    "`respond-async, wait=5` does so after 5 seconds."
)
HEADERS = {"Idempotency-Key": (("post",), KEY), "Prefer": (("post", "put"), PREFER)}
"""Header -> the methods that take it, and its description."""

IF_MATCH: dict[str, Any] = {
    "name": "If-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "ETag of the version that the call is for in its double quotes, a list of ETags, or * for "
    "any, as without the header. At another version the call changes nothing and is answered with 412.",
}
IF_NONE_MATCH: dict[str, Any] = {
    "name": "If-None-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "ETag of the answer that the client has, or a list of ETags. If it has one of them, the answer is "
    "304 without content.",
}
VERSION = {"schema": {"type": "string"}, "description": "Version of the resource, in double quotes: for If-Match."}
ETAG = {"$ref": "#/components/headers/ETag"}
"""The header of answers about a resource with an ETag."""
HAVE_ETAG = ("200", "201", "206", "304")
"""Statuses of answers with an ETag, of calls that obey If-Match."""

OPERATIONS = "/v1/operations"
STARTED = model(Accepted)
ACCEPTED = {"$ref": "#/components/responses/Accepted"}


def add_headers(document: dict[str, Any]) -> None:
    """Add the headers, and the answers that they lead to, to all operations of an OpenAPI document that take them."""
    document["components"].setdefault("responses", {})["Accepted"] = {
        "description": "The call goes on as an operation (`Prefer: respond-async`). Location has its path.",
        "content": {"application/json": {"schema": STARTED}},
    }
    document["components"].setdefault("headers", {})["ETag"] = VERSION
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _add_etags(operation, not path.startswith(SECRETS))
    for path, methods in document["paths"].items():
        if not path.startswith("/v1/") or path.startswith(SECRETS):
            continue
        for name, (takers, description) in HEADERS.items():
            if name == "Prefer" and path.startswith(OPERATIONS):
                continue
            for method in methods.keys() & takers:
                header = {"name": name, "in": "header", "schema": {"type": "string"}, "description": description}
                methods[method].setdefault("parameters", []).append(header)
                if name == "Prefer":
                    methods[method]["responses"].setdefault("202", ACCEPTED)


def _add_etags(operation: dict[str, Any], creates_tagged: bool) -> None:
    """Add the headers of a resource with an ETag to an operation that creates one or obeys If-Match, or a GET that
    answers 304.

    creates_tagged: whether everything that the operation creates has an ETag.
    """
    parameters, answers = operation.setdefault("parameters", []), operation["responses"]
    if "304" in answers:
        named = {each["name"] for each in parameters}
        parameters += [each for each in (IF_MATCH, IF_NONE_MATCH) if each["name"] not in named]
        answers.setdefault("412", responses("precondition-failed")[412])
    is_tagged = any(each["name"] == IF_MATCH["name"] for each in parameters)
    if is_tagged or ("201" in answers and creates_tagged):
        for status in answers.keys() & set(HAVE_ETAG):
            answers[status].setdefault("headers", {})["ETag"] = ETAG
