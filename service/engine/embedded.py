"""The pool of worker processes on this machine.

Each slot has a supervisor that starts a process, watches it, and replaces it when it is lost. Losing a worker fails
only the calls of that worker. When a caller cancels or a deadline passes, the pool first asks the call to stop, through
shared memory, and kills the worker only if the call does not stop within the grace period. This is rare: machine code
and the reference executor poll, and ops that cannot poll run in a child of the worker (`core.runtime.forked`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping
from contextvars import Context
from dataclasses import replace
from typing import Any

import numpy as np

from service.caller import tenant
from service.engine.answer_room import AnswerRoom
from service.engine.child import Child
from service.engine.devices import WorkerPlan, plan_workers
from service.engine.dispatch import Dispatcher, Slot
from service.engine.memory import UnusableSettings, worker_memory
from service.engine.process import ParkedCall, WorkerConfig, WorkerProcess
from service.engine.protocol import (
    NO_TENSORS,
    BarCallback,
    Barred,
    DeadlineExceeded,
    LostCallback,
    NoCapacity,
    PartCallback,
    QueueFull,
    RemoteError,
    Reply,
    SpentCallback,
    WorkerInfo,
    WorkerLost,
)
from service.engine.spare import Spare
from service.settings import Settings

__all__ = ["EmbeddedPool"]

log = logging.getLogger("backpass.engine")

DEFAULT_HANDLERS = "service.worker.handlers:HANDLERS"
OWN_ANSWER_S = 0.1  # extra time for the worker's own deadline error, which names the place in the program
MAX_BACKOFF_S = 5.0
PATIENCE = 10  # a worker with sessions is killed this much later: its loss would hurt clients that did nothing wrong


class EmbeddedPool:
    """An `Engine` (see `protocol.py`) that runs its workers as child processes."""

    def __init__(self, settings: Settings, handlers: str = DEFAULT_HANDLERS, room: AnswerRoom | None = None) -> None:
        """handlers: "module:NAME" of the handler table of the workers. room: for their answers."""
        self._settings = settings
        self.room = AnswerRoom(settings.answer_bytes_in_flight) if room is None else room
        self._config = WorkerConfig(
            handlers=handlers,
            heartbeat=min(0.25, settings.heartbeat_timeout / 4),
            settings=settings.model_dump(mode="json") | {"objects": settings.objects},
            room=self.room,
        )
        self._plans: list[WorkerPlan] | None = None
        self._begun: list[Child] = []
        self._spare = Spare(handlers)
        self._slots: list[Slot] = []
        self._dispatcher = Dispatcher(self._slots, settings.queue_per_worker)
        self._supervisors: list[asyncio.Task[None]] = []
        self._stoppers: set[asyncio.Task[None]] = set()
        self._callbacks: list[LostCallback] = []
        self._on_spent: SpentCallback = lambda tenant, seconds: None
        self.events: Counter[tuple[str, str]] = Counter()  # (event, reason) -> count, for the metrics

    def begin(self) -> None:
        """Start the processes of the workers now, so that they load their modules while the application loads its own.

        Call it before `start`, in the thread of the event loop. If a process cannot be started, `start` tries again.
        """
        with contextlib.suppress(NoCapacity, OSError):
            self._plans = plan_workers(self._settings)
            for plan in self._plans:
                self._begun.append(Child(plan, self._config.handlers))

    async def start(self) -> None:
        plans = self._plans
        if plans is None:
            plans = await asyncio.to_thread(plan_workers, self._settings)
        try:
            limit = worker_memory(self._settings, len(plans))
        except UnusableSettings as error:
            raise NoCapacity(f"BACKPASS_{error.setting.upper()}: {error}") from error
        self._config = replace(self._config, memory_limit=limit)
        self._spare.serve(plans)
        begun = dict(enumerate(self._begun))
        self._slots += [Slot(index, plan, begun.get(index)) for index, plan in enumerate(plans)]
        first = [asyncio.Event() for _ in self._slots]
        self._supervisors = [  # a context of their own: the first request of a codec starts its pool
            asyncio.create_task(self._supervise(slot, tried), context=Context())
            for slot, tried in zip(self._slots, first, strict=True)
        ]
        await asyncio.gather(*(tried.wait() for tried in first))

    async def stop(self) -> None:
        self._dispatcher.close()
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, *self._stoppers, return_exceptions=True)
        self._supervisors.clear()
        await self._spare.close()
        for slot in self._slots:
            slot.status = "stopped"

    def on_worker_lost(self, callback: LostCallback) -> None:
        self._callbacks.append(callback)

    def on_spent(self, callback: SpentCallback) -> None:
        self._on_spent = callback

    def on_turn(self, callback: BarCallback) -> None:
        self._dispatcher.bars = callback

    def workers(self) -> list[WorkerInfo]:
        return [replace(_info(slot), memory_limit=self._config.memory_limit) for slot in self._slots]

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a worker."""
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
        stop: asyncio.Event | None = None,
    ) -> Reply:
        arrived = time.monotonic()
        give_up = arrived + deadline
        queued = compiling = 0.0
        while True:
            requested = time.monotonic()
            slot = await self._acquire(worker, give_up)
            started = time.monotonic()
            queued += started - requested
            try:
                reply = await self._run(slot, op, args, tensors, give_up, on_part, stop)
                break
            except ParkedCall as parked:
                worker = parked.process.id  # the result of the compilation is in this worker
                await self._compiled(parked, give_up)
                compiling += time.monotonic() - started
            except TimeoutError:
                raise DeadlineExceeded(f"the call did not end within {deadline:g} s", waited=False) from None
        timing = {"queue": queued * 1e3, **reply.timing_ms, "total": (time.monotonic() - arrived) * 1e3}
        timing["compute"] += compiling * 1e3
        return Reply(reply.result, reply.tensors, timing, reply.worker, reply.compile_ms, reply.started)

    async def _acquire(self, worker: str | None, give_up: float) -> Slot:
        try:
            return await self._dispatcher.acquire(worker, give_up)
        except (QueueFull, NoCapacity, Barred) as error:
            self.events["rejected", type(error).__name__] += 1
            raise

    async def _run(
        self,
        slot: Slot,
        op: str,
        args: dict[str, Any],
        tensors: Mapping[str, np.ndarray],
        give_up: float,
        on_part: PartCallback | None,
        stop: asyncio.Event | None,
    ) -> Reply:
        """Run the call on `slot`, then release the slot. Raises ParkedCall, or TimeoutError at the deadline."""
        process = slot.process
        assert process is not None  # the dispatcher assigns only slots with a process
        started = time.monotonic()
        pending = process.call(op, args, tensors, give_up, on_part)
        slot.over = pending.over
        caller = tenant()
        pending.over.add_done_callback(lambda over: self._over(slot, process, over, started, caller))
        patience = max(0.0, give_up - started) + OWN_ANSWER_S
        timer = asyncio.get_running_loop().call_later(patience, pending.time_out)
        stopping = None if stop is None else asyncio.create_task(_stop_when(stop, process, pending.over))
        try:
            return await pending.reply
        except asyncio.CancelledError:
            self._stop(process, op, pending.over, "cancel")
            raise
        except TimeoutError:
            self._stop(process, op, pending.over, "deadline")
            raise
        except RemoteError as error:
            is_stopped = error.code == "canceled" and stop is not None and stop.is_set()
            if error.code in ("deadline_exceeded", "canceled") and not is_stopped:  # without a caller's doing
                self.events["stopped", "deadline"] += 1
                raise DeadlineExceeded(error.message, waited=False) from error
            raise
        except MemoryError as error:
            raise NoCapacity(f"the service has no memory for the tensors: {error}") from error
        finally:
            timer.cancel()
            if stopping is not None:
                stopping.cancel()

    async def _compiled(self, parked: ParkedCall, give_up: float) -> None:
        """Wait until the compilation for the call is done. Its worker serves other calls meanwhile."""
        process, most = parked.process, self._settings.queue_per_worker
        if process.parked > most + 1:  # the count includes this call
            process.forget(parked.number)
            self.events["rejected", QueueFull.__name__] += 1
            raise QueueFull(f"{most} calls already wait for compilations")
        try:
            await process.compiled(parked.number, give_up)
        except TimeoutError:
            self.events["stopped", "deadline"] += 1
            raise DeadlineExceeded(
                "the deadline passed before the program was compiled; the compilation goes on for a while: send the "
                "request again, perhaps with a longer deadline",
                waited=True,
            ) from None

    def _over(
        self, slot: Slot, process: WorkerProcess, over: asyncio.Future[bool], started: float, caller: str
    ) -> None:
        slot.over = None
        seconds = time.monotonic() - started
        self._on_spent(caller, seconds)
        if slot.process is process and not process.lost.done():
            self._dispatcher.release(slot, seconds if over.result() else None)

    def _stop(self, process: WorkerProcess, op: str, over: asyncio.Future[bool], cause: str) -> None:
        """Stop a call without a caller. Its slot stays busy until the worker ends the call or is replaced."""
        self.events["stopped", cause] += 1
        process.cancel()
        stopper = asyncio.create_task(self._stop_or_lose(process, op, over, cause))
        self._stoppers.add(stopper)
        stopper.add_done_callback(self._stoppers.discard)

    async def _stop_or_lose(self, process: WorkerProcess, op: str, over: asyncio.Future[bool], cause: str) -> None:
        """Wait until the call stops; lose the worker if it does not. Sessions of others make the wait longer."""
        grace = self._settings.cancel_grace
        await asyncio.wait({over}, timeout=grace)
        if not over.done() and process.sessions:
            log.warning(
                "worker %s (pid %d): %s has not stopped within %g s of its %s; the worker holds %d sessions and tapes, "
                "so it gets %g s", process.id, process.pid, op, grace, cause, process.sessions, PATIENCE * grace,
            )  # fmt: skip
            await asyncio.wait({over}, timeout=(PATIENCE - 1) * grace)
            grace *= PATIENCE
        if not over.done():
            process.mark_lost(f"a call of {op} did not stop within {grace:g} s of its {cause}", cause)

    async def _supervise(self, slot: Slot, tried: asyncio.Event) -> None:
        """Keep a worker running in `slot` until cancelled. Sets `tried` when the first start succeeded or failed."""
        while True:
            slot.generation += 1
            slot.status = "starting"
            slot.process = None
            try:
                child, slot.child = slot.child or self._spare.take(slot.plan), None
                process = slot.process = WorkerProcess(slot.plan, self._config, child)
            except OSError as error:  # no free process or descriptor: a later try may succeed
                log.error("slot %d: cannot start a process: %s", slot.index, error)
                slot.last_fatal = f"cannot start a process: {error}"
                slot.failures += 1
                self._dispatcher.lost(slot, NoCapacity("no worker can be started"))
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
        """Run one process until it is lost; returns the reason."""
        try:
            await process.start(self._settings.start_timeout)
        except WorkerLost as error:
            return f"failed to start: {error.reason}"
        log.info("worker %s (slot %d, %s, pid %d) is ready", process.id, slot.index, process.device, process.pid)
        self._dispatcher.ready(slot)
        tried.set()
        self._spare.fill()
        silence = self._settings.heartbeat_timeout
        while not process.lost.done():
            await asyncio.wait({process.lost}, timeout=silence / 4)
            if process.heartbeat_age > silence:
                process.mark_lost(f"no heartbeat for {silence:g} s", "hang")
        return process.lost.result()

    def _replaced(self, slot: Slot, process: WorkerProcess, reason: str) -> None:
        """Count the loss, fail the calls that wait for this worker, and run the callbacks."""
        log.warning(
            "worker %s (slot %d, pid %d) was lost with %d sessions and tapes: %s",
            process.id, slot.index, process.pid, process.sessions, reason,
        )  # fmt: skip
        slot.last_fatal = reason
        slot.restarts += 1
        slot.failures = 0 if process.was_called else slot.failures + 1  # a call may be the cause of a loss
        self.events["restart", process.cause] += 1
        self.events["lost_sessions", process.cause] += process.sessions
        self._dispatcher.lost(slot, WorkerLost(process.id, reason, began=False))
        for callback in self._callbacks:
            try:
                callback(process.id, reason)
            except Exception:
                log.exception("a callback failed after the loss of worker %s", process.id)


async def _stop_when(stop: asyncio.Event, process: WorkerProcess, over: asyncio.Future[bool]) -> None:
    """Ask the worker to end its call as soon as `stop` is set, unless the call has ended."""
    await stop.wait()
    if not over.done():
        process.cancel()


def _backoff(failures: int) -> float:
    """Seconds to wait before the next start: 0 after one failure, then doubling up to MAX_BACKOFF_S."""
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
        device_memory=process.device_memory if process and alive else (0, 0, 0),
    )
