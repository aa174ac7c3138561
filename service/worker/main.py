"""The worker process: `python -m service.worker.main SOCKET_FD PARENT_PID HANDLERS DEVICE`; see `engine/child.py`.

The process answers one call after another until the socket closes. An exception of a handler becomes an answer. The
process ends only with its parent, or when its GPU has failed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from core.device.driver import DeviceFault
from core.ir.errors import CoreError, OutOfMemory, ProgramError
from core.ir.stop import watched_by
from service import gpu_tests, logs
from service.ipc import messages
from service.ipc.messages import (
    Call,
    Failed,
    Forget,
    Frames,
    FromWorker,
    Part,
    Ready,
    Returned,
    Start,
    Tensor,
    ToWorker,
)
from service.ipc.shared_memory import SharedMemoryReader, SharedMemoryWriter, extent
from service.ipc.signal_page import SignalPage
from service.worker.compiling import CompilationPending, Compilations
from service.worker.memory import DeviceMemory, HostMemory, require, volunteer_for_the_killer
from service.worker.state import Handler, StopSignal, WorkerState

log = logging.getLogger("backpass.worker")

PR_SET_PDEATHSIG = 1
EXIT_DEVICE_LOST = 70
DEVICE_S = 1.0
CACHED = 6  # programs, executables and steps of tapes may each take one part in six of the memory for arrays
OP_BYTES = 1_000  # memory of an op in a program or in a step of a tape
SWITCH_S = 0.0001  # the most time for which the compilation thread can delay a call before the interpreter switches


class ProtocolError(Exception):
    """The service sent a message that is not allowed at this point."""


def main(socket_fd: int, parent_pid: int, handlers: str, device: str = "cpu") -> int:
    """Serve calls from `socket_fd` until it closes; returns the exit status.

    handlers: "module:NAME". device: "cpu" or "cuda".
    """
    _die_with(parent_pid)
    volunteer_for_the_killer()
    sys.setswitchinterval(SWITCH_S)
    faulthandler.enable()
    os.set_inheritable(socket_fd, False)
    sock = socket.socket(fileno=socket_fd)
    frames = Frames(sock)
    module, _, name = handlers.partition(":")
    table: Mapping[str, Handler] = getattr(importlib.import_module(module), name)  # before the service is there
    if device == "cuda":
        importlib.import_module("service.worker.gpu")  # without cupy, which may look for GPUs
    try:
        start, descriptors = _next(frames)
    except (EOFError, ConnectionError):
        return 0  # the service ended while this process was starting
    if not isinstance(start, Start) or len(descriptors) != 1:
        raise ProtocolError(f"expected Start with one descriptor, got {type(start).__name__} with {len(descriptors)}")
    os.environ.update(start.environment)
    logs.configure(start.settings.get("log_level", "info"), worker=start.worker)
    page = SignalPage(descriptors[0])
    os.close(descriptors[0])
    threading.Thread(target=_beat, args=(page, start.heartbeat, parent_pid), daemon=True).start()

    xp, device = _device(start.device, start.settings)
    state = WorkerState(start.worker, start.device, xp, start.settings, StopSignal(page, 0, time.monotonic()))
    if start.settings.get("compile", "never") != "never":
        _prepare_code(state, start.memory_limit)
    send = _Sender(sock)
    state.compilations = Compilations(
        lambda number: send(messages.encode(messages.CompilationDone(number))), _end_compiler
    )
    state.compilations.start()
    if start.memory_limit is not None:
        _limit_memory(state, start.memory_limit)
    if start.device == "cuda":
        threading.Thread(target=_measure_device, args=(page, xp), daemon=True).start()
    send(messages.encode(Ready(device)))
    return _serve(send, frames, table, state, page)


def _die_with(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent ends for any reason. Ignore signals meant for the service."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before the call of prctl
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C and a group-wide SIGTERM reach workers too, but running
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # calls may finish: the service closes the socket to end a worker


def _beat(page: SignalPage, interval: float, parent_pid: int) -> None:
    while True:
        page.beat()
        if os.getppid() != parent_pid:
            os._exit(0)
        time.sleep(interval)


def _measure_device(page: SignalPage, xp: Any, interval: float = DEVICE_S, rounds: int | None = None) -> None:
    """Report the memory of the GPU every `interval` seconds. rounds: how often; by default until the process ends."""
    while rounds is None or (rounds := rounds - 1) >= 0:
        free, total = xp.cuda.runtime.memGetInfo()
        page.device_memory = total, total - free, xp.get_default_memory_pool().free_bytes()
        time.sleep(interval)


def _device(device: str, settings: Mapping[str, Any]) -> tuple[ModuleType, str]:
    """(array module, name for people) of `device`. Raises RuntimeError if the device cannot be used."""
    if device == "cpu":
        return np, "cpu"
    from core.ops.common.on_cuda import array_module  # imported here, because it loads every op
    from service.worker.gpu_deadline import gpu_test

    directory, part = _code_directory(settings), "the first op"
    before = gpu_tests.last(directory, part)
    if before is not None and before.has_failed:
        raise RuntimeError(f"this GPU is not used, because {before.why}")
    with gpu_test(directory, part):
        xp = array_module()
        found = int(xp.arange(4).sum())
        name = xp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    if found != 6:
        raise RuntimeError(f"the GPU computes wrongly: 0 + 1 + 2 + 3 gave {found}")
    return xp, f"cuda: {name}"


def _code_directory(settings: Mapping[str, Any]) -> Path:
    """The directory of machine code, and of the records of tests of GPUs."""
    return Path(settings["cache_dir"] or Path(settings["data_dir"]) / "code").absolute()


def _prepare_code(state: WorkerState, memory_limit: int | None) -> None:
    """Start the compiler process and the threads of compiled code, and open the cache of compiled code on disk.

    On a GPU: test machine code there, and compile steps for it from now on.

    memory_limit: of the worker, two thirds of the share that it has together with its compiler; None for no limit.

    All workers share the cache. Without the early start, the first compilation would wait for the compiler process.
    """
    directory = _code_directory(state.settings)
    limit = state.settings["cache_bytes"]
    if state.device == "cuda":
        from service.worker.gpu import use_gpu  # imported here, because most workers have no GPU

        state.gpu = use_gpu(directory, limit, state.settings["tf32"])
        return
    from core.codegen.machine import keep_on_disk, use_compiler_process  # imported here, because it loads LLVM
    from core.codegen.threads import start_threads, thread_count

    use_compiler_process(thread_count(), 0 if memory_limit is None else memory_limit // 2).start()
    keep_on_disk(directory, limit)
    start_threads()


def _limit_memory(state: WorkerState, limit: int) -> None:
    """Limit the memory of this process to `limit` bytes, and that of its GPU as configured."""
    np.ones((256, 256)) @ np.ones((256, 256))  # BLAS takes its buffers now: without memory for them it would abort
    state.host_memory = HostMemory(limit)
    room = state.host_memory.capacity // CACHED
    state.executables.limit = min(state.executables.limit, room)
    state.programs.limit = min(state.programs.limit, room // OP_BYTES)
    state.tape_ops = min(state.tape_ops, room // OP_BYTES)
    if state.device == "cpu":
        state.host_memory.enforce()
        state.memory = state.host_memory
    else:  # no limit by the system: CUDA maps far more memory than it uses
        state.memory = DeviceMemory(state.xp, state.settings.get("device_memory"), state.gpu)


def _end_compiler() -> None:
    """End the idle compiler process. The next compilation starts another one."""
    machine = sys.modules.get("core.codegen.machine")
    if machine is not None:
        machine.close_compiler_process()


class _Sender:
    """Sends complete frames, from any thread. Raises OSError when the service closed the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def __call__(self, payload: bytes, descriptors: tuple[int, ...] = ()) -> None:
        with self._lock:
            messages.send(self._sock, payload, descriptors)


def _next(frames: Frames) -> tuple[ToWorker, list[int]]:
    """The next message and its descriptors, which the caller must close.

    Raises EOFError or ConnectionError when the service closed the socket.
    """
    while (frame := frames.take()) is None:
        frames.read()
    payload, descriptors = frame
    return messages.decode_to_worker(payload), descriptors


def _serve(send: _Sender, frames: Frames, handlers: Mapping[str, Handler], state: WorkerState, page: SignalPage) -> int:
    requests, answers = SharedMemoryReader(), SharedMemoryWriter()
    if state.host_memory is not None:
        state.host_memory.answers = lambda: answers.nbytes
    while True:
        try:
            call, descriptors = _next(frames)
        except (EOFError, ConnectionError):
            return 0
        if isinstance(call, Forget):
            if state.compilations is not None:
                state.compilations.forget(call.number, call.again)
            continue
        if not isinstance(call, Call):
            raise ProtocolError(f"expected Call, got a second {type(call).__name__}")
        answers.trim()  # the service has read the previous answer before it sends a call
        logs.FIELDS.set(call.fields)
        state.stop = StopSignal(page, call.number, call.deadline)
        state.compile_seconds = 0.0
        state.answer_bytes = call.args.get("answer_bytes")
        state.send_part = partial(_send_part, send, call.number, state, answers)
        compilations = state.compilations
        assert compilations is not None
        compilations.serving = True
        try:
            answer, sent_along = _answer(call, descriptors, handlers, state, requests, answers)
            requests.trim()
            send(answer, tuple(sent_along))
        except CompilationPending as pending:
            requests.trim()
            send(messages.encode(messages.Parked(call.number)))
            compilations.wait(pending.compilation, call.number)  # after the message: see `wait`
        except OSError:
            return 0
        finally:
            compilations.serving = False


def _answer(
    call: Call,
    descriptors: list[int],
    handlers: Mapping[str, Handler],
    state: WorkerState,
    requests: SharedMemoryReader,
    answers: SharedMemoryWriter,
) -> tuple[bytes, list[int]]:
    """(payload of the answer to `call`, descriptors to send with it). A handler's exception becomes the answer."""
    try:
        for descriptor in descriptors:
            requests.attach(descriptor)
        return _returned(call, handlers, state, requests, answers)
    except CompilationPending:
        raise
    except CoreError as error:
        kind = "program" if isinstance(error, ProgramError) else "execution"
        if error.code == "out_of_memory":
            kind = "memory"
            state.free_device_memory()
        failed = _failed(call, state, kind, error.code, error.message, _problem(error))
    except MemoryError as error:
        state.free_device_memory()
        log.warning("call %d (%s) ran out of memory: %s", call.number, call.op, error)
        failed = _failed(call, state, "memory", "out_of_memory", f"the worker ran out of memory: {error}")
    except DeviceFault as error:
        _end(error)
    except Exception:
        log.exception("call %d (%s) failed inside its handler", call.number, call.op)
        _end_if_device_lost(state)
        failed = _failed(call, state, "internal", "internal", "the call failed inside the worker")
    try:
        return messages.encode(failed), []
    except (TypeError, ValueError, OverflowError, RecursionError):
        log.exception("the error of call %d (%s) cannot be sent", call.number, call.op)
        return messages.encode(_failed(call, state, "internal", "internal", "the call failed inside the worker")), []


def _returned(
    call: Call,
    handlers: Mapping[str, Handler],
    state: WorkerState,
    requests: SharedMemoryReader,
    answers: SharedMemoryWriter,
) -> tuple[bytes, list[int]]:
    began = time.monotonic_ns()
    started = time.perf_counter()
    if call.tensors and not call.data:
        require(state.host_memory, extent(call.tensors), "the request")
    tensors = requests.read(call.tensors, call.data)
    read = time.perf_counter()
    with watched_by(state.stop):
        result, computed = handlers[call.op](state, call.args, tensors)
    done = time.perf_counter()

    def returned(described: tuple[Tensor, ...], data: bytearray) -> Returned:
        timing = {
            "transfer_in": (read - started) * 1e3,
            "compute": (done - read) * 1e3,
            "transfer_out": (time.perf_counter() - done) * 1e3,
        }
        compile_ms = state.compile_seconds * 1e3
        return Returned(call.number, result, described, data, timing, state.residents, compile_ms, began)

    return _written(state, answers, computed, returned)


def _send_part(
    send: _Sender,
    number: int,
    state: WorkerState,
    answers: SharedMemoryWriter,
    result: dict[str, Any],
    computed: Mapping[str, Any],
) -> None:
    """Send a part of the answer to call `number`. Raises OSError when the service closed the socket."""
    payload, sent_along = _written(state, answers, computed, lambda *placed: Part(number, result, *placed))
    send(payload, tuple(sent_along))


def _written(
    state: WorkerState,
    answers: SharedMemoryWriter,
    computed: Mapping[str, Any],
    message: Callable[[tuple[Tensor, ...], bytearray], FromWorker],
) -> tuple[bytes, list[int]]:
    """Copy the arrays into place; returns (payload of the message about them, descriptors to send with it)."""
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


def _failed(
    call: Call, state: WorkerState, kind: str, code: str, message: str, problem: dict[str, Any] | None = None
) -> Failed:
    document = problem or {"code": code, "message": message, "location": None, "problems": []}
    return Failed(call.number, kind, code, message, document, state.residents)


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


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
