"""Two processes of the service on one store share the quotas of a tenant."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.problems import HttpProblem
from service.settings import Settings
from tests.service.sessions.two_processes import opened

pytestmark = pytest.mark.anyio


async def test_requests_at_the_same_time_share_the_quota_of_sessions(pair):
    first, _ = pair
    limits = Settings(sessions=3)
    first.registry.quota = lambda tenant: limits

    found = await asyncio.gather(*(opened(first) for _ in range(6)), return_exceptions=True)

    refused = [each for each in found if isinstance(each, HttpProblem)]
    assert [each.code for each in refused] == ["quota-exceeded"] * 3


async def test_a_stored_session_counts_once_before_it_is_open(pair):
    first, _ = pair
    limits = Settings(sessions=2)
    first.registry.quota = lambda tenant: limits
    add, stored, go_on = first.registry._stored.add, asyncio.Event(), asyncio.Event()

    async def slow_add(*args: Any) -> None:
        await add(*args)
        stored.set()
        await go_on.wait()

    first.registry._stored.add = slow_add
    slow = asyncio.create_task(opened(first))
    await stored.wait()
    first.registry._stored.add = add

    await opened(first)

    go_on.set()
    await slow


@pytest.mark.usefixtures("small_entries")
@pytest.mark.parametrize("limits", [Settings(session_bytes=20), Settings(sessions=2)], ids=["bytes", "number"])
async def test_requests_to_two_processes_at_the_same_time_share_the_quotas(pair, limits):
    """Sessions of the fake workers have 8 bytes each."""
    for process in pair:
        process.registry.quota = lambda tenant: limits

    found = await asyncio.gather(*(opened(pair[i % 2]) for i in range(6)), return_exceptions=True)

    assert [each.code for each in found if isinstance(each, HttpProblem)] == ["quota-exceeded"] * 4
    assert len([*pair[0].objects.keys("journal")]) == 2
    assert sum(len(held) for process in pair for held in process.pool.held.values()) == 2
