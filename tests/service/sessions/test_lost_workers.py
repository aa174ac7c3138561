"""Calls of stored sessions whose workers end: which are repeated, and which are given up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from service.engine import WorkerLost
from service.problems import HttpProblem
from service.sessions.changes import Write
from service.sessions.creation import Creation, Terms
from tests.service.sessions.fake_service import Process, tensor

pytestmark = pytest.mark.anyio


@pytest.fixture
async def id(process: Process) -> str:
    about: dict[str, Any] = {"optimizer": {"rate": 3}}
    session = await process.registry.open(
        Creation("session.create", {"query": {}}, {"w": tensor(1)}, ("prg_1", b"{}")),
        Terms(100.0, about, "journal"),
        deadline=60.0,
    )
    return session.id


@pytest.fixture
def lose(process: Process, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, bool], None]:
    """lose(op, times, began): let the workers of the next calls of `op` end, while these run or while they wait.

    The first step is left out.
    """
    call = process.pool.call

    def losing(op: str, times: int, began: bool) -> None:
        left = times

        async def lost(name: str, args: dict[str, Any], *more: Any, **named: Any) -> Any:
            nonlocal left
            if name != op or args.get("seq") == 1 or not left:
                return await call(name, args, *more, **named)
            left -= 1
            process.pool.kill(named["worker"])
            raise WorkerLost(named["worker"], "killed", began=began)

        monkeypatch.setattr(process.pool, "call", lost)

    return losing


async def step(process: Process, id: str) -> int:
    """The step of the session after one more."""
    write = Write("session.step", {}, {}, None, "", None, {"as_file": False, "members": {}})
    await process.registry.write(await process.registry.find("local", id), write, 60.0)
    held = process.registry.held("local", id)
    assert held is not None
    return held.step


async def read(process: Process, id: str) -> int:
    """The step of the session as its worker tells it."""
    reply = await process.registry.read(await process.registry.find("local", id), "session.get", {}, {}, 60.0)
    return reply.result["step"]


CALLS: list[tuple[str, Callable[[Process, str], Awaitable[int]]]] = [("session.step", step), ("session.get", read)]


@pytest.mark.parametrize(("op", "call"), CALLS)
async def test_a_call_that_ends_two_workers_is_given_up_and_changes_nothing(process, id, lose, op, call):
    await step(process, id)
    lose(op, 2, began=True)

    with pytest.raises(HttpProblem) as caught:
        await call(process, id)

    assert (caught.value.code, caught.value.retryable) == ("worker-lost", False)
    assert process.registry.held("local", id).step == 1
    assert await step(process, id) == 2


@pytest.mark.parametrize(("op", "call"), CALLS)
async def test_a_call_that_waited_while_its_workers_ended_is_made_again(process, id, lose, op, call):
    """Other calls ended them."""
    await step(process, id)
    lose(op, 4, began=False)

    assert await call(process, id) == (2 if op == "session.step" else 1)
