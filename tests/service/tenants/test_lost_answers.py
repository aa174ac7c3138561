"""Usage and the audit log while the answers of the store are lost: nothing counts twice, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from service.store.errors import StorageUnavailable
from service.store.store import Store
from service.tenants.audit import Audit, Entry, page
from service.tenants.usage import Usage, rows

pytestmark = pytest.mark.anyio

FIRST, LAST = "0000-00-00", "9999-99-99"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Failing:
    """A store of which half of the writes fail, and half of these take effect nevertheless."""

    def __init__(self, store: Store) -> None:
        self._store, self._rng, self.fails = store, random.Random(5), True

    async def read(self, work: Any) -> Any:
        return await self._store.read(work)

    async def write(self, work: Any) -> Any:
        if self.fails and self._rng.random() < 0.5:
            if self._rng.random() < 0.5:
                await self._store.write(work)
            if self._rng.random() < 0.2:
                raise asyncio.CancelledError
            raise StorageUnavailable("the store failed")
        return await self._store.write(work)


async def test_usage_counts_once_though_answers_of_the_store_are_lost(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await store.open()
    failing = Failing(store)
    processes = [Usage(failing), Usage(failing)]  # type: ignore[arg-type]
    added = {"a": 0.0, "b": 0.0}
    for i in range(60):
        for usage in processes:
            for tenant in added:
                usage.add(tenant, "compute_seconds", float(i))
                added[tenant] += i
            failing.fails = i < 59
            with contextlib.suppress(StorageUnavailable, asyncio.CancelledError):
                await usage.flush()
            assert usage.compute_today("a") <= added["a"]
    for usage in processes:
        await usage.flush()

    stored = await store.read(lambda connection: rows(connection, None, FIRST, LAST, 100))
    totals = [metric for usage in processes for metric in usage.collect() if "compute_seconds" in metric.name]
    await store.close()
    assert {row.tenant: row.amount for row in stored} == added
    assert processes[0].compute_today("a") == added["a"]
    assert sum(sample.value for metric in totals for sample in metric.samples) == sum(added.values())


async def test_the_audit_log_has_each_entry_once_though_answers_of_the_store_are_lost(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await store.open()
    failing = Failing(store)
    audit = Audit(failing, 90.0)  # type: ignore[arg-type]
    for i in range(60):
        audit.note(Entry("a", float(i), None, "POST /v1/keys", str(i), 201, ""))
        failing.fails = i < 59
        with contextlib.suppress(StorageUnavailable, asyncio.CancelledError):
            await audit.flush()
    await audit.flush()

    found = await store.read(lambda connection: page(connection, None, 1000, None))
    await store.close()
    assert [row.target for row in found] == [str(i) for i in reversed(range(60))]
