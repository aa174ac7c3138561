"""Comparisons, logic and selection, element by element."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, op
from core.ops.common.types import broadcast
from core.ops.shape.creation import fill_zeros_like

__all__ = ["where_or_zero"]

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
    """Whether x equals y: ``x == y``, as bool."""
    return xp.equal(x, y)


equal.infer(_compare)
equal.example(lambda: [Example((A, A[:1]), (A[:1] == A,))])


@op(elementwise=True, no_gradient=_BOOL)
def not_equal(xp, x, y):
    """Whether x differs from y: ``x != y``, as bool."""
    return xp.not_equal(x, y)


not_equal.infer(_compare)
not_equal.example(lambda: [Example((A, A[:1]), (A[:1] != A,))])


@op(elementwise=True, no_gradient=_BOOL)
def less_than(xp, x, y):
    """Whether x is less than y: ``x < y``, as bool."""
    return xp.less(x, y)


less_than.infer(_compare)
less_than.example(lambda: [Example((A, B), (A < B,))])


@op(elementwise=True, no_gradient=_BOOL)
def less_equal(xp, x, y):
    """Whether x is at most y: ``x <= y``, as bool."""
    return xp.less_equal(x, y)


less_equal.infer(_compare)
less_equal.example(lambda: [Example((A, B), (A <= B,))])


@op(elementwise=True, no_gradient=_BOOL)
def greater_than(xp, x, y):
    """Whether x is greater than y: ``x > y``, as bool."""
    return xp.greater(x, y)


greater_than.infer(_compare)
greater_than.example(lambda: [Example((A, B), (A > B,))])


@op(elementwise=True, no_gradient=_BOOL)
def greater_equal(xp, x, y):
    """Whether x is at least y: ``x >= y``, as bool."""
    return xp.greater_equal(x, y)


greater_equal.infer(_compare)
greater_equal.example(lambda: [Example((A, B), (A >= B,))])


@op(elementwise=True, no_gradient=_BOOL)
def logical_and(xp, x, y):
    """Logical and of two bools: ``out = x and y``, element by element."""
    return xp.logical_and(x, y)


logical_and.infer(_logical)
logical_and.example(lambda: [Example((A > 0, B > 0), ((A > 0) & (B > 0),))])


@op(elementwise=True, no_gradient=_BOOL)
def logical_or(xp, x, y):
    """Logical or of two bools: ``out = x or y``, element by element."""
    return xp.logical_or(x, y)


logical_or.infer(_logical)
logical_or.example(lambda: [Example((A > 0, B > 0), ((A > 0) | (B > 0),))])


@op(elementwise=True, no_gradient=_BOOL)
def logical_xor(xp, x, y):
    """Exclusive or of two bools: ``out = x != y``, true where exactly one of them is true."""
    return xp.logical_xor(x, y)


logical_xor.infer(_logical)
logical_xor.example(lambda: [Example((A > 0, B > 0), ((A > 0) ^ (B > 0),))])


@op(elementwise=True, no_gradient=_BOOL)
def logical_not(xp, x):
    """Negation of a bool: ``out = not x``, element by element."""
    return xp.logical_not(x)


logical_not.infer(_logical)
logical_not.example(lambda: [Example((A > 0,), (A <= 0,))])


@op(elementwise=True)
def where(xp, condition, x, y):
    """Elementwise selection: ``out = x`` where `condition` (bool) holds, else y. Shapes broadcast.

    The operand that is not selected gets gradient 0 at that place. If the *computation* of that operand contains a NaN
    or infinity there, its gradient is still NaN (0 * inf). To avoid this, use `safe_where`, or pass the input of that
    computation through `mask_gradient`.
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
    """x broadcast to the shape of `condition` (bool). Gradient flows back only where the condition holds.

    Elsewhere the gradient is set to 0 by selection and not by a product, so an incoming NaN or infinity is dropped.
    Apply it to the input of a computation whose result a `where` discards at the same places.
    """
    return x if condition.ndim == 0 else xp.where(condition, x, x)


def where_or_zero(condition, value):
    """The symbol of `value` where `condition` holds, else 0. It selects and does not multiply: NaN * 0 is NaN."""
    return where(condition, value, value.builder.constant(0.0, value.dtype))


mask_gradient.infer(lambda condition, x: where_infer(condition, x, x))
mask_gradient.vjp(lambda ct, out, condition, x: (None, where_or_zero(condition, ct)))
# A masked gradient differs from the gradient of the function, so the examples are not smooth.
mask_gradient.example(
    lambda: [
        Example((A > 0, A), (A,), smooth=False),
        Example((np.ones((2, 3), bool), A), (A,)),
        Example((A > 0, B), (np.array([B, B]),), smooth=False),
        Example((A[:0] > 0, B), (A[:0],)),
        Example((np.array(True), A[0, 0]), (A[0, 0],)),
    ]
)
