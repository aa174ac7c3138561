"""Training steps on a GPU, compared with those of PyTorch and JAX.

    python -m bench.gpu [--workloads mlp_small,transformer] [--peers torch_compile,jax_jit] [--rounds 7] [--batch 11]
                        [--limit 90] [--json FILE]

As `bench.steps --device cuda`, but quicker where there are many cores: the peers of a batch of workloads prepare at the
same time, each in a process of its own, and are measured one after the other when all are ready. So first steps are
slower than they are alone. A peer that is not ready after the limit is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.peers.process import OWN, Missing, Peer
from bench.steps import disagreement, drawn_apart, turns
from bench.workloads import WORKLOADS

__all__ = ["main"]

PEERS = ("torch_eager", "torch_compile", "jax_jit")


class _Prepared:
    """A peer with its workload. said: the answer to `prepare`, or its error; parameters: after the first step."""

    def __init__(self, name: str, workload: str, limit: float) -> None:
        self.peer: Peer | None = None
        self.parameters: dict[str, Any] = {}
        try:
            self.peer = Peer(name, os.sched_getaffinity(0), device="cuda", limit=limit)
            self.said = self.peer.prepare(workload)
            if "error" not in self.said:
                self.parameters = self.peer.parameters()
            self.peer.in_time()
        except Missing as missing:
            self.said = {"error": str(missing)}
        except (EOFError, BrokenPipeError):
            self.said = {"error": f"its process ended, or was not ready after {limit:g} s"}

    def close(self) -> None:
        if self.peer is not None:
            self.peer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    parser.add_argument("--workloads", type=listed, default=list(WORKLOADS))
    parser.add_argument("--peers", type=listed, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=11, help="workloads that are prepared at the same time")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds until a peer is ready")
    parser.add_argument("--json", type=Path, help="a file for everything that was measured")
    given = parser.parse_args()
    names, report, ratios = [OWN, *given.peers], {}, []
    print("ms per step, medians of", given.rounds, "rounds; the ratio is that to the fastest peer")
    print(f"{'':18}" + "".join(f"{name:>15}" for name in names) + f"{'ratio':>9}  first steps, s")
    for start in range(0, len(given.workloads), given.batch):
        for workload, times in _batch(given.workloads[start : start + given.batch], names, given.rounds, given.limit):
            report[workload] = times
            others = [each["median"] for name, each in times.items() if name != OWN and "median" in each]
            ratio = times[OWN].get("median", math.nan) / min(others, default=math.nan)
            if math.isfinite(ratio):
                ratios.append(ratio)
            cells = [f"{times[n]['median'] * 1e3:15.3f}" if "median" in times[n] else f"{'-':>15}" for n in names]
            first = " ".join(f"{times[n]['first']:.1f}" if "first" in times[n] else "-" for n in names)
            print(f"{workload:18}" + "".join(cells) + f"{ratio:9.2f}  {first}", flush=True)
            for name, each in times.items():
                if "error" in each:
                    print(f"  {name}: {each['error']}")
    if ratios:
        print(f"geometric mean {math.exp(statistics.mean(map(math.log, ratios))):.3f}")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


def _batch(workloads: Sequence[str], names: Sequence[str], rounds: int, limit: float) -> Any:
    with ThreadPoolExecutor(len(workloads) * len(names)) as pool:
        made = {
            workload: {name: pool.submit(_Prepared, name, workload, limit) for name in names} for workload in workloads
        }
    for workload, futures in made.items():
        peers = {name: each.result() for name, each in futures.items()}
        times: dict[str, dict[str, Any]] = {}
        ready: dict[str, Peer] = {}
        example = WORKLOADS[workload]()
        compare = drawn_apart if example.random else disagreement
        own = peers[OWN]
        for name, each in peers.items():
            times[name] = {"error": each.said["error"]} if "error" in each.said else {"first": each.said["seconds"]}
            if "error" in each.said or each.peer is None:
                continue
            wrong = None
            if "error" not in own.said:
                one, other = ((p.said["loss"], p.parameters) for p in (own, each))
                wrong = compare(example, one, other)
            if wrong:
                times[name]["error"] = f"disagrees with {OWN}: {wrong}"
            ready[name] = each.peer
        try:
            for name, taken in turns(ready, rounds).items():
                times[name] |= {"median": statistics.median(taken), "least": min(taken)}
        except (EOFError, BrokenPipeError, KeyError) as error:
            print(f"  {workload}: a peer ended during the measurement: {error!r}", file=sys.stderr)
        yield workload, times
        for each in peers.values():
            each.close()


if __name__ == "__main__":
    main()
