"""The overhead of a one-shot gradient: the time of a call without its computation.

    python -m bench.overhead [--calls 300]

POSTs the same 400 KB safetensors body, in turns, to Backpass and to an empty FastAPI route that only reads it, both
served by uvicorn in separate processes, and prints medians in milliseconds and their ratio.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import time
from typing import Any

import numpy as np
from fastapi import FastAPI, Request

from bench.servers import OWN, SAFETENSORS, post, served
from service.formats import safetensors as tensorfile

__all__ = ["empty", "main"]

ELEMENTS = 100_000

PROGRAM: dict[str, Any] = {
    "blocks": [
        {
            "idx": 0,
            "vars": [
                {"name": "x", "dtype": "float32", "shape": [-1], "role": "feed"},
                {"name": "w", "dtype": "float32", "shape": [], "role": "parameter"},
            ],
            "ops": [
                {"type": "mul", "inputs": {"x": ["x"], "y": ["w"]}, "outputs": {"out": ["y"]}},
                {"type": "mean", "inputs": {"x": ["y"]}, "outputs": {"out": ["loss"]}},
            ],
        }
    ]
}

empty = FastAPI()


@empty.post("/")
async def take(request: Request) -> dict[str, int]:
    """Reads the body and answers with its size."""
    return {"bytes": len(await request.body())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300, help="calls to each server")
    calls = parser.parse_args().calls
    rng = np.random.default_rng(0)
    values = {"x": rng.standard_normal(ELEMENTS, dtype=np.float32), "w": np.asarray(0.5, dtype=np.float32)}
    body = tensorfile.pack(values, {"loss": "loss"}, key="request")
    peer_command = [sys.executable, "-m", "uvicorn", "bench.overhead:empty", "--log-level", "warning", "--port"]
    with served(peer_command, "/docs") as peer, served(OWN, "/healthz/ready") as own:
        registration = json.dumps({"program": PROGRAM}).encode()
        registered = json.loads(post(own, "/v1/programs", registration, "application/json"))
        path = f"/v1/programs/{registered['id']}/gradients"
        times: dict[str, list[float]] = {"peer": [], "own": [], "compute": []}
        for i in range(calls + 20):
            own_time, answer = timed(own, path, body)
            peer_time, _ = timed(peer, "/", body)
            if i >= 20:  # the first calls compile and warm up
                times["own"].append(own_time)
                times["peer"].append(peer_time)
                times["compute"].append(tensorfile.unpack(answer, key="response")[0]["timing_ms"]["compute"])
    median = {name: statistics.median(values) for name, values in times.items()}
    print(f"body of {len(body) / 1000:.0f} KB, {calls} calls each, medians in ms")
    print(f"  empty FastAPI POST       {median['peer']:.3f}")
    print(f"  one-shot gradient        {median['own']:.3f}, of which compute {median['compute']:.3f}")
    ratio = {"without": (median["own"] - median["compute"]) / median["peer"], "with": median["own"] / median["peer"]}
    print(f"  ratio without compute    {ratio['without']:.2f} (with compute {ratio['with']:.2f})")


def timed(connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[float, bytes]:
    """Milliseconds of one POST, and its answer."""
    started = time.perf_counter()
    answer = post(connection, path, body, SAFETENSORS)
    return (time.perf_counter() - started) * 1e3, answer


if __name__ == "__main__":
    main()
