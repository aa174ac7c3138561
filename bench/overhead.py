"""What a one-shot gradient costs beside its computation.

    python -m bench.overhead [--calls 300]

POSTs the same 400 KB safetensors body, in turns, to Backpass and to an empty FastAPI route that only reads it, both
served by uvicorn in processes of their own, and prints medians in milliseconds and their ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from fastapi import FastAPI, Request

from service import tensorfile

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
    own_command = [sys.executable, "-m", "service", "serve", "--log-level", "warning", "--port"]
    with served(peer_command, "/docs") as peer, served(own_command, "/healthz/ready") as own:
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


@contextlib.contextmanager
def served(command: list[str], path: str) -> Iterator[http.client.HTTPConnection]:
    """Start a server on a free loopback port, wait until `path` answers 200, and end it afterwards by its id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"BACKPASS_DATA_DIR": folder}
        process = subprocess.Popen([*command, str(port)], env=environment)
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            for _ in range(300):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    answer.read()
                    if answer.status == 200:
                        break
                connection.close()
                time.sleep(0.1)
            else:
                raise SystemExit(f"{command} does not answer")
            yield connection
            connection.close()
        finally:
            process.terminate()
            process.wait(30)


def post(connection: http.client.HTTPConnection, path: str, body: bytes, media_type: str) -> bytes:
    connection.request("POST", path, body, {"Content-Type": media_type, "Accept": media_type})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status >= 300:
        raise SystemExit(f"{path} answers {answer.status}: {content[:500]!r}")
    return content


def timed(connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[float, bytes]:
    """Milliseconds of one POST, and its answer."""
    started = time.perf_counter()
    answer = post(connection, path, body, "application/x-safetensors")
    return (time.perf_counter() - started) * 1e3, answer


if __name__ == "__main__":
    main()
