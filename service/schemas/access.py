"""API keys in the OpenAPI document: the scheme, and the answers of requests without the right key."""

from __future__ import annotations

from typing import Any

from service.http.auth import is_public, scope_of
from service.problems import responses

__all__ = ["add_access"]

CODES = ("unauthenticated", "forbidden", "tenant-suspended", "rate-limited")
SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key, `bp_...`. A service without keys accepts requests of its own machine without one.",
}


def add_access(document: dict[str, Any]) -> None:
    """Add the scheme of API keys, and to each operation that needs one the scope and the refusals."""
    document.setdefault("components", {}).setdefault("securitySchemes", {})["key"] = SCHEME
    refusals = {str(status): answer for status, answer in responses(*CODES).items()}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            filled = path.replace("{", "").replace("}", "")
            if is_public(method.upper(), filled):
                operation["security"] = []
                continue
            operation["security"] = [{"key": [scope_of(method.upper(), path)]}, {}]
            for status, answer in refusals.items():
                present = operation["responses"].setdefault(status, answer)
                if answer["description"] not in present["description"]:
                    operation["responses"][status] = answer | {
                        "description": f"{present['description']} {answer['description']}"
                    }
