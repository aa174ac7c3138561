"""Requests that run at the same time share the room of a quota."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from service.problems import HttpProblem
from service.settings import Settings
from service.tenants.quotas import Quotas

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
