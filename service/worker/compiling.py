"""Compilation in a thread, so that the worker serves other calls meanwhile.

A handler requests a compilation here. If the result is not ready, the call is parked: the worker tells the service at
once, serves other calls, and reports when the compilation is done; the service then sends the call again. One thread
runs the compilations one after another. LLVM runs in a separate process.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Compilation", "CompilationPending", "Compilations"]

log = logging.getLogger("backpass.worker")

UNCLAIMED = 64  # results to keep for calls that may never be sent again
STACK_BYTES = 64 * 2**20  # deeply nested programs need deep recursion


class CompilationPending(Exception):
    """The call needs the result of `compilation`, which is not done. Handlers let it pass and change no state."""

    def __init__(self, compilation: Compilation) -> None:
        super().__init__("the call waits for a compilation")
        self.compilation = compilation


@dataclass(eq=False, slots=True)
class Compilation:
    """One compilation. waiting: numbers of the calls that wait for it; abandoned: all of these calls gave up."""

    key: Hashable
    compile: Callable[[], Any]
    done: bool = False
    value: Any = None
    error: Exception | None = None
    waiting: set[int] = field(default_factory=set)
    abandoned: bool = False


class Compilations:
    """The compilations of one worker."""

    def __init__(
        self, notify: Callable[[int], None], idle: Callable[[], None] = lambda: None, idle_s: float = 600.0
    ) -> None:
        """notify: reports that the call with a number can be sent again; called from any thread.

        idle: called after `idle_s` seconds without work, to release the compiler's resources.
        """
        self._notify, self._idle, self._idle_s = notify, idle, idle_s
        self._compilations: dict[Hashable, Compilation] = {}
        self._queue: queue.SimpleQueue[Compilation] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def result(self, key: Hashable, compile: Callable[[], Any]) -> Any:
        """The result of `compile`, or its exception. Each run of `compile` serves one call of this method.

        Raises CompilationPending if `compile` has not finished; it is queued then.
        """
        with self._lock:
            compilation = self._compilations.get(key)
            if compilation is None:
                compilation = self._compilations[key] = Compilation(key, compile)
                self._queue.put(compilation)
                self.start()
            compilation.abandoned = False
            if not compilation.done:
                raise CompilationPending(compilation)
            del self._compilations[key]
        if compilation.error is not None:
            raise compilation.error
        return compilation.value

    def wait(self, compilation: Compilation, number: int) -> None:
        """Report call `number` when `compilation` is done. The service must already know that the call is parked."""
        with self._lock:
            if not compilation.done:
                compilation.waiting.add(number)
                return
        self._notify(number)

    def forget(self, number: int) -> None:
        """Call `number` will not be sent again. A queued compilation without waiting calls does not run."""
        with self._lock:
            for compilation in self._compilations.values():
                if number in compilation.waiting:
                    compilation.waiting.discard(number)
                    compilation.abandoned = not compilation.waiting

    def start(self) -> None:
        """Start the thread, and with it the idle time. The first compilation would start it otherwise."""
        if self._thread is None:
            before = threading.stack_size(STACK_BYTES)
            try:
                self._thread = threading.Thread(target=self._work, daemon=True, name="compiling")
                self._thread.start()
            finally:
                threading.stack_size(before)

    def _work(self) -> None:
        while True:
            try:
                compilation = self._queue.get(timeout=self._idle_s)
            except queue.Empty:
                self._idle()
                compilation = self._queue.get()
            with self._lock:
                if compilation.abandoned:
                    del self._compilations[compilation.key]
                    continue
            try:
                compilation.value = compilation.compile()
            except Exception as error:  # `result` raises it in the call that waits
                compilation.error = error
            with self._lock:
                compilation.done = True
                waiting, compilation.waiting = compilation.waiting, set()
                self._drop_unclaimed()
            for number in waiting:
                self._notify(number)

    def _drop_unclaimed(self) -> None:
        done = [key for key, compilation in self._compilations.items() if compilation.done]
        for key in done[:-UNCLAIMED]:
            del self._compilations[key]
