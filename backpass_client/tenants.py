"""Tenants: their limits, their use of the service, and the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from backpass_client.connection import Service, quoted

__all__ = ["AuditEntry", "Tenant", "Tenants", "UsageRow"]


class _Answer:
    """A part of an answer. said: all its members, those that a later service adds included."""

    __slots__ = ()

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """The object of these members."""
        names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
        # a service of an earlier version may lack members that have defaults here
        known = {name: said[name] for name in names if name in said}
        return cls(**known, said=dict(said))  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True)
class Tenant(_Answer):
    """A tenant.

    own:    its limits that differ from the settings of the service, by name; 0 for no limit.
    quotas: `limit` and `used` of each limit, by name; None for no limit and for rates, which have no use.
    state:  active, suspended, deleting or deleted. reason: of a suspension. since: when the state began, in seconds
            since 1970.
    """

    tenant: str
    own: dict[str, float]
    quotas: dict[str, dict[str, float | None]]
    said: dict[str, Any] = field(repr=False)
    state: str = "active"
    reason: str | None = None
    since: float | None = None


@dataclass(frozen=True, slots=True)
class UsageRow(_Answer):
    """The use of one tenant on one day in UTC, such as "2026-11-22"."""

    day: str
    tenant: str
    compute_seconds: float
    steps: int
    requests: int
    bytes_in: int
    bytes_out: int
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class AuditEntry(_Answer):
    """One call that created, changed or deleted something.

    time:   seconds since 1970.
    key:    the id of its key; None for a caller without a key and for the command line.
    action: method and route, or the command.
    target: path of the request, or of the thing that it created.
    """

    n: int
    time: float
    tenant: str
    key: str | None
    action: str
    target: str
    status: int
    request_id: str
    said: dict[str, Any] = field(repr=False)


class Tenants:
    """The tenants of a service; `service.tenants`. Each call needs a key with the scope admin."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def get(self, name: str) -> Tenant:
        """A tenant. One without keys has the limits of the settings."""
        return Tenant.of(self._service.call("GET", f"/v1/tenants/{quoted(name)}"))

    def list(self) -> Iterator[Tenant]:
        """The tenants that have keys, limits of their own or a state, page by page."""
        return (Tenant.of(each) for each in self._service.entries("/v1/tenants", "tenants"))

    def set_limits(self, name: str, **limits: float | None) -> Tenant:
        """Set limits of a tenant: ``set_limits("acme", jobs=4, compute_seconds=3600)``. The others stay.

        limits: by the names in `Tenant.quotas`; 0 for no limit, None for that of the settings.
        Raises Refused for a name that is no limit.
        """
        return Tenant.of(self._service.call("PUT", f"/v1/tenants/{quoted(name)}", {"limits": limits}))

    def suspend(self, name: str, reason: str) -> Tenant:
        """Refuse all calls of a tenant until `resume`, with 403 `tenant-suspended` and the reason; safe to repeat.

        Within seconds its streams end and its jobs wait. Nothing is lost. Raises Refused (invalid-state) for the tenant
        of the caller.
        """
        return Tenant.of(
            self._service.call("POST", f"/v1/tenants/{quoted(name)}/suspend", {"reason": reason}, repeat=True)
        )

    def resume(self, name: str) -> Tenant:
        """Lift the suspension of a tenant: its keys work again, and its jobs go on; safe to repeat."""
        return Tenant.of(self._service.call("POST", f"/v1/tenants/{quoted(name)}/resume", repeat=True))

    def delete(self, name: str) -> Tenant:
        """Revoke all keys of a tenant, and erase all that it has; safe to repeat, and not to be undone.

        The erasure goes on in the service: `get(name).state` is "deleting", and "deleted" when it is complete. Until
        then the name cannot be used again. Raises Refused (invalid-state) for the tenant of the caller.
        """
        return Tenant.of(self._service.call("DELETE", f"/v1/tenants/{quoted(name)}"))
