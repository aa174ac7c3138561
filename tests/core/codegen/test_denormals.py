"""Denormal numbers: products in loops take them for zero where the CPU is slow with them, and nothing else does.

Stale memory, in which integers are denormal floats, reaches no arithmetic.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend, blas
from core.codegen.backend import CPU
from core.codegen.cpus import cpu
from core.compiler.compile import compile_forward, optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder, Value
from core.runtime.memory import Arena
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from core.wire import read
from tests.programs import Sketch

SLOW = cpu().triple.startswith("x86_64")

SMALL = 1e-40
"""A denormal float32."""

SHAPES = {
    "packed": (70, 70, 70), "tiles": (9, 5, 20), "BLAS": (9, 5, 21), "one row": (1, 40, 30), "one column": (9, 200, 1)
}  # fmt: skip
"""(rows, terms, columns) of a product of each kind. That of the BLAS has operands that are stored by columns."""

LEFT = np.float32(1e-20)
TINY = {"sums": (LEFT, np.float32(SMALL) / LEFT), "operands": (np.float32(SMALL), np.float32(1.0))}
"""The number of each row that is not 0 in the first matrix, and in the second one: their product is denormal."""


def products(size: tuple[int, int, int], numbers: tuple[np.float32, np.float32], loops: bool) -> tuple[Sketch, str]:
    """A product, in a loop or not, and its name."""
    m, k, n = size
    a, b, turned = np.zeros((m, k)), np.zeros((k, n)), size == SHAPES["BLAS"]
    a[:, 0], b[0] = numbers
    s = Sketch()
    values = [np.stack([each.T if turned else each] * 2) for each in (a, b)]
    x, w = (s.feed(name, value, dtype="float32") for name, value in zip("xw", values, strict=True))
    s.const(0.0, [m, n], "float32", out="y")
    t = s.op("fill_constant", out="t", shape=[], value=0, dtype="int64")

    def multiply() -> None:
        now = [s.op("gather", each, t) for each in (x, w)]
        s.op("matmul", *now, out="y", transpose_x=turned, transpose_y=turned)

    if loops:
        with s.repeat(2):
            multiply()
            s.op("increment", t, out="t")  # each trip has matrices of its own
    else:
        multiply()
    return s, "y"


def computed(s: Sketch, name: str) -> np.ndarray:
    executable = compile_forward(read(s.document), fetch=[name])
    native = native_interpreter(executable.interpreter.block, CPU)
    (found,) = native(Run(), *(np.asarray(s.values[v.name]) for v in executable.inputs))
    return np.asarray(found)


def keeps_denormals() -> bool:
    """Whether this thread computes denormal numbers as they are."""
    return bool((np.full(64, SMALL, "float32") * np.float32(0.5)).all())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("tiny", TINY)
def test_products_in_loops_take_denormal_numbers_for_zero(tiny, kind, loops, monkeypatch):
    called = []
    made = blas.function
    monkeypatch.setattr(blas, "function", lambda *given: (called.append(given), made(*given))[1])

    found = computed(*products(SHAPES[kind], TINY[tiny], loops))

    assert keeps_denormals() and bool(called) == (kind == "BLAS")
    wanted = 0.0 if loops and SLOW else np.multiply(*TINY[tiny])
    np.testing.assert_array_equal(found, np.full(found.shape, wanted, "float32"))


@pytest.mark.parametrize("size", SHAPES.values(), ids=SHAPES)
def test_elementwise_work_behind_a_product_in_a_loop_keeps_denormal_numbers(size):
    """Also where it is fused with the product."""
    m, k, n = size
    s = Sketch()
    x, w = s.feed("x", np.ones((m, k)), dtype="float32"), s.param("w", np.full((k, n), 1 / k), dtype="float32")
    s.const(0.0, [m, n], "float32", out="y")
    small = s.feed("small", np.full(n, SMALL), dtype="float32")
    with s.repeat(2):
        s.op("mul", s.op("matmul", x, w), small, out="y")

    found = computed(s, "y")

    np.testing.assert_allclose(found, np.full((m, n), SMALL), rtol=1e-4)


def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on new arenas hold denormal numbers, as after a step with labels."""
    begin = Arena.__init__

    def filled(self: Arena, size: int) -> None:
        begin(self, size)
        np.asarray(self._memory)[: size // 4 * 4].view("int32")[:] = 1

    monkeypatch.setattr(Arena, "__init__", filled)


def met_denormals(step: Callable[[], object]) -> bool:
    """Whether arithmetic of this thread met a denormal operand during `step`: the flag of the processor."""
    libm, state = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()  # the last word is the control word MXCSR
    libm.fegetenv(state)
    state[7] &= ~0b111111
    libm.fesetenv(state)
    step()
    libm.fegetenv(state)
    return bool(state[7] & 0b10)


def leaves_stale_memory_alone(monkeypatch: pytest.MonkeyPatch, op: str, *given: np.ndarray, **attrs: object) -> None:
    """Assert that an op and its gradients meet no denormal operand, though memory is full of them."""
    b = BlockBuilder()
    found = b.emit(op, *(b.param(TensorType(each.shape, str(each.dtype))) for each in given), **attrs)
    block = b.build([found] if isinstance(found, Value) else list(found))
    cotangents = [np.ones(b.types[name].shape, "float32") for name in block.results]
    monkeypatch.setattr(backend, "thread_count", lambda: 1)
    stale(monkeypatch)
    forward = native_interpreter(optimize(block), CPU)
    backward = native_interpreter(optimize(vjp(block, block.params)), CPU)

    assert met_denormals(lambda: np.full(64, 1e-40, "float32") * np.float32(3))
    assert not met_denormals(lambda: (forward(Run(), *given), backward(Run(), *given, *cotangents)))


CONVOLUTIONS = {
    "by the algorithm of Winograd": ((2, 16, 16, 16), (15, 16, 3, 3), {"paddings": (1, 1)}),
    "with channels in the lanes": ((2, 8, 12, 12), (12, 8, 5, 5), {"paddings": (2, 2)}),
    "of volumes": ((2, 8, 6, 6, 6), (12, 8, 3, 3, 3), {"paddings": (1, 1, 1)}),
    "with single elements": ((2, 10, 20, 20), (10, 10, 1, 1), {}),
}


@pytest.mark.skipif(not SLOW or not sys.platform.startswith("linux"), reason="reads the control word of x86")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_no_kernel_computes_with_numbers_of_earlier_runs(name, monkeypatch):
    """Lanes without a channel hold zeros."""
    shape, filters, attrs = CONVOLUTIONS[name]
    random = np.random.default_rng(0)
    x, w = (random.random(each, "float32") + 1 for each in (shape, filters))

    leaves_stale_memory_alone(monkeypatch, f"conv{len(shape) - 2}d", x, w, **attrs)


@pytest.mark.sampled(2, each="name")
@pytest.mark.skipif(not SLOW or not sys.platform.startswith("linux"), reason="reads the control word of x86")
@pytest.mark.parametrize("size", [2, 5, 16, 20, 33, 50])
@pytest.mark.parametrize("name", ["solve", "inverse", "slogdet", "qr", "cholesky"])
def test_no_factorisation_computes_with_numbers_of_earlier_runs(name, size, monkeypatch):
    """Vectors and tiles reach over the ends of a matrix."""
    random = np.random.default_rng(0)
    x = random.random((2, size, size), "float32") + size * np.eye(size, dtype="float32")
    x = x @ x.swapaxes(1, 2) if name == "cholesky" else x

    leaves_stale_memory_alone(monkeypatch, name, x, *([x[:, :, :2]] if name == "solve" else []))
