"""Units in processes of their own: one that fails, hangs or loses the GPU is replaced, and the others go on."""

from __future__ import annotations

import json
import queue
import random
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tests.gpu.rig import Rig, Say
from tests.gpu.units import UNITS

__all__ = ["units"]

UNIT_S = 60.0
"""Seconds that a unit may take, the start of its process included."""


class _Worker:
    """A process that runs units one after the other; started with the first of them, and again after it ended."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    def run(self, kind: str, name: str) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        late = threading.Timer(UNIT_S, process.kill)
        late.start()
        try:
            process.stdin.write(json.dumps([kind, name]) + "\n")
            process.stdin.flush()
            told = process.stdout.readline()
        except BrokenPipeError:
            told = ""
        finally:
            late.cancel()
        if told:
            return dict(json.loads(told))
        status = process.wait()
        return {"ok": False, "error": f"its process ended with status {status} (-9: after {UNIT_S:g} s)"}

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            if self._process.poll() is None:
                try:
                    self._process.wait(5)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            self._process.stdout.close()


def units(rig: Rig, until: float, kinds: Iterable[str] = tuple(UNITS)) -> Say:
    """A line for each wrong unit and for each of kinds that are told, then one for each kind with the number of units.

    until: the time of the monotonic clock after which no unit starts.
    """
    waiting: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, str, dict[str, Any]] | None] = queue.SimpleQueue()
    counts = {kind: {"units": 0, "wrong": 0, "left_out": 0, "count": 0, "worst": 0.0} for kind in kinds}
    all_names = [(kind, name) for kind in counts for name in UNITS[kind].names(rig)]
    told, others = ([each for each in all_names if UNITS[each[0]].told is is_told] for is_told in (True, False))
    random.Random(0).shuffle(others)  # if time runs out, some of each kind have run
    for each in told + others:
        waiting.put(each)
    workers = [_Worker(rig.worker) for _ in range(rig.workers)]
    threads = [threading.Thread(target=_serve, args=(each, waiting, done, until)) for each in workers]
    for each in threads:
        each.start()
    running = len(threads)
    while running:
        said = done.get()
        if said is None:
            running -= 1
            continue
        kind, name, line = said
        count = counts[kind]
        count["units"] += 1
        count["count"] += line.get("count", 1)
        count["worst"] = max(count["worst"], line.get("worst", 0.0))
        count["wrong"] += not line["ok"]
        if UNITS[kind].told or not line["ok"]:
            yield {kind: name, **line}
    while not waiting.empty():
        kind, _ = waiting.get()
        counts[kind]["left_out"] += 1
    for kind, count in counts.items():
        yield {"all": kind, "ok": not count["wrong"] and not count["left_out"], **count}


def _serve(worker: _Worker, waiting: Any, done: Any, until: float) -> None:
    try:
        while time.monotonic() < until:
            try:
                kind, name = waiting.get_nowait()
            except queue.Empty:
                break
            done.put((kind, name, worker.run(kind, name)))
        worker.close()
    finally:
        done.put(None)
