"""Products with one column, one row, or one term: equal results, as single rows or as elementwise work."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block
from core.plan.instructions import Gemm, Rows
from core.runtime.native import native_interpreter
from core.runtime.run import Run


def product_block(m: int, k: int, n: int, batch: tuple[int, ...], turned: tuple[bool, bool], dtype: str):
    b = BlockBuilder()
    x = b.param(TensorType((*batch, *((k, m) if turned[0] else (m, k))), dtype))
    y = b.param(TensorType((*batch, *((n, k) if turned[1] else (k, n))), dtype))
    z = b.emit("matmul", x, y, transpose_x=turned[0], transpose_y=turned[1])
    return b.build([b.emit("add", z, b.param(TensorType(z.shape, dtype)))])


@pytest.mark.sampled(1, each="threads")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("m", "k", "n"), [(5, 20, 1), (1, 20, 5), (7, 1, 3), (1, 1, 1), (3, 37, 4), (1, 70, 1)])
def test_a_product_with_few_rows_columns_or_terms_equals_numpys(m, k, n, threads, monkeypatch):
    monkeypatch.setattr(parallel, "LONG", 1)
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    monkeypatch.setattr(backend, "thread_count", lambda: threads)
    rng = np.random.default_rng(0)
    for batch, turned in itertools.product([(), (4, 3)], itertools.product([False, True], repeat=2)):
        block = product_block(m, k, n, batch, turned, "float64")
        args = [rng.standard_normal(block.types[p].shape) for p in block.params]
        x, y = (np.swapaxes(a, -1, -2) if t else a for a, t in zip(args, turned, strict=False))

        (found,) = native_interpreter(optimize(block), CPU)(Run(), *args)

        np.testing.assert_allclose(found, x @ y + args[2], rtol=1e-12, atol=1e-12)


def test_products_of_one_term_are_part_of_a_fusion():
    block = product_block(6, 1, 9, (4,), (False, True), "float32")

    (rows,) = plan_block(optimize(block), CPU_TARGET).body.instructions

    assert isinstance(rows, Rows)
    assert rows.ops == ("mul", "add")


def test_a_single_column_is_computed_as_a_row():
    for turned in itertools.product([False, True], repeat=2):
        block = product_block(30, 40, 1, (8,), turned, "float32")
        product = next(i for i in plan_block(optimize(block), CPU_TARGET).body.instructions if isinstance(i, Gemm))
        assert product.c.shape == (8, 1, 30)


@pytest.mark.parametrize("cell", ["lstm_cell", "gru_cell", "rnn_cell"])
def test_the_backward_pass_of_a_loop_does_not_repeat_the_products_of_a_cell(cell):
    gates = {"lstm_cell": 4, "gru_cell": 3, "rnn_cell": 1}[cell]
    inner = BlockBuilder()
    states = [inner.param(TensorType((2, 5), "float64")) for _ in range(2 if cell == "lstm_cell" else 1)]
    wx = inner.param(TensorType((gates * 5, 3), "float64"))
    wh = inner.param(TensorType((gates * 5, 5), "float64"))
    x = inner.param(TensorType((2, 3), "float64"))
    made = inner.emit(cell, x, *states, wx, wh)
    made = made if isinstance(made, tuple) else (made,)
    body = inner.build(list(made))

    b = BlockBuilder()
    sequence = b.emit("array_unstack", b.param(TensorType((7, 2, 3), "float64"), "x"))
    given = [b.param(body.types[name]) for name in body.params[:-1]]
    results = b.emit("loop", *given, sequence, sub_block=body, carried=len(states), captured=2, condition=False)
    last = results[0] if isinstance(results, tuple) else results
    block = b.build([b.emit("reduce_sum", b.emit("square", last))])

    forward, backward = (op.attrs["sub_block"] for op in optimize(vjp(block)).ops if op.type == "loop")

    count = lambda inner: sum(op.type == "matmul" for op in inner.ops)
    assert count(forward) == 2
    assert count(backward) == 4  # the cotangents of x, h and both weights
