"""The compiler in a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.codegen import machine
from core.codegen.outside import Outside
from core.errors import ExecutionError

DOUBLE = """
define i64 @double(i64 %x) {
  %y = add i64 %x, %x
  ret i64 %y
}
"""


@pytest.fixture
def outside() -> Iterator[Outside]:
    with contextlib.closing(Outside()) as compiler:
        yield compiler


@pytest.fixture
def kept(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    monkeypatch.setattr(machine.KEPT, "outside", outside)
    monkeypatch.setattr(machine.KEPT, "disk", None)
    machine.KEPT.memory.clear()
    yield outside
    machine.KEPT.memory.clear()


def test_it_makes_the_code_that_this_process_would_make(outside: Outside):
    assert outside.compiled(DOUBLE) == machine.compiled_here(DOUBLE)
    first = outside.pid
    assert outside.compiled(DOUBLE.replace("add", "mul")) == machine.compiled_here(DOUBLE.replace("add", "mul"))
    assert outside.pid == first


def test_what_it_compiled_runs_here(kept: Outside):
    double = machine.load(DOUBLE).function("double", ctypes.c_int64, returns=ctypes.c_int64)
    assert double(21) == 42
    assert kept.pid is not None


def test_llvms_words_about_a_wrong_text_come_back_and_the_process_stays(outside: Outside):
    with pytest.raises(RuntimeError, match="expected"):
        outside.compiled("define nonsense")
    first = outside.pid
    assert outside.compiled(DOUBLE) == machine.compiled_here(DOUBLE)
    assert outside.pid == first


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash_costs_one_compilation(outside: Outside, sent: signal.Signals):
    outside.compiled(DOUBLE)
    assert outside.pid is not None
    os.kill(outside.pid, signal.SIGSTOP)  # so that it dies with the question unanswered
    threading.Timer(0.2, os.kill, (outside.pid, sent)).start()
    if sent != signal.SIGKILL:
        threading.Timer(0.4, os.kill, (outside.pid, signal.SIGCONT)).start()

    with pytest.raises(ExecutionError) as caught:
        outside.compiled(DOUBLE)

    assert (caught.value.code, caught.value.message) == (
        "compiler_failed",
        f"the compiler ended: killed by {sent.name}",
    )
    assert outside.compiled(DOUBLE) == machine.compiled_here(DOUBLE)


def test_closing_ends_the_process_and_the_next_question_starts_another(outside: Outside):
    outside.compiled(DOUBLE)
    first = outside.pid
    outside.close()
    assert outside.pid is None
    assert not Path(f"/proc/{first}").exists()
    outside.close()
    assert outside.compiled(DOUBLE) == machine.compiled_here(DOUBLE)


def test_it_ends_with_the_process_that_wanted_it():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        compiler = Outside()
        compiler.compiled(DOUBLE)
        os.write(write, str(compiler.pid).encode())
        signal.pause()
    pid = int(os.read(read, 100))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)
