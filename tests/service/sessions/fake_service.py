"""Workers that compute with plain numbers, and a service process that a test can end at any moment.

A step multiplies and adds, so that a lost, doubled or reordered call changes every later number.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from service.engine import DeadlineExceeded, QueueFull, RemoteError, Reply, WorkerLost
from service.objects import Objects
from service.sessions.registry import SessionRegistry
from service.sessions.session import SESSIONS
from service.settings import Settings
from service.store.errors import StorageUnavailable
from service.store.store import Store

__all__ = ["Faults", "Model", "Process", "Workers", "tensor"]

MODULUS = 2**61 - 1
SHORT_S = 5.0  # calls with longer deadlines are never late


@dataclass
class Model:
    """The state of one session, and its calls."""

    weight: int = 1
    moment: int = 0
    total: int = 0
    accumulated: int = 0
    rate: int = 3
    step: int = 0
    version: int = 0
    seq: int = 0

    def about(self) -> dict[str, Any]:
        return {"version": self.version, "step": self.step, "seq": self.seq, "accumulated": self.accumulated}

    def apply(self, op: str, args: dict[str, Any], x: int, stop_after: int | None = None) -> dict[str, Any]:
        """Run a call that changes the session; its result. stop_after: number of steps, of several, that are taken."""
        done: dict[str, Any] = {}
        if op == "session.step":
            count = args.get("batches") or 1
            taken = min(count, args.get("only", count), count if stop_after is None else stop_after)
            for i in range(taken):
                self.moment = (self.moment * 5 + x + i) % MODULUS
                self.weight = (self.weight * self.rate + self.moment) % MODULUS
            self.step += taken
            self.version += taken
            done = {"loss": self.weight, "applied": taken}
            if args.get("batches"):
                done["stopped"] = (
                    None
                    if taken == count or "only" in args
                    else {
                        "code": "deadline_exceeded",
                        "detail": "late",
                        "batch": taken,
                    }
                )
        elif op == "session.gradients":
            self.total, self.accumulated = (self.total * 7 + x) % MODULUS, self.accumulated + 1
            self.version += bool(args.get("writes_states"))
            done = {"total": self.total}
        elif op == "session.update":
            self.weight = (self.weight * 11 + self.total + x) % MODULUS
            self.total = self.accumulated = 0
            self.step += 1
            self.version += 1
            done = {"weight": self.weight}
        elif op == "session.discard":
            self.total = self.accumulated = 0
        elif op == "session.put_parameters":
            self.weight, self.version = x, self.version + 1
        elif op == "session.configure":
            self.rate, self.version = args["rate"], self.version + 1
            done = {"optimizer": {"rate": self.rate}}
        if args.get("seq"):
            self.seq = args["seq"]
        return {**done, **self.about()}


@dataclass
class Faults:
    """What goes wrong, by probability. kill: of a worker during a call; late: an answer that comes too late; store: a
    write that fails; full: a worker without memory for another session; stop: of a call between its steps."""

    rng: random.Random
    kill: float = 0.0
    late: float = 0.0
    store: float = 0.0
    full: float = 0.0
    stop: float = 0.0

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        self.kill = self.late = self.store = self.full = self.stop = 0.0

    def hit(self, name: str) -> bool:
        return self.rng.random() < getattr(self, name)


class Workers:
    """A fake engine with two workers. Killed workers are replaced at once."""

    def __init__(self, objects: Objects, faults: Faults) -> None:
        self.events: Counter[tuple[str, str]] = Counter()
        self.waiting = 0
        self.calls: Counter[str] = Counter()
        self.faults = faults
        self._objects = objects
        self._made = 0
        self.held: dict[str, dict[str, Model]] = {}
        self._lost: list[Callable[[str, str], None]] = []
        for _ in range(2):
            self._start()

    def _start(self) -> None:
        self._made += 1
        self.held[f"wrk_{self._made}"] = {}

    def on_worker_lost(self, callback: Callable[[str, str], None]) -> None:
        self._lost.append(callback)

    def workers(self) -> list[Any]:
        return [type("Info", (), {"id": worker}) for worker in self.held]

    def kill(self, worker: str) -> None:
        if self.held.pop(worker, None) is not None:
            self._start()
            for callback in self._lost:
                callback(worker, "killed")

    async def call(
        self, op: str, args: dict, tensors: Any = None, *, worker: Any = None, deadline: float, **more: Any
    ) -> Reply:
        self.calls[op] += 1
        await asyncio.sleep(0)
        if worker is None:
            worker = min(self.held, key=lambda each: len(self.held[each]))
        if worker not in self.held:
            raise WorkerLost(worker, "it was replaced", began=False)
        if self.faults.hit("kill"):
            self.kill(worker)
            raise WorkerLost(worker, "killed before the call")
        if deadline <= SHORT_S and self.faults.hit("late"):
            if self.faults.rng.random() < 0.3:
                raise QueueFull("the queue is full")
            raise DeadlineExceeded("late", waited=self.faults.rng.random() < 0.5)
        result = self._run(op, args, tensors or {}, self.held[worker], deadline <= SHORT_S)
        await asyncio.sleep(0)
        if self.faults.hit("kill"):
            self.kill(worker)
            raise WorkerLost(worker, "killed after the call")
        if worker not in self.held:
            raise WorkerLost(worker, "killed")
        lasting = op in ("session.create", "session.restore", "session.delete", "session.save")
        if deadline <= SHORT_S and not lasting and self.faults.hit("late"):
            raise DeadlineExceeded("late", waited=False)
        return Reply(result, {}, {"compute": 1.0}, worker)

    def _run(self, op: str, args: dict, tensors: dict, held: dict[str, Model], stops: bool) -> dict[str, Any]:
        id = args["id"]
        if op in ("session.create", "session.restore"):
            if self.faults.hit("full"):
                raise RemoteError("memory", "out_of_memory", "full", {})
            model = Model()
            if op == "session.restore":
                model = Model(**json.loads(self._objects.read(args["key"])))
            elif "w" in tensors:
                model.weight = int(tensors["w"][0])
            held[id] = model
            return {**model.about(), "bytes": 8}
        if op == "session.delete":
            held.pop(id, None)
            return {}
        if id not in held:
            raise AssertionError(f"{op} of a session that the worker does not have")
        model = held[id]
        if op == "session.save":
            written = self._objects.write(args["key"], [json.dumps(vars(model)).encode()])
            return {**model.about(), "sha256": written.sha256, "size": written.size, "bytes": 8}
        if op == "session.describe":
            return model.about() | {"optimizer": {"rate": model.rate}}
        if op == "session.get":
            return {**vars(model)}
        if args.get("refused"):
            raise RemoteError("execution", "execution_failed", "refused", {"problems": []})
        x = int(tensors["x"][0]) if "x" in tensors else 0
        stop = self.faults.rng.randrange(1, 4) if stops and self.faults.hit("stop") else None
        return model.apply(op, args, x, stop)


@dataclass
class Process:
    """One process of the service: a registry over a shared store, which can end at any moment."""

    store: Store
    objects: Objects
    faults: Faults
    settings: Settings
    shared: bool = False
    dead: bool = False
    registry: SessionRegistry = field(init=False)
    pool: Workers = field(init=False)

    def __post_init__(self) -> None:
        self.pool = Workers(self.objects, self.faults)
        self.registry = SessionRegistry(self.settings, self, None, SESSIONS, self, self.objects)  # type: ignore[arg-type]

    def end(self) -> None:
        """End as by SIGKILL: calls and writes that have not begun never happen."""
        self.dead = True

    async def _alive(self) -> None:
        if self.dead:
            await asyncio.Event().wait()

    # As an engine

    @property
    def events(self) -> Counter[tuple[str, str]]:
        return self.pool.events

    waiting = 0

    def on_worker_lost(self, callback: Callable[[str, str], None]) -> None:
        self.pool.on_worker_lost(callback)

    def workers(self) -> list[Any]:
        return self.pool.workers()

    async def call(self, *args: Any, **more: Any) -> Reply:
        await self._alive()
        try:
            return await self.pool.call(*args, **more)
        finally:
            await self._alive()

    # As a store

    @property
    def is_sqlite(self) -> bool:
        return not self.shared

    async def read(self, work: Any) -> Any:
        await self._alive()
        found = await self.store.read(work)
        await self._alive()
        return found

    async def write(self, work: Any) -> Any:
        await self._alive()
        if self.faults.hit("store"):
            if self.faults.rng.random() < 0.5:
                await self.store.write(work)
            raise StorageUnavailable("the store failed")
        found = await self.store.write(work)
        await self._alive()
        return found


def tensor(x: int) -> np.ndarray:
    return np.array([x], np.int64)
