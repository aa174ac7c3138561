"""Ops in a child process: the same results and errors as in this process, and an end whenever the run must stop."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.compiler.compile import compile_forward
from core.ir.errors import ExecutionError, InternalError
from core.ops.common.types import as_dtype
from core.runtime.forked import call_in_child
from core.runtime.run import Run, RunLimits
from core.wire import read
from examples.models import block, feed, op
from tests.processes import children, is_running

X = np.arange(24, dtype="float32").reshape(4, 6)


def in_child(function, *args, **limits):
    return call_in_child(Run(np, RunLimits(**limits)), function, *args)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "float32", "float64"])
def test_results_keep_their_bits_dtypes_shapes_and_layouts(dtype):
    x = np.resize([0, 1, 3, -2, 7], (4, 6)).astype(as_dtype(dtype))

    def kernel(x):
        return x.copy(), x.T, np.broadcast_to(x[0], (3, 6)), x[:, 0].copy(), x[0, 0], x[:0], np.moveaxis(x[None], 0, 2)

    for here, there in zip(kernel(x), in_child(kernel, x), strict=True):
        assert there.dtype == x.dtype
        assert there.tobytes() == np.asarray(here).tobytes()
        assert there.shape == np.asarray(here).shape
        long = [i for i, n in enumerate(there.shape) if n > 1 and there.size]
        assert [there.strides[i] for i in long] == [here.strides[i] for i in long]


def test_one_result_stays_one_result():
    assert isinstance(in_child(np.tanh, X), np.ndarray)
    assert isinstance(in_child(lambda x: (x,), X), tuple)


def test_results_that_share_memory_are_both_returned():
    large = np.arange(1 << 18, dtype="float64")

    a, b = in_child(lambda x: (x, x[::-1]), large)

    assert (a == large).all() and (b == large[::-1]).all()


def test_a_product_by_a_blas_with_threads_has_the_same_bits():
    a = np.random.default_rng(0).standard_normal((700, 700)).astype("float32")

    assert in_child(np.matmul, a, a).tobytes() == (a @ a).tobytes()


def raises(error):
    def kernel():
        raise error

    return kernel


@pytest.mark.parametrize(
    "error",
    [
        ExecutionError("index 7 of 3", "index_out_of_range", suggestion="use 2"),
        ValueError("shapes differ"),
        IndexError("no row 9"),
        MemoryError("no room"),
    ],
)
def test_an_error_of_the_kernel_is_raised_again(error):
    with pytest.raises(type(error)) as caught:
        in_child(raises(error))

    assert str(caught.value) == str(error)
    if isinstance(error, ExecutionError):
        assert (caught.value.code, caught.value.suggestion) == (error.code, error.suggestion)


def test_an_error_that_no_kernel_should_raise_is_internal_and_has_its_traceback():
    with pytest.raises(InternalError, match=r"KeyError: 'k'[\s\S]*in kernel"):
        in_child(raises(KeyError("k")))


def test_a_child_that_is_killed_counts_as_out_of_memory_and_one_that_crashes_as_internal():
    with pytest.raises(MemoryError):
        in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(InternalError, match="SIGTERM"):
        in_child(lambda: (signal.signal(signal.SIGTERM, signal.SIG_DFL), os.kill(os.getpid(), signal.SIGTERM)))
    with pytest.raises(InternalError, match="exit status 3"):
        in_child(lambda: os._exit(3))


@pytest.mark.parametrize("limit", ["deadline", "should_stop"])
def test_a_child_is_killed_when_the_run_must_stop(limit):
    before, end = set(children()), time.monotonic() + 0.1  # other tests may have some
    limits = {"deadline": end} if limit == "deadline" else {"should_stop": lambda: time.monotonic() > end}

    with pytest.raises(ExecutionError) as caught:
        in_child(time.sleep, 60, **limits)

    assert caught.value.code == {"deadline": "deadline_exceeded", "should_stop": "canceled"}[limit]
    assert time.monotonic() - end < 20
    assert set(children()) <= before  # it is gone


def test_a_call_leaves_no_descriptor_open_and_the_child_holds_none_of_the_others():
    reading, writing = os.pipe()
    before = set(os.listdir("/proc/self/fd"))

    held = in_child(lambda: np.array([int(fd) for fd in os.listdir("/proc/self/fd")]))

    assert set(os.listdir("/proc/self/fd")) <= before  # objects of other tests may have closed some
    assert reading not in held and writing not in held
    os.close(reading)
    os.close(writing)


def test_a_child_dies_with_its_parent(tmp_path: Path):
    said = tmp_path / "child"
    parent = os.fork()
    if parent == 0:
        in_child(lambda: (said.write_text(f"{os.getpid()}."), time.sleep(60)))
        os._exit(0)
    end = time.monotonic() + 60
    while not (said.exists() and said.read_text().endswith(".")):
        assert time.monotonic() < end, "the child does not start"
        time.sleep(0.01)

    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)

    while is_running(int(said.read_text().rstrip("."))):
        assert time.monotonic() < end, "the child lives on"
        time.sleep(0.01)


def test_a_child_needs_no_lock_that_another_thread_held():
    lock, stop = threading.Lock(), threading.Event()

    def busy():
        while not stop.is_set():
            with lock:
                np.linalg.inv(np.eye(40) * 2)

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for each in threads:
        each.start()
    try:
        for _ in range(10):
            assert (in_child(np.linalg.inv, np.eye(3), deadline=time.monotonic() + 60) == np.eye(3)).all()
    finally:
        stop.set()
        for each in threads:
            each.join()


# --- which ops run in a child --------------------------------------------------------------------------------------

PROGRAM = {
    "blocks": [
        block(
            [
                op("matmul", "y", x="x", y="x"),
                op("nonzero", "at", x="y"),
                op("gather_nd", "picked", x="y", index="at"),
                op("argsort", "order", x="picked"),
            ],
            [feed("x", [-1, 200])],
        )
    ]
}


def forked_ops(monkeypatch, most_inside: float | None, rows: int = 200) -> tuple[list[str], np.ndarray]:
    """The kernels that a run calls in a child, and the result of the run."""
    from core.runtime import reference

    called = []

    def spy(run, function, *args):
        called.append(function.func.__name__)
        return call_in_child(run, function, *args)

    monkeypatch.setattr(reference, "call_in_child", spy)
    x = np.random.default_rng(0).standard_normal((rows, 200)).astype("float32")
    executable = compile_forward(read(PROGRAM), ["order"], {"x": x.shape})
    limits = RunLimits(most_inside=most_inside)
    return called, executable.step({"x": x}, limits=limits).fetched["order"]


@pytest.mark.reference
def test_only_ops_of_long_predicted_time_run_in_a_child_and_only_on_request(monkeypatch):
    none, here = forked_ops(monkeypatch, None)
    few, _ = forked_ops(monkeypatch, 0.01)
    most, there = forked_ops(monkeypatch, 1e-9)

    assert none == []
    assert few == ["argsort"]  # its input has a size that only the run knows
    assert {"matmul", "nonzero", "argsort"} <= set(most)
    assert (here == there).all()


@pytest.mark.reference
def test_a_killed_child_is_an_error_of_the_run_with_the_place_of_its_op(monkeypatch):
    from core.runtime import reference

    def killed(run, function, *args):
        return call_in_child(run, lambda *_: os.kill(os.getpid(), signal.SIGKILL), *args)

    monkeypatch.setattr(reference, "call_in_child", killed)
    executable = compile_forward(read(PROGRAM), ["y"], {"x": (200, 200)})

    with pytest.raises(ExecutionError, match="was killed") as caught:
        executable.step({"x": np.ones((200, 200), "float32")}, limits=replace(RunLimits(), most_inside=0.0))

    assert (caught.value.code, caught.value.location.type) == ("out_of_memory", "matmul")
