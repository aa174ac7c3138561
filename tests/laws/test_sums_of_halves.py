"""Ops add up 16-bit floats in float32: a sum of ones kept in bfloat16 would stop at 256, one in float16 at 2048."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.ir import StackType
from core.ir.errors import CoreError
from core.ir.precision import HALVES
from core.ir.registry import Example
from core.ops.common.types import as_dtype
from core.runtime.reference import execute
from tests.laws.examples import OPS, block_for, examples_of
from tests.laws.test_precision import HALF_CASES, compiled, in_dtype, interpreted, is_float

N = 4096
ONES, SAME = np.ones(N), np.zeros(N, int)
PIXEL, BOX = np.ones((1, 1, 1, 1)), np.array([[0.0, 0.0, 1.0, 1.0]])

VALUES: list[tuple[str, tuple[Any, ...], dict[str, Any], float]] = [
    ("reduce_sum", (ONES,), {}, N),
    ("squared_l2_norm", (ONES,), {}, N),
    ("l1_norm", (ONES,), {}, N),
    ("cumsum", (ONES,), {"axis": 0}, N),
    ("linear_scan", (ONES, ONES), {"axis": 0}, N),
    ("matmul", (ONES[None], ONES[:, None]), {}, N),
    ("einsum", (ONES, ONES), {"equation": "i,i->"}, N),
    ("segment_sum", (ONES, SAME), {"num_segments": 2}, N),
    ("index_add", (np.zeros(3), SAME, ONES), {"axis": 0}, N),
    ("scatter", (np.zeros(3), SAME, ONES), {"overwrite": False}, N),
    ("scatter_nd", (SAME[:, None], ONES), {"shape": (3,)}, N),
    ("scatter_nd_add", (np.zeros(3), SAME[:, None], ONES), {}, N),
    ("scatter_nd_update", (np.zeros(3), SAME[:, None], ONES), {"reduce": "add"}, N),
    ("put_along_axis", (np.zeros(3), SAME, ONES), {"axis": 0, "reduce": "add"}, N),
    ("index_put", (np.zeros(3), ONES, SAME), {"accumulate": True}, N),
    ("sequence_pool", (np.ones((N, 2)), np.array([N])), {"pool_type": "sum"}, N),
    ("fold", (np.ones((1, 600, 600)),), {"output_size": (1199,), "kernel": (600,)}, 600),
    ("max_unpool", (np.ones((1, 1, N)), np.zeros((1, 1, N), int)), {"output_size": (4,)}, N),
    ("sum_tiles_like", (np.ones((N, 2)), np.ones(2)), {"repeats": (N, 1)}, N),
    ("conv1d", (np.ones((1, 1, N)), np.ones((1, 1, N))), {"paddings": (0,)}, N),
    ("embedding_bag", (np.ones((3, 2)), SAME.reshape(1, -1)), {"mode": "sum"}, N),
]
"""Op, inputs, attributes, and the largest element of its first result."""

GRADIENTS: list[tuple[str, tuple[Any, ...], dict[str, Any], int, float]] = [
    ("tile", (np.ones(2),), {"repeats": (N,)}, 0, N),
    ("tile", (np.ones((2, 3)),), {"repeats": (N, 1, 1)}, 0, N),
    ("repeat", (np.ones(2),), {"repeats": N}, 0, N),
    ("repeat", (np.ones((2, 3)),), {"repeats": N, "axis": 1}, 0, N),
    ("repeat", (np.ones(2), np.array([N, 1])), {}, 0, N),
    ("expand", (np.ones((1, 2)),), {"shape": (N, 2)}, 0, N),
    ("expand_as", (np.ones(2), np.ones((N, 2))), {}, 0, N),
    ("meshgrid", ([np.ones(2), ONES],), {}, 0, N),
    ("gather", (np.ones(3), SAME), {"axis": 0}, 0, N),
    ("gather", (np.ones((2, 3)), SAME), {"axis": 1}, 0, N),
    ("gather_nd", (np.ones((3, 2)), SAME[:, None]), {}, 0, N),
    ("index_select", (np.ones((3, 2)), SAME), {"axis": 0}, 0, N),
    ("index_sample", (np.ones((1, 3)), SAME[None]), {}, 0, N),
    ("take_along_axis", (np.ones(3), SAME), {"axis": 0}, 0, N),
    ("embedding", (np.ones((3, 2)), SAME), {}, 0, N),
    ("embedding_bag", (np.ones((3, 2)), SAME.reshape(2, -1)), {"mode": "sum"}, 0, N),
    ("pad", (np.ones(2),), {"paddings": (N - 1, 0), "mode": "replicate"}, 0, N),
    ("unfold", (np.ones((1, 1, N)),), {"kernel": (600,)}, 0, 600),
    ("window_sum", (np.ones((1, 1, N)),), {"kernel_size": (600,), "strides": (1,)}, 0, 600),
    ("max_pool1d", (-np.abs(np.arange(2000) - 1000.0)[None, None],), {"kernel_size": (600,), "strides": (1,)}, 0, 600),
    ("adaptive_avg_pool1d", (np.ones((1, 1, 1)),), {"output_size": (N,)}, 0, N),
    ("interpolate", (PIXEL,), {"size": (64, 64), "mode": "nearest"}, 0, N),
    ("interpolate", (PIXEL,), {"size": (64, 64), "mode": "linear"}, 0, N),
    ("grid_sample", (PIXEL, np.zeros((1, 64, 64, 2))), {"mode": "nearest"}, 0, N),
    ("roi_align", (PIXEL, np.repeat(BOX, N, 0), SAME), {"output_size": (1, 1)}, 0, N),
    ("roi_pool", (PIXEL, np.repeat(0 * BOX, N, 0), SAME), {"output_size": (1, 1)}, 0, N),
    ("cumsum", (ONES,), {"axis": 0}, 0, N),
    ("linear_scan", (ONES, ONES), {"axis": 0}, 1, N),
    ("sequence_expand", (np.ones((1, 2)), np.array([N])), {}, 0, N),
    ("add", (np.ones((N, 2)), np.ones(2)), {}, 1, N),
    ("matmul", (np.ones((N, 1)), np.ones((1, 1))), {}, 1, N),
    ("outer", (ONES, np.ones(2)), {}, 1, N),
    ("einsum", (ONES, np.ones(2)), {"equation": "i,j->ij"}, 1, N),
    ("conv1d", (np.ones((1, 1, 600)), np.ones((1, 1, 300))), {"paddings": (0,)}, 0, 300),
    ("conv2d", (np.ones((1, 1, 64, 64)), PIXEL, np.ones(1)), {}, 2, N),
    ("layer_norm", (np.eye(2)[np.arange(N) % 2], np.ones(2), np.ones(2)), {}, 2, N),
    ("prelu", (-np.ones((N, 2)), np.ones(1)), {}, 1, -2 * N),
    ("row_conv", (np.ones((1, N, 1)), np.ones((1, 1))), {}, 1, N),
]
"""Op, inputs, attributes, the input to differentiate, and the largest element of its gradient for a cotangent of 1."""


def example_of(name: str, inputs: tuple[Any, ...], attrs: dict[str, Any], dtype: str) -> Example:
    flat = [y for x in inputs for y in (x if isinstance(x, list) else [x])]
    return in_dtype(Example(tuple(flat), (), OPS[name].complete(attrs)), dtype)


@pytest.mark.sampled(2, each="name")
@pytest.mark.parametrize("run", [interpreted, compiled])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("name", "inputs", "attrs", "wanted"), VALUES, ids=[case[0] for case in VALUES])
def test_a_result_that_adds_many_ones_is_their_number(name, inputs, attrs, wanted, dtype, run):
    example = example_of(name, inputs, attrs, dtype)

    results = run(block_for(OPS[name], example), list(example.inputs))

    assert float(np.max(results[0])) == wanted


@pytest.mark.sampled(2, each="name")
@pytest.mark.parametrize("run", [interpreted, compiled])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "at", "wanted"), GRADIENTS, ids=[f"{case[0]}-{i}" for i, case in enumerate(GRADIENTS)]
)
def test_a_gradient_that_adds_many_ones_is_their_number(name, inputs, attrs, at, wanted, dtype, run):
    example = example_of(name, inputs, attrs, dtype)
    block = block_for(OPS[name], example)
    args = list(example.inputs)
    pulled = vjp(block, [block.params[at]])
    results = [np.asarray(x) for x in execute(block, args)]
    seeds = [np.ones_like(x) for x in results if is_float(x)]

    gradient = run(replace(pulled, results=pulled.results[len(results) :]), [*args, *seeds])[0]

    assert float(max(gradient.ravel(), key=abs)) == wanted


@pytest.mark.parametrize("run", [interpreted, compiled])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["cumprod", "reduce_prod", "segment_prod"])
def test_a_product_of_many_factors_rounds_once(name, dtype, run):
    factors = np.full(100, 1.0078125)
    inputs, attrs = ((factors, SAME[:100]), {"num_segments": 1}) if name == "segment_prod" else ((factors,), {})
    example = example_of(name, inputs, attrs, dtype)

    result = run(block_for(OPS[name], example), list(example.inputs))[0]

    assert float(np.max(result)) == float(np.float64(1.0078125**100).astype(as_dtype(dtype)))


REDUCTIONS = ("sum", "prod", "mean", "cumsum", "cumprod")


@pytest.mark.parametrize("dtype", [HALVES[0], *(pytest.param(each, marks=pytest.mark.slow) for each in HALVES[1:])])
def test_no_kernel_adds_up_or_multiplies_16_bit_floats_in_their_dtype(dtype, monkeypatch):
    found: set[str] = set()
    current = ""

    def watched(function):
        def call(x, *args, **kwargs):
            out = function(x, *args, **kwargs)
            if np.asarray(out).dtype == as_dtype(dtype) and np.size(x):
                found.add(f"{current}: {function.__name__}")
            return out

        return call

    for each in REDUCTIONS:
        monkeypatch.setattr(np, each, watched(getattr(np, each)))

    for name, i in HALF_CASES:
        spec, example = OPS[name], in_dtype(examples_of(OPS[name])[i], dtype)
        args, current = list(example.inputs), name
        try:
            block = block_for(spec, example)
            with np.errstate(all="ignore"):
                results = execute(block, args)
                wrt = [n for n, x in zip(block.params, args, strict=True) if not isinstance(x, list) and is_float(x)]
                if not (spec.differentiable and wrt) or any(isinstance(t, StackType) for t in block.result_types):
                    continue
                execute(vjp(block, wrt), [*args, *(np.ones_like(x) for x in results if is_float(x))])
        except CoreError:  # a dtype or an input that the op refuses
            continue

    assert not found
