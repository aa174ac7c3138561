"""Training through HTTP, compared with a plain service of FastAPI and PyTorch with the same task.

    python -m bench.http_sessions [--workloads digits_mlp,rnn_text] [--threads 1,all] [--rounds 9] [--json FILE]

Both services train the same networks from the same parameters with Adam, on the same batches, which are safetensors
files; the answer to a step is its loss. They run on the same cores and take turns: a round is a few steps of each over
one connection. Numbers are steps per second, medians over the rounds. The losses of the first steps must agree before
the measurement. The plain service is bench/peers/torch_service.py.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine import machine
from bench.peers.process import environment, python_of
from bench.servers import OWN, SAFETENSORS, ServerEnded, post, served
from bench.workloads import WORKLOADS, Arrays
from examples import digits, rnn_text
from examples.models import Program, character_rnn, digits_convnet, digits_mlp
from service.formats import safetensors as tensorfile

__all__ = ["main"]

ROUND_S = 0.2
"""The time of the slower service in one round, in seconds; at least one step."""

MOST_STEPS = 200
PAUSE_S = 0.05  # before each turn: threads of the other service may spin for some milliseconds
COMPARED = 5  # first steps whose losses must agree
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Job:
    """A network to train. batches: feeds for an unlimited number of steps."""

    program: Program
    parameters: Arrays
    batches: Iterator[Arrays]
    rate: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    parser.add_argument("--workloads", type=listed, default=list(JOBS), help="some of " + ", ".join(JOBS))
    parser.add_argument("--threads", type=listed, default=["1", "all"], help="threads of each service's one worker")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="a file for all measurements")
    given = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "rounds": given.rounds, "threads": {}}
    try:
        for threads in given.threads:
            report["threads"][threads] = compared(given.workloads, threads, given.rounds)
    except ServerEnded as why:
        print(f"the plain service is missing: {why} (`make bench-peers` installs it)")
        return
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=1) + "\n")


def compared(jobs: Sequence[str], threads: str, rounds: int) -> dict[str, Any]:
    """Job -> {backpass, torch_service}, in steps per second; printed during the measurement."""
    count = len(os.sched_getaffinity(0)) if threads == "all" else int(threads)
    peer = [python_of("torch_service"), "-m", "uvicorn", "bench.peers.torch_service:app"]
    peer += ["--log-level", "warning", "--port"]
    settings = {"BACKPASS_WORKERS": "1", "BACKPASS_THREADS": str(count), "BACKPASS_DEVICE": "cpu"}
    found: dict[str, Any] = {}
    with (
        served(peer, "/docs", environment("torch_service", count, "")) as plain,
        served(OWN, "/healthz/ready", settings) as own,
    ):
        print(f"\nsteps per second through HTTP, medians of {rounds} rounds; threads: {threads}")
        print(f"{'':16}{'backpass':>12}{'plain torch':>14}{'ratio':>9}")
        for name in jobs:
            job = JOBS[name]()
            rates = measured(own_session(own, job), plain_session(plain, name, job), job, rounds)
            found[name] = dict(zip(("backpass", "torch_service"), rates, strict=True))
            print(f"{name:16}{rates[0]:12.1f}{rates[1]:14.1f}{rates[0] / rates[1]:9.2f}", flush=True)
    return found


class Session:
    """A session of one service. Bodies are made before the timed calls."""

    def __init__(self, connection: http.client.HTTPConnection, path: str) -> None:
        self._connection, self._path, self._seq = connection, path, 0

    def body(self, batch: Arrays) -> bytes:
        """The request for the next step."""
        self._seq += 1
        return tensorfile.pack(batch, {"seq": self._seq}, key="request")

    def connect(self) -> None:
        """Connect again: a server may have closed a connection during the turn of the other."""
        self._connection.close()
        self._connection.connect()

    def loss(self, batch: Arrays) -> float:
        """The loss of one step, which runs now."""
        self.connect()
        return float(tensorfile.unpack(self.step(self.body(batch)), key="response")[1]["loss"])

    def step(self, body: bytes) -> bytes:
        return post(self._connection, self._path, body, SAFETENSORS)


def own_session(connection: http.client.HTTPConnection, job: Job) -> Session:
    connection.close()
    registration = json.dumps({"program": job.program}).encode()
    program = json.loads(post(connection, "/v1/programs", registration, "application/json"))["id"]
    optimizer = {"type": "adam", "learning_rate": job.rate}
    asked = {"program_id": program, "loss": "loss", "optimizer": optimizer}
    return opened(connection, "/v1/sessions", job, asked)


def plain_session(connection: http.client.HTTPConnection, model: str, job: Job) -> Session:
    return opened(connection, "/sessions", job, {"model": model, "optimizer": {"lr": job.rate}})


def opened(connection: http.client.HTTPConnection, path: str, job: Job, asked: dict[str, Any]) -> Session:
    """A session with the parameters of `job` and the further members of `asked`."""
    body = tensorfile.pack(job.parameters, asked, key="request")
    connection.close()
    connection.request("POST", path, body, {"Content-Type": SAFETENSORS})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status >= 300:
        raise SystemExit(f"{path} answers {answer.status}: {content[:500]!r}")
    return Session(connection, f"{path}/{json.loads(content)['id']}/steps")


def measured(own: Session, plain: Session, job: Job, rounds: int) -> tuple[float, float]:
    """Steps per second of both. Ends the program if their losses differ."""
    for i in range(COMPARED):
        batch = next(job.batches)
        losses = [session.loss(batch) for session in (own, plain)]
        if not math.isclose(*losses, rel_tol=TOLERANCE):
            raise SystemExit(f"step {i + 1}: losses {losses[0]} and {losses[1]}")
    for each in (own, plain):  # a step to warm up
        turn(each, [next(job.batches)])
    slower = max(turn(each, [next(job.batches)]) for each in (own, plain))
    steps = max(1, min(MOST_STEPS, round(ROUND_S / slower)))
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        batches = [next(job.batches) for _ in range(steps)]
        for session, times in zip((own, plain), taken, strict=True):
            times.append(turn(session, batches))
    return 1 / statistics.median(taken[0]), 1 / statistics.median(taken[1])


def turn(session: Session, batches: list[Arrays]) -> float:
    """Seconds per step."""
    bodies = [session.body(batch) for batch in batches]
    time.sleep(PAUSE_S)
    session.connect()
    started = time.perf_counter()
    for body in bodies:
        session.step(body)
    return (time.perf_counter() - started) / len(bodies)


# --- the jobs ----------------------------------------------------------------------------------------------------


def of_digits(program: Program, image: bool) -> Job:
    examples, _ = digits.load()
    rng = np.random.default_rng(0)

    def batches() -> Iterator[Arrays]:
        while True:
            yield examples.feeds(rng.permutation(len(examples))[: digits.BATCH], image)

    return Job(program, drawn(program), batches(), rate=0.005)


def of_text() -> Job:
    alphabet, train, _ = rnn_text.load()
    program = character_rnn(len(alphabet), rnn_text.BATCH, rnn_text.HIDDEN)
    rng = np.random.default_rng(0)

    def batches() -> Iterator[Arrays]:
        while True:
            trips = rng.integers(rnn_text.SHORTEST, rnn_text.LONGEST + 1)
            yield {"text": rnn_text.pieces(train, rng), "n": np.asarray(trips)}

    return Job(program, drawn(program), batches(), rate=0.01)


def of_transformer() -> Job:
    workload = WORKLOADS["transformer"]()

    def batches() -> Iterator[Arrays]:
        while True:
            yield workload.feeds

    return Job(workload.program, workload.parameters, batches(), rate=0.001)


def drawn(program: Program) -> Arrays:
    """Initial parameters: matrices and filters with the deviation of Glorot and Bengio 2010, else zeros."""
    rng = np.random.default_rng(1)
    parameters: Arrays = {}
    for each in program["blocks"][0]["vars"]:
        if each["role"] == "parameter":
            shape = tuple(each["shape"])
            fans = sum(shape[:2]) * math.prod(shape[2:])
            spread = math.sqrt(2 / fans) if len(shape) > 1 else 0.0
            parameters[each["name"]] = (spread * rng.standard_normal(shape)).astype("float32")
    return parameters


JOBS: dict[str, Callable[[], Job]] = {
    "digits_mlp": lambda: of_digits(digits_mlp(), image=False),
    "digits_convnet": lambda: of_digits(digits_convnet(), image=True),
    "rnn_text": of_text,
    "transformer": of_transformer,
}


if __name__ == "__main__":
    main()
