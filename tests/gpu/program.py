"""The order of the checks, their time, and the exit status."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

from tests.gpu.constants import constants
from tests.gpu.faults import cancel, kill, out_of_memory
from tests.gpu.parallel import units
from tests.gpu.rig import NoGpu, Rig, Say, real
from tests.gpu.steps import growth
from tests.gpu.units import UNITS

__all__ = ["CHECKS", "LIMIT_S", "RIGHT", "WITHOUT_GPU", "WRONG", "main", "run"]

LIMIT_S = 450.0
"""Seconds in which all checks end: eight minutes, less the start of Python."""

RIGHT, WRONG, WITHOUT_GPU = 0, 1, 3

KINDS = tuple(kind for kind in UNITS if kind != "rates")
"""The kinds of units that run by default; the rates of instructions are for who changes `core.device.rules`."""

UNITS_UNTIL = 0.7
"""The part of the time after which no unit starts."""


def all_units(rig: Rig, seconds: float = UNITS_UNTIL * LIMIT_S, kinds: Sequence[str] = KINDS) -> Say:
    """The units of these kinds; after so many seconds no more start."""
    return units(rig, time.monotonic() + seconds, kinds)


CHECKS: tuple[Callable[[Rig], Say], ...] = (constants, all_units, cancel, out_of_memory, kill, growth)


def main(argv: Sequence[str] | None = None) -> int:
    """Run all checks on the GPU, or those that are named. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="Check a GPU.")
    known = {each.__name__: each for each in CHECKS}
    listed = lambda text: text.split(",")
    parser.add_argument("--checks", type=listed, default=list(known), help="some of " + ", ".join(known))
    parser.add_argument("--kinds", type=listed, default=KINDS, help="of units, some of " + ", ".join(UNITS))
    parser.add_argument("--seconds", type=float, default=LIMIT_S, help="in which all checks end")
    given = parser.parse_args(argv)
    try:
        rig = real()
    except NoGpu as missing:
        _write({"check": "device", "ok": False, "error": f"there is no GPU: {missing}"})
        print(f"make test-gpu: there is no GPU, so nothing was checked: {missing}", file=sys.stderr)
        return WITHOUT_GPU
    chosen = wraps(all_units)(partial(all_units, seconds=UNITS_UNTIL * given.seconds, kinds=given.kinds))
    checks = {**known, all_units.__name__: chosen}
    return run(rig, given.seconds, _write, [checks[name] for name in given.checks])


def run(
    rig: Rig,
    seconds: float,
    write: Callable[[dict[str, Any]], None],
    checks: Sequence[Callable[[Rig], Say]] | None = None,
) -> int:
    """Run checks, by default all. A check that has no time left counts as wrong.

    Returns the exit status.
    """
    properties, end = rig.driver.properties, time.monotonic() + seconds
    write({"check": "device", "ok": True, "name": properties.name, "architecture": properties.architecture,
           "processors": properties.processors, "driver": properties.driver})  # fmt: skip
    wrong = 0
    for check in CHECKS if checks is None else checks:
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
