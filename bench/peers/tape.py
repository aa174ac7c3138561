"""A lazy tape: the Python client records every step anew, and a service in another process runs it."""

from __future__ import annotations

import atexit
import contextlib
from typing import Any

import numpy as np

import backpass_client as bp
from bench.servers import OWN, served
from bench.trees import tree_loss, tree_of
from bench.workloads import RATE, TREE_SEED, Workload

__all__ = ["Training", "start", "versions"]

_OPEN = contextlib.ExitStack()
"""The server and the tape, which end with this process."""

_URLS: list[str] = []


def start(threads: int) -> None:
    settings = {"BACKPASS_WORKERS": "1", "BACKPASS_THREADS": str(threads), "BACKPASS_DEVICE": "cpu"}
    connection = _OPEN.enter_context(served(OWN, "/healthz/ready", settings))
    atexit.register(_OPEN.close)
    _URLS.append(f"http://{connection.host}:{connection.port}")


def versions() -> dict[str, str]:
    return {"numpy": np.__version__}


class Training:
    """SGD in the client, on a tape that is renewed before each step."""

    def __init__(self, workload: Workload) -> None:
        self._variables = {name: bp.Variable(value, name=name) for name, value in workload.parameters.items()}
        self._words = list(workload.feeds["words"][:, None])
        self._tree = tree_of(len(self._words), TREE_SEED)
        self._optimizer = bp.SGD(self._variables.values(), RATE)
        self._tape = _OPEN.enter_context(bp.lazy(_URLS[0]))

    def run(self, steps: int) -> float:
        for _ in range(steps):
            self._tape.renew()
            self._optimizer.zero_grads()
            loss: Any = tree_loss(self._tree, self._variables, self._words, bp.gather, bp.tanh, _mean_square)
            loss.backward()
            self._optimizer.update()
        return float(loss)

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: variable.data for name, variable in self._variables.items()}


def _mean_square(x: Any) -> Any:
    return bp.mean(bp.square(x))
