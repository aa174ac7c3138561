"""Sessions under random faults against an uninterrupted twin: no answered call is lost or done twice.

Each example is a random sequence of calls, kills of workers, ends and restarts of the service process, failures of the
store, parking and checkpoints. The client repeats a request with its number until it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.engine import EngineError, RemoteError
from service.objects import Objects
from service.problems import HttpProblem
from service.sessions.creation import Creation, Terms
from service.sessions.registry import Write
from service.sessions.session import Session
from service.settings import Settings
from service.store.store import Store
from tests.service.prepared import prepared
from tests.service.sessions.fake_service import Faults, Model, Process, tensor

pytestmark = pytest.mark.anyio

CALLS = 30
FORM = {"as_file": False, "members": {}}
PROGRAM = ("prg_1", b'{"blocks": []}')


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory where the system has such a place: thousands of commits would wait for the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as made:
        yield Path(made)


@pytest.fixture(scope="module")
async def store(folder: Path) -> AsyncIterator[Store]:
    made = Store(folder)
    await made.open()
    yield made
    await made.close()


class Client:
    """Sends calls to a session until they are answered, and compares each answer with that of the twin."""

    def __init__(self, rng: random.Random, store: Store, objects: Objects, shared: bool) -> None:
        self.rng = rng
        self.faults = Faults(rng)
        self.twin = Model(weight=rng.randrange(1, 100))
        self.id = ""
        self.about = {"optimizer": {"rate": self.twin.rate}}
        self.answers: dict[int, tuple[Write, dict[str, Any]]] = {}
        self._tasks_before = asyncio.all_tasks()
        self._store, self._objects, self._shared = store, objects, shared
        self.ended: list[Process] = []
        self.processes = [self._started() for _ in range(3 if shared else 1)]

    def _started(self) -> Process:
        settings = Settings(journal_entries=self.rng.choice([3, 8, 1000]), step_deadline=5.0)
        return Process(self._store, self._objects, self.faults, settings, self._shared)

    def restart(self, at: int | None = None) -> None:
        """End one process at once, and start another. at: its place; by default any."""
        at = self.rng.randrange(len(self.processes)) if at is None else at
        self.processes[at].end()
        self.ended.append(self.processes[at])
        self.processes[at] = self._started()

    @property
    def registry(self) -> Any:
        return self.rng.choice(self.processes).registry

    async def open(self) -> None:
        given = {"w": tensor(self.twin.weight)}
        session = await self.registry.open(
            Creation("session.create", {"query": {}}, given, PROGRAM),
            Terms(1e6, dict(self.about), "journal"),
            deadline=5.0,
        )
        self.id = session.id

    async def until_answered(self, call: Any) -> Any:
        """The result of `call(registry, session)`, made again after each failure that allows it."""
        for _ in range(500):
            at = self.rng.randrange(len(self.processes))
            task = asyncio.ensure_future(self._made(self.processes[at].registry, call))
            if self.rng.random() < self.ends:
                for _ in range(self.rng.randrange(12)):
                    await asyncio.sleep(self.rng.choice([0, 0.0005]))
                if not task.done():
                    self.restart(at)  # this one: what a living process has begun may take effect later
                    await asyncio.sleep(0.002)
                    if not task.done():
                        task.cancel()
            try:
                return await task
            except HttpProblem as problem:
                if problem.code in ("sequence-conflict", "sequence-gap", "not-found", "gone", "rolled-back"):
                    raise
                assert problem.status in (503, 507), problem
            except RemoteError as error:
                if error.kind != "memory":
                    raise
            except (EngineError, asyncio.CancelledError):
                pass
        raise AssertionError("no call is answered")

    async def _made(self, registry: Any, call: Any) -> Any:
        return await call(registry, await registry.find("local", self.id))

    ends = 0.0

    async def numbered(self, op: str, args: dict[str, Any], x: int) -> None:
        """A numbered call, repeated until it is answered."""
        seq = self.twin.seq + 1
        write = Write(op, args, {"x": tensor(x)}, seq, f"{op} {args} {x} {seq}", None, FORM)
        try:
            answer, _ = await self.until_answered(lambda registry, session: registry.write(session, write, 5.0))
        except HttpProblem as problem:
            assert problem.code == "sequence-conflict" and "not stored any more" in problem.detail, problem
            step = (await self.seen()).step
            taken = step - self.twin.step if op == "session.step" else None
            self.twin.apply(op, {**args, "seq": seq}, x, taken)
            return
        found = shown(answer)
        expected = self.twin.apply(op, {**args, "seq": seq}, x, found.get("applied"))
        wanted = {name: value for name, value in expected.items() if name not in ("version", "optimizer", "stopped")}
        assert {name: found[name] for name in wanted} == wanted, (found, wanted)
        self.answers[seq] = write, found

    async def refused(self, x: int) -> None:
        """A call that the worker refuses changes nothing, and leaves its number free."""
        write = Write(
            "session.step", {"refused": True}, {"x": tensor(x)}, self.twin.seq + 1, f"refused {x}", None, FORM
        )
        with pytest.raises(RemoteError, match="refused"):
            await self.until_answered(lambda registry, session: registry.write(session, write, 5.0))

    async def changed(self, op: str, args: dict[str, Any], x: int) -> None:
        """A change without a number; all of them may be repeated."""
        given = {"x": tensor(x)} if op == "session.put_parameters" else {}

        async def call(registry: Any, session: Session) -> Any:
            return await registry.change(session, op, lambda session: args, given, lambda etag: True, 5.0)

        await self.until_answered(call)
        self.twin.apply(op, args, x)

    async def repeat(self) -> None:
        """Send an answered request again: the answer is the stored one."""
        recent = [seq for seq in self.answers if seq > self.twin.seq - 60]
        if recent:
            write, first = self.answers[self.rng.choice(recent)]
            answer, replayed = await self.until_answered(lambda registry, s: registry.write(s, write, 5.0))
            assert (shown(answer), replayed) == (first, True)

    async def seen(self) -> Session:
        """The session in the process that holds it: only there its position is exact."""

        async def call(registry: Any, session: Session) -> Session:
            await registry.read(session, "session.get", {}, {}, 5.0)
            return await registry.seen("local", self.id, 5.0)

        return await self.until_answered(call)

    async def check(self) -> None:
        """The values in the worker are those of the twin."""
        reply = await self.until_answered(lambda registry, s: registry.read(s, "session.get", {}, {}, 5.0))
        same = ("weight", "moment", "total", "accumulated", "rate", "step", "seq")
        assert {name: reply.result[name] for name in same} == {name: getattr(self.twin, name) for name in same}

    async def disturb(self) -> None:
        """Kill a worker, park or save the session, end the process, or sweep."""
        process = self.rng.choice(self.processes)
        registry, event = process.registry, self.rng.randrange(5)
        with contextlib.suppress(EngineError, HttpProblem):
            if event == 0:
                process.pool.kill(self.rng.choice(list(process.pool.held)))
            elif event == 1:
                self.restart()
            elif event == 2:
                session = registry.held("local", self.id)
                if session is not None:
                    await registry._saver.park(session)
            elif event == 3:
                await registry._turns.alone(
                    await registry.find("local", self.id), 5.0, lambda session, _: registry._saver.save(session)
                )
            else:
                await registry.sweep()

    def end(self) -> None:
        """End all processes, and what they left running."""
        for process in (*self.ended, *self.processes):
            process.end()
        for task in asyncio.all_tasks() - self._tasks_before:
            task.cancel()


def shown(answer: Any) -> dict[str, Any]:
    found = json.loads(b"".join(answer.parts))
    return {name: value for name, value in found.items() if name not in ("timing_ms", "weights_version")}


async def one_call(client: Client) -> None:
    rng, x = client.rng, client.rng.randrange(1000)
    kind = rng.randrange(11)
    if kind < 4:
        await client.numbered("session.step", {}, x)
    elif kind == 4:
        await client.numbered("session.step", {"batches": rng.randrange(1, 6)}, x)
    elif kind == 5:
        await client.numbered("session.gradients", {"accumulate": True}, x)
    elif kind == 6:
        await client.numbered("session.update", {}, x)
    elif kind == 7:
        op = rng.choice(["session.discard", "session.put_parameters"])
        await client.changed(op, {}, x)
    elif kind == 8:
        await client.changed("session.configure", {"rate": rng.randrange(2, 9), "shown": {}}, 0)
    elif kind == 9:
        await client.refused(x)
    else:
        await client.repeat()


async def example(seed: int, store: Store, folder: Path, shared: bool = False) -> None:
    rng = random.Random(seed)
    client = Client(rng, store, prepared(str(folder / "objects")), shared)
    await client.open()
    if rng.random() < 0.9:
        client.faults.kill = rng.choice([0.0, 0.02, 0.05])
        client.faults.late, client.faults.store, client.faults.full, client.faults.stop = (
            rng.choice([0.0, 0.03, 0.1]) for _ in range(4)
        )
        client.ends = rng.choice([0.0, 0.05, 0.2])
    try:
        for _ in range(CALLS):
            await one_call(client)
            if rng.random() < 0.3:
                await client.disturb()
            if rng.random() < 0.1:
                await client.check()
        client.faults.clear()
        client.ends = 0.0
        await client.check()
        assert (await client.seen()).step == client.twin.step
    finally:
        client.end()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(12))
async def test_no_answered_call_is_lost_or_done_twice(seed: int, store: Store, folder: Path) -> None:
    await example(seed, store, folder)


async def test_processes_that_share_postgresql_never_both_continue_a_session(postgres_url: str, folder: Path) -> None:
    store = Store(None, postgres_url)
    await store.open()
    try:
        for seed in range(4):
            await example(seed, store, folder, shared=True)
    finally:
        await store.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(8))
async def test_processes_that_share_a_store_never_both_continue_a_session(
    seed: int, store: Store, folder: Path
) -> None:
    await example(seed, store, folder, shared=True)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
async def test_no_answered_call_is_lost_in_many_examples(shared: bool, store: Store, folder: Path) -> None:
    for seed in range(1000, 1300):
        await example(seed, store, folder, shared)
