"""LLVM in a process of its own: texts of modules go in, object code comes out.

    python -m core.codegen.compiler_process

A crash of LLVM then costs one compilation and not the process that asked for it, and other threads of that process do
not wait for llvmlite's global lock. Of several texts, forks of the compiler process compile all but the first at the
same time; the compiler process has one thread, so forking it is safe.

A request is the number of texts in eight bytes, then each text after its length in eight bytes. An answer is one byte
(object code, LLVM's error, or a crash), then one piece after its length for each text, or one error message.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from core.ir.errors import ExecutionError

__all__ = ["CompilerProcess"]

LENGTH = struct.Struct("<Q")
GOOD, BAD, DIED = b"+", b"-", b"!"
PR_SET_PDEATHSIG = 1


class CompilerProcess:
    """A compiler process. The first compilation starts it. Thread-safe; it serves one thread at a time.

    parallel: how many texts a caller should pass at a time, if the module is long enough.

    The process ends with the thread that started it, or with `close`.
    """

    def __init__(self, parallel: int = 1) -> None:
        self.parallel = parallel
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
        process ends. The next call starts a new process.
        """
        with self._lock:
            if self._process is None:
                self._process = self._start_process()
            process = self._process
            assert process.stdin is not None and process.stdout is not None, "both are pipes"
            try:
                process.stdin.write(LENGTH.pack(len(texts)))
                for text in texts:
                    _write(process.stdin, text.encode())
                kind = _exactly(process.stdout, 1)
                answers = [_read(process.stdout) for _ in (texts if kind == GOOD else [kind])]
            except (OSError, EOFError):
                raise ExecutionError(f"the compiler ended: {self._stop()}", "compiler_failed") from None
            except BaseException:  # after an interrupt, the next request would read the answer of this one
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

    def _start_process(self) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-m", "core.codegen.compiler_process", str(os.getpid())]
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]  # the same `core` as here
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def _stop(self) -> str:
        """End the process. Returns how it ended, if it had ended before."""
        process, self._process = self._process, None
        if process is None:
            return "it was not running"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)  # the pipes of a process close a moment before its status is there
        status = process.poll()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return "it did not answer" if status is None else _exit_reason(status)


def _exit_reason(status: int) -> str:
    """How a process ended, from its return code."""
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _write(file: IO[bytes], content: bytes) -> None:
    file.write(LENGTH.pack(len(content)) + content)
    file.flush()


def _read(file: IO[bytes]) -> bytes:
    """One piece, after its length. Raises EOFError at the end of the stream."""
    (length,) = LENGTH.unpack(_exactly(file, LENGTH.size))
    return _exactly(file, length)


def _exactly(file: IO[bytes], size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise EOFError(f"the stream ended after {len(content)} of {size} bytes")
    return content


class _Died(Exception):
    """A fork ended without an answer."""


class _Fork:
    """A fork of this process that compiles one text. Raises OSError if the system refuses the fork."""

    def __init__(self, text: str) -> None:
        reading, writing = os.pipe()
        parent = os.getpid()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        if self._pid == 0:
            try:
                os.close(reading)
                _end_with(parent)
                kind, answer = _compile(text)
                with os.fdopen(writing, "wb") as file:
                    file.write(kind + answer)
            finally:
                os._exit(0)
        os.close(writing)
        self._answer = os.fdopen(reading, "rb")

    def answer(self) -> tuple[bytes, bytes]:
        """The kind of answer and its bytes. To be called once. Raises _Died."""
        with self._answer:
            content = self._answer.read()
        _, status = os.waitpid(self._pid, 0)
        if not content:
            raise _Died(_exit_reason(os.waitstatus_to_exitcode(status)))
        return content[:1], content[1:]


def _end_with(parent: int) -> None:
    """From now on this process is ended if its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above took effect
        os._exit(0)


def _compile(text: str) -> tuple[bytes, bytes]:
    from core.codegen.machine import compile_ir

    try:
        return GOOD, compile_ir(text)
    except RuntimeError as error:
        return BAD, str(error).encode()


def _start(text: str) -> Callable[[], tuple[bytes, bytes]]:
    """Start a compilation in a fork; the function that waits for its answer. Without a fork, that function compiles."""
    try:
        return _Fork(text).answer
    except OSError:
        return partial(_compile, text)


def _compile_all(texts: Sequence[str]) -> tuple[bytes, list[bytes]]:
    """The kind of answer and its pieces, for all texts."""
    first, *others = texts
    begun = [_start(text) for text in others]
    found = [_compile(first)]
    died: list[_Died] = []
    for answer in begun:
        try:
            found.append(answer())
        except _Died as error:  # wait for the other forks nevertheless
            died.append(error)
    if died:
        return DIED, [str(died[0]).encode()]
    bad = [answer for kind, answer in found if kind == BAD]
    return (BAD, bad[:1]) if bad else (GOOD, [answer for _, answer in found])


def main(parent_pid: int) -> None:
    """Answer requests from standard input until it ends."""
    _end_with(parent_pid)
    import core.codegen.machine  # noqa: F401 (now, so that neither a request nor each fork imports it)

    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # LLVM may print to standard output, which would garble an answer
    questions = sys.stdin.buffer
    while True:
        try:
            (count,) = LENGTH.unpack(_exactly(questions, LENGTH.size))
            texts = [_read(questions).decode() for _ in range(count)]
        except EOFError:
            return
        kind, pieces = _compile_all(texts)
        output.write(kind)
        for piece in pieces:
            _write(output, piece)


if __name__ == "__main__":
    main(int(sys.argv[1]))
