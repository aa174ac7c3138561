"""Training steps in float16 and bfloat16, compared with the same steps in float32.

    python -m bench.precisions [--workloads elementwise,vae] [--dtypes bfloat16] [--threads 1] [--rounds 9]
                               [--json FILE]

Every float32 variable of a workload becomes one of 16 bits: parameters, feeds and all results. The steps take turns.
Times are milliseconds per step, medians over the rounds; the ratio is to float32. Workloads that mix dtypes themselves,
or whose ops take no 16-bit floats, are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.half_workloads import dtype_of
from bench.machine import cores_of, machine
from bench.workload import Workload
from bench.workloads import WORKLOADS
from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.errors import ProgramError
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype
from core.wire import read

__all__ = ["main"]

WIDE = "float32"
ROUND_SECONDS = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    single = [name for name in WORKLOADS if dtype_of(name) is None]
    parser.add_argument("--workloads", type=listed, default=single, help="some of " + ", ".join(single))
    parser.add_argument("--dtypes", type=listed, default=list(HALVES))
    parser.add_argument("--threads", default="1", help='a number of threads and cores, or "all"')
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="a file for all measurements")
    given = parser.parse_args()
    cores = cores_of(given.threads)
    os.environ["BACKPASS_THREADS"] = str(len(cores))
    os.sched_setaffinity(0, cores)
    print(f"{given.threads} threads; ms per step, medians of {given.rounds} rounds, and the ratio to float32")
    print(f"{'':18}{WIDE:>10}" + "".join(f"{dtype:>18}" for dtype in given.dtypes))
    report = {"machine": machine(), "workloads": {}}
    for name in given.workloads:
        report["workloads"][name] = found = _measured(WORKLOADS[name](), (WIDE, *given.dtypes), given.rounds)
        cells = [f"{found[d]:10.3f}{found[d] / found[WIDE]:8.2f}" if d in found else f"{'-':>18}" for d in given.dtypes]
        print(f"{name:18}{found[WIDE]:10.3f}" + "".join(cells), flush=True)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=1) + "\n")


def _measured(workload: Workload, dtypes: Sequence[str], rounds: int) -> dict[str, float]:
    """Milliseconds of a step in each dtype that the workload takes."""
    steps = {dtype: step for dtype in dtypes if (step := _step(workload, dtype)) is not None}
    times: dict[str, list[float]] = {dtype: [] for dtype in steps}
    for _ in range(rounds):
        for dtype, step in steps.items():
            times[dtype].append(_time(step))
    return {dtype: 1e3 * statistics.median(each) for dtype, each in times.items()}


def _step(workload: Workload, dtype: str) -> Callable[[], Any] | None:
    """A step whose float32 variables have `dtype`, after its first run; None if the program does not take it."""
    program = json.loads(json.dumps(workload.program).replace(f'"{WIDE}"', f'"{dtype}"'))
    arrays = {name: np.asarray(value) for name, value in {**workload.feeds, **workload.parameters}.items()}
    with np.errstate(over="ignore"):
        values = {n: x.astype(as_dtype(dtype)) if x.dtype == np.float32 else x for n, x in arrays.items()}
    try:
        made = compile_gradient(
            read(program), GradientQuery(loss="loss"), shapes={name: value.shape for name, value in values.items()}
        )
    except ProgramError:
        return None
    executable = made.compiled()
    step = lambda: executable.step(values)
    step()
    return step


def _time(step: Callable[[], Any]) -> float:
    """Seconds of one of as many steps as fit in a round."""
    started, count = time.perf_counter(), 0
    while not count or time.perf_counter() - started < ROUND_SECONDS:
        step()
        count += 1
    return (time.perf_counter() - started) / count


if __name__ == "__main__":
    main()
