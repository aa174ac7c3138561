"""All keys in memory, so that no request waits for the store. Changes by other processes arrive within seconds."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable

from sqlalchemy import Connection

from service.caller import Caller
from service.store.errors import StorageError
from service.store.store import Store, StoreClosed
from service.tenants import table
from service.tenants.key import Key, digest_of
from service.tenants.key_file import BadKeysFile, KeyFile
from service.tenants.states import TenantState, states

__all__ = ["KeyRing"]

log = logging.getLogger("backpass.tenants")

News = tuple[tuple[int, ...], list[Key], dict[str, dict[str, float]], dict[str, TenantState]]

REFRESH_S = 2.0
USED_S = 60.0  # the least time between two writes of a key's last use


class KeyRing:
    """The keys of the store and of the keys file, by digest; and the tenants' own limits and states.

    states:    tenant -> its state, for those that are not active: their calls are refused.
    is_needed: whether requests need a key: keys exist, or the settings demand them. Revoked keys count, because the
    end of the last key must not open the service.
    """

    def __init__(self, store: Store, file: KeyFile | None = None, required: bool = False) -> None:
        self._store, self._file, self._required = store, file, required
        self._keys: dict[bytes, Key] = {}
        self._seen: tuple[int, ...] | None = None
        self._complaint = ""
        self._turn = asyncio.Lock()
        self.limits: dict[str, dict[str, float]] = {}
        self.states: dict[str, TenantState] = {}
        self.is_needed = required or file is not None
        self.on_change: Callable[[], None] = lambda: None

    def find(self, secret: bytes) -> Key | None:
        """The key with this text, also one that has ended; None if there is none."""
        digest = digest_of(secret)
        key = self._keys.get(digest)
        return key if key is not None and hmac.compare_digest(key.digest, digest) else None

    def last_use(self, key: Key) -> float | None:
        """The time of the last request with the key in this process; None if there was none."""
        found = self._keys.get(key.digest)
        return None if found is None else found.used

    def by_id(self, id: str | None) -> Key | None:
        """The key with this id; None if there is none."""
        return next((key for key in self._keys.values() if key.id == id), None)

    def allows(self, caller: Caller) -> bool:
        """Whether an answer that `caller` was allowed to read may go on: neither its key has ended since, nor was its
        tenant suspended."""
        if not self.is_needed:
            return True
        key = self.by_id(caller.key)
        return key is not None and key.is_live(time.time()) and caller.tenant not in self.states

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def of_file(self) -> list[Key]:
        """The keys of the keys file."""
        return [] if self._file is None else self._file.keys

    async def refresh(self) -> None:
        """Take over changes of keys and tenants. Raises StorageError, or BadKeysFile."""
        async with self._turn:
            changed = self._file is not None and self._file.refresh()
            found = await self._store.read(lambda connection: self._news(connection, changed))
            if found is not None:
                self._adopt(*found)

    def load_now(self) -> None:
        """As `refresh`, before the service runs. Blocks."""
        if self._file is not None:
            self._file.refresh()
        found = self._store.read_now(lambda connection: self._news(connection, True))
        if found is not None:
            self._adopt(*found)

    def _news(self, connection: Connection, changed: bool) -> News | None:
        """The state of keys and tenants; None if it is the known one and nothing else `changed`."""
        seen = table.changes(connection)
        if seen == self._seen and not changed:
            return None
        return seen, table.every_key(connection), table.every_tenant(connection), states(connection)

    def _adopt(
        self,
        seen: tuple[int, ...],
        stored: list[Key],
        limits: dict[str, dict[str, float]],
        states: dict[str, TenantState],
    ) -> None:
        before = self._keys
        self._keys = {key.digest: key for key in (*stored, *self.of_file)}
        for digest, key in self._keys.items():
            if digest in before:  # the store knows the last use only up to a minute
                key.used, key.written = before[digest].used, before[digest].written
        self._seen, self.limits, self.states = seen, limits, states
        self.is_needed = self._required or self._file is not None or bool(self._keys)
        self.on_change()

    async def watch(self) -> None:
        """Refresh every two seconds and store last uses, until cancelled. Run it as a task."""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self.refresh()
                await self._write_used(USED_S)
                complaint = ""
            except (StorageError, BadKeysFile, StoreClosed) as error:
                complaint = f"changes of keys are not noticed: {error}"
            if complaint and complaint != self._complaint:
                log.warning("%s", complaint)
            self._complaint = complaint

    async def flush(self) -> None:
        """Store all last uses, before the service stops. Raises StorageError."""
        await self._write_used(0.0)

    async def _write_used(self, least: float) -> None:
        """Store last uses that are `least` seconds newer than the stored ones."""
        due = {
            key.id: (key, key.used)
            for key in self._keys.values()
            if key.source == "store" and key.used is not None and key.used - (key.written or 0.0) > least
        }
        if due:
            await self._store.write(
                lambda connection: table.mark_used(connection, {id: at for id, (_, at) in due.items()})
            )
            for key, at in due.values():
                key.written = at

    def live(self) -> int:
        """The number of keys that are accepted now."""
        now = time.time()
        return sum(key.is_live(now) for key in self._keys.values())
