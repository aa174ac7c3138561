"""One worker process: started, called, told to stop, killed.

A `WorkerProcess` is one generation. It is used until it is lost, once, and then closed; the pool makes the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from base64 import b32encode
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import service
from service.engine.channel import Channel
from service.engine.devices import WorkerPlan
from service.engine.protocol import PartCallback, RemoteError, Reply, WorkerLost
from service.worker import messages
from service.worker.arena import ArenaReader, ArenaWriter, Placed, extent
from service.worker.messages import Call, Compiled, Failed, Forget, FromWorker, Parked, Part, Ready, Returned, Start
from service.worker.state import PAGE, ControlPage

__all__ = ["Waiting", "WorkerConfig", "WorkerProcess"]

THREAD_COPY_BYTES = 2**20  # above, copying takes long enough to be noticed by others on the event loop
EXIT_POLL_S = 0.005
EXIT_S = 20.0  # a driver may take its time to take a process down

log = logging.getLogger("backpass.engine")


FromCall = Part | Returned | Failed | Parked
"""What a worker says about the present call."""


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


# By default glibc gives every array of 128 KiB or more fresh pages from the kernel, and back when it dies: a step then
# spends most of its time in page faults. Measured on x + x with 400 KB: 0.19 ms, and 0.015 ms with these.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(256 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
    "MALLOC_TOP_PAD_": str(16 * 2**20),
}


def _environment(plan: WorkerPlan) -> dict[str, str]:
    """Ours, with what the plan says, and with the place this package was imported from, installed or not."""
    paths = [str(Path(service.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**ALLOCATOR, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **plan.environment}


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
        self._exchange: _Exchange | None = None
        self._parked: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._request_arena = ArenaWriter()
        self._answer_arena = ArenaReader()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        page = os.memfd_create("backpass-control", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair()
        try:
            os.ftruncate(page, PAGE)
            self._page = ControlPage(page)
            self._page.beat()
            arguments = [sys.executable, "-m", "service.worker.main", str(theirs.fileno()), str(os.getpid())]
            self._process = subprocess.Popen(
                arguments,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=_environment(plan),
            )
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
        return self._process.pid

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
            raise WorkerLost(self.id, await self._exit_reason()) from None
        finally:
            os.close(self._page_descriptor)
            self._page_descriptor = None

    async def _exit_reason(self) -> str:
        status = await self._exit_status(1.0)  # the socket closes a moment before the process can be waited for
        if status is None:
            return "closed its socket"
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return f"ended with exit status {status}"

    async def _exit_status(self, within: float) -> int | None:
        """The exit status, minus the signal for a killed process; None if it still runs after `within` seconds."""
        for _ in range(round(within / EXIT_POLL_S)):
            if self._process.poll() is not None:
                break
            await asyncio.sleep(EXIT_POLL_S)
        return self._process.poll()

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
    ) -> asyncio.Future[Reply]:
        """Run one call; one at a time. deadline is a value of time.monotonic() that only the worker looks at.

        on_part is called with each part of the answer that comes before the last.
        Never cancel the future: the arenas are in use until it is done.
        It raises Waiting, WorkerLost, RemoteError, or MemoryError when there is no room for the tensors on this side.
        """
        assert self._exchange is None, "one call at a time"
        self._number += 1
        exchange = self._exchange = _Exchange(self._number, on_part)
        exchange.reply.add_done_callback(self._over)
        arrays = {name: np.asarray(array) for name, array in tensors.items()}
        if self.lost.done():
            exchange.fail(WorkerLost(self.id, self.lost.result()))
        elif sum([array.nbytes for array in arrays.values()]) > THREAD_COPY_BYTES:
            self._background(exchange, self._send_large(exchange, op, args, arrays, deadline))
        else:
            try:
                self._send(exchange, op, args, self._request_arena.put(arrays), deadline)
            except BaseException as error:
                exchange.fail(error)
        return exchange.reply

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

    def _send(self, exchange: _Exchange, op: str, args: dict[str, Any], put: Placed, deadline: float) -> None:
        """Send the frame of a call whose arrays are in place."""
        described, data, descriptor = put
        try:
            frame = messages.encode(Call(exchange.number, op, args, described, data, deadline))
        except BaseException:
            self._request_arena.close()  # the worker never hears of it, so it must not count as the current file
            raise
        with contextlib.suppress(OSError):  # whoever reads from the socket hears of that too, and can say why
            self._channel.send(frame, () if descriptor is None else (descriptor,))

    async def _send_large(
        self, exchange: _Exchange, op: str, args: dict[str, Any], arrays: Mapping[str, np.ndarray], deadline: float
    ) -> None:
        put = await asyncio.to_thread(self._request_arena.put, arrays)
        if not self.lost.done():
            self._send(exchange, op, args, put, deadline)

    def _background(self, exchange: _Exchange, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` for the exchange, which is not over before that is done, whatever happens meanwhile."""

        async def working() -> None:
            try:
                await work
            except Exception as error:
                exchange.fail(error)
            finally:
                exchange.release()

        exchange.hold()
        task = asyncio.create_task(working())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        elif exchange is not None and message.number == exchange.number and not self.lost.done():
            exchange.inbox.append((message, descriptors))
            if not exchange.is_held:
                self._take_in(exchange)
            return
        for descriptor in descriptors:
            os.close(descriptor)

    def _take_in(self, exchange: _Exchange) -> None:
        """Handle what has come, up to what is so large that a thread must copy it."""
        while exchange.inbox:
            message, descriptors = exchange.inbox.popleft()
            try:
                self._attach(descriptors)
                if (
                    isinstance(message, Part | Returned)
                    and not message.data
                    and extent(message.tensors) > THREAD_COPY_BYTES
                ):
                    self._background(exchange, self._take_large(exchange, message))
                    return
                arrays = {}
                if isinstance(message, Part | Returned):
                    arrays = self._answer_arena.read(message.tensors, message.data)
            except MemoryError as error:
                self._no_room(exchange, message, error)
            else:
                self._heard(exchange, message, arrays)

    async def _take_large(self, exchange: _Exchange, message: Part | Returned) -> None:
        try:
            arrays = await asyncio.to_thread(self._answer_arena.read, message.tensors, message.data)
        except MemoryError as error:
            self._no_room(exchange, message, error)
        else:
            self._heard(exchange, message, arrays)
        if not self.lost.done():
            self._take_in(exchange)

    def _no_room(self, exchange: _Exchange, message: FromCall, error: MemoryError) -> None:
        """A part for which this side has no room ends the call, though not before the worker has stopped: until then
        the arena is in use."""
        exchange.lacking = exchange.lacking or error
        if isinstance(message, Part):
            self.cancel()
        else:
            self._heard(exchange, message, {})

    def _heard(self, exchange: _Exchange, message: FromCall, arrays: dict[str, np.ndarray]) -> None:
        if isinstance(message, Part):
            if exchange.on_part is not None and exchange.lacking is None:
                exchange.on_part(message.result, arrays)
            return
        self._request_arena.trim()
        self._answer_arena.trim()
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
                self._request_arena.close()  # the worker may have failed to map it
            kind: Any = message.kind
            exchange.fail(RemoteError(kind, message.code, message.message, message.problem))
        else:
            exchange.succeed(Reply(message.result, arrays, message.timing_ms, self.id))

    def _over(self, _: asyncio.Future[Reply]) -> None:
        self._exchange = None

    def _ended(self, error: Exception) -> None:
        """No more will come from the worker."""
        if isinstance(error, msgspec.DecodeError):
            self.mark_lost(f"it sent a frame that is none: {error}")
            return

        async def find_out() -> None:
            self.mark_lost(await self._exit_reason())

        task = asyncio.create_task(find_out())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _attach(self, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            self._answer_arena.attach(descriptor)

    def kill(self) -> None:
        """End the process at once; a call that runs in it fails with WorkerLost."""
        self.mark_lost("the service ended it", "stop")
        self._process.kill()  # works on a stopped process too

    async def close(self) -> None:
        """Wait until the killed process is gone, then release every descriptor and map. No call may be running."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if await self._exit_status(EXIT_S) is None:
            log.error("process %d does not end although it was killed; it is left behind", self.pid)
        self._channel.close()
        self._request_arena.close()
        self._answer_arena.close()
        if self._page_descriptor is not None:
            os.close(self._page_descriptor)
            self._page_descriptor = None
        self._page.close()


class _Exchange:
    """One call from its start until its reply.

    It is held while a thread works on its arrays; what ends it meanwhile takes effect when it is released.
    inbox: messages that wait for that. lacking: why there was no room for a part of the answer.
    """

    def __init__(self, number: int, on_part: PartCallback | None) -> None:
        self.number = number
        self.on_part = on_part
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.inbox: deque[tuple[FromCall, list[int]]] = deque()
        self.lacking: MemoryError | None = None
        self._holders = 0
        self._ended: Reply | BaseException | None = None

    @property
    def is_held(self) -> bool:
        return self._holders > 0

    def hold(self) -> None:
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        self._settle()

    def succeed(self, reply: Reply) -> None:
        self._end(reply)

    def fail(self, error: BaseException) -> None:
        self._end(error)

    def _end(self, how: Reply | BaseException) -> None:
        self._ended = self._ended or how
        self._settle()

    def _settle(self) -> None:
        if self._ended is None or self._holders or self.reply.done():
            return
        while self.inbox:
            for descriptor in self.inbox.popleft()[1]:
                os.close(descriptor)
        if isinstance(self._ended, Reply):
            self.reply.set_result(self._ended)
        else:
            self.reply.set_exception(self._ended)
