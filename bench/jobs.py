"""A job on stored data, compared with the same steps over HTTP and with PyTorch in process.

    python -m bench.jobs [--rounds 5] [--steps 10000] [--threads 1] [--json FILE]

All train the network of the digits with Adam on batches of the same size, and learn the loss of every step. The three
take turns: a round is one job of `steps` steps, the steps over one connection that take a second, and 2000 steps of
PyTorch. Numbers are steps per second, medians over the rounds; a job counts from its start to
its end, with its bookkeeping and its durable session. PyTorch is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from backpass_client import Program, Service
from bench.machine import machine
from bench.peers.process import environment, python_of
from bench.servers import OWN, served
from examples import digits
from examples.models import digits_mlp

__all__ = ["main"]

TURN_S = 1.0
ADAM = {"type": "adam", "learning_rate": 0.005}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10_000, help="steps of one job")
    parser.add_argument("--threads", type=int, default=1, help="threads of the worker, and of PyTorch")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    asked = parser.parse_args()
    where = machine()
    settings = {"BACKPASS_WORKERS": "1", "BACKPASS_THREADS": str(asked.threads)}
    rates: dict[str, list[float]] = {"job": [], "http": []}
    examples, _ = digits.load()
    feeds = examples.feeds(np.arange(len(examples)), image=False)
    with served(OWN, "/healthz/ready", settings) as connection, in_process(asked.threads, feeds) as torch_seconds:
        service = Service(f"http://127.0.0.1:{connection.port}")
        data = service.datasets.upload(feeds, name="digits").id
        session = Program(service, digits_mlp()).session("loss", optimizer=ADAM)
        session.fit(data, steps=200, batch_size=digits.BATCH, drop_last=True, progress=False)
        for _ in range(asked.rounds):
            view = run(service, data, asked.steps)
            rates["job"].append(asked.steps / (view["ended"] - view["started"]))
            rates["http"].append(over_http(session, feeds))
            if torch_seconds is not None:
                count = 2000
                rates.setdefault("torch_eager", []).append(count / torch_seconds(count))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        print(f"{name:12} {rate:10.0f} steps/s the job is {medians['job'] / rate:6.2f} times as fast")
    if asked.json is not None:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps({"machine": where, "threads": asked.threads, "rates": rates}))


def run(service: Service, data: str, steps: int) -> dict[str, Any]:
    """The view of a job that has trained `steps` steps."""
    asked = {"program": digits_mlp(), "loss": "loss", "optimizer": ADAM, "dataset_id": data, "steps": steps}
    asked |= {"batch_size": digits.BATCH, "drop_last": True}
    path = f"/v1/jobs/{service.call('POST', '/v1/jobs', asked)['id']}"
    while (view := service.call("GET", path))["state"] in ("queued", "running"):
        time.sleep(0.05)
    if view["state"] != "succeeded":
        raise SystemExit(f"the job {view['state']}: {view['error']}")
    service.call("DELETE", f"/v1/sessions/{view['session_id']}")
    return view


def over_http(session: Any, feeds: dict[str, np.ndarray]) -> float:
    """Steps per second of single steps over one connection."""
    rng, done = np.random.default_rng(0), 0
    rows = rng.permutation(len(feeds["y"]))
    started = time.perf_counter()
    while (took := time.perf_counter() - started) < TURN_S:
        at = done * digits.BATCH % (len(rows) - digits.BATCH)
        batch = rows[at : at + digits.BATCH]
        session.step({name: value[batch] for name, value in feeds.items()})
        done += 1
    return done / took


@contextmanager
def in_process(threads: int, feeds: dict[str, np.ndarray]) -> Iterator[Any]:
    """A function that trains some steps with PyTorch and returns their seconds; None without PyTorch."""
    python = python_of("torch_eager")
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        print("PyTorch is not installed; `make bench-peers` installs it")
        yield None
        return
    with tempfile.TemporaryDirectory() as scratch:
        np.savez(f"{scratch}/digits.npz", **feeds)
        command = [python, "-m", "bench.peers.torch_digits", f"{scratch}/digits.npz", str(digits.BATCH)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env=environment("torch_eager", threads, scratch), **pipes)
        assert process.stdin is not None
        assert process.stdout is not None

        def seconds(count: int) -> float:
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        try:
            seconds(200)
            yield seconds
        finally:
            process.stdin.close()
            process.wait(30)


if __name__ == "__main__":
    main()
