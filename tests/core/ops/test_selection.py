"""Unselected elements get a gradient of 0 by selection: an infinite or NaN cotangent does not reach them as 0 * inf."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.runtime.reference import execute
from tests.laws.examples import CASES, OPS, arrays, block_for, examples_of, floats
from tests.programs import close

OPS_THAT_SELECT = """
    abs adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d alpha_dropout celu clip crop cummax cummin dropout
    elementwise_max elementwise_min elu gather global_max_pool hard_shrink hard_sigmoid hard_swish hard_tanh hinge_loss
    index_select kthvalue leaky_relu margin_rank_loss masked_fill masked_select max_pool1d max_pool2d max_pool3d maximum
    maxout median minimum pad reduce_max reduce_min relu relu6 segment_max segment_min select_input selu sequence_mask
    slice softshrink sort take_along_axis thresholded_relu topk tril triu where
"""
SELECTING = OPS_THAT_SELECT.split()


@pytest.mark.parametrize("cotangent", [np.inf, np.nan])
@pytest.mark.parametrize(("name", "i"), [c for c in CASES if c[0] in SELECTING and OPS[c[0]].differentiable])
def test_unselected_elements_get_gradient_0_for_any_cotangent(name, i, cotangent):
    spec, example = OPS[name], examples_of(OPS[name])[i]
    args = arrays(example)
    block = block_for(spec, example)
    block = replace(block, results=block.results[:1])
    if not floats(args):
        pytest.skip("no floating-point input")
    shape = execute(block, args)[0].shape
    pulled = optimize(vjp(block, [block.params[k] for k in floats(args)]))
    r = np.random.default_rng(3)
    some = [execute(pulled, [*args, r.uniform(1, 2, shape)])[1:] for _ in range(2)]

    found = execute(pulled, [*args, np.full(shape, cotangent)])[1:]

    for value, one, other in zip(found, *some, strict=True):
        untouched = (one == 0) & (other == 0)
        assert (value[untouched] == 0).all()


def pulled_back(type: str, inputs: list, ct: list, **attrs: object) -> list[np.ndarray]:
    """The cotangents of `inputs` for the cotangent `ct` of the only output of the op."""
    args = [np.asarray(x) for x in inputs]
    b = BlockBuilder()
    block = b.build([b.emit(type, *[b.param(TensorType(x.shape, str(x.dtype))) for x in args], **attrs)])
    wrt = [p for p, x in zip(block.params, args, strict=True) if x.dtype.kind == "f"]
    return list(execute(vjp(block, wrt), [*args, np.asarray(ct)])[1:])


INF = [np.inf] * 3


@pytest.mark.parametrize(
    ("type", "inputs", "attrs", "wanted"),
    [
        ("relu", [[-1.0, 0.0, 1.0]], {}, [[0, 0, np.inf]]),
        ("abs", [[-1.0, 0.0, 1.0]], {}, [[-np.inf, 0, np.inf]]),
        ("clip", [[-1.0, 0.0, 2.0]], {"min": 0.0, "max": 1.0}, [[0, np.inf, 0]]),
        ("maximum", [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]], {}, [[0, np.inf, np.inf], [np.inf, np.inf, 0]]),
        ("minimum", [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]], {}, [[np.inf, np.inf, 0], [0, np.inf, np.inf]]),
        ("pow", [[0.0, 2.0, 3.0], [0.0, 0.0, 0.0]], {}, [[0, 0, 0], [0, np.inf, np.inf]]),
        ("hard_swish", [[-4.0, -3.0, 4.0]], {}, [[0, 0, np.inf]]),
        ("reduce_max", [[[1.0, 2.0], [4.0, 3.0], [5.0, 5.0]]], {"axes": (1,)},
            [[[0, np.inf], [np.inf, 0], [np.inf] * 2]]),
    ],
)  # fmt: skip
def test_an_infinite_cotangent_reaches_only_the_selected_element(type, inputs, attrs, wanted):
    for value, expected in zip(pulled_back(type, inputs, INF, **attrs), wanted, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_a_dropped_element_may_be_infinite():
    x = np.full(64, np.inf)
    for name in ("dropout", "alpha_dropout"):
        b = BlockBuilder()
        block = b.build([b.emit(name, b.param(TensorType((64,), "float64")), p=0.5)])
        (out,) = execute(block, [x])

        assert not np.isnan(out).any() and np.isinf(out).any() and np.isfinite(out).any()


def test_an_infinite_positive_input_does_not_affect_the_gradient_of_the_negative_slope():
    dx, dalpha = pulled_back("prelu", [[np.inf, -2.0], [0.5]], [1.0, 1.0])

    close(dx, [1.0, 0.5])
    close(dalpha, [-2.0])


def test_the_gradient_of_a_maximum_of_nan_goes_to_the_nan():
    close(pulled_back("reduce_max", [[[1.0, np.nan, 3.0]]], [2.0], axes=(1,))[0], [[0, 2, 0]])
    close(pulled_back("segment_max", [[1.0, np.nan, 3.0], np.array([0, 0, 0])], [2.0], num_segments=1)[0], [0, 2, 0])
