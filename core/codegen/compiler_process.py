"""LLVM in a separate process: texts of modules go in, object code comes out. This is the calling side.

A crash of LLVM then costs one compilation and not the calling process, and other threads of that process do
not wait for llvmlite's global lock. Of several texts, forks of the compiler process compile all but the first at the
same time (`compiler_main`). A compilation that its caller stops (`core.ir.stop`) ends with its process.

A request is the number of texts in eight bytes, then each text after its length in eight bytes. An answer is one byte
(object code, LLVM's error, or a crash), then one piece after its length for each text, or one error message.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from core.ir.errors import ExecutionError
from core.ir.stop import poll, waiting

__all__ = [
    "BAD",
    "DIED",
    "GOOD",
    "LENGTH",
    "CompilerProcess",
    "exit_reason",
    "read_exactly",
    "read_piece",
    "write_piece",
]

LENGTH = struct.Struct("<Q")
GOOD, BAD, DIED = b"+", b"-", b"!"

POLL_S = 0.02
"""Seconds between two polls of the caller during a compilation."""

CHUNK = 2**20


class CompilerProcess:
    """A compiler process. The first compilation starts it. Thread-safe; it serves one thread at a time.

    parallel: how many texts a caller should pass at a time, if the module is long enough.
    nice:     the niceness of the process relative to this one: compilations give way to the steps of sessions.
    memory:   limit of the private memory of the process and of each fork, in bytes; 0 sets none.

    The process ends with the thread that started it, or with `close`.
    """

    def __init__(self, parallel: int = 1, nice: int = 0, memory: int = 0) -> None:
        self.parallel, self.nice, self.memory = parallel, nice, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process id, None while there is no process."""
        process = self._process
        return None if process is None else process.pid

    def compile(self, texts: Sequence[str]) -> list[bytes]:
        """The object code of each text.

        Raises RuntimeError with LLVM's message if a text is no valid module, ExecutionError (compiler_failed) if the
        process ends, and any exception of the caller's `Watch`. The next call starts a new process.
        """
        with waiting(), self._locked():
            if self._process is not None and self._process.poll() is not None:
                self._stop()  # it ended while it had no work
            if self._process is None:
                self._process = self._start_process()
            process = self._process
            assert process.stdin is not None and process.stdout is not None, "both are pipes"
            try:
                _write(process.stdin, LENGTH.pack(len(texts)))
                for text in texts:
                    content = text.encode()
                    _write(process.stdin, LENGTH.pack(len(content)))
                    _write(process.stdin, content)
                kind = _read(process.stdout, 1)
                answers = [_read_piece(process.stdout) for _ in (texts if kind == GOOD else [kind])]
            except (OSError, EOFError):
                raise ExecutionError(f"the compiler ended: {self._stop(wait=0.5)}", "compiler_failed") from None
            except BaseException:  # the next request would read the answer of this one
                self._stop()
                raise
        if kind == BAD:
            raise RuntimeError(answers[0].decode())
        if kind == DIED:
            raise ExecutionError(f"a fork of the compiler ended: {answers[0].decode()}", "compiler_failed")
        return answers

    def start(self) -> None:
        """Start the process now, so that the first compilation does not wait for it."""
        with self._lock:
            if self._process is None:
                self._process = self._start_process()

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._stop()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        while not self._lock.acquire(timeout=POLL_S):
            poll()
        try:
            yield
        finally:
            self._lock.release()

    def _start_process(self) -> subprocess.Popen[bytes]:
        limits = [str(each) for each in (os.getpid(), self.nice, self.memory)]
        arguments = [sys.executable, "-m", "core.codegen.compiler_main", *limits]
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]  # the same `core` as here
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0)
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        return process

    def _stop(self, wait: float = 0.0) -> str:
        """End the process. Returns how it ended, if it ended by itself within `wait` seconds."""
        process, self._process = self._process, None
        if process is None:
            return "it was not running"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)  # the pipes of a process close a moment before its status is there
        status = process.poll()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return "it did not answer" if status is None else exit_reason(status)


def exit_reason(status: int) -> str:
    """How a process ended, from its return code."""
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


# --- the calling side: pipes that do not block -----------------------------------------------------------------------


def _write(pipe: IO[bytes], content: bytes) -> None:
    left = memoryview(content)
    while left:
        poll()
        _, ready, _ = select.select([], [pipe], [], POLL_S)
        if ready:
            left = left[os.write(pipe.fileno(), left[:CHUNK]) :]


def _read(pipe: IO[bytes], size: int) -> bytes:
    """`size` bytes. Raises EOFError at the end of the stream."""
    found = bytearray()
    while len(found) < size:
        poll()
        ready, _, _ = select.select([pipe], [], [], POLL_S)
        if not ready:
            continue
        content = os.read(pipe.fileno(), min(size - len(found), CHUNK))
        if not content:
            raise EOFError(f"the stream ended after {len(found)} of {size} bytes")
        found += content
    return bytes(found)


def _read_piece(pipe: IO[bytes]) -> bytes:
    (length,) = LENGTH.unpack(_read(pipe, LENGTH.size))
    return _read(pipe, length)


# --- the side of the compiler process --------------------------------------------------------------------------------


def write_piece(file: IO[bytes], content: bytes) -> None:
    file.write(LENGTH.pack(len(content)) + content)
    file.flush()


def read_piece(file: IO[bytes]) -> bytes:
    """One piece, after its length. Raises EOFError at the end of the stream."""
    (length,) = LENGTH.unpack(read_exactly(file, LENGTH.size))
    return read_exactly(file, length)


def read_exactly(file: IO[bytes], size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise EOFError(f"the stream ended after {len(content)} of {size} bytes")
    return content
