"""The process of one peer: prepares workloads and runs their steps on request.

    python -m bench.peers.child torch_eager 1

The bench starts it and exchanges messages with it through stdin and stdout (bench/peers/messages.py). The second
argument is the number of threads; the caller sets the environment and the cores of the process.

A peer is a module of this package with

    start(threads)       runs once, after the import: a first trivial computation;
    versions()           library -> version;
    Training(workload)   one training run, with run(steps) -> loss before the last update, after waiting for all of it,
                         and parameters() -> name -> array, in the layout of the workload.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time
from typing import Any

import numpy as np

from bench.peers.memory import memory_of_process
from bench.peers.messages import receive, send
from bench.workloads import WORKLOADS

__all__ = ["main"]


def main() -> None:
    name, threads = sys.argv[1], int(sys.argv[2])
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with messages
    peer = importlib.import_module(f"bench.peers.{name}")
    peer.start(threads)
    send(pipe, {"versions": peer.versions(), **memory_of_process()})
    training = None
    while True:
        try:
            asked, _ = receive(sys.stdin.buffer)
        except EOFError:
            return
        said: dict[str, Any] = {}
        arrays: dict[str, np.ndarray] = {}
        try:
            if asked["do"] == "prepare":
                training = None
                gc.collect()
                workload = WORKLOADS[asked["workload"]]()
                started = time.perf_counter()
                training = peer.Training(workload)
                said["loss"] = training.run(1)
                said["seconds"] = time.perf_counter() - started
            assert training is not None, "nothing is prepared"
            if asked["do"] == "run":
                started = time.perf_counter()
                said["loss"] = training.run(asked["steps"])
                said["seconds"] = time.perf_counter() - started
            elif asked["do"] == "parameters":
                arrays = training.parameters()
        except Exception as error:  # the bench goes on without this peer
            said = {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"}
            training = None
        send(pipe, said | memory_of_process(), arrays)


if __name__ == "__main__":
    main()
