"""Products of few rows with a large 16-bit matrix read it as it is, without a float32 copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.instructions import Gemm
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run


def product(x: tuple[int, ...], y: tuple[int, ...], dtype: str, **attrs: Any) -> Block:
    b = BlockBuilder()
    given = [b.param(TensorType(shape, dtype)) for shape in (x, y)]
    return b.build([b.emit("matmul", *given, **({"transpose_x": False, "transpose_y": False} | attrs))])


def in_place(block: Block) -> list[bool]:
    """For each product, whether its first operand is float32 and its second one a 16-bit matrix."""
    products = [each for each in plan_block(block, CPU_TARGET).body.instructions if isinstance(each, Gemm)]
    return [each.a.dtype == "float32" != each.b.dtype for each in products]


def agree(block: Block, dtype: str) -> None:
    """The numbers are small integers, so that all sums are exact."""
    rng = np.random.default_rng(3)
    args = [rng.integers(-2, 3, block.types[n].shape).astype("float32").astype(as_dtype(dtype)) for n in block.params]
    found, wanted = (run(Run(), *args) for run in (native_interpreter(block, CPU), interpreter_of(block)))
    for f, w in zip(found, wanted, strict=True):
        assert np.abs(np.asarray(w, "float32")).max() > 8
        np.testing.assert_array_equal(np.asarray(f, "float32"), np.asarray(w, "float32"))


FORMS = {
    "one row": ((1, 301), (301, 500), {}),
    "some rows": ((9, 301), (301, 500), {}),
    "most rows": ((23, 256), (256, 515), {}),
    "by columns": ((9, 301), (500, 301), {"transpose_y": True}),
    "first one by columns": ((301, 9), (500, 301), {"transpose_x": True, "transpose_y": True}),
    "a batch of rows": ((2, 3, 301), (301, 500), {}),
}


@pytest.mark.sampled(1, each="form")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("form", FORMS)
def test_a_large_16_bit_matrix_is_read_in_place(form, dtype):
    x, y, attrs = FORMS[form]
    block = product(x, y, dtype, **attrs)

    assert in_place(block) == [True]
    agree(block, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_threads_share_a_product_with_a_16_bit_matrix(dtype, monkeypatch):
    monkeypatch.setattr(backend, "thread_count", lambda: 3)
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    for x, y, attrs in FORMS.values():
        agree(product(x, y, dtype, **attrs), dtype)


def test_a_gradient_reads_the_matrix_in_place_too():
    block = vjp(product((5, 400), (400, 600), "bfloat16"))

    assert in_place(block) == [True, True, False]  # the product, the gradients to x and to the matrix
    agree(block, "bfloat16")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("x", "y"), [((9, 64), (64, 70)), ((40, 301), (301, 1500)), ((9, 4000), (4000, 40))])
def test_small_matrices_and_those_of_many_rows_are_widened(x, y):
    block = product(x, y, "float16")

    assert in_place(block) == [False]
    agree(block, "float16")
