"""Compilations of one worker: they take turns, pause for calls, and end when no call waits for them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from core.ir.stop import poll, waiting
from service.worker import compiling
from service.worker.compilation import CompilationPending
from service.worker.compiling import Compilations
from service.worker.sessions import delete


class Service:
    """Parks calls as the worker does."""

    def __init__(self) -> None:
        self.done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.compilations = Compilations(self.done.put)
        self.numbers = iter(range(1000))

    def park(self, key: str, compile: Callable[[], Any]) -> int:
        number = next(self.numbers)
        with pytest.raises(CompilationPending) as pending:
            self.compilations.result(key, compile)
        self.compilations.wait(pending.value.compilation, number)
        return number


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def endless() -> Iterator[Callable[[], Any]]:
    """A compilation that never ends by itself before the end of the test."""
    over = threading.Event()

    def compile() -> None:
        while not over.is_set():
            poll()
            time.sleep(1e-5)

    yield compile
    over.set()


def test_a_short_compilation_overtakes_long_ones(service: Service, endless):
    for i in range(3):
        service.park(f"long {i}", endless)

    short = service.park("short", lambda: "code")

    assert service.done.get(timeout=60) == short
    assert service.compilations.result("short", lambda: None) == "code"


def test_long_compilations_do_not_keep_others_from_the_queue(service: Service, endless, monkeypatch):
    monkeypatch.setattr(compiling, "YOUNG_S", 0.05)
    for i in range(compiling.MOST - 1):
        service.park(f"long {i}", endless)

    short = service.park("short", lambda: "code")

    assert service.done.get(timeout=60) == short


def test_a_compilation_without_waiting_calls_ends(service: Service):
    """A later call begins it anew, also one that comes while the first run is ending."""
    ended = threading.Event()

    def compile() -> str:
        try:
            while not ended.is_set():
                poll()
        finally:
            ended.set()
        return "code"

    calls = [service.park("a", compile), service.park("a", compile)]
    service.compilations.forget(calls[0])
    assert not ended.wait(0.05)
    service.compilations.forget(calls[1])

    assert ended.wait(60)
    again = service.park("a", compile)
    assert service.done.get(timeout=60) == again
    assert service.compilations.result("a", lambda: None) == "code"


def test_a_compilation_continues_after_a_deadline_and_the_repeated_call_joins_it(service: Service):
    ready, runs = threading.Event(), []

    def compile() -> str:
        runs.append(0)
        while not ready.is_set():
            poll()
            time.sleep(1e-3)
        return "code"

    for _ in range(3):
        number = service.park("a", compile)
        time.sleep(0.1)  # the deadline passes
        service.compilations.forget(number, again=True)
    number = service.park("a", compile)
    ready.set()

    assert service.done.get(timeout=60) == number
    assert service.compilations.result("a", lambda: None) == "code"
    assert len(runs) == 1


def test_a_compilation_that_no_call_wants_again_ends_after_as_much_time_as_it_took(service: Service, monkeypatch):
    now = 100.0
    for module in ("compilation", "compiling"):
        monkeypatch.setattr(f"service.worker.{module}.time", SimpleNamespace(monotonic=lambda: now))
    begun, ended = threading.Event(), threading.Event()

    def compile() -> None:
        begun.set()
        try:
            while True:
                poll()
                time.sleep(1e-3)
        finally:
            ended.set()

    number = service.park("a", compile)
    assert begun.wait(60)
    now = 107.0
    service.compilations.forget(number, again=True)

    now = 113.9
    assert not ended.wait(0.05)
    now = 114.0
    assert ended.wait(60)


def test_a_compilation_ahead_ends_when_its_owner_needs_it_no_more(service: Service):
    begun, ended = ({name: threading.Event() for name in "abc"} for _ in range(2))

    def compile(name: str) -> None:
        begun[name].set()
        try:
            while True:
                poll()
                time.sleep(1e-3)
        finally:
            ended[name].set()

    service.compilations.begin("a", lambda: compile("a"), owner="one")
    service.compilations.begin("b", lambda: compile("b"), owner="two")
    service.compilations.begin("c", lambda: compile("c"), owner="one")
    number = service.park("c", lambda: None)  # waits for the one that has begun
    assert all(each.wait(60) for each in begun.values())

    service.compilations.release("one")

    assert ended["a"].wait(60)
    assert not ended["b"].wait(0.05)
    assert not ended["c"].is_set()
    service.compilations.forget(number)
    service.compilations.release("two")
    assert ended["b"].wait(60)
    assert ended["c"].wait(60)


def test_an_abandoned_compilation_ends_while_it_waits_for_its_turn(service: Service):
    begun, held, wait_over, free, ended = (threading.Event() for _ in range(5))

    def holding() -> None:
        held.set()
        free.wait(60)  # never polls, so it keeps its turn

    def compile() -> None:
        try:
            with waiting():
                begun.set()
                wait_over.wait(60)
        finally:
            ended.set()

    second = service.park("second", compile)
    assert begun.wait(60)
    service.park("first", holding)
    assert held.wait(60)
    wait_over.set()
    time.sleep(0.05)  # now it waits for its turn, on most machines
    service.compilations.forget(second)

    assert ended.wait(60)
    free.set()


def test_a_compilation_that_waits_leaves_its_turn_to_others(service: Service):
    free = threading.Event()

    def compile() -> str:
        with waiting():
            free.wait(60)
        return "first"

    first = service.park("first", compile)
    second = service.park("second", lambda: "second")

    assert service.done.get(timeout=60) == second
    free.set()
    assert service.done.get(timeout=60) == first


def test_a_compilation_pauses_while_the_worker_serves_a_call(service: Service):
    shares: list[float] = []

    def compile() -> None:
        for serving in (False, True):
            service.compilations.serving = serving
            began, paused = time.perf_counter(), 0.0
            while (now := time.perf_counter()) - began < 0.2:
                while time.perf_counter() - now < 1e-4:
                    pass
                asked = time.perf_counter()
                poll()
                paused += time.perf_counter() - asked
            shares.append(paused / (time.perf_counter() - began))

    for i in range(10):  # another process may take the processor in a try
        shares.clear()
        number = service.park(f"try {i}", compile)
        assert service.done.get(timeout=60) == number
        free, busy = shares
        if free < 0.3 and free + 0.2 < busy < 0.95:
            return
    raise AssertionError(f"the compilation pauses for {free:.0%} of its time, and for {busy:.0%} while a call runs")


def test_a_failed_compilation_raises_in_the_call_that_waits(service: Service):
    def compile() -> None:
        raise ValueError("too hard")

    number = service.park("a", compile)

    assert service.done.get(timeout=60) == number
    with pytest.raises(ValueError, match="too hard"):
        service.compilations.result("a", compile)


def test_the_last_session_of_a_program_ends_the_compilations_that_no_step_waits_for():
    ended: list[str] = []
    one, two = (SimpleNamespace(end_training=partial(ended.append, name)) for name in ("one", "two"))
    sessions = {"a": SimpleNamespace(cached=one), "b": SimpleNamespace(cached=one), "c": SimpleNamespace(cached=two)}
    state: Any = SimpleNamespace(sessions=sessions, free_device_memory=lambda: None)

    delete(state, {"id": "a"}, {})
    assert ended == []
    delete(state, {"id": "b"}, {})
    delete(state, {"id": "b"}, {})

    assert ended == ["one"]
    assert list(sessions) == ["c"]
