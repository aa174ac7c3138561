"""Ending machine code that runs too long: one thread asks for all steps that run, and writes their stop word."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from core.codegen.step import CONTROL
from core.ir.errors import ExecutionError
from core.runtime.reference import Run

__all__ = ["watched"]

Control = ctypes.Array[ctypes.c_int64]

INTERVAL = 0.005
"""Seconds between two questions."""

STOP = CONTROL.index("stop")


class _Watcher:
    """The thread, and the (control, run) pairs it asks for. It sleeps while there are none."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[Control, Run]] = {}
        self._some = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, control: Control, run: Run) -> None:
        with self._lock:
            self._running[id(control)] = (control, run)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._ask, name="backpass-stop", daemon=True)
                self._thread.start()
        self._some.set()

    def remove(self, control: Control) -> None:
        with self._lock:
            self._running.pop(id(control), None)
            if not self._running:
                self._some.clear()

    def _ask(self) -> None:
        while True:
            self._some.wait()
            time.sleep(INTERVAL)
            with self._lock:
                for control, run in self._running.values():
                    try:
                        run.poll()
                    except ExecutionError:
                        control[STOP] = 1  # the step's own thread says why


_WATCHER = _Watcher()


@contextmanager
def watched(control: Control, run: Run) -> Iterator[None]:
    """While the context lasts, `control` is told to stop when the limits of `run` say so."""
    _WATCHER.add(control, run)
    try:
        yield
    finally:
        _WATCHER.remove(control)
