"""Steps per second, and the delay of `/healthz/live`, while many clients send more than the service can take.

    python -m bench.storm [--storms retry,reconnect] [--heavy json,backward] [--clients 4,64,256] [--seconds 3]
                          [--rounds 3] [--against CHECKOUT] [--json FILE]

The load comes from a second process, the probe of `/healthz/live` from a third one, all over loopback. Every client of
a storm repeats its request as soon as it has an answer, also one that refuses it. Goodput counts answered steps. The
processor time of the API process for each answered request does not depend on other work on the machine. With
`--against`, another checkout takes turns with this one, storm by storm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.machine import machine
from bench.servers import served
from bench.storm_load import HEAVY, STORMS, Target, flood, probe, target_of

__all__ = ["main"]

ROOT = Path(__file__).parent.parent
SETTINGS = {"BACKPASS_WORKERS": "2", "BACKPASS_THREADS": "1", "BACKPASS_DEVICE": "cpu", "PYTHONSAFEPATH": "1"}
PROCESSES = multiprocessing.get_context("spawn")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: [each for each in text.split(",") if each]
    parser.add_argument("--storms", type=listed, default=list(STORMS), help="some of " + ", ".join(STORMS))
    parser.add_argument("--heavy", type=listed, default=list(HEAVY), help="some of " + ", ".join(HEAVY))
    parser.add_argument("--clients", type=listed, default=["4", "64", "256"], help="numbers of clients in a storm")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout of Backpass to compare with, as `before`")
    parser.add_argument("--json", type=Path, help="a file for all measurements")
    given = parser.parse_args()
    checkouts = {"now": ROOT} | ({"before": given.against.resolve()} if given.against else {})
    report: dict[str, Any] = {"machine": machine(), "rounds": given.rounds, "seconds": given.seconds, "found": {}}
    with contextlib.ExitStack() as stack:
        targets = {name: stack.enter_context(serving(path)) for name, path in checkouts.items()}
        for storm in given.storms:
            print(f"\nstorm `{storm}`: steps/s (best 1.00), p99 and most of /healthz/live in ms", flush=True)
            report["found"][storm] = compared(targets, storm, [int(n) for n in given.clients], given)
        if given.heavy:
            print("\nheavy requests of four clients: requests/s, p99 and most of /healthz/live in ms", flush=True)
        for heavy in given.heavy:
            report["found"][heavy] = compared(targets, heavy, [4], given)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=1) + "\n")


@contextlib.contextmanager
def serving(checkout: Path) -> Iterator[Target]:
    """The service of a checkout, with the sessions and programs of the storms."""
    command = [sys.executable, "-m", "service", "serve", "--log-level", "error", "--port"]
    with served(command, "/healthz/ready", SETTINGS | {"PYTHONPATH": str(checkout)}) as connection:
        yield target_of(connection)


def compared(
    targets: Mapping[str, Target], kind: str, clients: Sequence[int], given: argparse.Namespace
) -> dict[str, Any]:
    """Name of the checkout -> number of clients -> medians over the rounds; printed during the measurement."""
    rounds: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(given.rounds):
        for count in clients:
            for name, target in targets.items():
                rounds.setdefault((name, count), []).append(measured(target, kind, count, given.seconds))
    found: dict[str, Any] = {name: {} for name in targets}
    for (name, count), each in rounds.items():
        found[name][count] = {key: statistics.median(one[key] for one in each) for key in each[0]}
    for name in targets:
        best = max(one["good"] for one in found[name].values()) or 1.0
        for count, one in found[name].items():
            line = f"  {kind:10} {name:7} {count:5} clients {one['good']:9.1f}/s {one['good'] / best:5.2f}"
            line += f"   refused {one['refused']:7.1f}/s failed {one['failed']:5.1f}/s"
            line += f"   api {one['api_ms']:7.2f} ms each"
            line += f"   live p99 {one['p99_ms']:8.1f} most {one['most_ms']:8.1f}"
            print(line, flush=True)
    return found


def measured(target: Target, kind: str, clients: int, seconds: float) -> dict[str, float]:
    """Answered and refused requests per second, and the delays of the probe."""
    results: Any = PROCESSES.Queue()
    load = PROCESSES.Process(target=flood, args=(target, kind, clients, seconds, results))
    watch = PROCESSES.Process(target=probe, args=(target, seconds, results))
    for process in (load, watch):
        process.start()
    found: dict[str, float] = {}
    try:
        for _ in (load, watch):
            found |= results.get(timeout=60 + 4 * seconds)
    finally:
        for process in (load, watch):
            process.join(5)
            if process.is_alive():
                process.kill()
    return found


if __name__ == "__main__":
    main()
