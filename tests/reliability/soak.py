"""Many sessions, many steps, many sessions created and deleted: what the service keeps must not grow.

    python -m tests.reliability.soak [--open 1000] [--active 16] [--steps 100000] [--created 1000]

prints memory (private bytes of the service and its workers), open files, stored files and the size of the database.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from service.formats import safetensors as tensorfile
from tests.reliability.house import House
from tests.reliability.workload import NETWORK

__all__ = ["Size", "churn", "many_sessions", "many_steps", "size_of"]

SAFETENSORS = "application/x-safetensors"
BATCHES = 100


@dataclass(frozen=True, slots=True)
class Size:
    """What a service keeps. memory: private bytes of all its processes; database and objects: bytes of files."""

    memory: int
    descriptors: int
    files: int
    database: int
    objects: int

    def __str__(self) -> str:
        memory, descriptors, files, database, objects = astuple(self)
        return (
            f"memory {memory / 2**20:.0f} MiB, descriptors {descriptors}, files {files}, "
            f"database {database / 2**20:.1f} MiB, objects {objects / 2**20:.1f} MiB"
        )


def size_of(house: House) -> Size:
    assert house.process is not None
    pids = [house.process.pid, *house.children()]
    memory = descriptors = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue
        memory += 1024 * sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
    stored = [path for path in house.data_dir.rglob("*") if path.is_file() and "code" not in path.parts]
    database = sum(path.stat().st_size for path in stored if ".sqlite" in path.name)
    objects = sum(path.stat().st_size for path in stored if "objects" in path.parts)
    return Size(memory, descriptors, len(stored), database, objects)


def opened(client: httpx.Client, seed: int, **more: Any) -> str:
    """The path of a new session."""
    settings = {"program": NETWORK.program, "loss": "loss", "optimizer": NETWORK.optimizer, "init": {"seed": seed}}
    answer = client.post("/v1/sessions", json=settings | more)
    assert answer.status_code == 201, answer.text
    return answer.headers["location"]


def step(client: httpx.Client, path: str, seq: int, batches: int = 0) -> float:
    """Seconds of one call."""
    rng = np.random.default_rng(seq)
    shape = (batches,) if batches else ()
    feeds = {name: rng.standard_normal((*shape, *size), np.float32) for name, (size, _) in NETWORK.feeds.items()}
    asked: dict[str, Any] = {"seq": seq, **({"batches": batches} if batches else {})}
    body = tensorfile.pack(feeds, asked, key="request")
    started = time.perf_counter()
    answer = client.post(f"{path}/steps", content=body, headers={"Content-Type": SAFETENSORS})
    assert answer.status_code == 200, answer.text
    return time.perf_counter() - started


def many_sessions(client: httpx.Client, count: int, active: int) -> tuple[list[str], list[float], list[float]]:
    """Open `count` sessions, train `active` of them, then call each of the others once.

    Returns their paths, and the seconds of the first call of a session that was parked, and of its second call.
    """
    paths = [opened(client, i) for i in range(count)]
    for path in paths:
        step(client, path, 1)
    for seq in range(2, 22):
        for path in paths[:active]:
            step(client, path, seq)
    parked = [path for path in paths[active:] if client.get(path).json()["state"] == "parked"]
    first = [step(client, path, 2) for path in parked]
    again = [step(client, path, 3) for path in parked[-active:]]
    for path in paths:
        assert client.get(path).json()["step"] >= 1, path
    return paths, first, again


def many_steps(client: httpx.Client, count: int) -> None:
    """Train one session `count` steps, a hundred in a call."""
    path = opened(client, 0)
    for seq in range(1, count // BATCHES + 1):
        step(client, path, seq, BATCHES)
    client.delete(path)


def churn(client: httpx.Client, count: int) -> None:
    """Open, train and delete `count` sessions."""
    for i in range(count):
        path = opened(client, i)
        step(client, path, 1)
        assert client.delete(path).status_code == 204


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", type=int, default=1000)
    parser.add_argument("--active", type=int, default=16)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--created", type=int, default=1000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        house = House(Path(folder) / "data", Path(folder) / "log", park_after=1)
        house.start()
        try:
            with httpx.Client(base_url=house.url, timeout=60.0, verify=False) as client:
                print(f"at start: {size_of(house)}")
                for part in range(4):
                    many_steps(client, chosen.steps // 4)
                    print(f"after {(part + 1) * chosen.steps // 4} steps: {size_of(house)}", flush=True)
                for part in range(4):
                    churn(client, chosen.created // 4)
                    print(f"after {(part + 1) * chosen.created // 4} sessions: {size_of(house)}", flush=True)
                begin = time.monotonic()
                paths, first, again = many_sessions(client, chosen.open, chosen.active)
                print(f"{len(paths)} open sessions in {time.monotonic() - begin:.0f} s: {size_of(house)}")
                if first:
                    ordered = sorted(first)
                    print(
                        f"first call of {len(first)} parked sessions: median {statistics.median(first) * 1e3:.1f} ms, "
                        f"99 % {ordered[int(0.99 * len(ordered))] * 1e3:.1f} ms, longest {ordered[-1] * 1e3:.1f} ms; "
                        f"next call: median {statistics.median(again) * 1e3:.1f} ms"
                    )
        finally:
            house.stop()


if __name__ == "__main__":
    main()
