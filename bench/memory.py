"""Memory of a training step: what the process takes beside PyTorch's and the others', and what was predicted.

    python -m bench.memory [--workloads mlp_large,transformer] [--peers torch_eager] [--json FILE]

Each number of the first table is of a fresh process: the most memory that was ever resident in it while it prepared a
workload and took some steps, and how much of that came after the framework was loaded and had computed something. The
second table compares the peak that the analysis of a program predicts for its machine code with what a run allocates,
beside parameters and feeds: the arena, what loops record, and results. The last column is how much of that the run
touched, by what became resident when it ran a second copy of the code.
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
from core.compiler.compile import GradientQuery, compile_gradient
from core.runtime.executable import Executable
from core.runtime.region import NativeRegion
from core.wire import read

__all__ = ["allocated", "main", "predictions", "resident"]

STEPS = 5
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    parser.add_argument("--workloads", type=listed, default=["mlp_large", "transformer"], help="of the first table")
    parser.add_argument("--peers", type=listed, default=list(PEERS), help="some of " + ", ".join(PEERS))
    parser.add_argument("--json", type=Path, help="a file for everything that was measured")
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
    print("\npeak resident memory, MiB: of the process, and above what it had when its framework was loaded")
    print(f"{'':18}" + "".join(f"{name:>22}" for name in workloads))
    found: dict[str, Any] = {workload: {} for workload in workloads}
    for name in (OWN, *peers):
        cells = []
        for workload in workloads:
            with started([name], cores_of("all")) as running:
                if name not in running:
                    break
                peer = running[name]
                said = [peer.prepare(workload), peer.run(STEPS)][-1]
                if "error" in said:
                    cells.append(f"{said['error'][:20]:>22}")
                    continue
                peak, rise = said["peak_resident"], said["peak_resident"] - peer.about["resident"]
                found[workload][name] = {"peak": peak, "rise": rise}
                cells.append(f"{peak / MIB:12.0f}{rise / MIB:+10.0f}")
        if cells:
            print(f"{name:18}" + "".join(cells), flush=True)
    return found


def predictions() -> dict[str, Any]:
    """Workload -> {predicted, used, touched}, in bytes, and the number of ops `elsewhere`: without machine code."""
    print("\npeak of a gradient, MiB")
    print(f"{'':18}{'predicted':>12}{'used':>12}{'ratio':>8}{'touched':>12}")
    found: dict[str, Any] = {}
    for name, make in WORKLOADS.items():
        workload = make()
        program, query = read(workload.program), GradientQuery(loss="loss")
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
    """Bytes that are there at the end of a first step of machine code: of numpy's arrays and of what loops record.

    Then how much more memory was resident behind the first step of a second copy of it.
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
    del first, regions, outputs  # whose memory would be lent
    second = executable.compiled()  # its code is there already
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is not to be taken again unseen
    before = memory_of_process()["resident"]
    again = second.step(values)
    touched = memory_of_process()["resident"] - before
    del again
    return used, touched


if __name__ == "__main__":
    main()
