"""Small steps through HTTP, compared with PyTorch op by op in one process, without HTTP.

    python -m bench.small [--tasks gan,vae,pinn,reinforce] [--batches 1,100] [--rounds 7] [--threads 1] [--json FILE]

The service trains each task with one batch a call and with several; PyTorch runs a plain loop. Both train the same
parameters on the same batches with Adam, on one core each, in turns. The losses of the first steps must agree. Numbers
are batches per second, medians over the rounds. `outside` is the share of the time that is not the compiled step
itself: HTTP, the service, the worker, and the client that packs the batches. The step alone is measured in this
process.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine import machine
from bench.peers.process import environment, python_of
from bench.servers import OWN, SAFETENSORS, post, served
from bench.small_tasks import TASKS, Task, played
from core.compiler.compile import GradientQuery, Optimizer, compile_training
from core.compiler.trainer import Trainer
from core.wire import read
from service.formats import safetensors as tensorfile

__all__ = ["main"]

COMPARED = 5  # first losses that must agree
TOLERANCE = 2e-3
ROUND_STEPS = 400
EPISODES = 32
"""Batches that REINFORCE adds up before an update, with several batches a call."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    parser.add_argument("--tasks", type=listed, default=list(TASKS), help="some of " + ", ".join(TASKS))
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 100])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="a file for all measurements")
    given = parser.parse_args()
    report = {"machine": machine(), "rounds": given.rounds, "tasks": {}}
    settings = {"BACKPASS_WORKERS": "1", "BACKPASS_THREADS": str(given.threads), "BACKPASS_DEVICE": "cpu"}
    print(f"batches per second, medians of {given.rounds} rounds; {given.threads} threads")
    heads = "".join(f"{f'{n} a call':>12}{'outside':>9}" for n in given.batches)
    print(f"{'':12}{heads}{'torch eager':>13}{'ratio':>8}")
    torch = Torch(given.threads)
    with served(OWN, "/healthz/ready", settings) as connection:
        for name in given.tasks:
            report["tasks"][name] = compared(connection, torch, name, given.batches, given.rounds)
    torch.close()
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=1) + "\n")


class Torch:
    """The process of PyTorch. Without PyTorch there are no times."""

    def __init__(self, threads: int) -> None:
        self._process = subprocess.Popen(
            [python_of("torch_eager"), "-m", "bench.peers.torch_small", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment("torch_eager", threads, os.environ.get("TMPDIR", "/tmp")),
            text=True,
        )

    def times(self, task: str, steps: int, rounds: int) -> dict[str, Any] | None:
        """Seconds per batch of each round, and the first losses."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"task": task, "steps": steps, "rounds": rounds}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        answer = self._process.stdout.readline()
        return json.loads(answer) if answer else None

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def compared(
    connection: http.client.HTTPConnection, torch: Torch, name: str, sizes: Sequence[int], rounds: int
) -> dict[str, Any]:
    """The rates of one task; printed during the measurement."""
    task = TASKS[name]()
    compute = seconds_of_step(task)
    cells, found = "", {"compute_s": compute, "batches": {}}
    # in turns: a round of each size, then one of PyTorch
    runs = {size: Session(connection, TASKS[name](), size) for size in sizes}
    losses = {size: session.warm() for size, session in runs.items()}
    taken: dict[int, list[float]] = {size: [] for size in sizes}
    peer: list[float] = []
    largest = runs[max(sizes)].size
    for i in range(rounds):
        for size, session in runs.items():
            taken[size].append(session.turn())
        each = torch.times(name, max(largest, COMPARED), max(1, ROUND_STEPS // largest))
        if each is not None:
            peer += each["seconds"]
            if i == 0:
                agree(name, losses[max(sizes)], each["losses"])
    for size in sizes:
        median = statistics.median(taken[size])
        found["batches"][size] = {"per_second": 1 / median, "outside": 1 - compute / median}
        cells += f"{1 / median:12.0f}{1 - compute / median:9.0%}"
    best = 1 / statistics.median(taken[max(sizes)])
    if peer:
        found["torch_eager"] = 1 / statistics.median(peer)
        cells += f"{found['torch_eager']:13.0f}{best / found['torch_eager']:8.2f}"
    print(f"{name:12}{cells}", flush=True)
    return found


def agree(name: str, own: Sequence[float], other: Sequence[float]) -> None:
    if not np.allclose(own[:COMPARED], other[:COMPARED], rtol=TOLERANCE, atol=TOLERANCE):
        raise SystemExit(f"{name}: losses {own[:COMPARED]} and {other[:COMPARED]}")


def seconds_of_step(task: Task) -> float:
    """Seconds of the compiled step alone, in this process: the median of many."""
    batch = {name: each[0] for name, each in task.batches(1).items()}
    if task.name == "reinforce":
        policy = np.full((len(batch["state"]), 4), 0.25)
        action, reward = played(policy, batch["state"], batch.pop("chance"))
        batch |= {"action": action, "reward": reward}
    attrs = {name: value for name, value in task.optimizer.items() if name != "type"}
    optimizer = Optimizer(task.optimizer["type"], attrs)
    shapes = {name: value.shape for name, value in batch.items()}
    step = compile_training(read(task.program), GradientQuery(loss="loss"), optimizer, shapes=shapes).compiled()
    trainer, times = Trainer(step, task.parameters), []
    for _ in range(300):
        started = time.perf_counter()
        trainer.step(batch)
        times.append(time.perf_counter() - started)
    return statistics.median(times[50:])


class Session:
    """One task in a session of the service. size: batches a call."""

    def __init__(self, connection: http.client.HTTPConnection, task: Task, size: int) -> None:
        self._connection, self._task = connection, task
        self.size = min(size, EPISODES) if task.name == "reinforce" else size
        asked = {"program": task.program, "loss": "loss", "optimizer": task.optimizer}
        connection.close()
        connection.request("POST", "/v1/sessions", tensorfile.pack(task.parameters, asked, key="request"), {"Content-Type": SAFETENSORS})  # fmt: skip # noqa: E501
        answer = connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"/v1/sessions answers {answer.status}: {content[:500]!r}")
        self._path = f"/v1/sessions/{json.loads(content)['id']}"

    def warm(self) -> list[float]:
        """Compile and bind; returns the first losses."""
        losses = self.call()
        while len(losses) < COMPARED:
            losses += self.call()
        self.call()
        return losses

    def turn(self) -> float:
        """Seconds per batch of one round."""
        calls = max(1, ROUND_STEPS // self.size)
        batches = [self._task.batches(self.size) for _ in range(calls)]
        self._connection.close()
        self._connection.connect()
        started = time.perf_counter()
        for each in batches:
            self._train(each)
        return (time.perf_counter() - started) / (calls * self.size)

    def call(self) -> list[float]:
        """Train one call; the losses."""
        return np.atleast_1d(self._train(self._task.batches(self.size))["loss"]).tolist()

    def _train(self, batches: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self._task.name == "reinforce":
            return self._play(batches)
        if self.size == 1:
            return self._post("steps", {name: each[0] for name, each in batches.items()})
        return self._post("steps", batches, batches=self.size)

    def _play(self, batches: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Ask the policy, act, add the gradients up, and update."""
        state = batches["state"]
        policy = self._post("evaluations", {"state": state.reshape(-1, state.shape[-1])}, fetch=["policy"])
        shaped = policy["fetch/policy"].reshape(*state.shape[:2], -1)
        action, reward = played(shaped, state, batches["chance"])
        feeds = {"state": state, "action": action, "reward": reward}
        found = self._post("gradients", feeds, accumulate=True, batches=self.size)
        self._post("updates", {})
        return found

    def _post(self, route: str, tensors: dict[str, np.ndarray], **members: Any) -> dict[str, np.ndarray]:
        body = tensorfile.pack(tensors, members, key="request")
        return tensorfile.unpack(post(self._connection, f"{self._path}/{route}", body, SAFETENSORS), key="response")[1]


if __name__ == "__main__":
    main()
