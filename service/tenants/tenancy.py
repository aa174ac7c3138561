"""The parts of this room, put together for one service."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging

from service.settings import Settings
from service.store.errors import StorageError
from service.store.store import Store, StoreClosed
from service.tenants.audit import Audit
from service.tenants.key_file import BadKeysFile, KeyFile
from service.tenants.key_ring import KeyRing
from service.tenants.quotas import Quotas
from service.tenants.usage import Usage

__all__ = ["Tenancy", "Unsafe"]

log = logging.getLogger("backpass.tenants")


class Unsafe(Exception):
    """The service would be open to other machines without keys."""


class Tenancy:
    """Keys, quotas, usage and audit log of one service."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        file = None if settings.api_keys_file is None else KeyFile(settings.api_keys_file)
        self.ring = KeyRing(store, file, settings.require_keys)
        self.usage = Usage(store)
        self.audit = Audit(store, settings.audit_days)
        self.quotas = Quotas(settings, self.ring, self.usage, store)
        self._tasks: list[asyncio.Task[None]] = []

    def check_now(self) -> None:
        """Load the keys and log who may call the service, before it listens. Blocks; the store is open.

        Raises BadKeysFile, StorageError, or Unsafe for a service without keys on an address that others can reach.
        """
        self.ring.load_now()
        if self.ring.is_needed:
            live = self.ring.live()
            log.info("requests need an API key; %d keys are valid", live)
            if not live:
                log.warning("no request will be accepted: make a key with `backpass keys create`")
        elif is_loopback(self._settings.host):
            log.warning("no API key exists: every process of this machine may do everything; see docs/security.md")
        elif self._settings.allow_anonymous:
            log.warning("BACKPASS_ALLOW_ANONYMOUS: everyone who reaches %s may do everything", self._settings.host)
        else:
            raise Unsafe(
                f"no API key exists, so the service does not listen on {self._settings.host}. Make a key with "
                "`backpass keys create`, name a file of keys in BACKPASS_API_KEYS_FILE, or set BACKPASS_REQUIRE_KEYS="
                "true and make keys later. BACKPASS_ALLOW_ANONYMOUS=true opens the service to everyone who reaches it."
            )

    async def start(self) -> None:
        """Load the keys and begin to watch. Raises BadKeysFile, StorageError."""
        await self.ring.refresh()
        for watching in (self.ring.watch(), self.usage.watch(), self.audit.watch()):
            self._tasks.append(asyncio.create_task(watching))
        with contextlib.suppress(StorageError):
            await self.usage.flush()

    async def stop(self) -> None:
        """Stop watching, and store what is left. The store is still open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for flush in (self.usage.flush, self.audit.flush, self.ring.flush):
            try:
                await flush()
            except (StorageError, StoreClosed, BadKeysFile) as error:
                log.warning("the last counts are not stored: %s", error)


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can reach a service that listens on `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
