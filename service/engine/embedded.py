"""The pool of worker processes on this machine.

Each slot has a supervisor that starts a process, watches it, and replaces it when it is lost. A call that fails takes
nobody with it: its worker is killed and replaced, calls on other workers go on. A call whose caller has gone, or
whose time is up, is first asked to stop through shared memory; only a worker that does not listen is killed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from service.engine.devices import plan_workers
from service.engine.dispatch import Dispatcher, Slot
from service.engine.process import Waiting, WorkerConfig, WorkerProcess
from service.engine.protocol import (
    NO_TENSORS,
    DeadlineExceeded,
    LostCallback,
    NoCapacity,
    PartCallback,
    QueueFull,
    RemoteError,
    Reply,
    WorkerInfo,
    WorkerLost,
)
from service.settings import Settings

__all__ = ["EmbeddedPool"]

log = logging.getLogger("backpass.engine")

DEFAULT_HANDLERS = "service.worker.handlers:HANDLERS"
OWN_ANSWER_S = 0.1  # a worker sees the deadline too, and its own answer says where in the program it was
MAX_BACKOFF_S = 5.0


class EmbeddedPool:
    """An `Engine` (see `protocol.py`) made of subprocesses of this process."""

    def __init__(self, settings: Settings, handlers: str = DEFAULT_HANDLERS) -> None:
        """handlers: "module:NAME" of the table that the workers serve."""
        self._settings = settings
        self._config = WorkerConfig(
            handlers=handlers,
            heartbeat=min(0.25, settings.heartbeat_timeout / 4),
            memory_limit=settings.worker_memory,
            settings=settings.model_dump(mode="json"),
        )
        self._slots: list[Slot] = []
        self._dispatcher = Dispatcher(self._slots, settings.queue_per_worker)
        self._supervisors: list[asyncio.Task[None]] = []
        self._stoppers: set[asyncio.Task[None]] = set()
        self._callbacks: list[LostCallback] = []
        self.events: Counter[tuple[str, str]] = Counter()  # (what, why) -> times, for the metrics

    async def start(self) -> None:
        plans = await asyncio.to_thread(plan_workers, self._settings)
        self._slots += [Slot(index, plan) for index, plan in enumerate(plans)]
        first = [asyncio.Event() for _ in self._slots]
        self._supervisors = [
            asyncio.create_task(self._supervise(slot, tried)) for slot, tried in zip(self._slots, first, strict=True)
        ]
        await asyncio.gather(*(tried.wait() for tried in first))

    async def stop(self) -> None:
        self._dispatcher.close()
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, *self._stoppers, return_exceptions=True)
        self._supervisors.clear()
        for slot in self._slots:
            slot.status = "stopped"

    def on_worker_lost(self, callback: LostCallback) -> None:
        self._callbacks.append(callback)

    def workers(self) -> list[WorkerInfo]:
        return [_info(slot) for slot in self._slots]

    @property
    def waiting(self) -> int:
        """Calls that wait for a worker."""
        return self._dispatcher.waiting

    async def call(
        self,
        op: str,
        args: dict[str, Any],
        tensors: Mapping[str, np.ndarray] = NO_TENSORS,
        *,
        worker: str | None = None,
        deadline: float,
        on_part: PartCallback | None = None,
    ) -> Reply:
        arrived = time.monotonic()
        give_up = arrived + deadline
        queued = compiling = 0.0
        while True:
            asked = time.monotonic()
            slot = await self._acquired(worker, give_up)
            started = time.monotonic()
            queued += started - asked
            try:
                reply = await self._on(slot, op, args, tensors, give_up, on_part)
                break
            except Waiting as waiting:
                worker = waiting.process.id  # what is compiled will be there
                await self._compiled(waiting, give_up)
                compiling += time.monotonic() - started
            except TimeoutError:
                raise DeadlineExceeded(f"the call did not end within {deadline:g} s", waited=False) from None
        timing = {"queue": queued * 1e3, **reply.timing_ms, "total": (time.monotonic() - arrived) * 1e3}
        timing["compute"] += compiling * 1e3
        return Reply(reply.result, reply.tensors, timing, reply.worker, reply.compile_ms)

    async def _acquired(self, worker: str | None, give_up: float) -> Slot:
        try:
            return await self._dispatcher.acquire(worker, give_up)
        except (QueueFull, NoCapacity) as error:
            self.events["rejected", type(error).__name__] += 1
            raise

    async def _on(
        self,
        slot: Slot,
        op: str,
        args: dict[str, Any],
        tensors: Mapping[str, np.ndarray],
        give_up: float,
        on_part: PartCallback | None,
    ) -> Reply:
        """The reply of the worker in `slot`, which is given back. Raises Waiting, and TimeoutError when time is up."""
        process = slot.process
        assert process is not None, "a slot that was handed out has a process"
        started = time.monotonic()
        exchange = process.call(op, args, tensors, give_up, on_part)
        slot.over = exchange.over
        exchange.over.add_done_callback(lambda over: self._over(slot, process, over, started))
        patience = max(0.0, give_up - started) + OWN_ANSWER_S
        timer = asyncio.get_running_loop().call_later(patience, exchange.time_out)
        try:
            return await exchange.reply
        except asyncio.CancelledError:
            self._make_stop(process, exchange.over, "cancel")
            raise
        except TimeoutError:
            self._make_stop(process, exchange.over, "deadline")
            raise
        except RemoteError as error:
            if error.code in ("deadline_exceeded", "canceled"):  # nobody cancelled: it was the deadline that said stop
                self.events["stopped", "deadline"] += 1
                raise DeadlineExceeded(error.message, waited=False) from error
            raise
        except MemoryError as error:
            raise NoCapacity(f"the service has no room for the tensors: {error}") from error
        finally:
            timer.cancel()

    async def _compiled(self, waiting: Waiting, give_up: float) -> None:
        """Wait until the call can be made again; meanwhile its worker serves others."""
        process, most = waiting.process, self._settings.queue_per_worker
        if process.parked > most + 1:  # this one is among them
            process.forget(waiting.number)
            self.events["rejected", QueueFull.__name__] += 1
            raise QueueFull(f"{most} calls wait for compilations already")
        try:
            await process.compiled(waiting.number, give_up)
        except TimeoutError:
            self.events["stopped", "deadline"] += 1
            raise DeadlineExceeded("the deadline passed before the program was compiled", waited=True) from None

    def _over(self, slot: Slot, process: WorkerProcess, over: asyncio.Future[bool], started: float) -> None:
        slot.over = None
        if slot.process is process and not process.lost.done():
            self._dispatcher.release(slot, time.monotonic() - started if over.result() else None)

    def _make_stop(self, process: WorkerProcess, over: asyncio.Future[bool], cause: str) -> None:
        """Stop a call that nobody waits for; its slot stays busy until the worker confirms or is replaced."""
        self.events["stopped", cause] += 1
        process.cancel()
        stopper = asyncio.create_task(self._stop_or_lose(process, over, cause))
        self._stoppers.add(stopper)
        stopper.add_done_callback(self._stoppers.discard)

    async def _stop_or_lose(self, process: WorkerProcess, over: asyncio.Future[bool], cause: str) -> None:
        grace = self._settings.cancel_grace
        await asyncio.wait({over}, timeout=grace)
        if not over.done():
            process.mark_lost(f"a call did not stop within {grace:g} s of its {cause}", cause)

    async def _supervise(self, slot: Slot, tried: asyncio.Event) -> None:
        """Keep a worker running in `slot` until cancelled; `tried` is set when the first start is decided."""
        while True:
            slot.generation += 1
            slot.status = "starting"
            slot.process = None
            try:
                process = slot.process = WorkerProcess(slot.plan, self._config)
            except OSError as error:  # out of processes or descriptors: may pass
                log.error("slot %d: cannot start a process: %s", slot.index, error)
                slot.last_fatal = f"cannot start a process: {error}"
                slot.failures += 1
                tried.set()
                await asyncio.sleep(_backoff(slot.failures + 1))
                continue
            try:
                reason = await self._live(slot, process, tried)
            finally:
                slot.status = "restarting"
                process.kill()
                if slot.over is not None:
                    await asyncio.wait({slot.over})
                await process.close()
            self._replaced(slot, process, reason)
            tried.set()
            await asyncio.sleep(_backoff(slot.failures))

    async def _live(self, slot: Slot, process: WorkerProcess, tried: asyncio.Event) -> str:
        """The whole life of one process; returns why it ended."""
        try:
            await process.start(self._settings.start_timeout)
        except WorkerLost as error:
            return f"failed to start: {error.reason}"
        log.info("worker %s (slot %d, %s, pid %d) is ready", process.id, slot.index, process.device, process.pid)
        self._dispatcher.ready(slot)
        tried.set()
        silence = self._settings.heartbeat_timeout
        while not process.lost.done():
            await asyncio.wait({process.lost}, timeout=silence / 4)
            if process.heartbeat_age > silence:
                process.mark_lost(f"no sign of life for {silence:g} s", "hang")
        return process.lost.result()

    def _replaced(self, slot: Slot, process: WorkerProcess, reason: str) -> None:
        """Count the loss, and tell everyone whom it concerns."""
        log.warning("worker %s (slot %d, pid %d) was lost: %s", process.id, slot.index, process.pid, reason)
        slot.last_fatal = reason
        slot.restarts += 1
        slot.failures = 0 if process.answered else slot.failures + 1
        self.events["restart", process.cause] += 1
        self._dispatcher.lost(slot, WorkerLost(process.id, reason))
        for callback in self._callbacks:
            try:
                callback(process.id, reason)
            except Exception:
                log.exception("a callback failed after the loss of worker %s", process.id)


def _backoff(failures: int) -> float:
    """Seconds to wait before the next start: none after one failure, then longer and longer."""
    return 0.0 if failures <= 1 else min(MAX_BACKOFF_S, 0.1 * 2 ** (failures - 2))


def _info(slot: Slot) -> WorkerInfo:
    process = slot.process
    alive = process is not None and slot.status in ("starting", "idle", "busy")
    return WorkerInfo(
        id=process.id if process else "",
        slot=slot.index,
        generation=slot.generation,
        device=process.device if process else slot.plan.device,
        state=slot.status,
        pid=process.pid if process and alive else None,
        restarts=slot.restarts,
        sessions=slot.sessions,
        heartbeat_age=process.heartbeat_age if process and alive else 0.0,
        queued=len(slot.waiting),
        last_fatal=slot.last_fatal,
        parked=process.parked if process else 0,
    )
