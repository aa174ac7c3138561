"""One call from its start to its reply, with the copying of its arrays to the worker and back."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import numpy as np

from service.engine.answer_room import AnswerRoom
from service.engine.protocol import PartCallback, Reply
from service.ipc.messages import Failed, Parked, Part, Returned
from service.ipc.shared_memory import Placed, SharedMemoryReader, SharedMemoryWriter, extent

__all__ = ["FromCall", "Last", "PendingCall", "SharedMemory"]

THREAD_COPY_BYTES = 2**20  # a thread copies more than this, because the copy would delay other tasks of the event loop

Last = Returned | Failed | Parked
"""The messages that end a call."""

FromCall = Part | Last
"""The messages about a running call."""


class SharedMemory:
    """The shared memory between the service and one worker: one file for requests, one for answers."""

    def __init__(self, room: AnswerRoom | None = None) -> None:
        """room: bounds the answers that are being sent to clients; None for no bound."""
        self.requests = SharedMemoryWriter()
        self.answers = SharedMemoryReader()
        self.room = room

    def trim(self) -> None:
        """Free large files. Call it after the answer of a call has been read."""
        self.requests.trim()
        self.answers.trim()

    def close(self) -> None:
        self.requests.close()
        self.answers.close()


class PendingCall:
    """One call from its start to its reply.

    While a thread copies its arrays, the end of the call is delayed until the copy is complete.

    reply:   the result for the caller. The caller may cancel it; the call then goes on without a caller.
    over:    whether the call succeeded. Until it is done, the shared memory is in use.
    lacking: the error if the service had no memory for a part of the answer.
    """

    def __init__(
        self,
        number: int,
        memory: SharedMemory,
        on_part: PartCallback | None,
        stop: Callable[[], None],
        last: Callable[[PendingCall, Last, dict[str, np.ndarray]], None],
        broken: Callable[[Exception], None],
    ) -> None:
        """stop: asks the worker to stop the call.

        last:   called with the message that ends the call; it must call `succeed` or `fail`.
        broken: called with the error of a message that cannot be handled; it must call `fail`.
        """
        self.number = number
        loop = asyncio.get_running_loop()
        self.reply: asyncio.Future[Reply] = loop.create_future()
        self.over: asyncio.Future[bool] = loop.create_future()
        self.lacking: MemoryError | None = None
        self._memory = memory
        self._on_part, self._stop, self._last, self._broken = on_part, stop, last, broken
        self._inbox: deque[tuple[FromCall, list[int]]] = deque()  # messages that arrive while a thread copies
        self._copies = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: Reply | BaseException | None = None

    # Sending the request

    def place(self, arrays: Mapping[str, np.ndarray], send: Callable[[Placed], None]) -> None:
        """Copy `arrays` to the worker, then `send` the call. A thread copies large arrays, so `send` comes later."""
        if sum([array.nbytes for array in arrays.values()]) > THREAD_COPY_BYTES:
            self._run_before_end(self._place_large(arrays, send))
            return
        try:
            send(self._memory.requests.put(arrays))
        except BaseException as error:
            self.fail(error)

    async def _place_large(self, arrays: Mapping[str, np.ndarray], send: Callable[[Placed], None]) -> None:
        put = await asyncio.to_thread(self._memory.requests.put, arrays)
        if self._ended is None:
            send(put)

    # Receiving the answer

    def take(self, message: FromCall, descriptors: list[int]) -> None:
        """Handle a message about this call, and close its descriptors."""
        self._inbox.append((message, descriptors))
        if self._ended is not None:
            self._drop_inbox()
        elif not self._copies:
            self._handle_inbox()

    def _handle_inbox(self) -> None:
        """Handle the messages in the inbox, up to one with arrays so large that a thread must copy them."""
        while self._inbox:
            message, descriptors = self._inbox.popleft()
            try:
                for descriptor in descriptors:
                    self._memory.answers.attach(descriptor)
                arrays = {}
                if isinstance(message, Part | Returned):
                    if not message.data and (size := extent(message.tensors)) > THREAD_COPY_BYTES:
                        if self._memory.room is not None:
                            self._memory.room.check(size)
                        self._run_before_end(self._read_large(message))
                        return
                    arrays = self._memory.answers.read(message.tensors, message.data)
            except MemoryError as error:
                self._no_room(message, error)
            else:
                self._handle(message, arrays)

    async def _read_large(self, message: Part | Returned) -> None:
        try:
            arrays = await asyncio.to_thread(self._memory.answers.read, message.tensors, message.data)
        except MemoryError as error:
            self._no_room(message, error)
        except Exception as error:
            self._broken(error)
        else:
            self._handle(message, arrays)
        if self._ended is None:
            self._handle_inbox()

    def _no_room(self, message: FromCall, error: MemoryError) -> None:
        """Handle a message for whose arrays the service has no memory. A part makes the call fail, but only after the
        worker has stopped, because the worker uses the shared memory until then."""
        self.lacking = self.lacking or error
        if isinstance(message, Part):
            self._stop()
        else:
            self._handle(message, {})

    def _handle(self, message: FromCall, arrays: dict[str, np.ndarray]) -> None:
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
        """Fail the reply with TimeoutError. The call itself goes on until the worker ends it."""
        if not self.reply.done():
            self._refuse(TimeoutError())

    def _run_before_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task, and delay the end of the call until the task is done."""

        async def working() -> None:
            try:
                await work
            except Exception as error:
                self.fail(error)
            finally:
                self._copies -= 1
                self._settle()

        self._copies += 1
        task = asyncio.create_task(working())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, how: Reply | BaseException) -> None:
        self._ended = self._ended or how
        self._settle()

    def _settle(self) -> None:
        ended = self._ended
        if ended is None or self._copies or self.over.done():
            return
        self._drop_inbox()
        self.over.set_result(isinstance(ended, Reply))  # first: its callbacks must run before the caller goes on
        if self.reply.done():
            return
        if isinstance(ended, Reply):
            self.reply.set_result(ended)
        else:
            self._refuse(ended)

    def _refuse(self, error: BaseException) -> None:
        self.reply.set_exception(error)
        self.reply.exception()  # marks it as retrieved: the caller may be cancelled now

    def _drop_inbox(self) -> None:
        while self._inbox:
            for descriptor in self._inbox.popleft()[1]:
                os.close(descriptor)
