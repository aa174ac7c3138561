"""Operators on small constants, computed while the model is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["MOST", "folded"]

MOST = 64
"""Elements of the largest constant that is folded."""

KINDS = ("int64", "bool")


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axes, *, keepdims: function(x, axis=tuple(axes.tolist()), keepdims=bool(keepdims), dtype=x.dtype)


def _cumsum(x: np.ndarray, axis: np.ndarray, *, exclusive: int = 0, reverse: int = 0) -> np.ndarray:
    turned = np.flip(x, int(axis)) if reverse else x
    sums = np.cumsum(turned, axis=int(axis)) - (turned if exclusive else 0)
    return np.flip(sums, int(axis)) if reverse else sums


OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Max": np.maximum,
    "Min": np.minimum,
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
    "Where": np.where,
    "Unsqueeze": lambda x, axes: np.expand_dims(x, tuple(axes.tolist())),
    "Squeeze": lambda x, axes: np.squeeze(x, tuple(axes.tolist())),
    "Concat": lambda *x, axis: np.concatenate(x, axis=axis),
    "Gather": lambda x, index, *, axis: np.take(x, index, axis=axis),
    "CumSum": _cumsum,
    "ReduceSum": _reduced(np.sum),
    "ReduceProd": _reduced(np.prod),
    "Reshape": lambda x, shape, allowzero=0: x.reshape(shape.tolist()),
    "Slice": lambda x, starts, ends, axes, steps: x[
        tuple(
            next(
                (
                    slice(s, e, t)
                    for s, e, a, t in zip(starts.tolist(), ends.tolist(), axes.tolist(), steps.tolist(), strict=True)
                    if a == axis
                ),
                slice(None),
            )
            for axis in range(x.ndim)
        )
    ],
}


def folded(operator: str, inputs: Sequence[np.ndarray | None], attrs: Mapping[str, Any]) -> np.ndarray | None:
    """The result of an operator on constants, or None if it is not folded."""
    rule = OPERATORS.get(operator)
    if rule is None or any(x is None or x.size > MOST or str(x.dtype) not in KINDS for x in inputs):
        return None
    if operator == "Gather":
        x, index = inputs
        assert x is not None and index is not None
        if ((index < -x.shape[attrs["axis"]]) | (index >= x.shape[attrs["axis"]])).any():
            return None
    out = np.asarray(rule(*inputs, **attrs))
    return out if out.size <= MOST else None
