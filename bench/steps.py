"""Training steps, compared with those of PyTorch, JAX and TensorFlow.

    python -m bench.steps [--workloads mlp_small,transformer] [--threads 1,all] [--rounds 15] [--peers jax_jit]
                          [--device cuda] [--json FILE] [--against CHECKOUT]

Every peer is a separate process with the same parameters and feeds. Before the measurement, all must agree about the
loss and the update of every parameter. Then they take turns: a round is as many steps of each as fit in some
milliseconds, on one core or on all, after as many steps that are not timed. Times are milliseconds per step, medians
over the rounds. The ratio is the time of Backpass to that of the fastest peer. A first step is the time from the
description of the workload to the end of its first step: tracing, compiling and running, but not the import of the
framework.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine import cores_of, machine
from bench.peers.process import OWN, PEERS, Peer, started
from bench.workload import Workload
from bench.workloads import WORKLOADS

__all__ = ["main", "measured"]

ROUND_S = 0.06
"""The time of the steps of a peer in one round, in seconds; at least one step.

As many steps before them are not timed: idle cores, and memory that other peers used in between, make the first steps
slower, by half if all cores have work. A training run has this delay once.
"""

MOST_STEPS = 1000
PAUSE_S = 0.02  # between turns: threads of the one before may spin for some milliseconds
ALIKE = 0.4

Updated = tuple[float, dict[str, np.ndarray]]
"""The loss of the first step, and the parameters after it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    parser.add_argument("--workloads", type=listed, default=list(WORKLOADS), help="some of " + ", ".join(WORKLOADS))
    parser.add_argument("--threads", type=listed, default=["1", "all"], help="numbers of threads, and cores")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peers", type=listed, help="some of " + ", ".join(PEERS) + "; none by default with --against")
    parser.add_argument("--json", type=Path, help="a file for everything that was measured")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: Backpass, PyTorch and JAX on the first GPU"
    )
    parser.add_argument(
        "--against", type=Path, help="another checkout of Backpass to compare with, as the peer `before`"
    )
    given = parser.parse_args()
    names = given.peers if given.peers is not None else [] if given.against else list(PEERS)
    before = given.against and given.against.resolve()
    report: dict[str, Any] = {"machine": machine(), "rounds": given.rounds, "versions": {}, "threads": {}}
    for threads in given.threads if given.device == "cpu" else ["all"]:
        with started([OWN, *names], cores_of(threads), before, given.device) as peers:
            for peer in peers.values():
                report["versions"] |= peer.about["versions"]
            report["threads"][threads] = measured(peers, threads, given.workloads, given.rounds)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=1) + "\n")


def measured(
    peers: Mapping[str, Peer], threads: str, workloads: Sequence[str], rounds: int, own: str = OWN
) -> dict[str, Any]:
    """Workload -> peer -> {median, least, first}, in seconds; printed during the measurement.

    own: the peer whose ratio to the fastest of the others is printed.
    """
    cores = "1 thread, 1 core" if threads == "1" else f"{threads} threads"
    print(f"\n{cores}; ms per step, medians of {rounds} rounds")
    print(f"{'':14}" + "".join(f"{name:>16}" for name in peers) + f"{'ratio':>9}  to")
    found: dict[str, Any] = {}
    ratios = []
    for workload in workloads:
        first = prepared(peers, workload)
        taken = turns({name: peer for name, peer in peers.items() if name in first}, rounds)
        times = {
            name: {"median": statistics.median(each), "least": min(each), "first": first[name]}
            for name, each in taken.items()
        }
        found[workload] = times
        cells = [f"{times[name]['median'] * 1e3:16.3f}" if name in times else f"{'-':>16}" for name in peers]
        fastest = min((name for name in times if name != own), key=lambda name: times[name]["median"], default=None)
        end = ""
        if fastest and own in times:
            ratios.append(times[own]["median"] / times[fastest]["median"])
            end = f"{ratios[-1]:9.2f}  {fastest}"
        print(f"{workload:14}" + "".join(cells) + end, flush=True)
    if ratios:
        print(f"{'geometric mean':{14 + 16 * len(peers)}}{math.exp(statistics.mean(map(math.log, ratios))):9.2f}")
    print("\nfirst step, s")
    for workload, times in found.items():
        cells = [f"{times[name]['first']:16.3f}" if name in times else f"{'-':>16}" for name in peers]
        print(f"{workload:14}" + "".join(cells), flush=True)
    return found


def prepared(peers: Mapping[str, Peer], workload: str) -> dict[str, float]:
    """The seconds of the first step of every peer that can take one. Ends the program if they do not agree."""
    first: dict[str, float] = {}
    updated: dict[str, Updated] = {}
    for name, peer in peers.items():
        said = peer.prepare(workload)
        if "error" in said:
            print(f"  {workload}: {name} is left out: {said['error']}")
            continue
        first[name] = said["seconds"]
        updated[name] = said["loss"], peer.parameters()
    made = WORKLOADS[workload]()
    compare = drawn_apart if made.random else disagreement
    for name, each in list(updated.items())[1:]:
        reference = next(iter(updated))
        wrong = compare(made, updated[reference], each)
        if wrong:
            sys.exit(f"{workload}: {reference} and {name} do not agree: {wrong}")
    return first


def disagreement(workload: Workload, one: Updated, other: Updated) -> str | None:
    """The difference between two first steps, or None: the loss, or the change of a parameter.

    A movement may differ by the workload's tolerance of the largest one of its parameter, and by the rounding of the
    sum it was added in.
    """
    if not math.isclose(one[0], other[0], rel_tol=workload.tolerance):
        return f"losses {one[0]} and {other[0]}"
    for name, start in workload.parameters.items():
        moved, other_moved = one[1][name] - start, other[1][name] - start
        allowed = workload.tolerance * np.abs(moved).max() + 2 * np.spacing(np.abs(start))
        if not (np.abs(moved - other_moved) <= allowed).all():
            return (
                f"{name} moves by up to {np.abs(moved).max()}, with differences of {np.abs(moved - other_moved).max()}"
            )
    return None


def drawn_apart(workload: Workload, one: Updated, other: Updated) -> str | None:
    """The difference between two first steps that draw different numbers, or None.

    Losses and the lengths of movements are averages over many draws: they may differ by ALIKE.
    """
    if not math.isclose(one[0], other[0], rel_tol=ALIKE):
        return f"losses {one[0]} and {other[0]}"
    for name, start in workload.parameters.items():
        lengths = [float(np.linalg.norm(each[1][name] - start)) for each in (one, other)]
        if not math.isclose(*lengths, rel_tol=ALIKE):
            return f"{name} moves by {lengths[0]} and {lengths[1]}"
    return None


def turns(peers: Mapping[str, Peer], rounds: int) -> dict[str, list[float]]:
    """Seconds per step of each peer in each round, one peer after the other."""
    steps: dict[str, int] = {}
    for name, peer in peers.items():
        peer.run(2)
        steps[name] = max(1, min(MOST_STEPS, round(2 * ROUND_S / peer.run(2)["seconds"])))
    taken: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, peer in peers.items():
            time.sleep(PAUSE_S)
            peer.run(steps[name])
            taken[name].append(peer.run(steps[name])["seconds"] / steps[name])
    return taken


if __name__ == "__main__":
    main()
