"""Peers as processes: started with the threads and cores of a measurement; they run steps on request."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.device import VARIABLE
from bench.peers.messages import receive, send

__all__ = ["BEFORE", "OWN", "PEERS", "Missing", "Peer", "environment", "python_of", "started"]

OWN = "backpass"

BEFORE = "before"
"""Backpass in another checkout, usually an older commit."""

TAPE = "tape"
"""Backpass as a lazy tape: a client that records each step, and a service."""

TAPE_BEFORE = "tape_before"
"""The tape with the client and the service of another checkout."""

IN_CHECKOUT = {OWN: OWN, BEFORE: OWN, TAPE: TAPE, TAPE_BEFORE: TAPE}
"""Peer that needs no other framework -> its module in bench/peers."""

PEERS = ("torch_eager", "torch_compile", "jax_jit", "tf_function", "tf_function_jit")

ROOT = Path(__file__).parents[2]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BACKPASS_THREADS")


class Missing(RuntimeError):
    """A peer that cannot be started; the message gives the reason."""


def python_of(peer: str) -> str:
    """The interpreter of a peer: BENCH_PYTHON, that of `make bench-peers`, or this one; Backpass uses this one."""
    made = ROOT / ".venv-bench" / "bin" / "python"
    if peer in IN_CHECKOUT or not (os.environ.get("BENCH_PYTHON") or made.exists()):
        return sys.executable
    return os.environ.get("BENCH_PYTHON") or str(made)


def environment(peer: str, threads: int, scratch: str, root: Path = ROOT, device: str = "cpu") -> dict[str, str]:
    """The environment of a peer's process.

    scratch: a folder for its caches. root: the checkout that it imports. device: "cpu" or "cuda".
    """
    if device == "cuda":
        return os.environ | {
            "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])]),
            VARIABLE: device,
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # else JAX takes most of the GPU's memory at once
            "TORCHINDUCTOR_CACHE_DIR": scratch,
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # many peers may compile at the same time
        }
    own = {
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TORCHINDUCTOR_CACHE_DIR": scratch,  # else a first step would be that of an earlier run
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
    }
    if peer in IN_CHECKOUT:
        from service.engine.child import ALLOCATOR  # as every worker of the service has it

        own |= ALLOCATOR
    return os.environ | own


class Peer:
    """A process that runs the steps of one peer. Close it."""

    def __init__(
        self, name: str, cores: Iterable[int], root: Path = ROOT, device: str = "cpu", limit: float | None = None
    ) -> None:
        """root: the checkout that the process runs. device: "cpu" or "cuda". limit: seconds until it is killed, unless
        `in_time` was called before.

        Raises Missing if the peer or a library of it is not installed."""
        self.name = name
        allowed = set(cores)
        self._scratch = tempfile.TemporaryDirectory(prefix="bench-")
        self._log = Path(self._scratch.name, "log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python_of(name), "-m", "bench.peers.child", IN_CHECKOUT.get(name, name), str(len(allowed))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                cwd=root,
                env=environment(name, len(allowed), self._scratch.name, root, device),
                preexec_fn=partial(os.sched_setaffinity, 0, allowed),
            )
        self._limit = threading.Timer(limit, self.kill) if limit is not None else None
        if self._limit is not None:
            self._limit.start()
        try:
            self.about = self._answer()[0]
        except EOFError:
            last = (self._log.read_text(errors="replace").strip().splitlines() or ["it ended at once"])[-1]
            self.close()
            raise Missing(last) from None

    def prepare(self, workload: str) -> dict[str, Any]:
        """Build the step of a workload and run it once: {seconds, loss, resident, peak_resident} or {error}."""
        return self._ask({"do": "prepare", "workload": workload})[0]

    def run(self, steps: int) -> dict[str, Any]:
        """Run `steps` steps: {seconds, loss, resident, peak_resident} or {error}."""
        return self._ask({"do": "run", "steps": steps})[0]

    def parameters(self) -> dict[str, np.ndarray]:
        """The parameters after the steps so far."""
        return self._ask({"do": "parameters"})[1]

    def in_time(self) -> None:
        """From now on it has no limit."""
        if self._limit is not None:
            self._limit.cancel()

    def kill(self) -> None:
        """End it and the processes that it started at once; a call that waits for it raises EOFError."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.in_time()
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._scratch.cleanup()

    def _ask(self, said: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        assert self._process.stdin is not None
        send(self._process.stdin, said)
        return self._answer()

    def _answer(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        assert self._process.stdout is not None
        return receive(self._process.stdout)


@contextlib.contextmanager
def started(
    names: Iterable[str], cores: Iterable[int], before: Path | None = None, device: str = "cpu"
) -> Iterator[dict[str, Peer]]:
    """The peers of these names that can be started, by name. Prints the reason for each other one.

    before: the checkout of the peer `BEFORE`, which is added if it is given. device: "cpu" or "cuda".
    """
    running: dict[str, Peer] = {}
    allowed = set(cores)
    try:
        for name in (*names, *([BEFORE] if before else [])):
            try:
                running[name] = Peer(name, allowed, before if name == BEFORE and before else ROOT, device)
            except Missing as why:
                print(f"  {name} is left out: {why} (`make bench-peers` installs the peers)")
        yield running
    finally:
        for peer in running.values():
            peer.close()
