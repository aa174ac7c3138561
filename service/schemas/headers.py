"""Request headers that the middleware reads, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from service.http.idempotency import SECRETS
from service.problems import responses
from service.schemas.components import model
from service.schemas.operations import Accepted

__all__ = ["add_headers"]

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

CODES = ("idempotency-in-flight", "outcome-unknown", "idempotency-conflict")


STARTED = model(Accepted)
ACCEPTED = {"$ref": "#/components/responses/Accepted"}


def add_headers(document: dict[str, Any]) -> None:
    """Add the headers, and the answers that they lead to, to all operations of an OpenAPI document that take them."""
    document["components"].setdefault("responses", {})["Accepted"] = {
        "description": "The call goes on as an operation (`Prefer: respond-async`). Location has its path.",
        "content": {"application/json": {"schema": STARTED}},
    }
    for path, methods in document["paths"].items():
        if not path.startswith("/v1/") or path.startswith(("/v1/operations", SECRETS)):
            continue
        for name, (takers, description) in HEADERS.items():
            for method in methods.keys() & takers:
                header = {"name": name, "in": "header", "schema": {"type": "string"}, "description": description}
                methods[method].setdefault("parameters", []).append(header)
        for method in methods.keys() & {"post", "put"}:
            answers = methods[method]["responses"]
            answers.setdefault("202", ACCEPTED)
            if method == "post":
                for status, answer in responses(*CODES).items():
                    present = answers.get(str(status), {"description": ""})["description"]
                    answers[str(status)] = {**answer, "description": f"{present} {answer['description']}".strip()}
