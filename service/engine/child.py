"""One worker as an operating-system process: start it, kill it, read its exit status."""

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

# By default glibc takes fresh pages from the kernel for every array of 128 KiB or more, and returns them when the array
# is freed: a step then spends most of its time in page faults. Measured on x + x with 400 KB: 0.19 ms by default,
# 0.015 ms with these settings.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(256 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
    "MALLOC_TOP_PAD_": str(16 * 2**20),
}


class Child:
    """The process of one worker, and `socket`, the service's end of the pair through which they communicate.

    It loads its handlers at once, and for a GPU the modules that compile for it, and waits for the message `Start`.
    """

    def __init__(self, plan: WorkerPlan, handlers: str) -> None:
        """Start the process. handlers: "module:NAME".

        Raises OSError. The kernel kills the child when the *thread* that started it ends.
        """
        self.socket, theirs = socket.socketpair()
        given = [str(theirs.fileno()), str(os.getpid()), handlers, plan.device]
        command = [sys.executable, "-m", "service.worker.main", *given]
        try:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=_environment(plan)
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()  # SIGKILL also ends a stopped process

    async def exit_reason(self) -> str:
        """The reason why the worker closed its socket, for logs and errors."""
        status = await self.exit_status(1.0)  # the socket closes shortly before the exit status is available
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
    """This process's environment plus the plan's. PYTHONPATH contains the directory this package was imported from."""
    paths = [str(Path(service.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**ALLOCATOR, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **plan.environment}
