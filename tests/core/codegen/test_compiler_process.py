"""The compiler in a separate process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.codegen import compilers as compilers_module
from core.codegen import machine
from core.codegen.compiler_main import _compile_all
from core.codegen.compiler_process import GOOD, CompilerProcess
from core.codegen.compilers import Compilers
from core.ir.errors import ExecutionError
from core.ir.stop import watched_by
from tests.processes import children, halt, is_running, until_asked

DOUBLE = """
define i64 @double(i64 %x) {
  %y = add i64 %x, %x
  ret i64 %y
}
"""


@pytest.fixture
def compiler() -> Iterator[CompilerProcess]:
    with contextlib.closing(CompilerProcess()) as compiler:
        yield compiler


@pytest.fixture
def kept(compiler: CompilerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompilerProcess]:
    monkeypatch.setattr(machine.STATE, "process", compiler)
    monkeypatch.setattr(machine.STATE, "disk", None)
    machine.STATE.memory.clear()
    yield compiler
    machine.STATE.memory.clear()


def test_the_compiler_process_gives_the_same_object_code(compiler: CompilerProcess):
    assert compiler.compile([DOUBLE]) == [machine.compile_ir(DOUBLE)]
    first = compiler.pid
    square = DOUBLE.replace("add", "mul")
    assert compiler.compile([square]) == [machine.compile_ir(square)]
    assert compiler.pid == first


def test_code_of_the_compiler_process_runs_here(kept: CompilerProcess):
    double = machine.load(DOUBLE).function("double", ctypes.c_int64, returns=ctypes.c_int64)
    assert double(21) == 42
    assert kept.pid is not None


def test_an_invalid_text_raises_llvms_message_and_the_process_survives(compiler: CompilerProcess):
    with pytest.raises(RuntimeError, match="expected"):
        compiler.compile(["define nonsense"])
    first = compiler.pid
    assert compiler.compile([DOUBLE]) == [machine.compile_ir(DOUBLE)]
    assert compiler.pid == first


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash_costs_one_compilation(compiler: CompilerProcess, sent: signal.Signals):
    compiler.compile([DOUBLE])
    assert compiler.pid is not None
    first = compiler.pid
    halt(first)  # it ends before it answers the request

    def end() -> None:
        until_asked(first)
        os.kill(first, sent)
        if sent != signal.SIGKILL:
            os.kill(first, signal.SIGCONT)

    ending = threading.Thread(target=end)
    ending.start()
    with pytest.raises(ExecutionError) as caught:
        compiler.compile([DOUBLE])
    ending.join()

    assert (caught.value.code, caught.value.message) == (
        "compiler_failed",
        f"the compiler ended: killed by {sent.name}",
    )
    assert compiler.compile([DOUBLE]) == [machine.compile_ir(DOUBLE)]


def test_close_ends_the_process_and_the_next_request_starts_another(compiler: CompilerProcess):
    compiler.compile([DOUBLE])
    first = compiler.pid
    compiler.close()
    assert compiler.pid is None
    assert not Path(f"/proc/{first}").exists()
    compiler.close()
    assert compiler.compile([DOUBLE]) == [machine.compile_ir(DOUBLE)]


def test_the_compiler_process_ends_with_its_parent():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        compiler = CompilerProcess()
        compiler.compile([DOUBLE])
        os.write(write, str(compiler.pid).encode())
        signal.pause()
    pid = int(os.read(read, 100))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    while is_running(pid):
        time.sleep(0.01)


TRIPLE = DOUBLE.replace("@double", "@triple").replace("add i64 %x, %x", "mul i64 %x, 3")

SIX_TIMES = """
declare i64 @double(i64)
declare i64 @triple(i64)
define i64 @six_times(i64 %x) {
  %y = call i64 @double(i64 %x)
  %z = call i64 @triple(i64 %y)
  ret i64 %z
}
"""


def test_texts_compiled_together_give_the_same_code_as_alone(compiler: CompilerProcess):
    texts = [DOUBLE, SIX_TIMES, TRIPLE]

    assert compiler.compile(texts) == [machine.compile_ir(text) for text in texts]
    assert compiler.compile(texts) == [machine.compile_ir(text) for text in texts]


@pytest.mark.parametrize("count", [1, 3])
def test_modules_that_call_each_other_are_one_library(kept: CompilerProcess, count: int):
    texts = [SIX_TIMES, DOUBLE, TRIPLE]
    whole = ["\n".join(["", *[line for text in texts for line in text.splitlines() if "declare" not in line]])]
    library = machine.load(*(texts if count == 3 else whole))

    assert library.function("six_times", ctypes.c_int64, returns=ctypes.c_int64)(7) == 42


@pytest.mark.sampled(1)
@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_one_invalid_text_among_several_raises(compiler: CompilerProcess, wrong: int):
    texts = [DOUBLE, SIX_TIMES, TRIPLE]
    texts[wrong] = "define nonsense"

    with pytest.raises(RuntimeError, match="expected"):
        compiler.compile(texts)

    assert compiler.compile([DOUBLE]) == [machine.compile_ir(DOUBLE)]


def test_a_fork_that_crashes_costs_one_compilation(compiler: CompilerProcess):
    compiler.compile([DOUBLE])
    assert compiler.pid is not None
    first = compiler.pid
    long = "\n".join(DOUBLE.replace("double", f"double{i}") for i in range(20_000))
    killed: list[int] = []

    def kill_a_fork() -> None:
        while not killed:
            for pid in children(first):
                os.kill(pid, signal.SIGSEGV)
                killed.append(pid)
                return
            time.sleep(0.001)

    killer = threading.Thread(target=kill_a_fork)
    killer.start()
    with pytest.raises(ExecutionError) as caught:
        compiler.compile([DOUBLE, long])
    killer.join()

    assert (caught.value.code, caught.value.message) == (
        "compiler_failed",
        "a fork of the compiler ended: killed by SIGSEGV",
    )
    assert compiler.compile([DOUBLE, TRIPLE]) == [machine.compile_ir(DOUBLE), machine.compile_ir(TRIPLE)]
    assert compiler.pid == first


def test_without_forks_the_compiler_process_compiles_all_texts(monkeypatch: pytest.MonkeyPatch):
    def fork() -> int:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(os, "fork", fork)
    kind, pieces = _compile_all([DOUBLE, TRIPLE])

    assert (kind, pieces) == (GOOD, [machine.compile_ir(DOUBLE), machine.compile_ir(TRIPLE)])


class Stopped(Exception):
    pass


class Impatient:
    """A watch that stops the compilation after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def poll(self) -> None:
        if time.monotonic() > self.end:
            raise Stopped

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def test_a_watch_stops_a_compilation_with_its_process(compiler: CompilerProcess):
    compiler.compile([DOUBLE])
    assert compiler.pid is not None
    first = compiler.pid
    halt(first)

    started = time.monotonic()
    with pytest.raises(Stopped), watched_by(Impatient(0.05)):
        compiler.compile([DOUBLE])

    assert time.monotonic() - started < 20
    assert not Path(f"/proc/{first}").exists()
    assert compiler.compile([DOUBLE]) == [machine.compile_ir(DOUBLE)]


def test_a_watch_ends_the_wait_for_the_compilation_of_another_thread(compiler: CompilerProcess):
    compiler.compile([DOUBLE])
    assert compiler.pid is not None
    halt(compiler.pid)
    other = threading.Thread(target=compiler.compile, args=([DOUBLE],))
    other.start()
    until_asked(compiler.pid)

    with pytest.raises(Stopped), watched_by(Impatient(0.05)):
        compiler.compile([TRIPLE])

    os.kill(compiler.pid, signal.SIGCONT)
    other.join(60)
    assert not other.is_alive()


def test_a_compiler_process_that_ended_without_work_is_replaced(compiler: CompilerProcess):
    compiler.compile([DOUBLE])
    assert compiler.pid is not None
    os.kill(compiler.pid, signal.SIGKILL)
    os.waitid(os.P_PID, compiler.pid, os.WEXITED | os.WNOWAIT)

    assert compiler.compile([DOUBLE]) == [machine.compile_ir(DOUBLE)]


def test_a_compiler_process_is_nice_and_bounded():
    with contextlib.closing(CompilerProcess(nice=7, memory=2**32)) as compiler:
        compiler.compile([DOUBLE])
        assert compiler.pid is not None

        assert os.getpriority(os.PRIO_PROCESS, compiler.pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 7)
        assert resource.prlimit(compiler.pid, resource.RLIMIT_DATA)[0] == 2**32


def test_a_long_module_does_not_delay_a_short_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compilers_module, "LONG", 2 * len(DOUBLE))
    with contextlib.closing(Compilers()) as compilers:
        long = "\n".join(DOUBLE.replace("double", f"double{i}") for i in range(3))
        compilers.compile([long])
        assert compilers._long.pid is not None
        halt(compilers._long.pid)
        waiting = threading.Thread(target=compilers.compile, args=([long],))
        waiting.start()
        until_asked(compilers._long.pid)

        assert compilers.compile([DOUBLE]) == [machine.compile_ir(DOUBLE)]
        assert waiting.is_alive()
        os.kill(compilers._long.pid, signal.SIGCONT)
        waiting.join(60)
