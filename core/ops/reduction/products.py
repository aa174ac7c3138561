"""Products over axes, with gradients that use no division."""

from __future__ import annotations

import numpy as np

from core.ir.registry import Example, composite, op
from core.ops.common.types import axes_of, working_dtype
from core.ops.reduction.cumulative import cumprod
from core.ops.reduction.sums import reduced_number, restored
from core.ops.shape.creation import full_like

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
CUBE = np.sin(np.arange(12.0) * 7 + 1).reshape(2, 3, 2)


@op
def reduce_prod(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False):
    """Product over `axes`: ``x[0] * x[1] * ...``.

    The gradient of an element is the product of the others. It uses no division, so it is exact for zeros.
    """
    return xp.prod(x, axis=axes, keepdims=keepdims, dtype=working_dtype(x)).astype(x.dtype, copy=False)


reduce_prod.infer(reduced_number)


@reduce_prod.vjp
def reduce_prod_vjp(ct, out, x, *, axes, keepdims):
    return product_of_others(x, axes=axes) * restored(ct, x, axes=axes, keepdims=keepdims)


reduce_prod.example(
    lambda: [
        Example((X,), (X.prod(),)),
        Example((X,), (X.prod(1, keepdims=True),), {"axes": (1,), "keepdims": True}),
        Example((X,), (X.prod(0),), {"axes": (0,)}),
        Example((CUBE,), (CUBE.prod((0, 2)),), {"axes": (0, 2)}),
        Example((np.array([[0.0, 2.0], [3.0, 0.0]]),), (np.zeros(2),), {"axes": (1,)}),
        Example((X[:0],), (np.ones(3),), {"axes": (0,)}),
    ]
)


@composite
def product_of_others(x, *, axes: tuple[int, ...] | None = None):
    """For each element, the product of all other elements over `axes`: ``prod(x) / x[i]``, without a division."""
    # Along one axis: product before the element * product after it. The next axis works on the products of whole lines.
    reduced = axes_of(axes, x.rank)
    out, lines = None, x
    for axis in reduced:
        before = cumprod(lines, axis=axis, exclusive=True)
        after = cumprod(lines, axis=axis, exclusive=True, reverse=True)
        out = before * after if out is None else out * (before * after)
        if axis != reduced[-1]:
            lines = reduce_prod(lines, axes=(axis,), keepdims=True)
    return full_like(x, value=1.0) if out is None else out


product_of_others.example(
    lambda: [
        Example((np.array([0.0, 2.0, 3.0]),), (np.array([6.0, 0.0, 0.0]),)),
        Example((X,), (X.prod(1, keepdims=True) / X,), {"axes": (1,)}),
        Example((X,), (X.prod() / X,)),
        Example((CUBE,), (CUBE.prod((0, 2), keepdims=True) / CUBE,), {"axes": (0, 2)}),
        Example((X[:0],), (X[:0],), {"axes": (0,)}),
        Example((X,), (np.ones((2, 3)),), {"axes": ()}),
    ]
)
