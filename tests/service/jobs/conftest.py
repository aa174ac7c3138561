"""Jobs on sessions in a worker state of this process, with a real store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

import service.jobs.runner as runner_module
import service.jobs.store as store_module
import service.jobs.training as training_module
from core.ir.errors import CoreError, ProgramError
from service import caller
from service.engine import RemoteError, Reply
from service.http.tensor_payloads import Answer
from service.ids import new_id
from service.jobs import Job, JobStore, Runner, Spec
from service.objects.tensor_file import chunks
from service.problems import HttpProblem
from service.sessions.replay import Answered
from service.store.store import Store
from service.worker import fit
from tests.service.prepared import prepared
from tests.service.worker.test_fit import COLUMNS, KEY, ROWS, Side, classifier

__all__ = ["Clock", "FakeSessions", "House", "described"]


def described(size: int = 8, *, holdout: int = 0, drop: bool = False) -> dict[str, Any]:
    data = {"key": KEY, "rows": ROWS, "columns": {"x": ["x"], "label": ["label"]}, "batch_size": size}
    return {**data, "drop_last": drop, "shuffle": True, "seed": 9, "holdout": holdout}


class FakeSessions:
    """Numbered calls of sessions in this process: each seq once, with its answer kept.

    before, after: called around each call of a worker, with the name of the call; they may raise.
    """

    def __init__(self) -> None:
        self.sides: dict[str, Side] = {}
        self.open: dict[str, SimpleNamespace] = {}
        self.answers: dict[tuple[str, int], tuple[str, Answer | None]] = {}
        self.before: Callable[[str], Any] = lambda op: None
        self.after: Callable[[str], Any] = lambda op: None
        self.calls: list[tuple[str, int]] = []
        self.callers: list[str] = []
        self.seconds = 0.0

    def add(self, side: Side, tenant: str = "local") -> str:
        id = new_id("ses_")
        history = SimpleNamespace(get=lambda seq: self._kept(id, seq))
        self.open[id] = SimpleNamespace(id=id, tenant=tenant, seq=0, step=0, job=None, history=history)
        self.sides[id] = side
        return id

    def _kept(self, id: str, seq: int) -> Answered | None:
        found = self.answers.get((id, seq))
        return None if found is None else Answered(*found)

    async def find(self, tenant: str, id: str) -> Any:
        if id not in self.open or self.open[id].tenant != tenant:
            raise HttpProblem("gone", "the session was deleted")
        return self.open[id]

    def held(self, tenant: str, id: str) -> Any:
        return self.open.get(id)

    def _run(self, session: Any, op: str, args: dict[str, Any]) -> Reply:
        handler = {"session.fit": fit.fit, "session.evaluate_on": fit.evaluate_on}[op]
        self.before(op)
        self.callers.append(caller.tenant())
        try:
            result, _ = handler(self.sides[session.id].state, {**args, "id": "s"}, {})
        except CoreError as error:
            kind = "program" if isinstance(error, ProgramError) else "execution"
            raise RemoteError(kind, error.code, error.message, {"code": error.code, "problems": []}) from error
        return Reply(result, {}, {"compute": 1.0}, "wrk_1")

    async def save(self, session: Any, deadline: float) -> None:
        self.before("session.save")

    async def read(self, session: Any, op: str, args: dict[str, Any], tensors: Any, deadline: float) -> Reply:
        self.calls.append((op, args["batches"]))
        return self._run(session, op, args)

    async def write(self, session: Any, write: Any, deadline: float) -> tuple[Answer, bool]:
        kept = self.answers.get((session.id, write.seq))
        if kept is not None and kept[0] == write.digest and kept[1] is not None:
            return kept[1], True
        if write.seq != session.seq + 1:
            raise HttpProblem("sequence-conflict", "used", expected_seq=session.seq + 1)
        self.calls.append((write.op, write.args["batches"]))
        reply = self._run(session, write.op, {**write.args, "seq": write.seq})
        session.seq, session.step = reply.result["seq"], reply.result["step"]
        document = {**reply.result, "timing_ms": reply.timing_ms}
        answer = Answer((orjson.dumps(document),), "application/json")
        self.answers[session.id, write.seq] = write.digest, answer
        self.after(write.op)
        return answer, False


class House:
    """A store, sessions, and runners over them."""

    def __init__(self, root: Path, store: Store) -> None:
        self.root, self.store, self.sessions = root, store, FakeSessions()
        self.saved: list[tuple[str, int]] = []
        self.replaced: list[list[int]] = []
        self.runners: list[Runner] = []
        prepared(str(root / "objects")).write(KEY, chunks(COLUMNS, {}))

    async def checkpointed(self, session: Any, job: Job, step: int, replaces: Collection[int] = ()) -> str:
        self.saved.append((job.id, step))
        self.replaced.append(sorted(replaces))
        return f"ckp_{step}"

    async def runner(self, limit: int = 2, chunk_s: float = 0.002, **more: Any) -> Runner:
        made = Runner(
            JobStore(self.store, new_id("api_")), self.sessions, self.checkpointed,
            limit=limit, longest_call=60.0, chunk_s=chunk_s, **more,
        )  # fmt: skip
        self.runners.append(made)
        await made.start()
        return made

    def side(self) -> Side:
        return Side(self.root, classifier())

    async def submit(self, runner: Runner, side: Side | None = None, tenant: str = "local", **more: Any) -> Job:
        side = side or self.side()
        session = self.sessions.add(side, tenant)
        priority = more.pop("priority", 5)
        given = {"program_id": "prg_1", "dataset_id": "dst_1", "loss": "loss", "data": described(), "steps": 30}
        given |= {"metrics": ["accuracy"], **more}
        every = given.pop("every", None) or fit.sampling_of(given["data"]).batches
        spec = Spec(every=every, **given)
        now = time.time()
        job = Job(new_id("job_"), tenant, session, spec, priority, now, now)
        await runner.jobs.add(job, [("state", {"state": "queued", "reason": None})])
        runner.wake()
        return job

    async def stop(self) -> None:
        for each in self.runners:
            await each.stop()

    def held(self, job: Job) -> dict[str, np.ndarray]:
        return self.sessions.sides[job.session].held()


class Clock:
    """Both clocks of jobs, in place of the module `time`. ahead: seconds by which a test has set them forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        return time.time() + self.ahead

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (store_module, training_module):
        monkeypatch.setattr(module, "time", found)
    return found


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr(runner_module, "FIRST_PAUSE_S", 0.002)
    monkeypatch.setattr(runner_module, "LONGEST_PAUSE_S", 0.01)
    store = Store(tmp_path)
    await store.open()
    found = House(tmp_path, store)
    yield found
    await found.stop()
    await store.close()
