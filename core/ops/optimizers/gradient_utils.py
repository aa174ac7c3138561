"""Ops on gradients: clipping by norm, checks, and division by a loss scale. They can be differentiated again."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.ranges import Positive
from core.ops.common.types import floating
from core.ops.elementwise.arithmetic import cast
from core.ops.elementwise.logic import greater_than, logical_and, where
from core.ops.elementwise.math import rsqrt
from core.ops.elementwise.rounding import isfinite
from core.ops.reduction.statistics import squared_l2_norm
from core.ops.reduction.sums import reduce_sum, sum_
from core.ops.shape.creation import fill_zeros_like, full_like
from core.ops.shape.reshape import reshape, reshape_to

__all__: list[str] = []

G = np.array([[3.0, 0.0], [0.0, -4.0]])
H = np.array([1.0, 2.0, -2.0])


@composite
def grad_add(x, y):
    """``out = x + y``: the sum of two contributions to one gradient."""
    return x + y


grad_add.example(lambda: [Example((G, G), (2 * G,)), Example((H, H[:1]), (H + 1,)), Example((G[:0], G[:0]), (G[:0],))])


@composite
def clip_by_norm(x, *, max_norm: Positive):
    """``out = x * min(1, max_norm / norm(x))``, with the 2-norm of all elements. The norm is differentiated too."""
    return clip_by_global_norm(x, max_norm=max_norm)


clip_by_norm.example(
    lambda: [
        Example((G,), (G / 5,), {"max_norm": 1.0}),
        Example((H,), (H,), {"max_norm": 4.0}),
        Example((H[0],), (H[0] / 2,), {"max_norm": 0.5}),
        Example((G[:0],), (G[:0],), {"max_norm": 4.0}),
    ]
)


@op(outputs="out")
def clip_by_global_norm(xp, *x, max_norm: Positive):
    """``out = x * min(1, max_norm / norm)`` for each of x, with the joint 2-norm of all of them (Pascanu et al. 2013).

    The norm is computed in float64. If it is not finite, all x stay as they are. The norm is differentiated too; if it
    equals `max_norm`, the gradient is that without clipping.
    """
    total = xp.sqrt(sum((xp.sum(xp.square(v.astype("float64"))) for v in x), xp.zeros((), "float64")))
    if not bool(xp.isfinite(total)):
        return x
    factor = max_norm / xp.maximum(total, max_norm)
    return tuple((v * factor).astype(v.dtype) for v in x)


@clip_by_global_norm.infer
def clip_by_global_norm_infer(*x, max_norm):
    return tuple(floating(v) for v in x)


@clip_by_global_norm.vjp
def clip_by_global_norm_vjp(ct, out, *x, max_norm):
    # out_i = f x_i, and f depends on all elements of all x: d f / d x = -f x / norm^2 where it clips
    wide = [cast(v, dtype="float64") for v in x]
    cts = [cast(c, dtype="float64") for c in ct]
    total = sum_(*(squared_l2_norm(v) for v in wide))
    clips = logical_and(
        greater_than(total, full_like(total, value=max_norm * max_norm)),
        isfinite(total),
    )
    wide = [where(clips, v, fill_zeros_like(v)) for v in wide]  # an element may be inf
    safe = where(clips, total, full_like(total, value=1.0))
    factor = where(clips, rsqrt(safe) * max_norm, full_like(total, value=1.0))
    along = sum_(*(reduce_sum(v * c) for v, c in zip(wide, cts, strict=True)))
    back = where(clips, factor * along / safe, fill_zeros_like(total))
    return tuple(cast(c * factor - v * back, dtype=w.dtype) for v, c, w in zip(wide, cts, x, strict=True))


clip_by_global_norm.example(
    lambda: [
        Example((G, H), (G / 34**0.5, H / 34**0.5), {"max_norm": 1.0}),
        Example((G, H[:0]), (G, H[:0]), {"max_norm": 9.0}),
        Example((H[0],), (H[0] / 2,), {"max_norm": 0.5}),
    ]
)


@op
def check_finite(xp, x):
    """``out = x``. If an element is not finite, the run ends with an error at this op."""
    if not bool(xp.all(xp.isfinite(x))):
        raise ExecutionError("a value is not finite", "not_finite")
    return x


check_finite.infer(floating)
check_finite.vjp(lambda ct, out, x: ct)
check_finite.example(lambda: [Example((G,), (G,)), Example((G[:0],), (G[:0],)), Example((G[0, 0],), (G[0, 0],))])


@op(outputs="out")
def unscale(xp, scale, *x):
    """``x / scale`` for each of x, where the loss scale is one number; then a bool: whether an element is not
    finite.
    """
    found = xp.zeros((), bool)
    for v in x:
        found = found | ~xp.all(xp.isfinite(v))
    one = scale.reshape(())
    return (*((v / one).astype(v.dtype) for v in x), found)


@unscale.infer
def unscale_infer(scale, *x):
    if not scale.is_float or any(n not in (1, -1) for n in scale.shape):
        raise ProgramError(f"the loss scale must be a single number, not {scale}", "shape_mismatch")
    return (*(floating(v) for v in x), TensorType((), "bool"))


@unscale.vjp
def unscale_vjp(ct, out, scale, *x):
    one = reshape(scale, shape=())
    back = [c / cast(one, dtype=v.dtype) for c, v in zip(ct, x, strict=False)]
    lost = [cast(reduce_sum(b * o), dtype=scale.dtype) for b, o in zip(back, out, strict=False)]
    total = sum_(*lost) if lost else fill_zeros_like(one)
    return (reshape_to(-total, scale), *back)


unscale.example(
    lambda: [
        Example((np.array(4.0), G, H), (G / 4, H / 4, np.array(False))),
        Example((np.array([4.0]), G[:0]), (G[:0], np.array(False))),
        Example((np.array([4.0]), G[0, 0]), (G[0, 0] / 4, np.array(False))),
        Example((np.array(4.0), np.array([np.inf])), (np.array([np.inf]), np.array(True)), smooth=False),
    ]
)
