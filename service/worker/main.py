"""The process: `python -m service.worker.main SOCKET_FD PARENT_PID`, started by `engine/child.py`.

It answers one call after another until the socket closes. Whatever a handler raises becomes an answer; the process
ends only when its parent does, or when its device can no longer be trusted.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import logging
import os
import resource
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
from typing import Any

import numpy as np

from core.ir.errors import CoreError, ProgramError
from service import logs
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
from service.ipc.shared_memory import ArenaReader, ArenaWriter
from service.worker.compiling import Compilations, Parked
from service.worker.state import ControlPage, Handler, StopSignal, WorkerState

log = logging.getLogger("backpass.worker")

PR_SET_PDEATHSIG = 1
EXIT_DEVICE_LOST = 70
SWITCH_S = 0.0005  # how long a call may wait for Python each time that a compilation is in its way


def main(socket_fd: int, parent_pid: int) -> int:
    """Serve calls from `socket_fd` until it closes; returns the exit status."""
    _die_with(parent_pid)
    sys.setswitchinterval(SWITCH_S)
    faulthandler.enable()
    os.set_inheritable(socket_fd, False)
    sock = socket.socket(fileno=socket_fd)
    frames = Frames(sock)
    try:
        start, descriptors = _next(frames)
    except (EOFError, ConnectionError):
        return 0  # the service ended while this process was starting
    assert isinstance(start, Start), "the first frame starts the worker"
    logs.configure(start.settings.get("log_level", "info"), worker=start.worker)
    page = ControlPage(descriptors[0])
    os.close(descriptors[0])
    threading.Thread(target=_beat, args=(page, start.heartbeat, parent_pid), daemon=True).start()
    if start.memory_limit is not None and start.device == "cpu":  # CUDA reserves address space far beyond its use
        resource.setrlimit(resource.RLIMIT_AS, (start.memory_limit, start.memory_limit))

    module, _, name = start.handlers.partition(":")
    handlers: Mapping[str, Handler] = getattr(importlib.import_module(module), name)
    xp, device = _device(start.device)
    if start.device == "cpu" and start.settings.get("compile", "never") != "never":
        _prepare_code(start.settings)
    state = WorkerState(start.worker, start.device, xp, start.settings, StopSignal(page, 0, time.monotonic()))
    speak = _Speaker(sock)
    state.compilations = Compilations(lambda number: speak(messages.encode(messages.Compiled(number))), _end_compiler)
    state.compilations.start()
    speak(messages.encode(Ready(device)))
    return _serve(speak, frames, handlers, state, page)


def _die_with(parent_pid: int) -> None:
    """End this process when its parent ends, however that ends. Signals meant for the service are left to it."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the line above took effect
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C and a group-wide SIGTERM reach us too, but running
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # calls may finish: the service closes the socket when it is time


def _beat(page: ControlPage, interval: float, parent_pid: int) -> None:
    while True:
        page.beat()
        if os.getppid() != parent_pid:
            os._exit(0)
        time.sleep(interval)


def _device(device: str) -> tuple[ModuleType, str]:
    """The array module of `device`, after proof that it computes, and the name to show people."""
    if device == "cpu":
        return np, "cpu"
    xp = importlib.import_module("cupy")  # only here: nothing else of the service may depend on CUDA
    assert int(xp.arange(4).sum()) == 6, "the GPU computes wrongly"
    return xp, f"cuda: {xp.cuda.runtime.getDeviceProperties(0)['name'].decode()}"


def _prepare_code(settings: Mapping[str, Any]) -> None:
    """Machine code is found again by whoever starts next, in a directory of all workers. Its threads start now, and so
    does the compiler, for which the first compilation would wait.
    """
    from core.codegen.machine import compile_outside, keep_on_disk  # LLVM, which not every worker needs
    from core.runtime.native import start_threads, thread_count

    compile_outside(thread_count()).start()
    directory = Path(settings["cache_dir"] or Path(settings["data_dir"]) / "code")
    keep_on_disk(directory.absolute(), settings["cache_bytes"])
    start_threads()


def _end_compiler() -> None:
    """Nothing was compiled for a while: the compiler's process can go. The next compilation starts another."""
    machine = sys.modules.get("core.codegen.machine")
    if machine is not None and machine.KEPT.outside is not None:
        machine.KEPT.outside.close()


class _Speaker:
    """Sends whole frames, from any thread. Raises OSError when the service is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def __call__(self, payload: bytes, descriptors: tuple[int, ...] = ()) -> None:
        with self._lock:
            messages.send(self._sock, payload, descriptors)


def _next(frames: Frames) -> tuple[ToWorker, list[int]]:
    """The next message, and its descriptors, which the caller must close. Raises EOFError or ConnectionError."""
    while (frame := frames.take()) is None:
        frames.read()
    payload, descriptors = frame
    return messages.decode_to_worker(payload), descriptors


def _serve(
    speak: _Speaker, frames: Frames, handlers: Mapping[str, Handler], state: WorkerState, page: ControlPage
) -> int:
    requests, answers = ArenaReader(), ArenaWriter()
    while True:
        try:
            call, descriptors = _next(frames)
        except (EOFError, ConnectionError):
            return 0
        if isinstance(call, Forget):
            if state.compilations is not None:
                state.compilations.forget(call.number)
            continue
        assert isinstance(call, Call), "the first frame comes once"
        answers.trim()  # the service has read the last answer before it sends another call
        state.stop = StopSignal(page, call.number, call.deadline)
        state.compile_seconds = 0.0
        state.tell = partial(_tell, speak, call.number, state, answers)
        try:
            answer, sent_along = _answer(call, descriptors, handlers, state, requests, answers)
            requests.trim()
            speak(answer, tuple(sent_along))
        except Parked as parked:
            requests.trim()
            speak(messages.encode(messages.Parked(call.number)))
            assert state.compilations is not None, "who else parks a call"
            state.compilations.wait(parked.job, call.number)  # now that the service knows
        except OSError:
            return 0


def _answer(
    call: Call,
    descriptors: list[int],
    handlers: Mapping[str, Handler],
    state: WorkerState,
    requests: ArenaReader,
    answers: ArenaWriter,
) -> tuple[bytes, list[int]]:
    """The frame that answers `call`, and the descriptors to send with it. Nothing a handler raises gets out."""
    try:
        for descriptor in descriptors:
            requests.attach(descriptor)
        return _returned(call, handlers, state, requests, answers)
    except Parked:
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
        failed = _failed(call, state, "memory", "out_of_memory", "the worker ran out of memory")
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
    call: Call, handlers: Mapping[str, Handler], state: WorkerState, requests: ArenaReader, answers: ArenaWriter
) -> tuple[bytes, list[int]]:
    started = time.perf_counter()
    tensors = requests.read(call.tensors, call.data)
    read = time.perf_counter()
    result, computed = handlers[call.op](state, call.args, tensors)
    done = time.perf_counter()

    def returned(described: tuple[Tensor, ...], data: bytearray) -> Returned:
        timing = {
            "transfer_in": (read - started) * 1e3,
            "compute": (done - read) * 1e3,
            "transfer_out": (time.perf_counter() - done) * 1e3,
        }
        compile_ms = state.compile_seconds * 1e3
        return Returned(call.number, result, described, data, timing, state.residents, compile_ms)

    return _written(state, answers, computed, returned)


def _tell(
    speak: _Speaker,
    number: int,
    state: WorkerState,
    answers: ArenaWriter,
    result: dict[str, Any],
    computed: Mapping[str, Any],
) -> None:
    """Send a part of the answer to the call of that number, and go on. Raises OSError when the service is gone."""
    payload, sent_along = _written(state, answers, computed, lambda *placed: Part(number, result, *placed))
    speak(payload, tuple(sent_along))


def _written(
    state: WorkerState,
    answers: ArenaWriter,
    computed: Mapping[str, Any],
    message: Callable[[tuple[Tensor, ...], bytearray], FromWorker],
) -> tuple[bytes, list[int]]:
    """The frame of a message about arrays, which are in their place then, and the descriptors to send with it."""
    described, data, descriptor = answers.put({name: state.to_host(array) for name, array in computed.items()})
    try:
        payload = messages.encode(message(described, data))
    except BaseException:
        if descriptor is not None:
            answers.close()  # its descriptor was never sent, so it must not count as the current file
        raise
    return payload, [] if descriptor is None else [descriptor]


def _failed(
    call: Call, state: WorkerState, kind: str, code: str, message: str, problem: dict[str, Any] | None = None
) -> Failed:
    plain = problem or {"code": code, "message": message, "location": None, "problems": []}
    return Failed(call.number, kind, code, message, plain, state.residents)


def _problem(error: CoreError) -> dict[str, Any]:
    problems = [asdict(problem) for problem in error.problems]
    location = asdict(error.location) if error.location is not None else None
    return {"code": error.code, "message": error.message, "location": location, "problems": problems}


def _end_if_device_lost(state: WorkerState) -> None:
    """After an illegal access every later CUDA call fails: a new process is the only way back."""
    if state.device != "cuda":
        return
    try:
        state.xp.cuda.runtime.deviceSynchronize()
    except state.xp.cuda.runtime.CUDARuntimeError as error:
        log.critical("the GPU of this worker cannot be used any more: %s", error)
        logging.shutdown()
        os._exit(EXIT_DEVICE_LOST)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
