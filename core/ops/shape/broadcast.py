"""Broadcasting to a larger shape, and the sums that are its transpose."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, op
from core.ops.common.long_sums import summed
from core.ops.common.ranges import OpenSize, Size
from core.ops.common.types import fits

__all__ = ["expand_to"]

X = np.arange(6.0).reshape(2, 3)
EMPTY = X[:0]
A = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
CUBE = np.sin(np.arange(12.0) * 7 + 1).reshape(2, 3, 2)


@op
def expand(xp, x, *, shape: tuple[OpenSize, ...]):
    """x broadcast to `shape`. A size of -1 keeps the size of x."""
    return xp.broadcast_to(x, _resolved(x.shape, shape))


def _resolved(sizes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with each -1 replaced by the size in `sizes`."""
    return tuple(sizes[i] if shape[i] == -1 else shape[i] for i in range(-len(shape), 0))


@expand.infer
def expand_infer(x, *, shape):
    if len(shape) < x.rank:
        raise ProgramError(f"cannot expand {x} to {list(shape)}: it has more axes", "shape_mismatch")
    if -1 in shape[: len(shape) - x.rank]:
        raise ProgramError(f"expand needs sizes of at least 0, or -1 for an axis of {x}, not {list(shape)}", "bad_attr")
    out = _resolved(x.shape, shape)
    if any(n not in (-1, 1, m) for n, m in zip(x.shape[::-1], out[::-1], strict=False)):
        raise ProgramError(f"cannot expand {x} to {list(shape)}", "shape_mismatch")
    return TensorType(out, x.dtype)


def _expand_vjp(ct, x):
    if x.type.is_static and ct.type.is_static:
        return sum_to(ct, shape=x.shape)
    return sum_to_like(ct, x)


expand.vjp(lambda ct, out, x, *, shape: _expand_vjp(ct, x))
expand.example(
    lambda: [
        Example((X[:1],), (np.broadcast_to(X[:1], (4, 3)),), {"shape": (4, 3)}),
        Example((X[:, :1],), (np.array([[0.0, 0], [3, 3]]) + np.zeros((2, 2, 2)),), {"shape": (2, -1, 2)}),
        Example((X[0, 1],), (np.ones(3),), {"shape": (3,)}),
        Example((X[:1],), (EMPTY,), {"shape": (0, 3)}),
        Example((EMPTY,), (np.zeros((2, 0, 3)),), {"shape": (2, -1, 3)}),
    ]
)


@op
def expand_as(xp, x, like):
    """x broadcast to the shape of `like`, which gives only its shape."""
    return xp.broadcast_to(x, like.shape)


@expand_as.infer
def expand_as_infer(x, like):
    if not fits(x.shape, like.shape):
        raise ProgramError(f"cannot expand {x} to {like}", "shape_mismatch")
    return TensorType(like.shape, x.dtype)


expand_as.vjp(lambda ct, out, x, like: (_expand_vjp(ct, x), None))
expand_as.example(
    lambda: [
        Example((X[:1], np.zeros((4, 3))), (np.broadcast_to(X[:1], (4, 3)),)),
        Example((X[0, 1], np.zeros((1, 3))), (np.ones((1, 3)),)),
        Example((X[:1], EMPTY), (EMPTY,)),
    ]
)


def expand_to(value, like):
    """`value` broadcast to the shape of `like`, through a constant shape if the shape is static."""
    if like.type.is_static:
        return expand(value, shape=like.shape)
    return expand_as(value, like)


@op
def sum_to(xp, x, *, shape: tuple[Size, ...]):
    """x summed to `shape`: the transpose of broadcasting an array of `shape` to x."""
    return _sum_to(xp, x, shape)


def _sum_to(xp, x, shape):
    extra = x.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(i for i, n in enumerate(shape, start=extra) if n == 1 and x.shape[i] != 1)
    if axes:
        x = summed(xp, x, axes, keepdims=True).astype(x.dtype, copy=False)
    if x.shape[extra:] != tuple(shape):
        raise ExecutionError(f"shape {list(shape)} does not broadcast to shape {list(x.shape)}", "shape_mismatch")
    return x.reshape(shape) if extra else x


@sum_to.infer
def sum_to_infer(x, *, shape):
    _check_sum(x, shape)
    return TensorType(shape, x.dtype)


def _check_sum(x: TensorType, shape: tuple[int, ...]) -> None:
    """Raises ProgramError (shape_mismatch) if an array of `shape` cannot be broadcast to the shape of x."""
    if not fits(shape, x.shape):
        raise ProgramError(f"cannot sum {x} to {list(shape)}: that does not broadcast to {x}", "shape_mismatch")


sum_to.vjp(lambda ct, out, x, *, shape: expand_to(ct, x))
sum_to.example(
    lambda: [
        Example((A,), (A.sum(1, keepdims=True),), {"shape": (2, 1)}),
        Example((CUBE,), (CUBE.sum((0, 2))[:, None],), {"shape": (3, 1)}),
        Example((A[:0],), (np.zeros(3),), {"shape": (3,)}),
    ]
)


@op
def sum_to_like(xp, x, like):
    """x summed to the shape of `like`: the transpose of `expand_as`. `like` gives only its shape."""
    return _sum_to(xp, x, like.shape)


@sum_to_like.infer
def sum_to_like_infer(x, like):
    _check_sum(x, like.shape)
    return TensorType(like.shape, x.dtype)


sum_to_like.vjp(lambda ct, out, x, like: (expand_to(ct, x), None))
sum_to_like.example(
    lambda: [
        Example((A, A[:1]), (A.sum(0, keepdims=True),)),
        Example((CUBE, CUBE[0, :, :1]), (CUBE.sum((0, 2))[:, None],)),
        Example((A[:0], A[0]), (np.zeros(3),)),
    ]
)
