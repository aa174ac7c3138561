"""The order of the checks, their time, and the exit status."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.gpu.constants import constants
from tests.gpu.faults import cancel, kill, out_of_memory
from tests.gpu.rig import NoGpu, Rig, Say, real
from tests.gpu.steps import growth, ops, steps

__all__ = ["CHECKS", "LIMIT_S", "RIGHT", "WITHOUT_GPU", "WRONG", "main", "run"]

LIMIT_S = 450.0
"""Seconds in which all checks end: eight minutes, less the start of Python."""

RIGHT, WRONG, WITHOUT_GPU = 0, 1, 3

CHECKS: tuple[Callable[[Rig], Say], ...] = (constants, steps, cancel, out_of_memory, kill, growth, ops)
"""The slowest is the last: cupy compiles kernels for every op."""


def main() -> int:
    """Run all checks on the GPU. Returns the exit status."""
    try:
        rig = real()
    except NoGpu as missing:
        _write({"check": "device", "ok": False, "error": f"there is no GPU: {missing}"})
        print(f"make test-gpu: there is no GPU, so nothing was checked: {missing}", file=sys.stderr)
        return WITHOUT_GPU
    return run(rig, LIMIT_S, _write)


def run(rig: Rig, seconds: float, write: Callable[[dict[str, Any]], None]) -> int:
    """Run the checks until their time is over; what is left out then is wrong too. Returns the exit status."""
    properties, end = rig.driver.properties, time.monotonic() + seconds
    write({"check": "device", "ok": True, "name": properties.name, "architecture": properties.architecture,
           "processors": properties.processors, "driver": properties.driver})  # fmt: skip
    wrong = 0
    for check in CHECKS:
        started = time.monotonic()
        try:
            for line in check(rig):
                write({"check": check.__name__, **line})
                wrong += not line["ok"]
                if time.monotonic() > end:
                    write({"check": check.__name__, "ok": False, "error": "no time is left for the rest of it"})
                    wrong += 1
                    break
        except Exception as error:
            write({"check": check.__name__, "ok": False, "error": f"{type(error).__name__}: {error}"[:300]})
            wrong += 1
        write({"check": check.__name__, "ok": True, "seconds": round(time.monotonic() - started, 1)})
    write({"check": "all", "ok": not wrong, "wrong": wrong})
    return WRONG if wrong else RIGHT


def _write(line: dict[str, Any]) -> None:
    print(json.dumps(line, default=float), flush=True)
