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
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from service import gpu_tests, logs
from service.ipc import messages
from service.ipc.messages import Call, Forget, Frames, Ready, Start, ToWorker
from service.ipc.signal_page import SignalPage
from service.worker.answers import Answers, Send
from service.worker.compilation import CompilationPending
from service.worker.compiling import Compilations
from service.worker.memory import DeviceMemory, HostMemory, volunteer_for_the_killer
from service.worker.state import Handler, StopSignal, WorkerState

log = logging.getLogger("backpass.worker")

PR_SET_PDEATHSIG = 1
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


def _serve(send: Send, frames: Frames, handlers: Mapping[str, Handler], state: WorkerState, page: SignalPage) -> int:
    answers = Answers(send, handlers, state)
    compilations = state.compilations
    assert compilations is not None
    while True:
        try:
            call, descriptors = _next(frames)
        except (EOFError, ConnectionError):
            return 0
        if isinstance(call, Forget):
            compilations.forget(call.number, call.again)
            continue
        if not isinstance(call, Call):
            raise ProtocolError(f"expected Call, got a second {type(call).__name__}")
        answers.trim()
        logs.FIELDS.set(call.fields)
        state.stop = StopSignal(page, call.number, call.deadline)
        state.compile_seconds = 0.0
        state.answer_bytes = call.args.get("answer_bytes")
        compilations.serving = True
        try:
            answers.send(call, descriptors)
        except CompilationPending as pending:
            send(messages.encode(messages.Parked(call.number)))
            compilations.wait(pending.compilation, call.number)  # after the message: see `wait`
        except OSError:
            return 0
        finally:
            compilations.serving = False


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
