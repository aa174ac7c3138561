"""Products of gathered matrices and vectors are passes over the gathered rows, which reach no memory of their own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.plan import plan_block
from core.plan.gathered_products import LEAST_SUMS
from core.plan.instructions import Gather, Gemm
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.laws.agreement import both

SIZE = 11
BATCH = LEAST_SUMS

FORMS = {
    # name: (shape of the vector, whether the matrix comes first, transpose_x, transpose_y) for rows [batch, 5, width]
    "scores of rows": (lambda batch, width: (batch, width, 1), True, False, False),
    "scores of rows, from a transposed vector": (lambda batch, width: (batch, 1, width), True, False, True),
    "scores in a row": (lambda batch, width: (batch, 1, width), False, False, True),
    "scores in a row, from a transposed vector": (lambda batch, width: (batch, width, 1), False, True, True),
    "weighted sums": (lambda batch, width: (batch, 1, 5), False, False, False),
    "weighted sums, from a transposed vector": (lambda batch, width: (batch, 5, 1), False, True, False),
    "weighted sums in a column": (lambda batch, width: (batch, 5, 1), True, True, False),
    "weighted sums in a column, from a transposed vector": (lambda batch, width: (batch, 1, 5), True, True, True),
}


def product(
    form: str, width: int, dtype: str = "float32", index: str = "int64", batch: int = BATCH
) -> tuple[Block, list[np.ndarray]]:
    shape, first, transpose_x, transpose_y = FORMS[form]
    random = np.random.default_rng(3)
    args = [
        random.normal(size=(SIZE, width)).astype(dtype),
        random.integers(-SIZE, SIZE, (batch, 5)).astype(index),
        random.normal(size=shape(batch, width)).astype(dtype),
    ]
    b = BlockBuilder()
    table, at, vector = (b.param(TensorType(a.shape, str(a.dtype))) for a in args)
    rows = b.emit("gather", table, at, axis=0)
    pair = (rows, vector) if first else (vector, rows)
    return b.build([b.emit("matmul", *pair, transpose_x=transpose_x, transpose_y=transpose_y)]), args


def kinds(block: Block) -> set[type]:
    return {type(each) for each in plan_block(block, CPU.target).body.instructions}


@pytest.mark.sampled(2, each="form")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [16, 19, 36, 100])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_of_gathered_rows_equals_the_reference_executor(dtype, width, form):
    block, args = product(form, width, dtype)
    block = optimize(block)

    both(block, args)

    assert not {Gather, Gemm} & kinds(block)


@pytest.mark.sampled(2, each="form")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [4, BATCH])
@pytest.mark.parametrize("order", [1, 2])
def test_its_gradients_equal_the_reference_executor(order, batch, form):
    block, args = product(form, 20, batch=batch)
    random = np.random.default_rng(9)
    for _ in range(order):
        floats = [p for p in block.params if getattr(block.types[p], "dtype", "") == "float32"]
        block = vjp(block, floats)
        args = [*args, *(random.normal(size=block.types[p].shape).astype("float32") for p in block.params[len(args) :])]  # type: ignore[union-attr]
        block = optimize(block)

    both(block, args)


def test_elementwise_work_on_the_scores_is_a_pass_of_its_own():
    block, args = product("scores of rows", 32)
    b = BlockBuilder()
    params = [b.param(block.types[p]) for p in block.params]
    rows = b.emit("gather", *params[:2], axis=0)
    score = b.emit("matmul", rows, params[2], transpose_x=False, transpose_y=False)
    block = optimize(b.build([b.emit("softmax", b.emit("sigmoid", score), axis=1), score]))

    both(block, args)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["scores of rows", "weighted sums in a column"])
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("place", list(itertools.product([0, BATCH - 1], [0, 4])), ids=str)
@pytest.mark.parametrize("wrong", [-SIZE - 1, SIZE, 2**31 - 1])
def test_a_position_out_of_range_is_an_error(wrong, place, index, form):
    block, args = product(form, 32, index=index)
    args[1][place] = wrong

    with pytest.raises(ExecutionError) as caught:
        native_interpreter(optimize(block), CPU)(Run(), *args)

    assert caught.value.code == "index_out_of_range"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch", [4, BATCH])
@pytest.mark.parametrize("form", FORMS)
def test_the_bits_do_not_depend_on_the_number_of_threads(form, batch, monkeypatch):
    monkeypatch.setattr(parallel, "LONG", 1)
    block, args = product(form, 36, batch=batch)
    block = optimize(vjp(block, [block.params[0], block.params[2]]))
    args = [*args, np.random.default_rng(2).normal(size=block.types[block.params[-1]].shape).astype("float32")]  # type: ignore[union-attr]
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(backend, "thread_count", lambda threads=threads: threads)
        found.append([np.array(a) for a in native_interpreter(block, CPU)(Run(), *args)])

    for a, b in zip(*found, strict=True):
        assert a.tobytes() == b.tobytes()
