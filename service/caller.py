"""The caller of the current request: its tenant, and what its key allows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["CALLER", "LOCAL", "NOBODY", "Caller", "acting_for", "tenant"]


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. key: id of its API key, None without keys. scopes: the rights of the key."""

    tenant: str
    key: str | None
    scopes: frozenset[str]


LOCAL = Caller("local", None, frozenset({"read", "write", "admin"}))
"""The caller of every request to a service without keys."""

NOBODY = Caller("", None, frozenset())
"""The caller of a request without a key to a service with keys; only public paths answer it."""

CALLER: ContextVar[Caller] = ContextVar("caller", default=LOCAL)


def tenant() -> str:
    """The tenant of the current request. Every stored thing belongs to one; others cannot see it."""
    return CALLER.get().tenant


@contextlib.contextmanager
def acting_for(tenant: str) -> Iterator[None]:
    """Run the block as `tenant`: its calls wait in the line of this tenant and count as its use.

    For work without a request, such as jobs. A task that is created inside the block stays with the tenant.
    """
    token = CALLER.set(Caller(tenant, None, frozenset({"read", "write"})))
    try:
        yield
    finally:
        CALLER.reset(token)
