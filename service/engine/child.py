"""A worker as the operating system knows it: started, killed, and how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import service
from service.engine.devices import WorkerPlan

__all__ = ["ALLOCATOR", "Child"]

EXIT_POLL_S = 0.005

# By default glibc gives every array of 128 KiB or more fresh pages from the kernel, and back when it dies: a step then
# spends most of its time in page faults. Measured on x + x with 400 KB: 0.19 ms, and 0.015 ms with these.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(256 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
    "MALLOC_TOP_PAD_": str(16 * 2**20),
}


class Child:
    """The process of a worker, which talks over its end of a socket."""

    def __init__(self, plan: WorkerPlan, theirs: socket.socket) -> None:
        """Raises OSError. The kernel ties the child's life to the *thread* that does this."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "service.worker.main", str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=_environment(plan),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()  # works on a stopped process too

    async def exit_reason(self) -> str:
        """Why the socket was closed from the other side."""
        status = await self.exit_status(1.0)  # the socket closes a moment before the process can be waited for
        if status is None:
            return "closed its socket"
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return f"ended with exit status {status}"

    async def exit_status(self, within: float) -> int | None:
        """The exit status, minus the signal for a killed process; None if it still runs after `within` seconds."""
        for _ in range(round(within / EXIT_POLL_S)):
            if self._process.poll() is not None:
                break
            await asyncio.sleep(EXIT_POLL_S)
        return self._process.poll()


def _environment(plan: WorkerPlan) -> dict[str, str]:
    """Ours, with what the plan says, and with the place this package was imported from, installed or not."""
    paths = [str(Path(service.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**ALLOCATOR, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **plan.environment}
