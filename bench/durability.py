"""The cost of durability: steps per second of a session with a journal, with checkpoints alone, and with neither.

    python -m bench.durability [--workloads digits_mlp,...] [--rounds 9] [--steps 100] [--json FILE]

One service trains three sessions of each network in turns, one for each durability. Bodies are safetensors files, made
before the timed calls; the answer to a step is its loss. Numbers are steps per second, medians over the rounds, and
their ratio to a session without durability. `answered` is the longest time of a single step of the journaled session.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from bench.http_sessions import JOBS, Session, opened
from bench.machine import machine
from bench.servers import OWN, post, served

__all__ = ["main"]

DURABILITIES = ("none", "checkpoint", "journal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=list(JOBS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=100, help="steps of each session in one round, at most")
    parser.add_argument("--json", type=Path, help="a file for all measurements")
    given = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "rounds": given.rounds, "workloads": {}}
    print(f"steps per second, medians of {given.rounds} rounds")
    print(f"{'':16}{'none':>10}{'checkpoint':>12}{'ratio':>8}{'journal':>10}{'ratio':>8}{'longest ms':>12}")
    with served(OWN, "/healthz/ready", {"BACKPASS_WORKERS": "1", "BACKPASS_DEVICE": "cpu"}) as connection:
        for name in given.workloads:
            report["workloads"][name] = found = measured(connection, name, given.rounds, given.steps)
            none, checkpoint, journal = (found[each]["steps_per_s"] for each in DURABILITIES)
            cells = f"{none:10.1f}{checkpoint:12.1f}{checkpoint / none:8.2f}{journal:10.1f}{journal / none:8.2f}"
            print(f"{name:16}{cells}{found['journal']['longest_s'] * 1e3:12.1f}", flush=True)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=1) + "\n")


def measured(connection: Any, name: str, rounds: int, most: int) -> dict[str, dict[str, float]]:
    """Durability -> steps per second, and the longest step in seconds."""
    job = JOBS[name]()
    connection.close()
    registration = json.dumps({"program": job.program}).encode()
    program = json.loads(post(connection, "/v1/programs", registration, "application/json"))["id"]
    asked = {"program_id": program, "loss": "loss", "optimizer": {"type": "adam", "learning_rate": job.rate}}
    sessions: dict[str, Session] = {}
    for each in DURABILITIES:
        sessions[each] = opened(connection, "/v1/sessions", job, {**asked, "durability": each})
        for _ in range(5):
            sessions[each].loss(next(job.batches))
    seconds = timed(sessions["none"], [next(job.batches)])[0]
    count = max(1, min(most, round(0.3 / seconds)))
    taken: dict[str, list[float]] = {each: [] for each in DURABILITIES}
    longest = dict.fromkeys(DURABILITIES, 0.0)
    for _ in range(rounds):
        batches = [next(job.batches) for _ in range(count)]
        for each, session in sessions.items():
            times = timed(session, batches)
            taken[each].append(sum(times) / len(times))
            longest[each] = max(longest[each], *times)
    return {
        each: {"steps_per_s": 1 / statistics.median(taken[each]), "longest_s": longest[each]} for each in DURABILITIES
    }


def timed(session: Session, batches: list[Any]) -> list[float]:
    """Seconds of each step."""
    bodies = [session.body(batch) for batch in batches]
    session.connect()
    found = []
    for body in bodies:
        started = time.perf_counter()
        session.step(body)
        found.append(time.perf_counter() - started)
    return found


if __name__ == "__main__":
    main()
