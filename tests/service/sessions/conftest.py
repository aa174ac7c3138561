"""The sessions of one API process, or of two, on a store of their own and workers that a test can end."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.sessions import journal
from service.settings import Settings
from service.store.store import Store
from tests.service.prepared import prepared
from tests.service.sessions.fake_service import Faults, Process


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    store = Store(tmp_path)
    await store.open()
    yield Process(store, prepared(str(tmp_path / "objects")), Faults(random.Random(0)), Settings())
    await store.close()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Process, Process]]:
    store = Store(tmp_path)
    await store.open()
    objects, settings = prepared(str(tmp_path / "objects")), Settings(checkpoint_interval=60.0)
    first, second = (Process(store, objects, Faults(random.Random(0)), settings, shared=True) for _ in range(2))
    yield first, second
    await store.close()


@pytest.fixture
def small_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry with tensors has a file."""
    monkeypatch.setattr(journal, "INLINE_BYTES", 0)
