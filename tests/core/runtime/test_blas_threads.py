"""The number of threads of numpy's and scipy's BLAS while machine code calls an op back."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from core.plan.instructions import Interpreted
from core.plan.memory import Root, View
from core.runtime import blas_threads
from core.runtime.blas_threads import one_blas_thread
from core.runtime.callback import SIGNATURE, Callback
from core.runtime.control_words import CONTROL
from tests.core.codegen.stepwise import block_of


def counts() -> list[int]:
    return [count() for package in ("numpy", "scipy") for count, _ in blas_threads._libraries(package)]


@pytest.fixture
def two_threads():
    """Let each BLAS use two threads; the numbers from before it."""
    before = counts()
    libraries = [each for package in ("numpy", "scipy") for each in blas_threads._libraries(package)]
    for _, set_threads in libraries:
        set_threads(2)
    if counts() != [2] * len(libraries):
        pytest.skip("this BLAS was built or started for one thread")
    yield
    for (_, set_threads), number in zip(libraries, before, strict=True):
        set_threads(number)


def test_both_libraries_are_found():
    assert len(counts()) == 2


def test_the_last_thread_that_leaves_restores_the_numbers(two_threads):
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with one_blas_thread():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with one_blas_thread():
        thread.start()
        inside.wait(60)
        with one_blas_thread():
            assert counts() == [1, 1]
    assert counts() == [1, 1]
    leave.set()
    thread.join()
    assert counts() == [2, 2]


def test_an_error_restores_the_numbers(two_threads):
    with pytest.raises(ValueError), one_blas_thread():
        raise ValueError

    assert counts() == [2, 2]


def test_an_op_that_machine_code_calls_back_computes_on_one_thread(two_threads, monkeypatch):
    seen, real = [], np.linalg.cholesky

    def cholesky(x: np.ndarray) -> np.ndarray:
        seen.append(counts())
        return real(x)

    monkeypatch.setattr(np.linalg, "cholesky", cholesky)
    x, out = 4 * np.eye(3), np.zeros((3, 3))
    views = tuple(View(Root(72), "float64", (3, 3), (3, 1)) for _ in range(2))
    each = Interpreted(0, block_of("cholesky_factor", x), views, "", ((), ()))
    callback = Callback([each], (ctypes.c_int64 * len(CONTROL))())

    SIGNATURE(callback.address)(0, (ctypes.c_void_p * 2)(x.ctypes.data, out.ctypes.data))

    callback.check()
    assert seen == [[1, 1]]
    assert counts() == [2, 2]
    np.testing.assert_array_equal(out, 2 * np.eye(3))
