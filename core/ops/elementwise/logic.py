"""Comparisons, logic, and the choice between two values, element by element."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, op
from core.ops.common.types import broadcast
from core.ops.shape.creation import fill_zeros_like

__all__ = ["kept_where"]

A = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
B = np.array([2.0, 0.25, -1.0])


def _compare(x: TensorType, y: TensorType) -> TensorType:
    return TensorType(broadcast(x, y).shape, "bool")


def _logical(*types: TensorType) -> TensorType:
    for each in types:
        if each.dtype != "bool":
            raise ProgramError(f"needs bool inputs, not {each}", "dtype_mismatch")
    return broadcast(*types)


_BOOL = "its result is bool"


@op(elementwise=True, no_gradient=_BOOL)
def equal(xp, x, y):
    """``x == y``, as bool."""
    return xp.equal(x, y)


equal.infer(_compare)
equal.example(lambda: [Example((A, A[:1]), (A[:1] == A,))])


@op(elementwise=True, no_gradient=_BOOL)
def not_equal(xp, x, y):
    """``x != y``, as bool."""
    return xp.not_equal(x, y)


not_equal.infer(_compare)
not_equal.example(lambda: [Example((A, A[:1]), (A[:1] != A,))])


@op(elementwise=True, no_gradient=_BOOL)
def less_than(xp, x, y):
    """``x < y``, as bool."""
    return xp.less(x, y)


less_than.infer(_compare)
less_than.example(lambda: [Example((A, B), (A < B,))])


@op(elementwise=True, no_gradient=_BOOL)
def less_equal(xp, x, y):
    """``x <= y``, as bool."""
    return xp.less_equal(x, y)


less_equal.infer(_compare)
less_equal.example(lambda: [Example((A, B), (A <= B,))])


@op(elementwise=True, no_gradient=_BOOL)
def greater_than(xp, x, y):
    """``x > y``, as bool."""
    return xp.greater(x, y)


greater_than.infer(_compare)
greater_than.example(lambda: [Example((A, B), (A > B,))])


@op(elementwise=True, no_gradient=_BOOL)
def greater_equal(xp, x, y):
    """``x >= y``, as bool."""
    return xp.greater_equal(x, y)


greater_equal.infer(_compare)
greater_equal.example(lambda: [Example((A, B), (A >= B,))])


@op(elementwise=True, no_gradient=_BOOL)
def logical_and(xp, x, y):
    """``out = x and y``, element by element."""
    return xp.logical_and(x, y)


logical_and.infer(_logical)
logical_and.example(lambda: [Example((A > 0, B > 0), ((A > 0) & (B > 0),))])


@op(elementwise=True, no_gradient=_BOOL)
def logical_or(xp, x, y):
    """``out = x or y``, element by element."""
    return xp.logical_or(x, y)


logical_or.infer(_logical)
logical_or.example(lambda: [Example((A > 0, B > 0), ((A > 0) | (B > 0),))])


@op(elementwise=True, no_gradient=_BOOL)
def logical_xor(xp, x, y):
    """``out = x != y`` of bools: true where just one is."""
    return xp.logical_xor(x, y)


logical_xor.infer(_logical)
logical_xor.example(lambda: [Example((A > 0, B > 0), ((A > 0) ^ (B > 0),))])


@op(elementwise=True, no_gradient=_BOOL)
def logical_not(xp, x):
    """``out = not x``, element by element."""
    return xp.logical_not(x)


logical_not.infer(_logical)
logical_not.example(lambda: [Example((A > 0,), (A <= 0,))])


@op(elementwise=True)
def where(xp, condition, x, y):
    """``out = x`` where `condition` (bool) holds, else y. Shapes broadcast.

    The gradient of the side not selected is 0 at that place. A NaN or infinity *inside the computation* of the side
    not selected still spoils its gradient (0 times inf): use `safe_where`, or pass that computation's input through
    `mask_gradient`.
    """
    return xp.where(condition, x, y)


@where.infer
def where_infer(condition, x, y):
    if condition.dtype != "bool":
        raise ProgramError(f"the condition must be bool, not {condition}", "dtype_mismatch")
    both = broadcast(x, y)
    return TensorType(broadcast(TensorType(condition.shape, both.dtype), both).shape, both.dtype)


@where.vjp
def where_vjp(ct, out, condition, x, y):
    zero = fill_zeros_like(ct)
    return None, where(condition, ct, zero), where(condition, zero, ct)


where.example(lambda: [Example((A > 0, A, B), (np.where(A > 0, A, B),))])


@op(elementwise=True)
def mask_gradient(xp, condition, x):
    """``out = x``, stretched to the shape of `condition` (bool); gradient flows back only where the condition holds.

    Elsewhere the gradient is 0, put there and not multiplied: a NaN or infinity that arrives is gone. Used on the input
    of a computation whose result a `where` drops at the same places.
    """
    return x if condition.ndim == 0 else xp.where(condition, x, x)


def kept_where(condition, value):
    """A symbol for `value` where `condition` holds, else 0. A 0 that is put there: NaN or infinity times 0 is NaN."""
    return where(condition, value, value.builder.constant(0.0, value.dtype))


mask_gradient.infer(lambda condition, x: where_infer(condition, x, x))
mask_gradient.vjp(lambda ct, out, condition, x: (None, kept_where(condition, ct)))
# a gradient that is held back is not that of the function
mask_gradient.example(
    lambda: [
        Example((A > 0, A), (A,), smooth=False),
        Example((np.ones((2, 3), bool), A), (A,)),
        Example((A > 0, B), (np.array([B, B]),), smooth=False),
        Example((A[:0] > 0, B), (A[:0],)),
        Example((np.array(True), A[0, 0]), (A[0, 0],)),
    ]
)
