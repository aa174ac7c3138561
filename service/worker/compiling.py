"""Compilation in threads, so that the worker serves other calls meanwhile.

A handler requests a compilation here. If the result is not ready, the call is parked: the worker tells the service at
once, serves other calls, and reports when the compilation is done; the service then sends the call again.

Each compilation has a thread, but only one of them runs Python code at a time: the one that has run for the shortest
time. A short compilation therefore never waits for a long one. A compilation hands over its turn between two ops; it
also pauses there while the worker serves a call, and ends there when nobody needs it any more. LLVM runs in separate
processes.

A compilation whose last call was given up by its client ends at once. After a deadline it goes on for a while, because
the client may send the call again: otherwise a compilation that takes longer than the deadline would begin anew for
each try, and never end.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from core.ir.stop import watched_by
from service.logs import FIELDS
from service.worker.compilation import Abandoned, Compilation, CompilationPending
from service.worker.turns import YOUNG_S, TurnOf, Turns

__all__ = ["Compilations"]

UNCLAIMED = 64  # results to keep for calls that may never be sent again
STACK_BYTES = 64 * 2**20  # deeply nested programs need deep recursion

LONGEST_S = 300.0
"""Most seconds for which a compilation goes on after the deadline of the last call that waited for it. Up to this
limit, it gets as many as it has taken so far."""

YOUNG, MOST = 6, 16
"""A compilation begins while fewer than YOUNG others have run for less than YOUNG_S seconds, and fewer than MOST have
begun. The others wait in a queue."""


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
        self._queue: deque[Compilation] = deque()
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)
        self._turns = Turns(self._grown_old)
        self._running: set[Compilation] = set()
        self._threads = 0
        self._free = 0

    @property
    def serving(self) -> bool:
        """Whether the worker serves a call. Compilations pause meanwhile."""
        return self._turns.serving

    @serving.setter
    def serving(self, serving: bool) -> None:
        self._turns.serving = serving

    def result(self, key: Hashable, compile: Callable[[], Any]) -> Any:
        """The result of `compile`, or its exception. Each run of `compile` serves one call of this method.

        Raises CompilationPending if `compile` has not finished; it is queued then.
        """
        with self._lock:
            compilation = self._compilations.get(key)
            if compilation is None:
                compilation = self._compilations[key] = Compilation(key, compile)
                self._queue.append(compilation)
                self._begin_more()
            compilation.end = math.inf
            if not compilation.done:
                raise CompilationPending(compilation)
            del self._compilations[key]
        if compilation.error is not None:
            raise compilation.error
        return compilation.value

    def begin(self, key: Hashable, compile: Callable[[], Any], owner: Hashable = "worker") -> None:
        """Begin `compile` for a later call of `result`, unless it has begun. No call needs to wait for it.

        owner: it goes on until the owner is given to `release`.
        """
        with self._lock:
            compilation = self._compilations.get(key)
            if compilation is None:
                compilation = self._compilations[key] = Compilation(key, compile)
                self._queue.append(compilation)
                self._begin_more()
            compilation.owner, compilation.end = owner, math.inf

    def release(self, owner: Hashable) -> None:
        """The owner needs its compilations no more: those end for which no call waits."""
        with self._lock:
            for compilation in self._compilations.values():
                if compilation.owner == owner:
                    compilation.owner = None
                    if not compilation.waiting:
                        compilation.end = 0.0
        self._turns.look()

    def wait(self, compilation: Compilation, number: int) -> None:
        """Report call `number` when `compilation` is done. The service must already know that the call is parked."""
        with self._lock:
            if not compilation.done:
                compilation.waiting.add(number)
                return
        self._notify(number)

    def forget(self, number: int, again: bool = False) -> None:
        """Call `number` does not wait any more. A compilation that nobody needs does not begin, or ends early.

        again: the call may be sent again under another number.
        """
        now = time.monotonic()
        with self._lock:
            for compilation in self._compilations.values():
                if number in compilation.waiting:
                    compilation.waiting.discard(number)
                    if not compilation.waiting and compilation.owner is None:
                        more = min(max(now - compilation.began, 0.0), LONGEST_S) if again else 0.0
                        compilation.end = now + more
        self._turns.look()

    def start(self) -> None:
        """Start a thread, and with it the idle time. The first compilation would start it otherwise."""
        with self._lock:
            if not self._threads:
                self._start_thread()

    # --- the threads; the caller of each of these methods holds the lock ------------------------------------------

    def _begin_more(self) -> None:
        """Let free or new threads begin with the queue, as far as the limits allow."""
        self._came.notify(len(self._queue))
        if self._may_begin() and self._free < len(self._queue):
            self._start_thread()

    def _grown_old(self) -> None:
        """A compilation has run for YOUNG_S, so another one may begin."""
        with self._lock:
            self._begin_more()

    def _may_begin(self) -> bool:
        young = sum(each.seconds < YOUNG_S for each in self._running)
        return young < YOUNG and len(self._running) < MOST

    def _start_thread(self) -> None:
        before = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=self._work, daemon=True, name=f"compiling-{self._threads}").start()
            self._threads += 1
        except RuntimeError:  # no memory for its stack
            if not self._threads:
                raise
        finally:
            threading.stack_size(before)

    def _next(self) -> Compilation | None:
        """The next compilation, which is then running. None after `idle_s` seconds without one."""
        end = time.monotonic() + self._idle_s
        self._free += 1
        try:
            while True:
                while self._queue and self._may_begin():
                    compilation = self._queue.popleft()
                    if not compilation.abandoned:
                        self._running.add(compilation)
                        compilation.began = min(compilation.began, time.monotonic())
                        return compilation
                    self._compilations.pop(compilation.key, None)
                left = end - time.monotonic()
                if left <= 0 and not self._queue:
                    return None
                self._came.wait(max(left, 0.1))
        finally:
            self._free -= 1

    def _work(self) -> None:
        """The threads never end: a compiler process ends with the thread that started it."""
        while True:
            with self._lock:
                compilation = self._next()
                idle = not self._running
            if compilation is not None:
                self._run(compilation)
                continue
            if idle:
                self._idle()
            with self._lock:
                while not self._queue:
                    self._came.wait()

    def _run(self, compilation: Compilation) -> None:
        """Run one compilation, and report its end to the calls that wait for it."""
        FIELDS.set(compilation.fields)
        watch = TurnOf(self._turns, compilation)
        value = error = None
        try:
            with watch.turn(), watched_by(watch):
                value = compilation.compile()
        except Abandoned:
            with self._lock:
                self._running.discard(compilation)
                if compilation.abandoned:
                    del self._compilations[compilation.key]
                else:  # a call came for it in the meantime
                    self._queue.append(compilation)
                self._begin_more()
            return
        except Exception as raised:  # `result` raises it in the call that waits
            error = raised
        with self._lock:
            compilation.value, compilation.error, compilation.done = value, error, True
            self._running.discard(compilation)
            waiting, compilation.waiting = compilation.waiting, set()
            self._drop_unclaimed()
            self._begin_more()
        for number in waiting:
            self._notify(number)

    def _drop_unclaimed(self) -> None:
        done = [key for key, compilation in self._compilations.items() if compilation.done]
        for key in done[:-UNCLAIMED]:
            del self._compilations[key]
