"""The answers of a worker: a handler's result, or its exception as an error, with their tensors in shared memory."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn, Protocol

from core.device.driver import DeviceFault
from core.ir.errors import CoreError, OutOfMemory, ProgramError
from core.ir.stop import watched_by
from service.ipc import messages
from service.ipc.messages import Call, Failed, FromWorker, Part, Returned, Tensor
from service.ipc.shared_memory import SharedMemoryReader, SharedMemoryWriter, extent
from service.worker.compilation import CompilationPending
from service.worker.memory import require
from service.worker.state import Handler, WorkerState

__all__ = ["Answers", "Send"]

log = logging.getLogger("backpass.worker")

EXIT_DEVICE_LOST = 70


class Send(Protocol):
    """Sends a complete frame. Raises OSError when the service closed the socket."""

    def __call__(self, payload: bytes, descriptors: tuple[int, ...] = ()) -> None: ...


class Answers:
    """Runs the handlers of calls, and sends what they return."""

    def __init__(self, send: Send, handlers: Mapping[str, Handler], state: WorkerState) -> None:
        self._send, self._handlers, self._state = send, handlers, state
        self._requests, self._answers = SharedMemoryReader(), SharedMemoryWriter()
        if state.host_memory is not None:
            state.host_memory.answers = lambda: self._answers.nbytes

    def trim(self) -> None:
        """Release memory of the last answer, which the service has read before it sends another call."""
        self._answers.trim()

    def send(self, call: Call, descriptors: list[int]) -> None:
        """Answer `call`, whose tensors lie in the memory of `descriptors`.

        Raises CompilationPending, then nothing is sent; OSError when the service closed the socket.
        """
        self._state.send_part = partial(self._send_part, call.number)
        try:
            answer, sent_along = self._answer(call, descriptors)
        finally:
            self._requests.trim()
        self._send(answer, tuple(sent_along))

    def _answer(self, call: Call, descriptors: list[int]) -> tuple[bytes, list[int]]:
        """(payload of the answer to `call`, descriptors to send with it). An exception becomes the answer."""
        state = self._state
        try:
            for descriptor in descriptors:
                self._requests.attach(descriptor)
            return self._returned(call)
        except CompilationPending:
            raise
        except CoreError as error:
            kind = "program" if isinstance(error, ProgramError) else "execution"
            if error.code == "out_of_memory":
                kind = "memory"
                state.free_device_memory()
            failed = self._failed(call, kind, error.code, error.message, _problem(error))
        except MemoryError as error:
            state.free_device_memory()
            log.warning("call %d (%s) ran out of memory: %s", call.number, call.op, error)
            failed = self._failed(call, "memory", "out_of_memory", f"the worker ran out of memory: {error}")
        except DeviceFault as error:
            _end(error)
        except Exception:
            log.exception("call %d (%s) failed inside its handler", call.number, call.op)
            _end_if_device_lost(state)
            failed = self._failed(call, "internal", "internal", "the call failed inside the worker")
        try:
            return messages.encode(failed), []
        except (TypeError, ValueError, OverflowError, RecursionError):
            log.exception("the error of call %d (%s) cannot be sent", call.number, call.op)
            return messages.encode(self._failed(call, "internal", "internal", "the call failed inside the worker")), []

    def _returned(self, call: Call) -> tuple[bytes, list[int]]:
        """The same for what the handler of `call` returns. Raises what the handler raises."""
        state = self._state
        began = time.monotonic_ns()
        started = time.perf_counter()
        if call.tensors and not call.data:
            require(state.host_memory, extent(call.tensors), "the request")
        tensors = self._requests.read(call.tensors, call.data)
        read = time.perf_counter()
        with watched_by(state.stop):
            result, computed = self._handlers[call.op](state, call.args, tensors)
        done = time.perf_counter()

        def returned(described: tuple[Tensor, ...], data: bytearray) -> Returned:
            timing = {
                "transfer_in": (read - started) * 1e3,
                "compute": (done - read) * 1e3,
                "transfer_out": (time.perf_counter() - done) * 1e3,
            }
            compile_ms = state.compile_seconds * 1e3
            return Returned(call.number, result, described, data, timing, state.residents, compile_ms, began)

        return self._written(computed, returned)

    def _send_part(self, number: int, result: dict[str, Any], computed: Mapping[str, Any]) -> None:
        """Send a part of the answer to call `number`. Raises OSError when the service closed the socket."""
        payload, sent_along = self._written(computed, lambda *placed: Part(number, result, *placed))
        self._send(payload, tuple(sent_along))

    def _written(
        self, computed: Mapping[str, Any], message: Callable[[tuple[Tensor, ...], bytearray], FromWorker]
    ) -> tuple[bytes, list[int]]:
        """Copy the arrays into place; returns (payload of the message about them, descriptors to send with it)."""
        state, answers = self._state, self._answers
        try:
            require(state.host_memory, sum([array.nbytes for array in computed.values()]), "the answer")
        except OutOfMemory as error:  # the call may have taken effect, as it has when `put` raises this error
            raise MemoryError(error.message) from error
        described, data, descriptor = answers.put({name: state.to_host(array) for name, array in computed.items()})
        try:
            payload = messages.encode(message(described, data))
        except BaseException:
            if descriptor is not None:
                answers.close()  # the service did not get its descriptor, so later answers must not use this file
            raise
        return payload, [] if descriptor is None else [descriptor]

    def _failed(self, call: Call, kind: str, code: str, message: str, problem: dict[str, Any] | None = None) -> Failed:
        document = problem or {"code": code, "message": message, "location": None, "problems": []}
        return Failed(call.number, kind, code, message, document, self._state.residents)


def _problem(error: CoreError) -> dict[str, Any]:
    problems = [asdict(problem) for problem in error.problems]
    location = asdict(error.location) if error.location is not None else None
    found: dict[str, Any] = {"code": error.code, "message": error.message, "location": location, "problems": problems}
    if isinstance(error, OutOfMemory):
        found |= {"wanted_bytes": error.wanted, "allowed_bytes": error.allowed}
    return found


def _end_if_device_lost(state: WorkerState) -> None:
    """End the process if its GPU context is broken: only a new process can use CUDA after an illegal access."""
    if state.device != "cuda":
        return
    try:
        state.xp.cuda.runtime.deviceSynchronize()
    except state.xp.cuda.runtime.CUDARuntimeError as error:
        _end(error)


def _end(error: Exception) -> NoReturn:
    """End the process, because its GPU has failed."""
    log.critical("ending this worker, because its GPU context is broken: %s", error)
    logging.shutdown()
    os._exit(EXIT_DEVICE_LOST)
