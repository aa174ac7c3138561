"""The first gradient of a new program, compared with jax's first gradient of the same program.

    python -m bench.first_gradient [--workloads mlp_small,transformer] [--rounds 3] [--json FILE]

For Backpass the time is that of one POST with the program, its feeds and its parameters, until the client has the loss
and the gradients of all parameters. The service has one worker, which has computed another program before. For jax the
time is that of one call of a jitted value_and_grad in a process that has computed another function before: tracing,
compiling, running, and gradients as numpy arrays; no HTTP. Every round starts both processes again and calls them in
turns. Numbers are seconds, medians over the rounds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from bench.machine import machine
from bench.peers.process import started
from bench.servers import OWN, SAFETENSORS, post, served
from bench.workloads import WORKLOADS, Workload, mlp
from service.formats import safetensors as tensorfile

__all__ = ["main", "measured"]

PEER = "jax_gradient"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    parser.add_argument("--workloads", type=listed, default=list(WORKLOADS), help="some of " + ", ".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="a file for all measurements")
    given = parser.parse_args()
    report = {"machine": machine(), "rounds": given.rounds, "workloads": measured(given.workloads, given.rounds)}
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=1) + "\n")


def measured(workloads: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    """Workload -> {backpass, jax_jit}, in seconds."""
    taken: dict[str, dict[str, list[float]]] = {name: {} for name in workloads}
    cores = os.sched_getaffinity(0)
    settings = {"BACKPASS_WORKERS": "1", "BACKPASS_THREADS": str(len(cores)), "BACKPASS_DEVICE": "cpu"}
    for _ in range(rounds):
        with started([PEER], cores) as peers, served(OWN, "/healthz/ready", settings) as own:
            first_gradient(own, mlp("mlp", 2, (3, 4)))
            for name in workloads:
                seconds, loss = first_gradient(own, WORKLOADS[name]())
                taken[name].setdefault("backpass", []).append(seconds)
                if PEER in peers:
                    said = peers[PEER].prepare(name)
                    if "error" in said:
                        raise SystemExit(f"{name}: {said['error']}")
                    if abs(said["loss"] - loss) > 1e-3 * abs(loss):
                        raise SystemExit(f"{name}: losses {loss} and {said['loss']}")
                    taken[name].setdefault("jax_jit", []).append(said["seconds"])
    print(f"\nfirst gradient, s, medians of {rounds} rounds")
    print(f"{'':16}{'backpass':>10}{'jax.jit':>10}{'ratio':>8}")
    found = {}
    for name, times in taken.items():
        found[name] = {who: statistics.median(each) for who, each in times.items()}
        ours, theirs = found[name]["backpass"], found[name].get("jax_jit")
        end = f"{theirs:10.3f}{ours / theirs:8.2f}" if theirs else ""
        print(f"{name:16}{ours:10.3f}{end}", flush=True)
    return found


def first_gradient(connection: http.client.HTTPConnection, workload: Workload) -> tuple[float, float]:
    """(seconds from the POST to the whole answer, loss)."""
    values = {**workload.feeds, **workload.parameters}
    body = tensorfile.pack(values, {"program": workload.program, "loss": "loss"}, key="request")
    connection.close()
    connection.connect()
    begun = time.perf_counter()
    answer = post(connection, "/v1/gradients", body, SAFETENSORS)
    seconds = time.perf_counter() - begun
    return seconds, float(tensorfile.unpack(answer, key="response")[1]["loss"])


if __name__ == "__main__":
    main()
