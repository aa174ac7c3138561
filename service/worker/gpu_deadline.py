"""A deadline for the tests of a GPU at the start of a worker: a kernel that never ends cannot be stopped otherwise."""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from core.device.driver import DeviceFault
from service import gpu_tests

__all__ = ["EXIT_NO_END", "TEST_S", "gpu_test"]

log = logging.getLogger("backpass.worker")

TEST_S = 60.0
"""Seconds that a test of a GPU may take. It runs a few kernels; the rest is for CUDA to start and to compile them."""

EXIT_NO_END = 71
GRACE_S = 10.0


@contextmanager
def gpu_test(
    directory: Path, part: str, seconds: float = TEST_S, leave: Callable[[int], object] = os._exit
) -> Iterator[None]:
    """Inside the context `part` of the GPU is tested. If that does not end within `seconds`, this process ends.

    directory: receives the record of the test; see `service.gpu_tests`. leave: ends the process.
    A DeviceFault is recorded too, since it makes the process useless.
    """
    gpu_tests.begin(directory, part)
    ended = threading.Event()

    def watch() -> None:
        if not ended.wait(seconds):
            reason = f"the test of {part} did not end within {seconds:g} s"
            gpu_tests.failed(directory, part, reason)
            log.critical("ending this worker: %s", reason)
            leave(EXIT_NO_END)

    threading.Thread(target=watch, daemon=True, name="gpu-test").start()
    faulthandler.dump_traceback_later(seconds + GRACE_S, exit=True)  # if the test holds the interpreter
    broken = ""
    try:
        yield
    except DeviceFault as error:
        broken = f"{part} broke the GPU: {error}"
        raise
    finally:
        ended.set()
        faulthandler.cancel_dump_traceback_later()
        if broken:
            gpu_tests.failed(directory, part, broken)
        else:
            gpu_tests.done(directory, part)
