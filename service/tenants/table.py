"""Keys and tenants in the store: functions of a connection, for `Store.read` and `Store.write`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from service.store.tables import keys, tenants
from service.tenants.key import SCOPES, TENANT, TENANT_RULE, Key, new_key
from service.tenants.states import begin

__all__ = [
    "NoSuchKey",
    "changes",
    "create_key",
    "every_key",
    "every_tenant",
    "find_key",
    "keys_page",
    "mark_used",
    "revoke_key",
    "rotate_key",
    "set_limits",
]


class NoSuchKey(Exception):
    """No key has this id."""


def changes(connection: Connection) -> tuple[int, ...]:
    """Numbers that differ after every change of keys and tenants, also one by another process.

    Rows are never deleted, so the count and the sum of changes only go up.
    """
    found = []
    for table in (keys, tenants):
        count, total = connection.execute(select(func.count(), func.sum(table.c.changes)).select_from(table)).one()
        found += [count, int(total or 0)]
    return tuple(found)


def every_key(connection: Connection) -> list[Key]:
    """All keys, also revoked and expired ones."""
    return [_key(row) for row in connection.execute(select(keys).order_by(keys.c.id))]


def keys_page(connection: Connection, tenant: str | None, after: str, size: int) -> list[Key]:
    """Up to `size` keys with ids greater than `after`, in the order of ids. tenant: of one tenant only."""
    query = select(keys).where(keys.c.id > after).order_by(keys.c.id).limit(size)
    if tenant is not None:
        query = query.where(keys.c.tenant == tenant)
    return [_key(row) for row in connection.execute(query)]


def find_key(connection: Connection, id: str) -> Key:
    """Raises NoSuchKey."""
    row = connection.execute(select(keys).where(keys.c.id == id)).one_or_none()
    if row is None:
        raise NoSuchKey(id)
    return _key(row)


def create_key(
    connection: Connection, *, tenant: str, name: str, scopes: frozenset[str], now: float, expires: float | None
) -> tuple[str, Key]:
    """(text of the new key, the key). Raises WrongState while its tenant is being deleted, ValueError."""
    secret, key = new_key(tenant, name, scopes, now, expires)
    begin(connection, tenant, now)
    _add(connection, key)
    return secret, key


def revoke_key(connection: Connection, id: str, now: float) -> Key:
    """The revoked key. Revoking twice keeps the first time. Raises NoSuchKey."""
    key = find_key(connection, id)
    if key.revoked is None:
        _set(connection, id, revoked=now)
        key = replace(key, revoked=now)
    return key


def rotate_key(connection: Connection, id: str, now: float, overlap: float) -> tuple[str, Key, Key]:
    """(text of the new key, the new key, the old one), with the tenant, name and scopes of the old one.

    The old key ends after `overlap` seconds, or at its own end if that is earlier. The new one lives as long as the old
    one was meant to live. Raises NoSuchKey, or ValueError for a key that has ended.
    """
    old = find_key(connection, id)
    if not old.is_live(now):
        raise ValueError("the key is revoked or has expired; create a new one")
    lifetime = None if old.expires is None else now + old.expires - old.created
    secret, key = new_key(old.tenant, old.name, old.scopes, now, lifetime)
    _add(connection, key)
    ends = min(now + overlap, old.expires if old.expires is not None else now + overlap)
    _set(connection, id, expires=ends)
    return secret, key, replace(old, expires=ends)


def mark_used(connection: Connection, used: Mapping[str, float]) -> None:
    """Store the times of last use by id; an earlier time does not replace a later one."""
    for id, at in used.items():
        connection.execute(
            update(keys)
            .where(keys.c.id == id, (keys.c.last_used.is_(None)) | (keys.c.last_used < at))
            .values(last_used=at)
        )


def every_tenant(connection: Connection) -> dict[str, dict[str, float]]:
    """Tenant -> its own limits, for tenants that have a row; others have the limits of the settings."""
    rows = connection.execute(select(tenants.c.id, tenants.c.limits).order_by(tenants.c.id))
    return {row.id: _limits(row.limits) for row in rows}


def set_limits(
    connection: Connection, tenant: str, now: float, change: Callable[[dict[str, float]], dict[str, float]]
) -> dict[str, float]:
    """The own limits of a tenant after `change`, a function of the present ones.

    Raises WrongState while the tenant is being deleted, ValueError for a bad name.
    """
    if not TENANT.fullmatch(tenant):
        raise ValueError(TENANT_RULE)
    begin(connection, tenant, now)
    row = connection.execute(select(tenants.c.limits).where(tenants.c.id == tenant)).one_or_none()
    limits = change({} if row is None else _limits(row.limits))
    text = json.dumps(limits)
    if row is None:
        connection.execute(insert(tenants).values(id=tenant, limits=text, changes=1, created=now))
    else:
        connection.execute(
            update(tenants).where(tenants.c.id == tenant).values(limits=text, changes=tenants.c.changes + 1)
        )
    return limits


def _add(connection: Connection, key: Key) -> None:
    connection.execute(
        insert(keys).values(
            id=key.id,
            tenant=key.tenant,
            name=key.name,
            hash=key.digest.hex(),
            prefix=key.prefix,
            scopes=json.dumps([scope for scope in SCOPES if scope in key.scopes]),
            changes=1,
            created=key.created,
            expires=key.expires,
        )
    )


def _set(connection: Connection, id: str, **values: Any) -> None:
    connection.execute(update(keys).where(keys.c.id == id).values(changes=keys.c.changes + 1, **values))


def _key(row: Row[Any]) -> Key:
    return Key(
        id=row.id,
        tenant=row.tenant,
        name=row.name,
        digest=bytes.fromhex(row.hash),
        prefix=row.prefix,
        scopes=frozenset(json.loads(row.scopes)),
        created=row.created,
        expires=row.expires,
        revoked=row.revoked,
        used=row.last_used,
        written=row.last_used,
    )


def _limits(text: str) -> dict[str, float]:
    return dict(json.loads(text))
