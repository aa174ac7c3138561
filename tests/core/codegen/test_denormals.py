"""Denormal numbers: products in loops take them for zero where the CPU is slow with them, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen import blas
from core.codegen.backend import CPU
from core.codegen.cpus import cpu
from core.compiler.compile import compile_forward
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
