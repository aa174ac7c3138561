"""`make demo`: start a service, train the digits over HTTP, stop the service.

The exit status is 0 if the test accuracy is at least 0.95.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from examples import digits
from examples.client import Backpass

START, STOP = 60.0, 45.0  # seconds for the service to become ready, and to end


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running_service(**settings: str) -> Iterator[str]:
    """The address of a service that runs until the end of the block.

    settings: values of BACKPASS_<NAME> by lower-case name.
    Raises RuntimeError with the log of the service if it does not become ready.
    """
    with tempfile.TemporaryDirectory(prefix="backpass-") as folder:
        given = {"host": "127.0.0.1", "port": str(free_port()), "data_dir": folder, "log_level": "warning", **settings}
        environment = os.environ | {f"BACKPASS_{name.upper()}": value for name, value in given.items()}
        log = Path(folder, "service.log")
        with log.open("wb") as out:
            command = [sys.executable, "-m", "service", "serve"]
            root = Path(__file__).resolve().parent.parent
            process = subprocess.Popen(command, cwd=root, env=environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{given['port']}"
            if not _becomes_ready(process, url):
                raise RuntimeError(f"the service did not become ready:\n{log.read_text(errors='replace')}")
            yield url
        finally:
            process.terminate()
            try:
                process.wait(STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _becomes_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    end = time.monotonic() + START
    while process.poll() is None and time.monotonic() < end:
        try:
            if httpx.get(f"{url}/healthz/ready", timeout=2).is_success:
                return True
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.05)
    return False


def main() -> int:
    began = time.monotonic()
    print("starting the service", flush=True)
    with running_service() as url, Backpass(url) as service:
        print(f"{url} is ready after {time.monotonic() - began:.1f} s\n", flush=True)
        began = time.monotonic()
        final = digits.run(service)
    reached = all(accuracy >= digits.TARGET for accuracy in final.values())
    figures = ", ".join(f"{name} {accuracy:.4f}" for name, accuracy in final.items())
    print(f"test accuracy: {figures} ({'reached' if reached else 'below'} {digits.TARGET}); "
          f"trained in {time.monotonic() - began:.0f} s; service stopped")  # fmt: skip
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
