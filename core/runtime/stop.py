"""Stopping machine code: one thread polls the limits of all running steps, and sets their stop words."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from core.runtime.control_words import STOP
from core.runtime.run import Run

__all__ = ["watched"]

Control = ctypes.Array[ctypes.c_int64]

INTERVAL = 0.005
"""Seconds between two polls."""


class _Watcher:
    """The thread, and the (control, run) pairs that it polls. It sleeps while there are none."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[Control, Run]] = {}
        self._some = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, control: Control, run: Run) -> None:
        with self._lock:
            self._running[id(control)] = (control, run)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._poll, name="backpass-stop", daemon=True)
                self._thread.start()
        self._some.set()

    def remove(self, control: Control) -> None:
        with self._lock:
            self._running.pop(id(control), None)
            if not self._running:
                self._some.clear()

    def _poll(self) -> None:
        while True:
            self._some.wait()
            time.sleep(INTERVAL)
            with self._lock:
                for control, run in self._running.values():
                    try:
                        run.poll()
                    except Exception:  # of `should_stop`, which may raise any: other runs are polled as before
                        control[STOP] = 1  # the thread of the step polls again and raises the error


_WATCHER = _Watcher()


@contextmanager
def watched(control: Control, run: Run) -> Iterator[None]:
    """Inside the context, the stop word of `control` is set as soon as the limits of `run` are exceeded."""
    _WATCHER.add(control, run)
    try:
        yield
    finally:
        _WATCHER.remove(control)
