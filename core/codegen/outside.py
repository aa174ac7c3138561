"""LLVM in a process of its own: the text of a module goes in, object code comes out.

    python -m core.codegen.outside

A crash of the compiler then costs one compilation and not the process that wanted it; nor do other threads of that
process wait for the one lock that all of llvmlite has. A message is eight bytes of length and so many bytes; an answer
begins with one byte more: whether it is object code or LLVM's words about the text.
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
from pathlib import Path
from typing import IO

from core.errors import ExecutionError

__all__ = ["Outside"]

LENGTH = struct.Struct("<Q")
GOOD, BAD = b"+", b"-"
PR_SET_PDEATHSIG = 1


class Outside:
    """A compiler that is started when it is first needed. Safe among threads, one of which it serves at a time.

    It ends with the thread that started it, or with `close`.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        process = self._process
        return None if process is None else process.pid

    def compiled(self, ir: str) -> bytes:
        """The object code of a module's text.

        Raises RuntimeError with LLVM's words if the text is no valid module, ExecutionError (compiler_failed) if the
        process ends; the next call starts another.
        """
        with self._lock:
            if self._process is None:
                self._process = self._started()
            process = self._process
            assert process.stdin is not None and process.stdout is not None, "both are pipes"
            try:
                _write(process.stdin, ir.encode())
                kind = process.stdout.read(1)
                answer = _read(process.stdout)
            except (OSError, EOFError):
                raise ExecutionError(f"the compiler ended: {self._end()}", "compiler_failed") from None
            except BaseException:  # such as an interrupt between question and answer, which must not be mixed up
                self._end()
                raise
        if kind == BAD:
            raise RuntimeError(answer.decode())
        return answer

    def start(self) -> None:
        """Start the process, so that the first compilation need not wait for it."""
        with self._lock:
            if self._process is None:
                self._process = self._started()

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-m", "core.codegen.outside", str(os.getpid())]
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]  # where we were imported from
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def _end(self) -> str:
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
        if status is None:
            return "it did not answer"
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


def main(parent_pid: int) -> None:
    """Compile what comes on standard input until that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the line above took effect
        return
    from core.codegen.machine import compiled_here

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what LLVM may print is no answer
    questions = sys.stdin.buffer
    while True:
        try:
            ir = _read(questions).decode()
        except EOFError:
            return
        try:
            kind, answer = GOOD, compiled_here(ir)
        except RuntimeError as error:
            kind, answer = BAD, str(error).encode()
        answers.write(kind)
        _write(answers, answer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
