"""One worker process: started, called, told to stop, killed.

A `WorkerProcess` is one generation. It is used until it is lost, once, and then closed; the pool makes the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from base64 import b32encode
from collections.abc import Mapping
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
from service.worker.arena import ArenaReader, ArenaWriter, extent
from service.worker.messages import Call, Failed, FromWorker, Part, Ready, Returned, Start
from service.worker.state import PAGE, ControlPage

__all__ = ["WorkerConfig", "WorkerProcess"]

THREAD_COPY_BYTES = 2**20  # above, copying takes long enough to be noticed by others on the event loop
EXIT_POLL_S = 0.005
EXIT_S = 20.0  # a driver may take its time to take a process down

log = logging.getLogger("backpass.engine")

Inbox = asyncio.Queue[tuple[FromWorker, list[int]] | WorkerLost]
"""What has come for one call, and its descriptors; after a loss nothing more comes."""


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
        self._inboxes: dict[int, Inbox] = {}
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
        self._channel = Channel(ours)
        self._listener: asyncio.Task[None] | None = None

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
            async with asyncio.timeout(within):
                await self._channel.send(messages.encode(first), (self._page_descriptor,))
                ready, _ = await self._channel.receive()
        except TimeoutError:
            raise WorkerLost(self.id, f"not ready after {within:g} s") from None
        except (EOFError, OSError, msgspec.DecodeError):
            raise WorkerLost(self.id, await self._exit_reason()) from None
        finally:
            os.close(self._page_descriptor)
            self._page_descriptor = None
        assert isinstance(ready, Ready), "a worker's first frame says that it is ready"
        self.device = ready.device
        self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        """Hand answers to the calls that wait for them, until the process is gone."""
        try:
            while True:
                message, descriptors = await self._channel.receive()
                inbox = self._inboxes.get(getattr(message, "number", -1))
                if inbox is None:
                    for descriptor in descriptors:
                        os.close(descriptor)
                else:
                    inbox.put_nowait((message, descriptors))
        except (EOFError, OSError):
            self.mark_lost(await self._exit_reason())
        except msgspec.DecodeError as error:
            self.mark_lost(f"it sent a frame that is none: {error}")

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
        for inbox in self._inboxes.values():
            inbox.put_nowait(WorkerLost(self.id, self.lost.result()))
        self._inboxes.clear()

    def cancel(self) -> None:
        """Ask the current call to stop; it does so at its next check, or never."""
        self._page.cancel(self._number)

    async def call(
        self,
        op: str,
        args: dict[str, Any],
        tensors: Mapping[str, np.ndarray],
        deadline: float,
        on_part: PartCallback | None = None,
    ) -> Reply:
        """Run one call; one at a time. deadline is a value of time.monotonic() that only the worker looks at.

        on_part is called with each part of the answer that comes before the last.
        Never cancel the task that awaits this: the arenas are in use until it returns.
        Raises WorkerLost, RemoteError, or MemoryError when there is no room for the tensors on this side.
        """
        self._number += 1
        number = self._number
        arrays = {name: np.asarray(array) for name, array in tensors.items()}
        frame, descriptors = await self._frame(number, op, args, arrays, deadline)
        inbox = self._inboxes[number] = Inbox()
        if self.lost.done():  # asked only now, because from here on the loss itself ends the waiting below
            raise WorkerLost(self.id, self.lost.result())
        try:
            await self._channel.send(frame, descriptors)
        except OSError:
            self.mark_lost(await self._exit_reason())
        message, attached = await self._last(inbox, on_part)
        self._inboxes.pop(number, None)
        self._request_arena.trim()
        self.answered += 1
        if isinstance(message, Failed):
            self.sessions = message.sessions
            if message.kind == "memory":
                self._request_arena.close()  # the worker may have failed to map it
            raise RemoteError(message.kind, message.code, message.message, message.problem)  # type: ignore[arg-type]
        assert isinstance(message, Returned), "after the first frame there are only answers"
        self.sessions = message.sessions
        self._attach(attached)
        arrays = await self._arrays(message)
        self._answer_arena.trim()
        return Reply(message.result, arrays, message.timing_ms, self.id)

    async def _last(self, inbox: Inbox, on_part: PartCallback | None) -> tuple[FromWorker, list[int]]:
        """The last message of a call, after the parts before it. Raises WorkerLost.

        A part for which this side has no room ends the call with its MemoryError, though not before the worker has
        stopped: until then the arena is in use.
        """
        failed: MemoryError | None = None
        while True:
            found = await inbox.get()
            if isinstance(found, WorkerLost):
                raise found
            message, descriptors = found
            if failed is None and not isinstance(message, Part):
                return found
            try:
                self._attach(descriptors)
                if failed is None and isinstance(message, Part):
                    arrays = await self._arrays(message)
                    if on_part is not None:
                        on_part(message.result, arrays)
            except MemoryError as error:
                failed = failed or error
                self.cancel()
            if failed is not None and not isinstance(message, Part):
                self._answer_arena.trim()
                raise failed

    async def _frame(
        self, number: int, op: str, args: dict[str, Any], arrays: Mapping[str, np.ndarray], deadline: float
    ) -> tuple[bytes, tuple[int, ...]]:
        """The frame of a call whose arrays are in the arena, and the descriptors to send with it."""
        descriptor = self._request_arena.reserve(arrays.values())
        try:
            if sum(array.nbytes for array in arrays.values()) > THREAD_COPY_BYTES:
                written = await asyncio.to_thread(self._request_arena.write, arrays)
            else:
                written = self._request_arena.write(arrays)
            frame = messages.encode(Call(number, op, args, written, deadline))
        except BaseException:
            self._request_arena.close()  # the worker never hears of it, so it must not count as the current file
            raise
        return frame, () if descriptor is None else (descriptor,)

    async def _arrays(self, message: Part | Returned) -> dict[str, np.ndarray]:
        if extent(message.tensors) > THREAD_COPY_BYTES:
            return await asyncio.to_thread(self._answer_arena.read, message.tensors)
        return self._answer_arena.read(message.tensors)

    def _attach(self, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            self._answer_arena.attach(descriptor)

    def kill(self) -> None:
        """End the process at once; a call that runs in it fails with WorkerLost."""
        self.mark_lost("the service ended it", "stop")
        self._process.kill()  # works on a stopped process too

    async def close(self) -> None:
        """Wait until the killed process is gone, then release every descriptor and map. No call may be running."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        if await self._exit_status(EXIT_S) is None:
            log.error("process %d does not end although it was killed; it is left behind", self.pid)
        self._channel.close()
        self._request_arena.close()
        self._answer_arena.close()
        if self._page_descriptor is not None:
            os.close(self._page_descriptor)
            self._page_descriptor = None
        self._page.close()
