"""Arguments at the edge of what an op accepts, which other libraries accept too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.ir.registry import as_tuple
from core.runtime.reference import execute


def run(op: str, *inputs: Any, open: bool = False, **attrs: Any) -> tuple[Any, ...]:
    """The results of an op, then the cotangents of its floating-point inputs for cotangents of ones: the pullback."""
    arrays = [np.asarray(x) for x in inputs]
    b = BlockBuilder()
    params = [b.param(TensorType((-1,) * a.ndim if open else a.shape, str(a.dtype))) for a in arrays]
    block = b.build(as_tuple(b.emit(op, *params, **attrs)))
    found = execute(block, arrays)
    wrt = [p for p in block.params if block.types[p].is_float]
    seeds = [np.ones_like(v) for v, t in zip(found, block.result_types, strict=True) if t.is_float]
    return execute(vjp(block, wrt), [*arrays, *seeds])


def test_hard_tanh_with_equal_bounds_is_constant():
    out, ct = run("hard_tanh", [-1.0, 0.5, 3.0], min=0.5, max=0.5)

    np.testing.assert_array_equal(out, [0.5, 0.5, 0.5])
    np.testing.assert_array_equal(ct, [0.0, 0.0, 0.0])


@pytest.mark.parametrize("rcond", [1.0, 7.5])
def test_pinv_that_counts_every_singular_value_as_0_is_0(rcond):
    out, ct = run("pinv", [[3.0, 1.0, 0.0], [0.0, 2.0, 1.0]], rcond=rcond)

    np.testing.assert_array_equal(out, np.zeros((3, 2)))
    np.testing.assert_array_equal(ct, np.zeros((2, 3)))


def test_index_put_takes_an_index_whose_length_only_the_run_knows():
    x, values, rows = np.zeros((4, 2)), np.array([5.0, 6.0]), np.array([3, 1])

    out, ct_x, ct_values = run("index_put", x, values, rows, open=True)

    np.testing.assert_array_equal(out, [[0, 0], [5, 6], [0, 0], [5, 6]])
    np.testing.assert_array_equal(ct_x, [[1, 1], [0, 0], [1, 1], [0, 0]])
    np.testing.assert_array_equal(ct_values, [2, 2])


def test_grids_and_images_of_open_batches_must_be_as_many():
    x, grid = np.ones((1, 1, 2, 2)), np.zeros((3, 1, 1, 2))
    b = BlockBuilder()
    types = [TensorType((-1, *v.shape[1:]), "float64") for v in (x, grid)]
    block = b.build([b.emit("grid_sample", *map(b.param, types))])

    assert execute(block, [x, grid[:1]])[0].shape == (1, 1, 1, 1)
    with pytest.raises(ExecutionError):
        execute(block, [x, grid])
