"""Processes of the command line that start without imports.

One process for each process of pytest imports the service once and forks for every start: `python -m service serve`
imports for more than a second of CPU, a fork takes some milliseconds. A start in a new interpreter differs in one way:
nothing reads the environment during the imports, or this would not work. See `_ONLY_NEW`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any

from tests.paths import ROOT

__all__ = ["Forked"]

_PR_SET_PDEATHSIG = 1

_ONLY_NEW = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OPENBLAS_", "OMP_", "OTEL_")
"""Variables with these beginnings are read by a new interpreter and its libraries, not by a fork."""

_MODULES = (
    "service.app",
    "service.cli.main",
    "service.cli.server",
    "service.http.tls",
    "service.tenants.key_file",
    "fsspec.implementations.local",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.loops.uvloop",
)
"""What a service imports until it is ready."""

_ENVIRONMENT = dict(os.environ)  # before any test changes it


class Forked:
    """A process that runs one command of the command line. Has the interface of subprocess.Popen, without its pipes."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], *, stderr: IO[str] | None = None
    ) -> None:
        """Start the process in the directory of the repository.

        stderr: receives its log lines; by default the standard error of this process.
        Raises ValueError if `environment` has an effect on new interpreters only.
        """
        changed = sorted({name for name, _ in _ENVIRONMENT.items() ^ environment.items() if name.startswith(_ONLY_NEW)})
        if changed:
            raise ValueError(f"a forked process does not read {', '.join(changed)}: start a new interpreter")
        self._report, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            request = json.dumps({"arguments": list(arguments), "environment": dict(environment)}).encode()
            error = 2 if stderr is None else stderr.fileno()
            _parent().send(request, [1, error, theirs.fileno()])
        self.args = list(arguments)
        self.returncode: int | None = None
        self.pid = int(self._report.recv(32))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, minus the signal for a killed process. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._report.recv(32))
            self._report.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Parent:
    """The process that forks. It ends, and its children with it, when this process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # a process that forks must have no other threads
            environment = _ENVIRONMENT | {"OPENBLAS_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "tests.service.forked", str(theirs.fileno())]
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()])
        atexit.register(self._close)

    def send(self, request: bytes, descriptors: list[int]) -> None:
        with self._lock:
            socket.send_fds(self._requests, [request], descriptors)

    def _close(self) -> None:
        self._requests.close()
        self._process.wait()


@functools.cache
def _parent() -> _Parent:
    return _Parent()


def _fork_until_closed(requests: socket.socket) -> int:
    """Fork for each request and report the identifier of the child, then its exit status.

    Returns 0 when no process can send requests any more. In a child, returns the exit status of its command.
    """
    reports: dict[int, tuple[int, int]] = {}  # descriptor of a child -> (its identifier, where to report)
    while True:
        for ready in select.select([requests.fileno(), *reports], [], [])[0]:
            if ready in reports:
                _report_end(ready, *reports.pop(ready))
                continue
            request, descriptors, _, _ = socket.recv_fds(requests, 2**20, 3)
            if not request:
                return 0
            child = os.fork()
            if child == 0:
                reports_of_others = [report for _, report in reports.values()]
                return _run(json.loads(request), descriptors, [requests.detach(), *reports, *reports_of_others])
            *streams, report = descriptors
            for each in streams:
                os.close(each)
            os.write(report, str(child).encode())
            reports[os.pidfd_open(child)] = child, report


def _report_end(descriptor: int, child: int, report: int) -> None:
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
        os.write(report, str(os.waitstatus_to_exitcode(status)).encode())
    os.close(report)
    os.close(descriptor)


def _run(request: dict[str, Any], descriptors: list[int], of_parent: list[int]) -> int:
    """In a child: become a process like a new interpreter, and run the command."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    out, error, _ = descriptors
    os.dup2(out, 1)
    os.dup2(error, 2)
    for each in (*descriptors, *of_parent):
        os.close(each)
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)

    from service.cli.main import main

    return main(request["arguments"])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: pytest ends, and then this process
    for module in _MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # collections of the children leave their common pages as they are
    assert len(os.listdir("/proc/self/task")) == 1, "a process that forks must have no other threads"
    sys.exit(_fork_until_closed(socket.socket(fileno=int(sys.argv[1]))))
