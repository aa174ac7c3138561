"""An op in a forked child of this process, so that it can be stopped at any moment.

A kernel of numpy, BLAS or LAPACK reads no stop word. The child inherits the inputs (copy on write), runs the kernel and
writes the results to a file in memory, which this process reads; meanwhile this process polls the limits of the run and
kills the child when the run must end. A child that crashes, or that the system kills for memory, ends the op alone.

Only the thread that forks goes on in the child, so the child must not wait for any other thread: it runs one kernel,
collects no garbage and leaves by `os._exit`. OpenBLAS and the allocator of glibc prepare themselves for a fork.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import select
import signal
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from errno import ENOMEM, ENOSPC
from typing import Any, NoReturn

import numpy as np

from core.ir import errors
from core.ir.errors import CoreError, InternalError
from core.ir.registry import as_tuple
from core.ops.common.types import as_dtype
from core.runtime.run import Run

__all__ = ["call_in_child"]

INTERVAL = 0.005
"""Seconds between two polls of the limits."""

PIECE = 1 << 26
"""Bytes of a result that are copied before their source is freed: a result exists twice for no more than these."""

ALIGNMENT = 64
"""Results start at multiples of so many bytes."""

PR_SET_PDEATHSIG, MADV_DONTNEED, FALLOC_FL_PUNCH_HOLE = 1, 4, 3  # a hole keeps the size: 1 | 2

BUILTIN = {each.__name__: each for each in (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError)}
"""Errors of kernels that the executor explains; they are raised again as they are."""

_LIBC = ctypes.CDLL(None)
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def call_in_child(run: Run, function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` computed in a child process: an array or a tuple of arrays, with the same bits and layouts.

    Raises the error of `function`, MemoryError if the child was killed (only the kernel's out-of-memory killer does
    that), InternalError if it crashed, or ExecutionError (deadline_exceeded, canceled) once `run` must end.
    """
    run.poll()
    with ExitStack() as opened:
        memory = os.memfd_create("backpass-results", os.MFD_CLOEXEC)
        opened.callback(os.close, memory)
        reading, writing = os.pipe()
        opened.callback(os.close, reading)
        closing = opened.enter_context(ExitStack())
        closing.callback(os.close, writing)
        child = _fork()
        if child == 0:
            _live(function, args, memory, writing)
        try:
            closing.close()  # then the pipe ends when the child does
            report = _report(reading, run)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        _, status = os.waitpid(child, 0)
        return _outcome(report, os.waitstatus_to_exitcode(status), memory, run)


def _fork() -> int:
    try:
        with warnings.catch_warnings():  # Python 3.12 warns of forks with threads: the child waits for none of them
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork()
    except OSError as error:
        raise MemoryError("no process can be started for an op") from error


# --- this process --------------------------------------------------------------------------------------------------


def _report(reading: int, run: Run) -> bytes:
    """All that the child writes until it closes the pipe or ends. Raises ExecutionError once `run` must end."""
    waiting = select.poll()
    waiting.register(reading, select.POLLIN)
    report = b""
    while True:
        if not waiting.poll(INTERVAL * 1e3):
            run.poll()
        elif more := os.read(reading, 1 << 16):
            report += more
        else:
            return report


def _outcome(report: bytes, status: int, memory: int, run: Run) -> Any:
    """The results that the child reported, or its error raised."""
    if status in (-signal.SIGKILL, -signal.SIGBUS):  # the memory of results raises SIGBUS when no page is free
        raise MemoryError("the process of an op was killed")
    if status or not report:
        reason = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        raise InternalError(f"the process of an op {reason}")
    said = json.loads(report)
    if "error" in said:
        raise _error(said)
    arrays = tuple(_array(memory, each, run) for each in said["arrays"])
    return arrays if said["is_tuple"] else arrays[0]


def _error(said: dict[str, Any]) -> BaseException:
    """The error that the child reported."""
    name, message = said["error"], said["message"]
    if name == "MemoryError":
        return MemoryError(message)
    if name in BUILTIN:
        return BUILTIN[name](message)
    if "fields" in said:
        kind: type[CoreError] = getattr(errors, name)
        error = kind.__new__(kind, message)
        vars(error).update(said["fields"])
        return error
    return InternalError(f"{name}: {message}\n{said['traceback']}")


def _array(memory: int, said: dict[str, Any], run: Run) -> np.ndarray:
    """One result: its elements lie in the order of `axes`, and those with `repeats` are one element repeated."""
    shape, axes = said["shape"], said["axes"]
    stored = [1 if i in said["repeats"] else n for i, n in enumerate(shape)]
    array = np.empty([stored[i] for i in axes], as_dtype(said["dtype"]))
    data = array.reshape(-1).view(np.uint8)
    at = 0
    while at < data.size:
        run.poll()
        count = os.preadv(memory, [data[at : at + PIECE].data], said["offset"] + at)
        _LIBC.fallocate(memory, FALLOC_FL_PUNCH_HOLE, said["offset"] + at, count)
        at += count
    array = array.transpose(np.argsort(axes))
    return np.broadcast_to(array, shape) if said["repeats"] else array


# --- the child -----------------------------------------------------------------------------------------------------


def _live(function: Callable[..., Any], args: Sequence[Any], memory: int, writing: int) -> NoReturn:
    """Run `function`, report its results or its error, and end the process."""
    status = 1
    try:
        gc.disable()  # a finaliser might wait for a thread that does not exist here
        _belong_to_parent(memory, writing)
        try:
            report = _stored(function(*args), memory)
        except BaseException as error:
            report = _error_report(error)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(report).encode())
        status = 0
    finally:
        os._exit(status)


def _belong_to_parent(memory: int, writing: int) -> None:
    """End with the parent, hold none of its sockets and files open, and be the first to go when memory runs out."""
    parent = os.getppid()
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    first, second = sorted((memory, writing))
    for start, end in ((3, first), (first + 1, second), (second + 1, os.sysconf("SC_OPEN_MAX"))):
        os.closerange(start, end)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _stored(result: Any, memory: int) -> dict[str, Any]:
    """Write the results to `memory`; returns the report about them."""
    arrays = [np.asarray(each) for each in as_tuple(result)]
    offset, said = 0, []
    for i, array in enumerate(arrays):
        repeats = [k for k, n in enumerate(array.shape) if n > 1 and array.strides[k] == 0]
        once = array[tuple(slice(0, 1) if k in repeats else slice(None) for k in range(array.ndim))]
        axes = sorted(range(array.ndim), key=lambda k: -abs(once.strides[k]))
        once = once.transpose(axes)
        alone = not any(np.may_share_memory(array, other) for k, other in enumerate(arrays) if k != i)
        data = np.ascontiguousarray(once).reshape(-1).view(np.uint8)
        _write(memory, data, offset, frees=alone and once.flags.c_contiguous)
        said.append(
            {"dtype": str(array.dtype), "shape": array.shape, "axes": axes, "repeats": repeats, "offset": offset}
        )
        offset += -(-once.nbytes // ALIGNMENT) * ALIGNMENT
    return {"arrays": said, "is_tuple": isinstance(result, tuple)}


def _write(memory: int, data: np.ndarray, offset: int, frees: bool) -> None:
    """Write bytes to the file `memory` from `offset`. frees: give their own pages back as soon as they are written."""
    os.lseek(memory, offset, os.SEEK_SET)
    for start in range(0, data.size, PIECE):
        piece = data[start : start + PIECE]
        left = memoryview(piece.data)
        while left:
            left = left[os.write(memory, left) :]
        if frees:
            begin, page = piece.ctypes.data, mmap.PAGESIZE
            first, last = -(-begin // page) * page, (begin + piece.size) // page * page
            if last > first:
                _LIBC.madvise(first, last - first, MADV_DONTNEED)


def _error_report(error: BaseException) -> dict[str, Any]:
    """The report about an error."""
    if isinstance(error, CoreError) and hasattr(errors, type(error).__name__):
        fields = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | None)}
        return {"error": type(error).__name__, "message": error.message, "fields": fields}
    known = next((name for name, each in BUILTIN.items() if isinstance(error, each)), None)
    no_room = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in (ENOMEM, ENOSPC))
    name = "MemoryError" if no_room else known or type(error).__name__
    return {"error": name, "message": str(error), "traceback": "".join(traceback.format_exception(error))}
