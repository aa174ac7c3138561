"""Handlers for the tests of the pool, one for each way in which a call can end."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from core.ir.errors import ExecutionError, InvalidProgram, Location, Problem
from core.ir.stop import poll
from service.worker.state import WorkerState


def echo(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    return {"args": args, "pid": os.getpid(), "worker": state.worker}, tensors


def double(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    return {}, {name: array + array for name, array in tensors.items()}


def sleep(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    """Ignores the stop signal."""
    time.sleep(args["seconds"])
    return {"slept": args["seconds"]}, {}


def listen(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    """Cooperative: checks the stop signal every millisecond."""
    end = time.monotonic() + args["seconds"]
    while time.monotonic() < end:
        state.stop.check()
        time.sleep(0.001)
    return {}, {}


def kill(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    os.kill(os.getpid(), args.get("signal", signal.SIGKILL))
    return {}, {}


def leave(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    os._exit(3)


def keep(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    """Create the session args["id"] with the given tensors."""
    state.sessions[args["id"]] = tensors
    return {}, {}


def recall(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    return {}, state.sessions[args["id"]]


def wrong_program(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    place = Location(1, 3, "mul", "x", "h")
    raise InvalidProgram([Problem("use_before_write", "reads 'h' too early", "/blocks/1/ops/3/inputs/x/0", place)])


def fail_here(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    raise ExecutionError("10001 trips", "too_many_trips", location=Location(0, 2, "while"))


def out_of_memory(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    return {}, {"x": np.empty(args["bytes"], np.uint8)}


def fail_next_map(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    """The next file that this process maps cannot be mapped."""
    real = mmap.mmap

    def fails(*_: Any, **__: Any) -> None:
        mmap.mmap = real
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    mmap.mmap = fails
    return {}, {}


def bug(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    raise ZeroDivisionError("secret detail")


def unsendable_result(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    return {"x": object()}, {"big": np.zeros(3 * 2**20, np.uint8)}


def unsendable_error(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    raise ExecutionError("bad text \ud800")


def environment(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    return {name: os.environ.get(name) for name in args["names"]}, {}


def count(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    """Send one part for each of args["sizes"], with an array of that size, then end as args["end"] says."""
    for i, size in enumerate(args["sizes"]):
        state.stop.check()
        state.send_part({"i": i}, {"x": np.full(size, i, np.int64)})
    if args.get("end") == "fail":
        return fail_here(state, args, tensors)
    if args.get("end") == "listen":
        return listen(state, {"seconds": 60}, tensors)
    if args.get("end") == "kill":
        return kill(state, args, tensors)
    return {"said": len(args["sizes"])}, {"last": np.arange(5)}


def gated(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    """Request the compilation args["what"], which ends when the test makes the file args["gate"], and deletes the file.

    The text of the file is the result; the text "fail" makes the compilation fail.
    """

    def compile() -> str:
        gate = Path(args["gate"])
        opened = False
        while not opened:
            opened = gate.exists()
            poll()  # as real compilations do. Last: a compilation abandoned before its gate opened never reads it
            time.sleep(0.001)
        said = gate.read_text()
        gate.unlink()
        if said == "fail":
            raise ExecutionError("cannot be compiled", "compiler_failed")
        return said

    assert state.compilations is not None
    return {"compiled": state.compilations.result(args["what"], compile), "pid": os.getpid()}, dict(tensors)


HANDLERS = {
    "gated": gated,
    "count": count,
    "echo": echo,
    "double": double,
    "sleep": sleep,
    "listen": listen,
    "kill": kill,
    "leave": leave,
    "keep": keep,
    "recall": recall,
    "wrong_program": wrong_program,
    "fail_here": fail_here,
    "out_of_memory": out_of_memory,
    "bug": bug,
    "fail_next_map": fail_next_map,
    "unsendable_result": unsendable_result,
    "unsendable_error": unsendable_error,
    "environment": environment,
}
