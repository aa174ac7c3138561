"""Lines between tenants: each waits for at most one call of another that has more."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from service.caller import acting_for
from service.engine.dispatch import Dispatcher, Slot
from service.engine.protocol import QueueFull
from service.http.admission import Gate, Ticket

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Workers:
    """A dispatcher of idle workers. served: the tenants of the calls, in the order in which they got a worker."""

    def __init__(self, count: int, queue: int) -> None:
        self.slots = [Slot(index, None) for index in range(count)]  # type: ignore[arg-type]
        for slot in self.slots:
            lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            slot.process = SimpleNamespace(id=f"wrk_{slot.index}", lost=lost, sessions=0)  # type: ignore[assignment]
            slot.status = "idle"
        self.dispatcher = Dispatcher(self.slots, queue)
        self.served: list[str] = []
        self.running: list[Slot] = []
        self.tasks: list[asyncio.Task[Any]] = []

    async def call(self, tenant: str, worker: str | None = None) -> asyncio.Task[Any]:
        async def calling() -> None:
            with acting_for(tenant):
                slot = await self.dispatcher.acquire(worker, asyncio.get_running_loop().time() + 1000)
            self.served.append(tenant)
            self.running.append(slot)

        task = asyncio.create_task(calling())
        self.tasks.append(task)
        await settle()
        return task

    async def end_one(self) -> None:
        self.dispatcher.release(self.running.pop(0), 0.01)
        await settle()


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.mark.parametrize("lines", [(None,), ("wrk_0",), (None, "wrk_0")], ids=["any", "one worker", "both"])
async def test_a_single_call_waits_for_the_running_one_alone(lines):
    workers = Workers(1, 500)
    for i in range(200):
        await workers.call("heavy", lines[i % len(lines)])
    await workers.call("light", lines[-1])
    await workers.end_one()
    assert workers.served == ["heavy", "light"]


async def test_tenants_with_waiting_calls_take_turns_and_keep_their_own_order():
    """Any order of arrival: no tenant that waits sees another served twice."""
    for seed in range(20):
        draw = random.Random(seed)
        workers = Workers(draw.randint(1, 3), 500)
        waiting: Counter[str] = Counter()
        arrived = [draw.choice("aaaab") + ("" if draw.random() < 0.8 else "c") for _ in range(60)]
        for tenant in arrived:
            await workers.call(tenant)
        first = len(workers.served)
        waiting.update(arrived)
        waiting.subtract(workers.served)
        while len(workers.served) < len(arrived):
            await workers.end_one()
        since: dict[str, Counter[str]] = {tenant: Counter() for tenant in waiting}
        for tenant in workers.served[first:]:
            for other in waiting:
                if other != tenant and waiting[other] > 0:
                    since[other][tenant] += 1
                    assert since[other][tenant] <= 1, (seed, other, tenant)
            since[tenant].clear()
            waiting[tenant] -= 1


async def test_calls_of_one_tenant_run_in_order_of_arrival_over_both_lines():
    workers = Workers(1, 500)
    tasks = [await workers.call("a", line) for line in (None, None, "wrk_0", None, "wrk_0", "wrk_0", None)]
    ended = [tasks.index(task) for task in tasks if task.done()]
    while len(ended) < len(tasks):
        await workers.end_one()
        ended += [i for i, task in enumerate(tasks) if task.done() and i not in ended]
    assert ended == list(range(len(tasks)))


async def test_a_full_queue_takes_a_call_of_a_tenant_with_few_in_place_of_the_last_of_the_one_with_most():
    workers = Workers(1, 4)
    heavy = [await workers.call("heavy") for _ in range(5)]  # one runs, four wait
    refused = await workers.call("heavy")
    assert isinstance(refused.exception(), QueueFull)
    light = await workers.call("light")
    assert isinstance(heavy[-1].exception(), QueueFull)
    await workers.end_one()
    assert light.done()
    assert workers.served == ["heavy", "light"]
    for _ in range(3):
        await workers.end_one()
    assert all(task.done() for task in heavy)


async def test_canceled_calls_leave_their_line():
    workers = Workers(1, 10)
    await workers.call("a")
    waiting = [await workers.call(tenant) for tenant in "aabb"]
    for task in waiting[:3]:
        task.cancel()
    await settle()
    assert workers.dispatcher.waiting == 1
    await workers.end_one()
    assert workers.served == ["a", "b"]
    assert waiting[3].done()


# --- gates --------------------------------------------------------------------------------------------------------


def visit(gate: Gate, tenant: str, log: list[str]) -> Ticket:
    ticket = Ticket(gate, lambda: log.append(tenant), 1, tenant)
    if gate.enter(ticket, lambda _: log.append(f"{tenant} refused")):
        ticket.start()
    return ticket


async def test_a_tenant_with_few_requests_passes_a_gate_that_another_fills():
    log: list[str] = []
    gate = Gate(10, "calls", shared=True)
    for _ in range(50):
        visit(gate, "heavy", log)
    assert log == ["heavy"] * 10
    for _ in range(8):
        visit(gate, "light", log)
    assert log[10:] == ["light"] * 5
    for tenant in "cdefghijklmnop":
        for _ in range(10):
            visit(gate, tenant, log)
    assert gate.inside <= 20  # twice the limit, whatever the number of tenants


async def test_one_tenant_alone_has_the_whole_gate_and_no_more():
    log: list[str] = []
    gate = Gate(10, "calls", shared=True)
    for _ in range(50):
        visit(gate, "only", log)
    assert gate.inside == 10


async def test_requests_that_wait_at_a_gate_pass_by_turns():
    log: list[str] = []
    gate = Gate(1, "calls")
    tickets = [visit(gate, tenant, log) for tenant in "aaaabb"]
    while any(ticket.state == "inside" for ticket in tickets):
        next(ticket for ticket in tickets if ticket.state == "inside").release()
    assert "".join(log) == "ababaa"
