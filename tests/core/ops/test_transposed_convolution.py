"""Transposed convolutions with an output_padding of at least the stride, which is allowed below the dilation."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ProgramError
from core.runtime.reference import execute

R = np.random.default_rng(3)


def transposed(x: Any, f: Any, **attrs: Any) -> Any:
    b = BlockBuilder()
    n = x.ndim - 2
    out = b.emit(f"conv{n}d_transpose", *(b.param(TensorType(v.shape, "float64")) for v in (x, f)), **attrs)
    return execute(b.build([out]), [x, f])[0]


def by_definition(x: Any, f: Any, strides: Any, dilations: Any, paddings: Any, output_padding: Any) -> Any:
    """Each element of x adds its multiple of the filter to the output; what falls outside of the output is lost."""
    kernel = f.shape[2:]
    axes = zip(x.shape[2:], kernel, strides, dilations, paddings, output_padding, strict=True)
    size = [(m - 1) * s - 2 * p + d * (k - 1) + 1 + more for m, k, s, d, p, more in axes]
    out = np.zeros((x.shape[0], f.shape[1], *size))
    for at, tap in product(np.ndindex(*x.shape[2:]), np.ndindex(*kernel)):
        to = [i * s + t * d - p for i, t, s, d, p in zip(at, tap, strides, dilations, paddings, strict=True)]
        if all(0 <= i < m for i, m in zip(to, size, strict=True)):
            out[(slice(None), slice(None), *to)] += x[(..., *at)] @ f[(..., *tap)]
    return out


@pytest.mark.parametrize(
    ("stride", "dilation", "padding", "more"),
    [(1, 2, 0, 1), (1, 3, 0, 2), (1, 3, 1, 2), (2, 3, 1, 2), (2, 5, 0, 4), (2, 5, 2, 4), (3, 5, 4, 3), (1, 5, 2, 4)],
)
@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 3])
def test_output_padding_may_reach_the_stride_below_the_dilation(stride, dilation, padding, more, kernel, size):
    x, f = R.standard_normal((2, 2, size)), R.standard_normal((2, 3, kernel))
    attrs = {"strides": (stride,), "dilations": (dilation,), "paddings": (padding,), "output_padding": (more,)}
    if (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1 + more < 0:
        with pytest.raises(ProgramError, match="leave no output"):
            transposed(x, f, **attrs)
        return

    np.testing.assert_allclose(transposed(x, f, **attrs), by_definition(x, f, **attrs), atol=1e-12)


def test_the_axes_of_an_image_take_their_own_output_padding():
    x, f = R.standard_normal((1, 2, 2, 3)), R.standard_normal((2, 2, 2, 3))
    attrs = {"strides": (1, 2), "dilations": (3, 2), "paddings": (1, 0), "output_padding": (2, 1)}

    np.testing.assert_allclose(transposed(x, f, **attrs), by_definition(x, f, **attrs), atol=1e-12)


def test_an_output_padding_of_stride_and_dilation_is_refused_with_the_three_values():
    with pytest.raises(ProgramError) as error:
        transposed(np.ones((1, 1, 2)), np.ones((1, 1, 2)), strides=(2,), dilations=(3,), output_padding=(3,))

    assert error.value.message == "output_padding [3] must be below the stride [2] or the dilation [3]"
