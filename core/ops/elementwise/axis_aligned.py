"""Arithmetic with Fluid's `axis` attribute, which aligns y with the axes of x from `axis` on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from core.ir.builder import Value
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite, lookup
from core.ops.shape.reshape import unsqueeze

__all__ = ["ALIGNED"]

X = np.array([[[1.0, 2.0, 0.5], [3.0, 0.75, 1.5]], [[2.5, 1.25, 4.0], [0.3, 5.0, 2.2]]])
Y = np.array([1.6, 0.7])

ALIGNED: dict[str, str] = {}
"""Op -> its form with an `axis` attribute. A program may use either name for the second."""


def _aligned(x: Value, y: Value, axis: int | None) -> Value:
    """y with trailing axes of size 1, so that its first axis aligns with `axis` of x."""
    if axis is None or axis == -1:
        return y
    trailing = x.rank - axis - y.rank
    if axis < 0 or trailing < 0:
        raise ProgramError(f"y={y.type} does not fit into x={x.type} from axis {axis} on", "bad_attr")
    return unsqueeze(y, axes=tuple(range(y.rank, y.rank + trailing))) if trailing else y


def _declare(base: str, name: str, function: Callable[[Any, Any], Any]) -> None:
    """Declare the form of the op `base` with an `axis` attribute. `function` computes the results of its examples."""

    def body(x, y, *, axis: int | None = None):
        return lookup(base)(x, _aligned(x, y, axis))

    body.__name__ = name
    body.__doc__ = f"""`{base}` with the axes of y aligned to the axes of x from `axis` on.

    With x [2, 3, 4, 5], y [3, 4] and axis 1, y is used as [1, 3, 4, 1]. An axis of -1 or null means NumPy's
    broadcasting, which aligns the last axes. `{base}` with an attribute `axis` is this op.
    """
    ALIGNED[base] = name
    composite(body).example(
        lambda: [
            Example((X, Y), (function(X, Y[:, None]),), {"axis": 1}),
            Example((X, X[:, 0, 0] + 0.1), (function(X, X[:, :1, :1] + 0.1),), {"axis": 0}),
            Example((X, X[:, :, 0] + 0.1), (function(X, X[:, :, :1] + 0.1),), {"axis": 0}),
            Example((X[0], X[0, 1] + 0.1), (function(X[0], X[0, 1] + 0.1),), {"axis": -1}),
            Example((X[:, :0], Y[:0]), (X[:, :0],), {"axis": 1}),
            Example((Y, np.array(0.9)), (function(Y, 0.9),)),
        ]
    )


_declare("add", "elementwise_add", lambda x, y: x + y)
_declare("sub", "elementwise_sub", lambda x, y: x - y)
_declare("mul", "elementwise_mul", lambda x, y: x * y)
_declare("div", "elementwise_div", lambda x, y: x / y)
_declare("pow", "elementwise_pow", lambda x, y: np.exp(y * np.log(x)))
_declare("maximum", "elementwise_max", lambda x, y: np.where(x > y, x, y))
_declare("minimum", "elementwise_min", lambda x, y: np.where(x < y, x, y))
_declare("mod", "elementwise_mod", lambda x, y: x - np.floor(x / y) * y)
_declare("floor_div", "elementwise_floordiv", lambda x, y: np.floor(x / y))
