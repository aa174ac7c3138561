"""Memory of a training step: of the process, compared with PyTorch and the other peers, and as predicted.

    python -m bench.memory [--workloads mlp_large,transformer] [--peers torch_eager,jax_jit] [--json FILE]

The first table has, for a fresh process, its peak resident memory while it prepares a workload and runs some steps, and
the part of it after the framework was loaded and had computed something. The second table compares the peak that the
analysis of a program predicts for its machine code with the bytes that a run allocates, not counting parameters and
feeds: the arena, records of loops, and results. The last column is the part of it that the run touched: the increase of
resident memory while a second copy of the code ran.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine import cores_of, machine
from bench.peers.memory import memory_of_process
from bench.peers.process import OWN, PEERS, started
from bench.workloads import WORKLOADS
from core.analysis import analyse
from core.compiler.compile import GradientQuery, bind_shapes, compile_gradient
from core.runtime.executable import Executable
from core.runtime.region import NativeRegion
from core.wire import read

__all__ = ["allocated", "main", "predictions", "resident"]

STEPS = 5
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    parser.add_argument("--workloads", type=listed, default=list(WORKLOADS), help="of the first table")
    parser.add_argument("--peers", type=listed, default=["torch_eager", "jax_jit"], help="some of " + ", ".join(PEERS))
    parser.add_argument("--json", type=Path, help="a file for all measurements")
    given = parser.parse_args()
    report = {
        "machine": machine(),
        "resident": resident(given.workloads, given.peers),
        "predicted": predictions(),
    }
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=1) + "\n")


def resident(workloads: Sequence[str], peers: Sequence[str]) -> dict[str, Any]:
    """Workload -> peer -> {peak, rise}, in bytes."""
    names = (OWN, *peers)
    print("\npeak resident memory, MiB: of the process, and the increase since its framework was loaded")
    print(f"{'':18}" + "".join(f"{name:>22}" for name in names))
    found: dict[str, Any] = {}
    for workload in workloads:
        found[workload], cells = {}, []
        for name in names:
            said = _measured(name, workload)
            if said is not None:
                found[workload][name] = said
            cells.append(f"{said['peak'] / MIB:12.0f}{said['rise'] / MIB:+10.0f}" if said else f"{'-':>22}")
        print(f"{workload:18}" + "".join(cells), flush=True)
    return found


def _measured(name: str, workload: str) -> dict[str, float] | None:
    """Peak and rise of a new process of this peer; None if it is not installed, or does not have the workload."""
    with started([name], cores_of("all")) as running:
        if name not in running:
            return None
        peer = running[name]
        said = [peer.prepare(workload), peer.run(STEPS)][-1]
        if "error" in said:
            print(f"  {workload}: {name} is left out: {said['error']}")
            return None
        return {"peak": said["peak_resident"], "rise": said["peak_resident"] - peer.about["resident"]}


def predictions() -> dict[str, Any]:
    """Workload -> {predicted, used, touched}, in bytes, and `elsewhere`, the number of ops without machine code."""
    print("\npeak of a gradient, MiB")
    print(f"{'':18}{'predicted':>12}{'used':>12}{'ratio':>8}{'touched':>12}")
    found: dict[str, Any] = {}
    for name, make in WORKLOADS.items():
        workload = make()
        shapes = {feed: value.shape for feed, value in workload.feeds.items()}
        program, query = bind_shapes(read(workload.program), shapes), GradientQuery(loss="loss")
        report = analyse(program, query, trips=int(workload.feeds.get("n", 1)))["machine_code"]
        executable = compile_gradient(program, query)
        values = {**workload.feeds, **workload.parameters}
        used, touched = allocated(executable, values)
        predicted, elsewhere = report["peak_bytes"], report["ops"]["interpreted"]
        found[name] = {"predicted": predicted, "used": used, "touched": touched, "elsewhere": elsewhere}
        note = f"  with {elsewhere} ops without machine code" if elsewhere else ""
        ratio = predicted / used
        print(f"{name:18}{predicted / MIB:12.3f}{used / MIB:12.3f}{ratio:8.2f}{touched / MIB:12.3f}{note}", flush=True)
    return found


def allocated(executable: Executable, values: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """Bytes at the end of a first step of machine code: of numpy's arrays and of the records of loops.

    Also the increase of resident memory during the first step of a second copy of it.
    """
    arrays = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    tracemalloc.start()
    first = executable.compiled()
    outputs = first.step(values)
    traces = tracemalloc.take_snapshot().filter_traces([arrays]).traces
    tracemalloc.stop()
    assert first.machine is not None
    regions = [each.call for each in first.machine.calls if isinstance(each.call, NativeRegion)]
    used = sum(each.size for each in traces) + sum(each.stack_bytes for each in regions)
    del first, regions, outputs  # the second copy would reuse their memory
    second = executable.compiled()  # its code is compiled already
    ctypes.CDLL(None).malloc_trim(0)  # freed memory must become resident again
    before = memory_of_process()["resident"]
    again = second.step(values)
    touched = memory_of_process()["resident"] - before
    del again
    return used, touched


if __name__ == "__main__":
    main()
