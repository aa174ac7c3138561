"""Requests that run at the same time share the room of a quota."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, insert

from service.problems import HttpProblem
from service.settings import Settings
from service.store.store import Store
from service.store.tables import program_values
from service.tenants.quotas import Quotas, stored_use
from tests.service.store.rows import row_of

LIMIT = 10


def together(amounts: Sequence[float], ends: Sequence[int]) -> list[bool]:
    """Whether each request was admitted. All arrive before the first ends; then they end in the order `ends`."""
    ring: Any = SimpleNamespace(limits={"t": {"program_bytes": LIMIT}}, on_change=None)
    unused: Any = None
    quotas = Quotas(Settings(), ring, unused, unused)
    admitted = [False] * len(amounts)

    async def request(i: int, end: asyncio.Event) -> None:
        with suppress(HttpProblem):
            async with quotas.room_for("t", "program_bytes", amounts[i], used=0):
                admitted[i] = True
                await end.wait()

    async def run() -> None:
        events = [asyncio.Event() for _ in amounts]
        tasks = [asyncio.create_task(request(i, event)) for i, event in enumerate(events)]
        await asyncio.sleep(0)
        for i in ends:
            events[i].set()
            await tasks[i]
        async with quotas.room_for("t", "program_bytes", LIMIT, used=0):
            pass  # all room is free again

    asyncio.run(run())
    return admitted


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_processes_that_share_a_store_share_the_room(tmp_path, request, database):
    """Each of them finds room before any has stored its thing."""
    store = Store(tmp_path, "" if database == "sqlite" else request.getfixturevalue("postgres_url"))
    store.open_now()
    ring: Any = SimpleNamespace(limits={"t": {"program_bytes": LIMIT}}, on_change=None)
    unused: Any = None
    processes = [Quotas(Settings(), ring, unused, store) for _ in range(4)]

    async def run() -> list[float]:
        start = asyncio.Barrier(len(processes))

        async def made(quotas: Quotas, n: int) -> float:
            async with quotas.room_for("t", "program_bytes", 4) as check:
                await start.wait()

                def work(connection: Connection) -> None:
                    row = row_of(program_values, n) | {"tenant": "t", "size": 4}
                    connection.execute(insert(program_values), row)
                    check(connection)

                await store.write(work)
            return 4.0

        tasks = [made(quotas, n) for n, quotas in enumerate(processes)]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [each.code for each in found if isinstance(each, HttpProblem)] == ["quota-exceeded"] * 2, found
        stored = await store.read(lambda connection: stored_use(connection, "t"))
        return [stored["program_bytes"]]

    assert asyncio.run(run()) == [8.0]
    store.close_now()


@pytest.mark.parametrize("ends", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize(
    ("amounts", "admitted"),
    [
        ((0, 0, 0), [True, True, True]),
        ((0, 10, 0), [True, True, True]),
        ((6, 6, 4), [True, False, True]),
        ((0.1, 0.2, 9.7), [True, True, True]),
        ((11, 10, 0), [False, True, True]),
    ],
)
def test_requests_are_admitted_while_their_amounts_fit_together_and_free_their_room(amounts, admitted, ends):
    assert together(amounts, ends) == admitted
