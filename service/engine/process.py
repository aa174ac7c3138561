"""One worker process: started, called, told to stop, killed.

A `WorkerProcess` is one generation. It is used until it is lost, once, and then closed; the pool makes the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from base64 import b32encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np

from service.engine.channel import Channel
from service.engine.child import Child
from service.engine.devices import WorkerPlan
from service.engine.exchange import Arenas, Exchange, Last
from service.engine.protocol import PartCallback, RemoteError, Reply, WorkerLost
from service.ipc import messages
from service.ipc.messages import Call, Compiled, Failed, Forget, FromWorker, Parked, Ready, Start
from service.ipc.shared_memory import Placed
from service.worker.state import PAGE, ControlPage

__all__ = ["Waiting", "WorkerConfig", "WorkerProcess"]

EXIT_S = 20.0  # a driver may take its time to take a process down

log = logging.getLogger("backpass.engine")


class Waiting(Exception):
    """The call of that number did nothing yet: it is to be made again, of this worker, once `WorkerProcess.compiled`
    has returned."""

    def __init__(self, process: WorkerProcess, number: int) -> None:
        super().__init__("the call waits for a compilation")
        self.process = process
        self.number = number


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What all workers of a pool are started with. handlers is "module:NAME"; heartbeat is in seconds."""

    handlers: str
    heartbeat: float
    memory_limit: int | None
    settings: dict[str, Any]


def worker_id() -> str:
    return "wrk_" + b32encode(secrets.token_bytes(17)).decode().rstrip("=").lower()[:26]


class WorkerProcess:
    """A running process and everything that connects to it. Use from the event loop's thread only."""

    def __init__(self, plan: WorkerPlan, config: WorkerConfig) -> None:
        """Spawn the process. The kernel ties its life to the *thread* that does this, so it must be the loop's."""
        self.id = worker_id()
        self.device = plan.device
        self.sessions = 0
        self.answered = 0
        self.cause = "crash"
        self._config = config
        self._number = 0
        self._exchange: Exchange | None = None
        self._parked: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._arenas = Arenas()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        page = os.memfd_create("backpass-control", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair()
        try:
            os.ftruncate(page, PAGE)
            self._page = ControlPage(page)
            self._page.beat()
            self._child = Child(plan, theirs)
        except BaseException:
            os.close(page)
            ours.close()
            raise
        finally:
            theirs.close()
        self._page_descriptor: int | None = page
        self._channel = Channel(ours, self._came, self._ended)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the process last showed that it is scheduled."""
        return max(0.0, (time.monotonic_ns() - self._page.heartbeat) / 1e9)

    async def start(self, within: float) -> None:
        """Wait until the process is ready for calls; WorkerLost when it ends, or is not ready `within` seconds."""
        config = self._config
        first = Start(self.id, self.device, config.handlers, config.memory_limit, config.heartbeat, config.settings)
        assert self._page_descriptor is not None, "start() is called once"
        try:
            self._channel.send(messages.encode(first), (self._page_descriptor,))
            async with asyncio.timeout(within):
                self.device = (await self._ready).device
        except TimeoutError:
            raise WorkerLost(self.id, f"not ready after {within:g} s") from None
        except OSError:
            raise WorkerLost(self.id, await self._child.exit_reason()) from None
        finally:
            os.close(self._page_descriptor)
            self._page_descriptor = None

    def mark_lost(self, reason: str, cause: str = "crash") -> None:
        """From now on every call fails with WorkerLost(reason); the first reason stays, with its `cause` in a word."""
        if not self.lost.done():
            self.cause = cause
            self.lost.set_result(reason)
        why = WorkerLost(self.id, self.lost.result())
        if not self._ready.done():
            self._ready.set_exception(why)
            self._ready.exception()  # looked at here, because nobody may be waiting for it
        for parked in self._parked.values():
            if not parked.done():
                parked.set_exception(why)
                parked.exception()
        if self._exchange is not None:
            self._exchange.fail(why)

    def cancel(self) -> None:
        """Ask the current call to stop; it does so at its next check, or never."""
        self._page.cancel(self._number)

    def call(
        self,
        op: str,
        args: dict[str, Any],
        tensors: Mapping[str, np.ndarray],
        deadline: float,
        on_part: PartCallback | None = None,
    ) -> Exchange:
        """Start one call; one at a time. deadline is a value of time.monotonic() that only the worker looks at.

        on_part is called with each part of the answer that comes before the last.
        Its reply raises Waiting, WorkerLost, RemoteError, or MemoryError when there is no room for the tensors on this
        side.
        """
        assert self._exchange is None, "one call at a time"
        self._number += 1
        exchange = self._exchange = Exchange(self._number, self._arenas, on_part, self.cancel, self._last)
        exchange.over.add_done_callback(self._over)
        arrays = {name: np.asarray(array) for name, array in tensors.items()}
        if self.lost.done():
            exchange.fail(WorkerLost(self.id, self.lost.result()))
        else:
            exchange.place(arrays, partial(self._send, exchange.number, op, args, deadline))
        return exchange

    @property
    def parked(self) -> int:
        """Calls that wait for compilations."""
        return len(self._parked)

    async def compiled(self, number: int, give_up: float) -> None:
        """Wait for what the parked call of that number needs. give_up: a value of time.monotonic().

        Raises WorkerLost, and TimeoutError when time is up; then, or when cancelled, the call is forgotten.
        """
        try:
            async with asyncio.timeout(max(0.0, give_up - time.monotonic())):
                await self._parked[number]
        except WorkerLost:
            raise
        except BaseException:
            self.forget(number)
            raise
        finally:
            self._parked.pop(number, None)

    def forget(self, number: int) -> None:
        """The parked call of that number will not be made again."""
        self._parked.pop(number, None)
        with contextlib.suppress(OSError):
            self._channel.send(messages.encode(Forget(number)))

    def _send(self, number: int, op: str, args: dict[str, Any], deadline: float, put: Placed) -> None:
        """Send the frame of a call whose arrays are in place."""
        described, data, descriptor = put
        try:
            frame = messages.encode(Call(number, op, args, described, data, deadline))
        except BaseException:
            self._arenas.requests.close()  # the worker never hears of it, so it must not count as the current file
            raise
        with contextlib.suppress(OSError):  # whoever reads from the socket hears of that too, and can say why
            self._channel.send(frame, () if descriptor is None else (descriptor,))

    def _came(self, message: FromWorker, descriptors: list[int]) -> None:
        """A message of the worker: of the present call, after `Ready`, or of none."""
        exchange = self._exchange
        if isinstance(message, Ready):
            if not self._ready.done():
                self._ready.set_result(message)
        elif isinstance(message, Compiled):
            parked = self._parked.get(message.number)
            if parked is not None and not parked.done():
                parked.set_result(None)
        elif exchange is not None and message.number == exchange.number:
            exchange.take(message, descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)

    def _last(self, exchange: Exchange, message: Last, arrays: dict[str, np.ndarray]) -> None:
        """What the worker says last about the present call."""
        self._arenas.trim()
        self.answered += 1
        if isinstance(message, Parked):
            self._parked[message.number] = asyncio.get_running_loop().create_future()
            exchange.fail(Waiting(self, message.number))
            return
        self.sessions = message.sessions
        if exchange.lacking is not None:
            exchange.fail(exchange.lacking)
        elif isinstance(message, Failed):
            if message.kind == "memory":
                self._arenas.requests.close()  # the worker may have failed to map it
            kind: Any = message.kind
            exchange.fail(RemoteError(kind, message.code, message.message, message.problem))
        else:
            exchange.succeed(Reply(message.result, arrays, message.timing_ms, self.id, message.compile_ms))

    def _over(self, _: asyncio.Future[bool]) -> None:
        self._exchange = None

    def _ended(self, error: Exception) -> None:
        """No more will come from the worker."""
        if isinstance(error, msgspec.DecodeError):
            self.mark_lost(f"it sent a frame that is none: {error}")
            return

        async def find_out() -> None:
            self.mark_lost(await self._child.exit_reason())

        task = asyncio.create_task(find_out())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def kill(self) -> None:
        """End the process at once; a call that runs in it fails with WorkerLost."""
        self.mark_lost("the service ended it", "stop")
        self._child.kill()

    async def close(self) -> None:
        """Wait until the killed process is gone, then release every descriptor and map. No call may be running."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if await self._child.exit_status(EXIT_S) is None:
            log.error("process %d does not end although it was killed; it is left behind", self.pid)
        self._channel.close()
        self._arenas.close()
        if self._page_descriptor is not None:
            os.close(self._page_descriptor)
            self._page_descriptor = None
        self._page.close()
