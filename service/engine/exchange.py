"""One call of a worker from its start until its reply: how its arrays get there, and those of the answer back."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import numpy as np

from service.engine.protocol import PartCallback, Reply
from service.ipc.messages import Failed, Parked, Part, Returned
from service.ipc.shared_memory import ArenaReader, ArenaWriter, Placed, extent

__all__ = ["Arenas", "Exchange", "FromCall", "Last"]

THREAD_COPY_BYTES = 2**20  # above, copying takes long enough to be noticed by others on the event loop

Last = Returned | Failed | Parked
"""What ends a call."""

FromCall = Part | Last
"""What a worker says about the present call."""


class Arenas:
    """Where the arrays of calls to one worker, and those of its answers, lie."""

    def __init__(self) -> None:
        self.requests = ArenaWriter()
        self.answers = ArenaReader()

    def trim(self) -> None:
        """Call when a call has been answered and its answer read."""
        self.requests.trim()
        self.answers.trim()

    def close(self) -> None:
        self.requests.close()
        self.answers.close()


class Exchange:
    """One call from its start until its reply.

    It is held while a thread works on its arrays; what ends it meanwhile takes effect when it is released.

    reply:   for who called, and may be cancelled: the exchange goes on without.
    over:    whether it went well; until it is done the arenas are in use.
    lacking: why there was no room for a part of the answer.
    """

    def __init__(
        self,
        number: int,
        arenas: Arenas,
        on_part: PartCallback | None,
        stop: Callable[[], None],
        last: Callable[[Exchange, Last, dict[str, np.ndarray]], None],
    ) -> None:
        """stop: asks the worker to stop. last: called with what ends the call; it says to us how: `succeed`, `fail`."""
        self.number = number
        loop = asyncio.get_running_loop()
        self.reply: asyncio.Future[Reply] = loop.create_future()
        self.over: asyncio.Future[bool] = loop.create_future()
        self.lacking: MemoryError | None = None
        self._arenas = arenas
        self._on_part, self._stop, self._last = on_part, stop, last
        self._inbox: deque[tuple[FromCall, list[int]]] = deque()  # what waits until we are not held any more
        self._holders = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: Reply | BaseException | None = None

    # The way there

    def place(self, arrays: Mapping[str, np.ndarray], send: Callable[[Placed], None]) -> None:
        """Put `arrays` where the worker will find them and `send` the call; large ones later, by a thread."""
        if sum([array.nbytes for array in arrays.values()]) > THREAD_COPY_BYTES:
            self._hold(self._place_large(arrays, send))
            return
        try:
            send(self._arenas.requests.put(arrays))
        except BaseException as error:
            self.fail(error)

    async def _place_large(self, arrays: Mapping[str, np.ndarray], send: Callable[[Placed], None]) -> None:
        put = await asyncio.to_thread(self._arenas.requests.put, arrays)
        if self._ended is None:
            send(put)

    # The way back

    def take(self, message: FromCall, descriptors: list[int]) -> None:
        """A message of the worker about this call, with descriptors, which are closed here."""
        self._inbox.append((message, descriptors))
        if self._ended is not None:
            self._drop_inbox()
        elif not self._holders:
            self._take_in()

    def _take_in(self) -> None:
        """Handle what has come, up to what is so large that a thread must copy it."""
        while self._inbox:
            message, descriptors = self._inbox.popleft()
            try:
                for descriptor in descriptors:
                    self._arenas.answers.attach(descriptor)
                arrays = {}
                if isinstance(message, Part | Returned):
                    if not message.data and extent(message.tensors) > THREAD_COPY_BYTES:
                        self._hold(self._take_large(message))
                        return
                    arrays = self._arenas.answers.read(message.tensors, message.data)
            except MemoryError as error:
                self._no_room(message, error)
            else:
                self._heard(message, arrays)

    async def _take_large(self, message: Part | Returned) -> None:
        try:
            arrays = await asyncio.to_thread(self._arenas.answers.read, message.tensors, message.data)
        except MemoryError as error:
            self._no_room(message, error)
        else:
            self._heard(message, arrays)
        if self._ended is None:
            self._take_in()

    def _no_room(self, message: FromCall, error: MemoryError) -> None:
        """A part for which this side has no room ends the call, though not before the worker has stopped: until then
        the arena is in use."""
        self.lacking = self.lacking or error
        if isinstance(message, Part):
            self._stop()
        else:
            self._heard(message, {})

    def _heard(self, message: FromCall, arrays: dict[str, np.ndarray]) -> None:
        if not isinstance(message, Part):
            self._last(self, message, arrays)
        elif self._on_part is not None and self.lacking is None:
            self._on_part(message.result, arrays)

    # The end

    def succeed(self, reply: Reply) -> None:
        self._end(reply)

    def fail(self, error: BaseException) -> None:
        self._end(error)

    def time_out(self) -> None:
        """Have the caller wait no longer."""
        if not self.reply.done():
            self._refuse(TimeoutError())

    def _hold(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, before which this is not over, whatever happens meanwhile."""

        async def working() -> None:
            try:
                await work
            except Exception as error:
                self.fail(error)
            finally:
                self._holders -= 1
                self._settle()

        self._holders += 1
        task = asyncio.create_task(working())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, how: Reply | BaseException) -> None:
        self._ended = self._ended or how
        self._settle()

    def _settle(self) -> None:
        ended = self._ended
        if ended is None or self._holders or self.over.done():
            return
        self._drop_inbox()
        self.over.set_result(isinstance(ended, Reply))  # first: what waits for it comes before the caller goes on
        if self.reply.done():
            return
        if isinstance(ended, Reply):
            self.reply.set_result(ended)
        else:
            self._refuse(ended)

    def _refuse(self, error: BaseException) -> None:
        self.reply.set_exception(error)
        self.reply.exception()  # looked at here, because the caller may go in this very moment

    def _drop_inbox(self) -> None:
        while self._inbox:
            for descriptor in self._inbox.popleft()[1]:
                os.close(descriptor)
