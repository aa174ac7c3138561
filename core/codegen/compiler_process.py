"""LLVM in a process of its own: texts of modules go in, object code comes out. This is the calling side.

A crash of the compiler then costs one compilation and not the calling process. Other threads of that process do not
wait for llvmlite's global lock. `compiler_main` is the other side.

A request is the number of texts, in eight bytes, and each text with its length in front. An answer is one byte, whether
object code or an error message follows, and as many pieces with their lengths.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from core.ir.errors import ExecutionError

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
                    write_piece(process.stdin, text.encode())
                kind = read_exactly(process.stdout, 1)
                answers = [read_piece(process.stdout) for _ in (texts if kind == GOOD else [kind])]
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
        arguments = [sys.executable, "-m", "core.codegen.compiler_main", str(os.getpid())]
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
        return "it did not answer" if status is None else exit_reason(status)


def exit_reason(status: int) -> str:
    """How a process ended, by its exit status."""
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def write_piece(file: IO[bytes], content: bytes) -> None:
    file.write(LENGTH.pack(len(content)) + content)
    file.flush()


def read_piece(file: IO[bytes]) -> bytes:
    """The next piece. Raises EOFError when the other side is gone."""
    (length,) = LENGTH.unpack(read_exactly(file, LENGTH.size))
    return read_exactly(file, length)


def read_exactly(file: IO[bytes], size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise EOFError("the other side is gone")
    return content
