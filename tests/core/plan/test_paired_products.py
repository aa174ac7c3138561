"""Products of bfloat16 matrices as products of pairs or tiles: `matmul` and `einsum`."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.codegen.cpus import cpu
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.instructions import Gemm
from core.plan.work import work_of
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.core.codegen.tiles import multiplies_pairs

__all__ = ["multiplies_pairs"]

SIZES = {"b": 3, "h": 2, "i": 66, "j": 70, "k": 68, "o": 65}

CASES = {
    "ij,jk->ik": True,
    "ij,kj->ik": True,
    "ji,jk->ik": True,
    "ij,jk->ki": True,
    "bij,jk->bik": True,
    "bij,bik->jk": True,  # the gradient of a weight
    "bij,bik->kj": True,
    "bhij,bhjk->bihk": True,
    "bhij,bhkj->bhik": True,
    "io,ok->ik": False,  # an odd number of terms
    "bo,ok->bk": False,  # few rows
    "ij,jk->k": False,
    "ij,jk,ki->i": False,
    "ii,ik->ik": False,
}
"""Equation -> whether its numbers are multiplied in pairs."""


def block_of(equation: str) -> tuple[Block, list[np.ndarray]]:
    """An einsum of small integers, whose sums are exact in any order."""
    terms = equation.split("->")[0].split(",")
    rng, b = np.random.default_rng(len(equation)), BlockBuilder()
    args = [rng.integers(-1, 2, [SIZES[c] for c in term]).astype(as_dtype("bfloat16")) for term in terms]
    given = [b.param(TensorType(each.shape, "bfloat16")) for each in args]
    return b.build([b.emit("einsum", *given, equation=equation)]), args


@pytest.mark.sampled(2, each="equation")
@pytest.mark.parametrize("equation", CASES)
def test_an_einsum_of_16_bit_numbers_equals_numpys(equation, multiplies_pairs):
    block, args = block_of(equation)
    products = [each for each in plan_block(block, CPU_TARGET).body.instructions if isinstance(each, Gemm)]
    (found,) = native_interpreter(block, CPU)(Run(), *args)
    wanted = np.einsum(equation, *(each.astype("float64") for each in args)).astype(as_dtype("bfloat16"))

    np.testing.assert_array_equal(np.asarray(found, "float64"), np.asarray(wanted, "float64"))
    assert any(each.a.dtype == "bfloat16" for each in products) == CASES[equation]
    assert all(work_of(each).dtype == each.a.dtype for each in products)


def test_a_pass_over_16_bit_numbers_computes_in_float32():
    b = BlockBuilder()
    x = b.param(TensorType((64, 70), "bfloat16"))
    (rows,) = plan_block(b.build([b.emit("tanh", x)]), CPU_TARGET).body.instructions
    assert work_of(rows).dtype == "float32"


@pytest.mark.sampled(2, each="multiplies_pairs")
@pytest.mark.parametrize("transpose_x", [False, True])
@pytest.mark.parametrize("transpose_y", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_a_matmul_of_16_bit_numbers_equals_numpys(batch, transpose_x, transpose_y, multiplies_pairs):
    """Only tiles take a batch of first operands that are stored by columns."""
    rng, b = np.random.default_rng(len(batch)), BlockBuilder()
    x, y = (rng.integers(-1, 2, (*batch, *shape)).astype(as_dtype("bfloat16")) for shape in ((70, 66), (66, 68)))
    given = [x.swapaxes(-1, -2) if transpose_x else x, y.swapaxes(-1, -2) if transpose_y else y]
    params = [b.param(TensorType(each.shape, "bfloat16")) for each in given]
    block = b.build([b.emit("matmul", *params, transpose_x=transpose_x, transpose_y=transpose_y)])
    (product,) = (each for each in plan_block(block, CPU_TARGET).body.instructions if isinstance(each, Gemm))
    (found,) = native_interpreter(block, CPU)(Run(), *map(np.ascontiguousarray, given))
    wanted = (x.astype("float64") @ y.astype("float64")).astype(as_dtype("bfloat16"))

    np.testing.assert_array_equal(np.asarray(found, "float64"), np.asarray(wanted, "float64"))
    assert (product.a.dtype == "bfloat16") == (cpu().has_tiles or not (batch and transpose_x))
