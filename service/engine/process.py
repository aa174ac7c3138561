"""One worker process as the service sees it: start it, call it, cancel a call, kill it.

A `WorkerProcess` is one generation of a slot. After it is lost, the pool closes it and creates the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import time
from base64 import b32encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np

from service.engine.answer_room import AnswerRoom
from service.engine.child import Child
from service.engine.devices import WorkerPlan
from service.engine.pending_call import Last, PendingCall, SharedMemory
from service.engine.protocol import PartCallback, RemoteError, Reply, WorkerLost
from service.ipc import messages
from service.ipc.channel import Channel
from service.ipc.messages import Call, CompilationDone, Failed, Forget, FromWorker, Parked, Ready, Start
from service.ipc.shared_memory import Placed
from service.ipc.signal_page import PAGE_BYTES, SignalPage
from service.logs import FIELDS

__all__ = ["ParkedCall", "WorkerConfig", "WorkerProcess"]

EXIT_S = 20.0  # generous, because a GPU driver may take long to end a process

log = logging.getLogger("backpass.engine")


class ParkedCall(Exception):
    """The call `number` needs a compilation and had no effect. Make it again, on this worker, after
    `WorkerProcess.compiled` returns."""

    def __init__(self, process: WorkerProcess, number: int) -> None:
        super().__init__("the call waits for a compilation")
        self.process = process
        self.number = number


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The configuration of all workers of a pool. handlers: "module:NAME"; heartbeat: seconds; memory_limit: bytes.

    room: for the answers of all workers.
    """

    handlers: str
    heartbeat: float
    settings: dict[str, Any]
    memory_limit: int | None = None
    room: AnswerRoom | None = None


def worker_id() -> str:
    return "wrk_" + b32encode(secrets.token_bytes(17)).decode().rstrip("=").lower()[:26]


class WorkerProcess:
    """A running process with its socket, signal page and shared memory. Use it only from the event loop's thread."""

    def __init__(self, plan: WorkerPlan, config: WorkerConfig, child: Child | None = None) -> None:
        """Start the process. Call it in the event loop's thread: the kernel kills the process when that thread ends.

        child: the process, if it is started already.
        """
        self.id = worker_id()
        self.device = plan.device
        self._environment = plan.environment
        self.sessions = 0
        self.cause = "crash"
        self._config = config
        self._number = 0
        self._call: PendingCall | None = None
        self._parked: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._shared_memory = SharedMemory(config.room)
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        page = os.memfd_create("backpass-signals", os.MFD_CLOEXEC)
        try:
            os.ftruncate(page, PAGE_BYTES)
            self._page = SignalPage(page)
            self._page.beat()
            self._child = Child(plan, config.handlers) if child is None else child
        except BaseException:
            os.close(page)
            raise
        self._page_descriptor: int | None = page
        self._channel = Channel(self._child.socket, self._came, self._ended)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def was_called(self) -> bool:
        """Whether it has got a call."""
        return self._number > 0

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the last heartbeat of the process."""
        return max(0.0, (time.monotonic_ns() - self._page.heartbeat) / 1e9)

    @property
    def device_memory(self) -> tuple[int, int, int]:
        """Bytes of the GPU: all, in use, free in the worker's pool. Zero without a GPU."""
        return self._page.device_memory

    async def start(self, within: float) -> None:
        """Wait until the process is ready for calls. Call it once.

        Raises WorkerLost if the process ends or is not ready `within` seconds.
        """
        config = self._config
        given = (self.device, config.memory_limit, config.heartbeat, config.settings, dict(self._environment))
        first = Start(self.id, *given)
        if self._page_descriptor is None:
            raise RuntimeError(f"worker {self.id} was already started or closed")
        try:
            self._channel.send(messages.encode(first), (self._page_descriptor,))
            async with asyncio.timeout(within):
                self.device = (await self._ready).device
        except TimeoutError:
            raise WorkerLost(self.id, f"not ready after {within:g} s", began=False) from None
        except OSError:
            raise WorkerLost(self.id, await self._child.exit_reason(), began=False) from None
        finally:
            os.close(self._page_descriptor)
            self._page_descriptor = None

    def mark_lost(self, reason: str, cause: str = "crash") -> None:
        """Fail the running and all later calls with WorkerLost(reason). The first reason and `cause` stay."""
        if not self.lost.done():
            self.cause = cause
            self.lost.set_result(reason)
        why = WorkerLost(self.id, self.lost.result(), began=True)
        if not self._ready.done():
            self._ready.set_exception(why)
            self._ready.exception()  # marks it as retrieved: there may be no waiter
        for parked in self._parked.values():
            if not parked.done():
                parked.set_exception(why)
                parked.exception()
        if self._call is not None:
            self._call.fail(why)

    def cancel(self) -> None:
        """Ask the running call to stop. It stops at its next check, if its handler checks."""
        self._page.cancel(self._number)

    def call(
        self,
        op: str,
        args: dict[str, Any],
        tensors: Mapping[str, np.ndarray],
        deadline: float,
        on_part: PartCallback | None = None,
    ) -> PendingCall:
        """Start one call. Raises RuntimeError while another call runs.

        deadline: a value of time.monotonic(); only the worker checks it.
        on_part:  called with each part of the answer that the worker sends before the end.
        The reply raises ParkedCall, WorkerLost, RemoteError, or MemoryError if the service has no memory
        for the tensors.
        """
        if self._call is not None:
            raise RuntimeError(f"worker {self.id} already runs call {self._call.number}")
        self._number += 1
        call = self._call = PendingCall(
            self._number, self._shared_memory, on_part, self.cancel, self._last, self._ended
        )
        call.over.add_done_callback(self._over)
        arrays = {name: np.asarray(array) for name, array in tensors.items()}
        if self.lost.done():
            call.fail(WorkerLost(self.id, self.lost.result(), began=False))
        else:
            call.place(arrays, partial(self._send, call.number, op, args, deadline))
        return call

    @property
    def parked(self) -> int:
        """The number of calls that wait for compilations."""
        return len(self._parked)

    async def compiled(self, number: int, give_up: float) -> None:
        """Wait for the compilation that parked call `number` needs. give_up: a value of time.monotonic().

        Raises WorkerLost, or TimeoutError at `give_up`. After a timeout or a cancellation the call is forgotten.
        """
        try:
            async with asyncio.timeout(max(0.0, give_up - time.monotonic())):
                await self._parked[number]
        except WorkerLost:
            raise
        except TimeoutError:
            self.forget(number, again=True)
            raise
        except BaseException:
            self.forget(number)
            raise
        finally:
            self._parked.pop(number, None)

    def forget(self, number: int, again: bool = False) -> None:
        """Tell the worker that parked call `number` does not wait any more. again: its client may send it again."""
        self._parked.pop(number, None)
        with contextlib.suppress(OSError):
            self._channel.send(messages.encode(Forget(number, again)))

    def _send(self, number: int, op: str, args: dict[str, Any], deadline: float, put: Placed) -> None:
        """Send the frame of a call whose arrays are already copied."""
        described, data, descriptor = put
        try:
            frame = messages.encode(Call(number, op, args, described, data, deadline, FIELDS.get()))
        except BaseException:
            self._shared_memory.requests.close()  # the worker did not get the descriptor: do not use this file again
            raise
        with contextlib.suppress(OSError):  # the reading side of the channel reports the same error with its reason
            self._channel.send(frame, () if descriptor is None else (descriptor,))

    def _came(self, message: FromWorker, descriptors: list[int]) -> None:
        """Handle a message of the worker: `Ready`, `CompilationDone`, or a message about the running call."""
        call = self._call
        if isinstance(message, Ready):
            if not self._ready.done():
                self._ready.set_result(message)
        elif isinstance(message, CompilationDone):
            parked = self._parked.get(message.number)
            if parked is not None and not parked.done():
                parked.set_result(None)
        elif call is not None and message.number == call.number:
            call.take(message, descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)

    def _last(self, call: PendingCall, message: Last, arrays: dict[str, np.ndarray]) -> None:
        """Handle the message that ends the running call."""
        self._shared_memory.trim()
        if isinstance(message, Parked):
            self._parked[message.number] = asyncio.get_running_loop().create_future()
            call.fail(ParkedCall(self, message.number))
            return
        self.sessions = message.sessions
        if call.lacking is not None:
            call.fail(call.lacking)
        elif isinstance(message, Failed):
            kind: Any = message.kind
            call.fail(RemoteError(kind, message.code, message.message, message.problem))
        else:
            call.succeed(Reply(message.result, arrays, message.timing_ms, self.id, message.compile_ms, message.started))

    def _over(self, _: asyncio.Future[bool]) -> None:
        self._call = None

    def _ended(self, error: Exception) -> None:
        """Handle the end of the socket, or a message that cannot be handled."""
        if isinstance(error, msgspec.DecodeError):
            self.mark_lost(f"it sent an invalid frame: {error}")
            return
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            self.mark_lost(f"the service has no room for a descriptor that it sent: {error.strerror}")
            return
        if not isinstance(error, EOFError | OSError):
            log.error("a message of worker %s cannot be handled", self.id, exc_info=error)
            self.mark_lost(f"a message of it cannot be handled: {error}")
            return

        async def find_out() -> None:
            self.mark_lost(await self._child.exit_reason())

        task = asyncio.create_task(find_out())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def kill(self) -> None:
        """Kill the process. Its running call fails with WorkerLost."""
        self.mark_lost("the service stopped it", "stop")
        self._child.kill()

    async def close(self) -> None:
        """Wait until the killed process has ended, then release all descriptors and maps. No call may be running."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if await self._child.exit_status(EXIT_S) is None:
            log.error("process %d did not end within %g s of SIGKILL; its slot starts another one", self.pid, EXIT_S)
        self._channel.close()
        self._shared_memory.close()
        if self._page_descriptor is not None:
            os.close(self._page_descriptor)
            self._page_descriptor = None
        self._page.close()
