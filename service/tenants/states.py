"""States of tenants in the store: functions of a connection, for `Store.read` and `Store.write`.

A tenant without a state is active. The calls of a suspended one are refused, and its jobs wait. The keys of one that is
being deleted are revoked; `Erasing` deletes all that it has, and then its name can be used again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from service.caller import LOCAL
from service.ids import ONE_LINE
from service.problems import HttpProblem
from service.store.presence import now as clock
from service.store.tables import keys, sessions, tenants, uploads
from service.tenants.key import TENANT, TENANT_RULE

__all__ = [
    "ACTIVE",
    "DELETED",
    "DELETING",
    "SUSPENDED",
    "TenantState",
    "WrongState",
    "begin",
    "delete",
    "finish",
    "note_busy",
    "resume",
    "states",
    "suspend",
]

SUSPENDED, DELETING, DELETED = "suspended", "deleting", "deleted"
QUIET_S = 10.0
"""Seconds without a note of a running call after which a deletion ends. All processes learn of the deletion sooner."""

REASON_LENGTH = 200


@dataclass(frozen=True, slots=True)
class TenantState:
    """The state of a tenant. reason: given by an administrator. since: seconds since 1970; None for an active one."""

    state: str
    reason: str | None = None
    since: float | None = None

    def detail(self, tenant: str) -> str:
        """Why calls of `tenant` are refused."""
        said = {SUSPENDED: f"is suspended: {self.reason}", DELETING: "is being deleted", DELETED: "was deleted"}
        return f"the tenant {tenant} {said[self.state]}"

    def refusal(self, tenant: str) -> HttpProblem:
        """The answer to calls of `tenant`."""
        return HttpProblem("tenant-suspended", self.detail(tenant), reason=self.reason)


ACTIVE = TenantState("active")


class WrongState(ValueError):
    """The state of the tenant does not allow the change. state: the present one."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


def states(connection: Connection) -> dict[str, TenantState]:
    """Tenant -> its state, for those that are not active."""
    found = select(tenants.c.id, tenants.c.state, tenants.c.reason, tenants.c.since).where(tenants.c.state.is_not(None))
    return {row.id: _of(row) for row in connection.execute(found)}


def suspend(connection: Connection, tenant: str, reason: str, now: float) -> TenantState:
    """Suspend a tenant. One that is suspended already gets the new reason.

    Raises WrongState for the only tenant of a service without keys and for a deleted one, ValueError for a bad name or
    reason.
    """
    if not 1 <= len(reason) <= REASON_LENGTH or not ONE_LINE.fullmatch(reason) or not reason.strip():
        raise ValueError(f"a reason has 1 to {REASON_LENGTH} characters on one line")
    before = _changeable(connection, tenant)
    state = TenantState(SUSPENDED, reason, now if before.since is None else before.since)
    _set(connection, tenant, state, now)
    return state


def resume(connection: Connection, tenant: str, now: float) -> TenantState:
    """End the suspension of a tenant; nothing if it is active.

    The time of the suspension does not count for the leases of its stored sessions and uploads. Raises WrongState for a
    deleted tenant, ValueError for a bad name.
    """
    before = _present(connection, tenant)
    _refuse_deleted(tenant, before)
    if before.state != SUSPENDED:
        return before
    lasted = max(0.0, now - (before.since or now))
    for table, column in ((sessions, sessions.c.used), (uploads, uploads.c.expires)):
        connection.execute(update(table).where(table.c.tenant == tenant).values({column: column + lasted}))
    _set(connection, tenant, ACTIVE, now)
    return ACTIVE


def delete(connection: Connection, tenant: str, now: float) -> TenantState:
    """Revoke the keys of a tenant and drop its limits; `Erasing` deletes all else. Safe to repeat.

    Raises WrongState for the only tenant of a service without keys, ValueError for a bad name.
    """
    before = _present(connection, tenant)
    if before.state == DELETING:
        return before
    _refuse_only(connection, tenant, before)
    revoked = update(keys).where(keys.c.tenant == tenant, keys.c.revoked.is_(None))
    connection.execute(revoked.values(revoked=now, changes=keys.c.changes + 1))
    state = TenantState(DELETING, None, now)
    _set(connection, tenant, state, now)
    connection.execute(
        update(tenants).where(tenants.c.id == tenant).values(limits=json.dumps({}), busy=clock(connection))
    )
    return state


def note_busy(connection: Connection, tenant: str) -> None:
    """Note that something of a tenant that is being deleted still runs, which may store more."""
    deleting = (tenants.c.id == tenant, tenants.c.state == DELETING)
    connection.execute(update(tenants).where(*deleting).values(busy=clock(connection)))


def finish(connection: Connection, tenant: str, now: float) -> bool:
    """End the deletion of a tenant of which no row is left, if nothing of it has run for a while; whether it ends."""
    quiet = (tenants.c.id == tenant, tenants.c.state == DELETING, tenants.c.busy <= clock(connection) - QUIET_S)
    if connection.execute(select(tenants.c.id).where(*quiet)).first() is None:
        return False
    _set(connection, tenant, TenantState(DELETED, None, now), now)
    return True


def begin(connection: Connection, tenant: str, now: float) -> None:
    """Let the name of a deleted tenant be used for a new one. Raises WrongState while the deletion goes on."""
    state = _present(connection, tenant)
    if state.state == DELETING:
        raise WrongState(f"{state.detail(tenant)}; its name can be used again when that is done", state.state)
    if state.state == DELETED:
        _set(connection, tenant, ACTIVE, now)


def _changeable(connection: Connection, tenant: str) -> TenantState:
    state = _present(connection, tenant)
    _refuse_deleted(tenant, state)
    _refuse_only(connection, tenant, state)
    return state


def _refuse_deleted(tenant: str, state: TenantState) -> None:
    if state.state in (DELETING, DELETED):
        raise WrongState(state.detail(tenant), state.state)


def _refuse_only(connection: Connection, tenant: str, state: TenantState) -> None:
    if tenant == LOCAL.tenant and connection.execute(select(keys.c.id).limit(1)).first() is None:
        raise WrongState("a service without keys has this tenant alone; make a key first", state.state)


def _present(connection: Connection, tenant: str) -> TenantState:
    if not TENANT.fullmatch(tenant):
        raise ValueError(TENANT_RULE)
    row = connection.execute(select(tenants).where(tenants.c.id == tenant)).one_or_none()
    return ACTIVE if row is None or row.state is None else _of(row)


def _of(row: Any) -> TenantState:
    return TenantState(row.state, row.reason, row.since)


def _set(connection: Connection, tenant: str, state: TenantState, now: float) -> None:
    values = {"state": None if state is ACTIVE else state.state, "reason": state.reason, "since": state.since}
    changed = update(tenants).where(tenants.c.id == tenant).values(**values, changes=tenants.c.changes + 1)
    if not connection.execute(changed).rowcount:
        connection.execute(insert(tenants).values(id=tenant, limits=json.dumps({}), changes=1, created=now, **values))
