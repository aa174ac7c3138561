"""Processes of this machine, as /proc shows them while they begin and end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import termios
import time
from pathlib import Path

__all__ = ["children", "command", "halt", "is_running", "open_files", "until_asked"]

ENDED = (FileNotFoundError, ProcessLookupError)
"""Errors of a file of a process or thread that has ended, before its opening or after it."""


def is_running(pid: int) -> bool:
    """Whether the process runs. A zombie does not run."""
    with contextlib.suppress(*ENDED):
        return _state(pid) != "Z"
    return False


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def halt(pid: int, seconds: float = 60.0) -> None:
    """Stop a process, and wait until it has stopped: on a busy machine it may still read a request after the signal."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + seconds
    while _state(pid) != "T":
        assert time.monotonic() < end, "the process does not stop"
        time.sleep(0.001)


def children(pid: int | str = "self") -> list[int]:
    """The processes that a process has started and not waited for."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(*ENDED):
            found += map(int, (thread / "children").read_text().split())
    return found


def command(pid: int) -> bytes:
    """The command line of a process, with zero bytes between the arguments; empty if it has ended."""
    with contextlib.suppress(*ENDED):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def open_files(pid: int | str = "self") -> list[str]:
    """The targets of all descriptors of a process."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(*ENDED):  # of this listing itself, or closed meanwhile
            found.append(os.readlink(entry))
    return sorted(found)


def until_asked(pid: int, seconds: float = 60.0) -> None:
    """Wait until the standard input of a process that `halt` has stopped, a pipe, holds a request.

    If none comes the process goes on, so that no thread waits for its answer for ever.
    """
    descriptor = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        end = time.monotonic() + seconds
        while not int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4), sys.byteorder):
            if time.monotonic() > end:
                os.kill(pid, signal.SIGCONT)
                raise AssertionError("no request came")
            time.sleep(0.005)
    finally:
        os.close(descriptor)
