"""The threads of the BLAS libraries that numpy and scipy ship.

Machine code shares its work with a pool of its own. A BLAS that starts threads for an op inside of a step takes the
cores from that pool, and its threads look for more work for some milliseconds after each call: steps then take ten
times as long. This file owns the switch, which holds for the whole process.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

__all__ = ["one_blas_thread", "use_one_thread"]

SUFFIXES = ("64_", "")
"""Endings of the names of routines in a library: numpy's counts with 64 bits, scipy's with 32."""


def use_one_thread(package: str) -> None:
    """Let the BLAS of a package, "numpy" or "scipy", compute on the thread that calls it from now on."""
    for _, set_threads in _libraries(package):
        set_threads(1)


class _OneThread:
    """A switch to one thread that holds as long as at least one thread has entered it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0
        self._before: list[tuple[Callable[[int], None], int]] = []

    def enter(self) -> None:
        with self._lock:
            self._entered += 1
            if self._entered == 1:
                libraries = [*_libraries("numpy"), *_libraries("scipy")]
                self._before = [(set_threads, n) for count, set_threads in libraries if (n := count()) != 1]
                for set_threads, _ in self._before:
                    set_threads(1)

    def leave(self) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered == 0:
                for set_threads, before in self._before:
                    set_threads(before)


_ONE = _OneThread()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Inside the context, numpy and scipy compute products and factorisations on the thread that calls them.

    Contexts may nest, and several threads may be in one: the last that leaves restores the numbers.
    """
    _ONE.enter()
    try:
        yield
    finally:
        _ONE.leave()


@cache
def _libraries(package: str) -> tuple[tuple[Callable[[], int], Callable[[int], None]], ...]:
    """For each OpenBLAS of a package: the functions that read and set its number of threads."""
    found = []
    home = Path(importlib.import_module(package).__file__ or "").parent.parent
    for path in sorted(home.glob(f"{package}.libs/libscipy_openblas*")):
        library = ctypes.CDLL(str(path))  # loaded once in a process, here or by the package
        for suffix in SUFFIXES:
            count = getattr(library, f"scipy_openblas_get_num_threads{suffix}", None)
            set_threads = getattr(library, f"scipy_openblas_set_num_threads{suffix}", None)
            if count is not None and set_threads is not None:
                found.append((count, set_threads))
                break
    return tuple(found)
