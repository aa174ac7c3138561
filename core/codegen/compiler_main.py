"""The process that runs LLVM for another one: see `compiler_process` for the calling side and the messages.

    python -m core.codegen.compiler_main PARENT_PID NICE MEMORY_BYTES

Of several texts all but one are compiled by forks of this process, which has one thread and LLVM loaded.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial

from core.codegen.compiler_process import BAD, DIED, GOOD, LENGTH, exit_reason, read_exactly, read_piece, write_piece
from core.codegen.machine import compile_ir

__all__ = ["main"]

PR_SET_PDEATHSIG = 1


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
            raise _Died(exit_reason(os.waitstatus_to_exitcode(status)))
        return content[:1], content[1:]


def _end_with(parent: int) -> None:
    """From now on this process is ended if its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above took effect
        os._exit(0)


def _compile(text: str) -> tuple[bytes, bytes]:
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


def main(parent_pid: int, nice: int, memory: int) -> None:
    """Answer requests from standard input until it ends. memory: limit of RLIMIT_DATA, in bytes; 0 sets none."""
    _end_with(parent_pid)
    os.nice(nice)
    if memory:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most == resource.RLIM_INFINITY or memory < most:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # LLVM may print to standard output, which would garble an answer
    questions = sys.stdin.buffer
    while True:
        try:
            (count,) = LENGTH.unpack(read_exactly(questions, LENGTH.size))
            texts = [read_piece(questions).decode() for _ in range(count)]
        except EOFError:
            return
        kind, pieces = _compile_all(texts)
        output.write(kind)
        for piece in pieces:
            write_piece(output, piece)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
