"""A run with faults beside a calm run of the same scripts: every answer and every final value must be equal.

    python -m tests.reliability.chaos [--sessions 8] [--jobs 4] [--steps 5000] [--seed 1] [--pause 1] [--services 2]

prints the faults that happened, the retries of the clients and the times of restarts. Several services share one
PostgreSQL, and each request goes to any of them.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.postgres import Postgres, postgres
from tests.reliability.client import Client, JobClient, Trained
from tests.reliability.faults import Fire
from tests.reliability.house import House
from tests.reliability.workload import MODELS, script

__all__ = ["ALL", "SHARED", "Report", "compare", "run"]

ALL = {
    "service killed": 4.0,
    "worker killed": 4.0,
    "worker stopped": 0.5,
    "service stopped": 1.0,
    "write torn": 1.0,
    "disk full": 1.0,
    "clock set back": 0.5,
}
SHARED = ALL | {"clock set back": 0.0, "store restarted": 1.0, "store silent": 0.5}
"""Faults of services that share a store. Their clocks must agree within seconds, so none is set back."""
SETTINGS: dict[str, Any] = {"heartbeat_timeout": 2.0}


@dataclass(slots=True)
class Report:
    """What happened in one run."""

    trained: list[Trained]
    faults: Counter[str] = field(default_factory=Counter)
    restarts: list[float] = field(default_factory=list)
    seconds: float = 0.0


def run(
    folder: Path,
    sessions: int,
    steps: int,
    *,
    jobs: int = 0,
    seed: int = 1,
    faults: dict[str, float] | None = None,
    pause: float = 1.0,
    least: Mapping[str, int] | None = None,
    services: int = 1,
    store: Postgres | None = None,
    **settings: Any,
) -> Report:
    """Train `sessions` sessions of `steps` updates in all, and beside them `jobs` jobs of a tenth as many each.

    faults:   name -> weight; None for a calm run. pause: seconds between two faults at most.
    least:    name -> how often a fault happens before the sessions send the second half of their requests.
    services: the number of services, which share a new database of `store`; by default one with SQLite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shared = {} if store is None else {"database_url": store.new_database(), "objects_url": folder / "objects"}
    given = SETTINGS | shared | settings
    houses = [House(folder / f"data{i}", folder / f"log{i}", store, **given) for i in range(services)]
    begin = time.monotonic()
    try:
        for house in houses:
            house.start()
        urls = [house.url for house in houses]
        clients: list[Client | JobClient] = []
        fire = Fire(
            houses, seed, faults or {}, pause, least or {}, lambda: sum(each.trained.progress for each in clients)
        )
        clients += [JobClient(urls, steps // 10, 1000 + seed + i) for i in range(jobs)]
        for i in range(sessions):
            model = MODELS[i % len(MODELS)]
            requests = script(model, seed + i, -(-steps // sessions))
            clients.append(Client(urls, model, requests, seed + i, halfway=fire.enough.wait))
        for each in clients:
            each.thread.start()
        if faults:
            with fire:
                fire.watch([each.thread for each in clients])
        else:
            for each in clients:
                each.thread.join()
        restarts = [seconds for house in houses for seconds in house.restarts]
        return Report([each.trained for each in clients], fire.counts, restarts, time.monotonic() - begin)
    finally:
        for house in houses:
            house.stop()


def compare(calm: Report, burnt: Report) -> None:
    """Raises AssertionError for any number that differs between the runs."""
    for i, (wanted, found) in enumerate(zip(calm.trained, burnt.trained, strict=True)):
        for each in (wanted, found):
            if each.error is not None:
                raise each.error
        assert len(found.answers) == len(wanted.answers)
        for seq, (a, b) in enumerate(zip(wanted.answers, found.answers, strict=True), 1):
            assert a == b, f"client {i}, answer {seq}: {b} instead of {a}"
        assert wanted.values == found.values, f"the final values of client {i} differ"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=1.0, help="longest time between two faults, in seconds")
    parser.add_argument("--services", type=int, default=1)
    chosen = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        store = stack.enter_context(postgres()) if chosen.services > 1 else None
        size = {"sessions": chosen.sessions, "steps": chosen.steps, "jobs": chosen.jobs, "seed": chosen.seed}
        calm = run(Path(folder) / "calm", **size)
        print(f"{calm.seconds:.0f} s calm; now under fire", flush=True)
        burnt = run(
            Path(folder) / "burnt", **size, pause=chosen.pause,
            faults=SHARED if store else ALL, services=chosen.services, store=store,
        )  # fmt: skip
        compare(calm, burnt)
    answers = sum(len(each.answers) for each in burnt.trained)
    print(f"{answers} answers to {chosen.sessions} sessions and {chosen.jobs} jobs, all as in the calm run")
    print(f"{burnt.seconds:.0f} s under fire")
    for name, count in sorted(burnt.faults.items()):
        print(f"  {name:16} {count}")
    print(f"retries of clients: {sum(each.retries for each in burnt.trained)}")
    if burnt.restarts:
        median, longest = statistics.median(burnt.restarts), max(burnt.restarts)
        print(f"restart to ready: median {median:.2f} s, longest {longest:.2f} s")


if __name__ == "__main__":
    main()
