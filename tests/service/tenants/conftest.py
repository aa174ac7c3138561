"""A service with API keys, and stores without a service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from service.store.store import Store
from service.tenants import table
from tests.service.conftest import Served, serve
from tests.service.store.conftest import make_store, store

__all__ = ["Keyed", "make_store", "store"]

FILE_KEY = "file-key-0123456789-abcdefghijklmnop"
EVERY = frozenset({"read", "write", "admin"})


@dataclass
class Keyed:
    """A service with keys. keys: name -> text of a key. ids: the same names -> ids."""

    served: Served
    keys: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def client(self, name: str | None, **more: str) -> httpx.Client:
        """A client with the key of this name; None for no key."""
        headers = {} if name is None else {"authorization": f"Bearer {self.keys.get(name, name)}"}
        return httpx.Client(base_url=self.served.url, headers={**headers, **more}, timeout=30.0, verify=False)


def make_keys(directory: Path) -> Keyed:
    """Keys of several tenants in a new data directory."""
    now = time.time()
    wanted = {
        "admin": ("ops", EVERY, None),
        "one": ("acme", frozenset({"read", "write"}), None),
        "two": ("other", frozenset({"read", "write"}), None),
        "reader": ("acme", frozenset({"read"}), None),
        "writer": ("acme", frozenset({"write"}), None),
        "limited": ("limited", frozenset({"read", "write"}), None),
        "expired": ("acme", EVERY, now - 1.0),
        "revoked": ("acme", EVERY, None),
    }
    found = Keyed(None)  # type: ignore[arg-type]
    opened = Store(directory)
    opened.open_now()
    for name, (tenant, scopes, expires) in wanted.items():
        given = {"tenant": tenant, "name": name, "scopes": scopes, "now": now - 100.0, "expires": expires}
        secret, key = asyncio.run(opened.write(lambda db, given=given: table.create_key(db, **given)))
        found.keys[name], found.ids[name] = secret, key.id
    asyncio.run(opened.write(lambda db: table.revoke_key(db, found.ids["revoked"], now) and None))
    opened.close_now()
    return found


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    directory = tmp_path_factory.mktemp("keyed")
    file = directory / "keys.txt"
    file.write_text(f"# keys\n\nfiled:read:{FILE_KEY}\n")
    found = make_keys(directory / "data")
    found.keys["file"] = FILE_KEY
    with serve(directory / "data", api_keys_file=file, cors_origins="https://app.example.org") as served:
        found.served = served
        yield found
