"""Ops that rearrange elements: reshapes, expansion, and axes that come and go."""

from __future__ import annotations

import numpy as np

from core.errors import ProgramError
from core.ir import TensorType
from core.ops.types import axes_of, broadcast_shapes, product
from core.registry import Example, lookup, op

__all__: list[str] = []

X = np.arange(6.0).reshape(2, 3)


@op
def reshape(xp, x, *, shape: tuple[int, ...]):
    """The same elements in row-major order under another shape. One size may be -1: it follows from the others."""
    return x.reshape(shape)


@reshape.infer
def reshape_infer(x, *, shape):
    if shape.count(-1) > 1 or any(n < -1 for n in shape):
        raise ProgramError(f"at most one size of {list(shape)} may be -1, and none below", "bad_attr")
    total, rest = product(x.shape), product(n for n in shape if n != -1)
    if total == -1:
        return TensorType(shape, x.dtype)
    if -1 in shape:
        if rest == 0 or total % rest:
            raise ProgramError(f"cannot reshape {x} to {list(shape)}", "shape_mismatch")
        return TensorType(tuple(total // rest if n == -1 else n for n in shape), x.dtype)
    if rest != total:
        raise ProgramError(f"cannot reshape {x} to {list(shape)}: {total} elements, not {rest}", "shape_mismatch")
    return TensorType(shape, x.dtype)


def reshape_to(value, like):
    """`value` under the shape of `like`, by a constant shape where it is known."""
    if like.type.is_static:
        return lookup("reshape")(value, shape=like.shape)
    return lookup("reshape_as")(value, like)


reshape.vjp(lambda ct, out, x, *, shape: reshape_to(ct, x))
reshape.example(
    lambda: [
        Example((X,), (X.reshape(3, 2),), {"shape": (3, 2)}),
        Example((X,), (X.reshape(-1),), {"shape": (-1,)}),
    ]
)


@op
def reshape_as(xp, x, like):
    """The elements of x under the shape of `like`, which gives only its shape."""
    return x.reshape(like.shape)


@reshape_as.infer
def reshape_as_infer(x, like):
    m, n = product(x.shape), product(like.shape)
    if m != n and -1 not in (m, n):
        raise ProgramError(f"cannot reshape {x} to {list(like.shape)}: {m} elements, not {n}", "shape_mismatch")
    return TensorType(like.shape, x.dtype)


reshape_as.vjp(lambda ct, out, x, like: (reshape_to(ct, x), None))
reshape_as.example(lambda: [Example((X, np.zeros((3, 2))), (X.reshape(3, 2),))])


@op
def expand(xp, x, *, shape: tuple[int, ...]):
    """x broadcast to `shape`."""
    return xp.broadcast_to(x, shape)


@expand.infer
def expand_infer(x, *, shape):
    if any(n < 0 for n in shape):
        raise ProgramError(f"expand needs known sizes, not {list(shape)}", "bad_attr")
    if len(shape) < x.rank or any(n not in (-1, 1, m) for n, m in zip(x.shape[::-1], shape[::-1], strict=False)):
        raise ProgramError(f"cannot expand {x} to {list(shape)}", "shape_mismatch")
    return TensorType(shape, x.dtype)


def _expand_vjp(ct, x):
    if x.type.is_static and ct.type.is_static:
        return lookup("sum_to")(ct, shape=x.shape)
    return lookup("sum_to_like")(ct, x)


expand.vjp(lambda ct, out, x, *, shape: _expand_vjp(ct, x))
expand.example(lambda: [Example((X[:1],), (np.broadcast_to(X[:1], (4, 3)),), {"shape": (4, 3)})])


@op
def expand_as(xp, x, like):
    """x broadcast to the shape of `like`, which gives only its shape."""
    return xp.broadcast_to(x, like.shape)


@expand_as.infer
def expand_as_infer(x, like):
    out = broadcast_shapes(x.shape, like.shape)
    if len(out) != like.rank:
        raise ProgramError(f"cannot expand {x} to {like}", "shape_mismatch")
    return TensorType(like.shape, x.dtype)


expand_as.vjp(lambda ct, out, x, like: (_expand_vjp(ct, x), None))
expand_as.example(lambda: [Example((X[:1], np.zeros((4, 3))), (np.broadcast_to(X[:1], (4, 3)),))])


@op
def unsqueeze(xp, x, *, axes: tuple[int, ...]):
    """x with new axes of size 1, at the places they have in the result."""
    return xp.expand_dims(x, axes)


@unsqueeze.infer
def unsqueeze_infer(x, *, axes):
    new = axes_of(axes, x.rank + len(axes))
    sizes = iter(x.shape)
    return TensorType(tuple(1 if i in new else next(sizes) for i in range(x.rank + len(axes))), x.dtype)


unsqueeze.vjp(lambda ct, out, x, *, axes: lookup("squeeze")(ct, axes=axes_of(axes, ct.rank)))
unsqueeze.example(
    lambda: [
        Example((X,), (X[:, None],), {"axes": (1,)}),
        Example((X,), (X[None, :, :, None],), {"axes": (0, -1)}),
    ]
)


@op
def squeeze(xp, x, *, axes: tuple[int, ...] | None = None):
    """x without the given axes, which must have size 1; null drops every axis of size 1."""
    return xp.squeeze(x, axis=axes)


@squeeze.infer
def squeeze_infer(x, *, axes):
    if axes is None:
        if -1 in x.shape:
            raise ProgramError(f"squeeze must name its axes: not all sizes of {x} are known", "bad_attr")
        return TensorType(tuple(n for n in x.shape if n != 1), x.dtype)
    gone = axes_of(axes, x.rank)
    if any(x.shape[i] not in (1, -1) for i in gone):
        raise ProgramError(f"cannot squeeze axes {list(gone)} of {x}: their size is not 1", "shape_mismatch")
    return TensorType(tuple(n for i, n in enumerate(x.shape) if i not in gone), x.dtype)


@squeeze.vjp
def squeeze_vjp(ct, out, x, *, axes):
    gone = axes_of(axes, x.rank) if axes is not None else tuple(i for i, n in enumerate(x.shape) if n == 1)
    return lookup("unsqueeze")(ct, axes=gone)


squeeze.example(lambda: [Example((X[:, None],), (X,), {"axes": (1,)}), Example((X[None, :, None],), (X,))])
