"""The tests of a GPU at the start of its worker, as files: a test that broke or did not end is not repeated at once.

The worker writes the file of a test before the test and removes it afterwards. If the test breaks the GPU, or if the
process is ended meanwhile, by its own deadline or by the service, the file stays. After the second time the next
workers do not use what was tested, and `backpass doctor` tells why. After `AGAIN_S` seconds, with another version of
Backpass or of the driver, or without the file, they test again.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from service import __version__

__all__ = ["GpuTest", "begin", "done", "failed", "last", "unfinished"]

log = logging.getLogger("backpass.worker")

AGAIN_S = 3600.0

BEGINNINGS = 2
"""A part whose test began so often without success is not used: the service may have been stopped during one test."""

DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class GpuTest:
    """A test that did not succeed.

    gpu:    as in CUDA_VISIBLE_DEVICES. part: the part of the device that was tested.
    at:     seconds since 1970. begun: how often it began without success.
    reason: why it failed the last time; empty if the process was ended by others.
    """

    gpu: str
    part: str
    versions: str
    at: float
    begun: int = 1
    reason: str = ""

    @property
    def has_failed(self) -> bool:
        return self.begun >= BEGINNINGS

    @property
    def why(self) -> str:
        """The reason, in words."""
        return self.reason or f"the worker was ended before the test of {self.part} ended"


def last(directory: Path, part: str) -> GpuTest | None:
    """The last test of `part` of this process's GPU, if it did not succeed and still counts."""
    found = _read(_path(directory, part))
    if found is None or found.versions != _versions() or not 0 <= time.time() - found.at < AGAIN_S:
        return None
    return found


def begin(directory: Path, part: str) -> None:
    """Record the beginning of a test."""
    before = last(directory, part)
    _write(directory, GpuTest(_gpu(), part, _versions(), time.time(), 1 + (before.begun if before else 0)))


def failed(directory: Path, part: str, reason: str) -> None:
    """Record that the test that began last failed, in a way that ends the worker."""
    before = last(directory, part)
    _write(directory, GpuTest(_gpu(), part, _versions(), time.time(), before.begun if before else 1, reason))


def done(directory: Path, part: str) -> None:
    """Remove the record: the test ended, and the worker goes on."""
    with suppress(OSError):
        _path(directory, part).unlink(missing_ok=True)


def unfinished(directory: Path) -> Iterator[tuple[Path, GpuTest]]:
    """The failed tests of all GPUs, with their files, for people."""
    for path in sorted(directory.glob("gpu-*.json")):
        found = _read(path)
        if found is not None and found.has_failed:
            yield path, found


def _gpu() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")


def _path(directory: Path, part: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9-]+", "-", f"{_gpu()} {part}")
    return directory / f"gpu-{name}.json"


def _versions() -> str:
    driver = ""
    with suppress(OSError):
        driver = DRIVER.read_text().partition("\n")[0]
    return f"{__version__} {driver}".strip()


def _read(path: Path) -> GpuTest | None:
    try:
        return GpuTest(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write(directory: Path, test: GpuTest) -> None:
    """Without a directory that can be written the test is only not recorded."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=directory)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(test), file)
        os.replace(name, _path(directory, test.part))
    except OSError as error:
        log.warning("cannot record the test of the GPU in %s: %s", directory, error)
