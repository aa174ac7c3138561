"""LLVM in a process of its own: the texts of modules go in, object code comes out.

    python -m core.codegen.compiler_process

A crash of the compiler then costs one compilation and not the process that wanted it; nor do other threads of that
process wait for the one lock that all of llvmlite has. Of several texts all but one are compiled by forks of that
process, which has one thread and LLVM at hand.

A question is the number of texts, in eight bytes, and each of them with its length before it. An answer is one byte,
whether object code follows or words about what went wrong, and as many pieces with their lengths.
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
    """A compiler that is started when it is first needed. Safe among threads, one of which it serves at a time.

    parallel: how many texts it should be given at a time, if there is enough to do.
    It ends with the thread that started it, or with `close`.
    """

    def __init__(self, parallel: int = 1) -> None:
        self.parallel = parallel
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        process = self._process
        return None if process is None else process.pid

    def compile(self, texts: Sequence[str]) -> list[bytes]:
        """The object code of each module.

        Raises RuntimeError with LLVM's words if a text is no valid module, ExecutionError (compiler_failed) if the
        process ends; the next call starts another.
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
            except BaseException:  # such as an interrupt between question and answer, which must not be mixed up
                self._stop()
                raise
        if kind == BAD:
            raise RuntimeError(answers[0].decode())
        if kind == DIED:
            raise ExecutionError(f"a part of the compiler ended: {answers[0].decode()}", "compiler_failed")
        return answers

    def start(self) -> None:
        """Start the process, so that the first compilation need not wait for it."""
        with self._lock:
            if self._process is None:
                self._process = self._start_process()

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._stop()

    def _start_process(self) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-m", "core.codegen.compiler_process", str(os.getpid())]
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]  # where we were imported from
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def _stop(self) -> str:
        """End the process; says how it had ended if it had."""
        process, self._process = self._process, None
        if process is None:
            return "there was none"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)  # its pipes close a moment before it can be waited for
        status = process.poll()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return "it did not answer" if status is None else _exit_reason(status)


def _exit_reason(status: int) -> str:
    """How a process ended, by its exit status."""
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _write(file: IO[bytes], content: bytes) -> None:
    file.write(LENGTH.pack(len(content)) + content)
    file.flush()


def _read(file: IO[bytes]) -> bytes:
    """Raises EOFError when the other side is gone."""
    (length,) = LENGTH.unpack(_exactly(file, LENGTH.size))
    return _exactly(file, length)


def _exactly(file: IO[bytes], size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise EOFError("the other side is gone")
    return content


class _Died(Exception):
    """A fork ended without an answer."""


class _Fork:
    """A text that is compiled by a fork of this process. Raises OSError if there can be none."""

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
        """The kind of answer, and the answer; to be asked for once. Raises _Died."""
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
    """Asks for the answer, which a fork works on if there can be one."""
    try:
        return _Fork(text).answer
    except OSError:
        return partial(_compile, text)


def _compile_all(texts: Sequence[str]) -> tuple[bytes, list[bytes]]:
    """The kind of answer, and its pieces."""
    first, *others = texts
    begun = [_start(text) for text in others]
    found = [_compile(first)]
    died: list[_Died] = []
    for answer in begun:
        try:
            found.append(answer())
        except _Died as error:  # the others are waited for nevertheless
            died.append(error)
    if died:
        return DIED, [str(died[0]).encode()]
    bad = [answer for kind, answer in found if kind == BAD]
    return (BAD, bad[:1]) if bad else (GOOD, [answer for _, answer in found])


def main(parent_pid: int) -> None:
    """Compile what comes on standard input until that ends."""
    _end_with(parent_pid)
    import core.codegen.machine  # noqa: F401 (a question should not wait for it, nor each fork import it)

    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what LLVM may print is no answer
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
