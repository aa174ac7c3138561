"""A `should_stop` that raises ends its own run with its error, and stops no other run's watch."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from core.compiler.compile import compile_forward
from core.runtime.control_words import CONTROL, STOP
from core.runtime.run import Run, RunLimits
from core.runtime.stop import watched
from core.wire import read
from tests.core.runtime.test_stop import long_loop


def raises() -> bool:
    raise ZeroDivisionError("an error of the caller")


def test_other_runs_are_watched_after_one_whose_should_stop_raises():
    first, second = ((ctypes.c_int64 * len(CONTROL))() for _ in range(2))
    stop = threading.Event()

    with watched(second, Run(limits=RunLimits(should_stop=stop.is_set))):
        with watched(first, Run(limits=RunLimits(should_stop=raises))):
            _wait(lambda: first[STOP] == 1)
        stop.set()
        _wait(lambda: second[STOP] == 1)

    assert first[STOP] == second[STOP] == 1


def test_a_step_raises_the_error_of_its_should_stop():
    executable = compile_forward(read(long_loop(in_a_branch=False)), ["loss"]).compiled()
    limits = RunLimits(max_trips=10**13, max_ops=10**13, deadline=time.monotonic() + 20, should_stop=raises)

    with pytest.raises(ZeroDivisionError, match="an error of the caller"):
        executable.step({"x": np.ones(4, "float32"), "go": np.asarray(True)}, limits=limits)


def _wait(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds, for some seconds at most."""
    end = time.monotonic() + 5
    while time.monotonic() < end and not holds():
        time.sleep(0.005)
