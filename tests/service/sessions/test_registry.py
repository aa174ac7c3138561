"""The registry of sessions with a fake engine that the test controls, for cases that depend on timing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import service.sessions.registry as registry_module
from service.engine import DeadlineExceeded, NoCapacity, RemoteError, Reply, WorkerLost
from service.http.tensor_payloads import Answer
from service.http.worker_calls import Calls
from service.problems import HttpProblem
from service.sessions.creation import Creation, Terms
from service.sessions.registry import SessionRegistry, Write
from service.sessions.replay import History, stored_answers
from service.sessions.session import Session
from service.settings import Settings

CREATION = Creation("session.create", {}, {}, ("prg_1", b"{}"))


class Worker:
    """A fake engine with one worker whose sessions count steps. `before` and `after` run around each step."""

    def __init__(self) -> None:
        self.events: Counter[tuple[str, str]] = Counter()
        self.waiting = 0
        self.calls: list[str] = []
        self.held: dict[str, dict[str, int]] = {}
        self.programs: set[str] = set()
        self.before: Callable[[], Any] | None = None
        self.after: Callable[[], Any] | None = None
        self.lost: Callable[[str, str], None] = lambda worker, reason: None

    def on_worker_lost(self, callback: Callable[[str, str], None]) -> None:
        self.lost = callback

    def workers(self) -> list[Any]:
        return [type("Info", (), {"id": "wrk_1"})]

    async def call(
        self, op: str, args: dict, tensors: Any = None, *, worker: Any = None, deadline: float, **more: Any
    ) -> Reply:
        self.calls.append(op)
        if args.get("program_id") is not None and args["program_id"] not in self.programs:
            if "document" not in args:
                raise RemoteError("execution", "program_unknown", "not seen", {})
            self.programs.add(args["program_id"])
        if op == "session.create":
            self.held[args["id"]] = {"version": 0, "step": 0, "seq": 0}
            return Reply({"bytes": 0}, {}, {}, "wrk_1")
        if op == "session.delete":
            self.held.pop(args["id"], None)
            return Reply({}, {}, {}, "wrk_1")
        held = self.held[args["id"]]
        if op == "session.step":
            if self.before is not None:
                await self._maybe(self.before())
            held.update(version=held["version"] + 1, step=held["step"] + 1, seq=args["seq"])
            if self.after is not None:
                await self._maybe(self.after())
        return Reply(dict(held), {}, {}, "wrk_1")

    async def _maybe(self, result: Any) -> None:
        if asyncio.iscoroutine(result):
            await result


def test_a_session_that_opens_after_its_caller_has_left_is_handed_to_the_cleanup():
    async def scenario() -> list[Session]:
        worker = Worker()
        begun, go_on = asyncio.Event(), asyncio.Event()
        call = worker.call

        async def slow(op: str, *args: Any, **more: Any) -> Reply:
            begun.set()
            await go_on.wait()
            return await call(op, *args, **more)

        worker.call = slow  # type: ignore[method-assign]
        registry = SessionRegistry(Settings(), worker)  # type: ignore[arg-type]
        left: list[Session] = []

        async def cleanup(session: Session) -> None:
            left.append(session)

        about = {"loss": "loss", "targets": [], "optimizer": {}}
        opening = asyncio.create_task(
            registry.open(CREATION, Terms(60.0, about, job="job_1"), deadline=10.0, left=cleanup)
        )
        await begun.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert left == []
        go_on.set()
        await asyncio.sleep(0.01)
        return left

    (session,) = asyncio.run(scenario())
    assert session.job == "job_1"


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def registry(worker: Worker) -> SessionRegistry:
    return SessionRegistry(Settings(sessions=2, session_pipeline=1), worker)  # type: ignore[arg-type]


@pytest.fixture
async def session(registry: SessionRegistry) -> Session:
    return await registry.open(CREATION, Terms(60, {}), deadline=1)


async def step(registry: SessionRegistry, session: Session, seq: int | None, body: str = "a") -> tuple[Answer, bool]:
    async def render(reply: Reply) -> Answer:
        return Answer((f"{body} {reply.result['seq']}".encode(),), "text/plain")

    return await registry.write(session, Write("session.step", {}, {}, seq, body), 5.0, render)


async def refused(code: str, work: Any) -> HttpProblem:
    with pytest.raises(HttpProblem) as caught:
        await work
    assert caught.value.code == code, caught.value
    return caught.value


pytestmark = pytest.mark.anyio


async def test_a_step_whose_answer_was_lost_is_not_executed_again(registry, session, worker):
    worker.after = failing(DeadlineExceeded("late", waited=False))
    with pytest.raises(DeadlineExceeded, match="may have taken effect"):
        await step(registry, session, 1)
    worker.after = None

    problem = await refused("sequence-conflict", step(registry, session, 1))

    assert problem.extensions == {"expected_seq": 2, "weights_version": "e1.v1"}
    assert (await step(registry, session, 2))[0].parts == (b"a 2",)
    assert worker.held[session.id]["step"] == 2


async def test_a_step_stopped_before_its_update_can_be_sent_again(registry, session, worker):
    worker.before = failing(DeadlineExceeded("late", waited=False))
    with pytest.raises(DeadlineExceeded):
        await step(registry, session, 1)
    worker.before = None
    assert (await step(registry, session, 1))[1] is False
    assert worker.held[session.id]["step"] == 1


async def test_a_disconnected_client_gets_its_answer_with_the_next_try(registry, session, worker):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await go_on.wait()

    worker.before = wait
    first = asyncio.create_task(step(registry, session, 1))
    await begun.wait()
    first.cancel()
    go_on.set()

    answer, replayed = await step(registry, session, 1)

    assert (answer.parts, replayed) == ((b"a 1",), True)
    assert worker.held[session.id]["step"] == 1


async def test_a_lost_worker_ends_its_sessions_and_reports_their_position(registry, session, worker):
    await step(registry, session, 1)
    worker.before = failing(WorkerLost("wrk_1", "killed"))
    problem = await refused("worker-lost", step(registry, session, 2))
    assert (problem.status, problem.retryable) == (503, True)
    assert problem.extensions["expected_seq"] == 2
    assert (await refused("gone", step(registry, session, 2))).status == 410
    await registry.close("local", session.id)
    assert worker.calls.count("session.delete") == 0
    await refused("gone", step(registry, session, 2))


async def test_lost_sessions_do_not_count_as_open(registry, session, worker):
    await registry.open(CREATION, Terms(60, {}), deadline=1)
    await refused("quota-exceeded", registry.open(CREATION, Terms(60, {}), deadline=1))
    assert await registry.uses_program("local", "prg_1") != []
    worker.lost("wrk_1", "killed")
    assert await registry.uses_program("local", "prg_1") == []
    await registry.open(CREATION, Terms(60, {}), deadline=1)


async def test_a_session_that_failed_to_close_stays_open(registry, session, worker):
    call = worker.call

    async def busy(op: str, *args: Any, **more: Any) -> Reply:
        if op == "session.delete":
            raise NoCapacity("stopping")
        return await call(op, *args, **more)

    worker.call = busy
    with pytest.raises(NoCapacity):
        await registry.close("local", session.id)
    assert await registry.find("local", session.id) is session


async def test_a_close_is_told_only_after_the_running_step_and_the_deletion(registry, session, worker):
    go_on = asyncio.Event()
    told: list[str | None] = []
    registry.closed = lambda key: told.append(registry.why_closed(key))
    worker.before = go_on.wait
    stepping = asyncio.create_task(step(registry, session, 1))
    await asyncio.sleep(0.01)

    closing = asyncio.create_task(registry.close("local", session.id))
    await asyncio.sleep(0.01)

    assert registry.why_closed(session.key) is None
    go_on.set()
    await asyncio.gather(stepping, closing)
    assert told == ["was deleted"]
    assert registry.why_closed(session.key) == "was deleted"


async def test_the_watch_goes_on_after_an_unexpected_error(registry, monkeypatch):
    sweeps = 0
    again = asyncio.Event()

    async def sweep() -> None:
        nonlocal sweeps
        sweeps += 1
        if sweeps > 1:
            again.set()
        raise RuntimeError("a defect")

    monkeypatch.setattr(registry_module, "SWEEP_S", 0.001)
    monkeypatch.setattr(registry, "sweep", sweep)
    watching = asyncio.create_task(registry.watch())
    async with asyncio.timeout(5):
        await again.wait()
    watching.cancel()


async def test_a_program_is_sent_only_to_a_worker_that_lacks_it(worker):
    calls = Calls(worker)  # type: ignore[arg-type]
    worker.held["s"] = {}
    for _ in range(2):
        await calls.with_program("any", "prg_2", {"blocks": []}, {"id": "s"}, deadline=1)
    assert len(worker.calls) == 3


async def test_large_answers_are_dropped_oldest_first():
    history = History()
    for seq in range(1, 5):
        history.add(seq, "d", Answer((bytes(30 * 2**20),), "x"))
    kept = [history.get(seq) for seq in range(1, 5)]
    assert [each is not None and each.answer is not None for each in kept] == [False, False, True, True]
    assert all(each is not None and each.digest == "d" for each in kept)


async def test_sessions_share_one_bound_of_stored_answers():
    stored = stored_answers(limit=5)
    first, second = History(stored), History(stored)
    for seq in (1, 2):
        first.add(seq, "d", Answer((b"22",), "x"))
    second.add(1, "d", Answer((b"22",), "x"))

    held = [first.get(1), first.get(2), second.get(1)]
    assert [each is not None and each.answer is not None for each in held] == [False, True, True]
    first.clear()
    assert (first.get(2), len(stored)) == (None, 1)
