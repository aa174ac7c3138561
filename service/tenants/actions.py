"""Actions on keys and tenants, for the command line and for routes. Each takes and answers plain data of JSON.

They run in the process that owns the store: see `service.store.admin`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from service.store.admin import Action
from service.store.store import Store
from service.tenants import table
from service.tenants.audit import Entry, add
from service.tenants.key import SCOPES, Key
from service.tenants.key_ring import KeyRing
from service.tenants.limits import changed
from service.tenants.states import ACTIVE, DELETED, TenantState, states
from service.tenants.states import delete as begin_deletion
from service.tenants.states import resume as lift
from service.tenants.states import suspend as bar

__all__ = ["ACTIONS", "key_actions", "shown", "state_of"]

MOST = 10_000  # keys in one answer of the command line


def shown(key: Key) -> dict[str, Any]:
    """The members of a key that may be read: all but its text and its digest."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "name": key.name,
        "prefix": key.prefix,
        "scopes": [scope for scope in SCOPES if scope in key.scopes],
        "state": "revoked" if key.revoked is not None else "valid" if key.is_live(time.time()) else "expired",
        "source": key.source,
        "created": key.created,
        "expires_at": key.expires,
        "expires": key.expires,
        "revoked": key.revoked,
        "last_used": key.used,
    }


async def create(store: Store, arguments: dict[str, Any]) -> dict[str, Any]:
    """A new key, with its text as `key`. arguments: tenant, name, scopes, expires_in (seconds, or None).

    Raises ValueError, StorageError.
    """
    now = time.time()
    lifetime = arguments.get("expires_in")
    expires = None if lifetime is None else now + _positive("expires_in", lifetime)
    tenant, name, scopes = str(arguments["tenant"]), str(arguments["name"]), frozenset(arguments["scopes"])
    secret, key = await store.write(
        lambda db: table.create_key(db, tenant=tenant, name=name, scopes=scopes, now=now, expires=expires)
    )
    return {**shown(key), "key": secret}


async def list_keys(store: Store, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """The keys of the store, at most MOST. arguments: tenant (or None for all). Raises StorageError."""
    return [shown(key) for key in await store.read(lambda db: table.keys_page(db, arguments.get("tenant"), "", MOST))]


async def revoke(store: Store, arguments: dict[str, Any]) -> dict[str, Any]:
    """The revoked key. arguments: id. Raises ValueError, StorageError."""
    try:
        return shown(await store.write(lambda db: table.revoke_key(db, arguments["id"], time.time())))
    except table.NoSuchKey:
        raise ValueError("no key has this id") from None


async def rotate(store: Store, arguments: dict[str, Any]) -> dict[str, Any]:
    """A new key in place of another one, with its text as `key`, and the other one as `replaced`.

    arguments: id, overlap (seconds for which both are valid). Raises ValueError, StorageError.
    """
    overlap = _positive("overlap", arguments["overlap"], least=0.0)
    try:
        secret, key, old = await store.write(lambda db: table.rotate_key(db, arguments["id"], time.time(), overlap))
    except table.NoSuchKey:
        raise ValueError("no key has this id") from None
    return {**shown(key), "key": secret, "replaced": shown(old)}


async def list_tenants(store: Store, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """The tenants with keys, own limits or a state, without deleted ones. arguments: none. Raises StorageError."""

    def read(db: Any) -> list[dict[str, Any]]:
        own, found = table.every_tenant(db), states(db)
        count: dict[str, int] = {}
        for key in table.every_key(db):
            count[key.tenant] = count.get(key.tenant, 0) + key.is_live(time.time())
        return [
            {"tenant": name, "keys": count.get(name, 0), "limits": own.get(name, {})} | state_of(found.get(name))
            for name in sorted({*own, *count})
            if name not in found or found[name].state != DELETED
        ]

    return await store.read(read)


async def set_limits(store: Store, arguments: dict[str, Any]) -> dict[str, Any]:
    """The own limits of a tenant after a change. arguments: tenant, limits (name -> number, None to remove).

    Raises BadLimit, StorageError.
    """
    change = changed(arguments["limits"])
    tenant = str(arguments["tenant"])
    return {
        "tenant": tenant,
        "limits": await store.write(lambda db: table.set_limits(db, tenant, time.time(), change)),
    }


def state_of(found: TenantState | None) -> dict[str, Any]:
    """The members of a tenant that tell its state; None for an active one."""
    return asdict(found or ACTIVE)


async def suspend(store: Store, arguments: dict[str, Any]) -> dict[str, Any]:
    """The state of the suspended tenant. arguments: tenant, reason. Raises ValueError, StorageError."""
    tenant, reason = str(arguments["tenant"]), str(arguments["reason"])
    return {"tenant": tenant} | state_of(await store.write(lambda db: bar(db, tenant, reason, time.time())))


async def resume(store: Store, arguments: dict[str, Any]) -> dict[str, Any]:
    """The state of a tenant whose suspension ends. arguments: tenant. Raises ValueError, StorageError."""
    tenant = str(arguments["tenant"])
    return {"tenant": tenant} | state_of(await store.write(lambda db: lift(db, tenant, time.time())))


async def delete(store: Store, arguments: dict[str, Any]) -> dict[str, Any]:
    """The state of a tenant whose deletion begins, or goes on. arguments: tenant. Raises ValueError, StorageError."""
    tenant = str(arguments["tenant"])
    return {"tenant": tenant} | state_of(await store.write(lambda db: begin_deletion(db, tenant, time.time())))


def _positive(name: str, value: Any, least: float = 1.0) -> float:
    """`value` as seconds, at most a hundred years. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 3.2e9:
        raise ValueError(f"{name} must be a number of seconds from {least:g} to 3.2e9")
    return float(value)


def _audited(command: str, action: Action) -> Action:
    """`action` as a command: its change has an entry in the audit log, as a request has."""

    async def run(store: Store, arguments: dict[str, Any]) -> Any:
        answer = await action(store, arguments)
        target = f"/v1/keys/{answer['id']}" if "id" in answer else f"/v1/tenants/{answer['tenant']}"
        entry = Entry(answer["tenant"], time.time(), None, f"backpass {command}", target, DONE, "")
        await store.write(lambda db: add(db, entry))
        return answer

    return run


DONE = 200
"""The status of a command in the audit log."""

ACTIONS: Mapping[str, Action] = {
    "keys.create": _audited("keys create", create),
    "keys.list": list_keys,
    "keys.revoke": _audited("keys revoke", revoke),
    "keys.rotate": _audited("keys rotate", rotate),
    "tenants.list": list_tenants,
    "tenants.set": _audited("keys tenants set", set_limits),
    "tenants.suspend": _audited("keys tenants suspend", suspend),
    "tenants.resume": _audited("keys tenants resume", resume),
    "tenants.delete": _audited("keys tenants delete", delete),
}
"""The actions by the name under which other processes ask for them."""


def key_actions(ring: KeyRing) -> dict[str, Action]:
    """The actions of a running service: its keys follow each change at once."""

    def followed(action: Action) -> Action:
        async def run(store: Store, arguments: dict[str, Any]) -> Any:
            answer = await action(store, arguments)
            await ring.refresh()
            return answer

        return run

    return {name: followed(action) for name, action in ACTIONS.items()}
