"""Ops that make arrays from constants or from another array's shape."""

from __future__ import annotations

import numpy as np

from core.errors import ProgramError
from core.ir import StackType, TensorType, Type
from core.ops.types import as_dtype
from core.registry import Dtype, Example, op

__all__: list[str] = []

_CONSTANT = "its result is a constant"


@op(no_gradient=_CONSTANT)
def fill_constant(xp, *, shape: tuple[int, ...] = (), value: float = 0.0, dtype: Dtype = "float32"):
    """An array of `shape` holding `value` everywhere."""
    return xp.full(shape, value, dtype=as_dtype(dtype))


@fill_constant.infer
def fill_constant_infer(*, shape, value, dtype):
    if any(n < 0 for n in shape):
        raise ProgramError(f"a constant needs known sizes, not {list(shape)}", "bad_attr")
    check_fits(value, dtype)
    return TensorType(shape, dtype)


def check_fits(value: float, dtype: str) -> None:
    """Raises ProgramError (bad_attr) if `value` is no number of that dtype."""
    kind = as_dtype(dtype).kind
    if kind in "iu":
        info = np.iinfo(dtype)
        if not (float(value).is_integer() and info.min <= value <= info.max):
            raise ProgramError(f"{value} is no {dtype}", "bad_attr")
    elif kind == "b" and value not in (0, 1):
        raise ProgramError(f"{value} is no bool: use 0 or 1", "bad_attr")


fill_constant.example(
    lambda: [Example((), (np.full((2, 3), 1.5),), {"shape": (2, 3), "value": 1.5, "dtype": "float64"})]
)


@op(stacks=True, no_gradient=_CONSTANT)
def fill_zeros_like(xp, x):
    """Zeros of the shape and dtype of x (of what a loop recorded: of each element)."""
    if isinstance(x, list):
        return [None if each is None else fill_zeros_like.body(xp, each) for each in x]
    return xp.zeros(x.shape, x.dtype)


fill_zeros_like.infer(lambda x: x)
fill_zeros_like.example(lambda: [Example((np.ones((2, 3)),), (np.zeros((2, 3)),))])


@op(no_gradient=_CONSTANT)
def full_like(xp, x, *, value: float):
    """An array of the shape and dtype of x, holding `value` everywhere."""
    return xp.full(x.shape, value, dtype=x.dtype)


@full_like.infer
def full_like_infer(x, *, value):
    check_fits(value, x.dtype)
    return x


full_like.example(lambda: [Example((np.ones((2, 3)),), (np.full((2, 3), 7.0),), {"value": 7.0})])


@op(no_gradient=_CONSTANT)
def empty_stack(xp, *, depth: int = 1, shape: tuple[int, ...] = (), dtype: Dtype = "float32"):
    """What a loop that never ran recorded: a stack (`depth` times nested) of no arrays of that shape."""
    return []


@empty_stack.infer
def empty_stack_infer(*, depth, shape, dtype):
    if not 1 <= depth <= 1000:
        raise ProgramError(f"depth {depth} is not within 1 to 1000", "bad_attr")
    out: Type = TensorType(shape, dtype)
    for _ in range(depth):
        out = StackType(out)
    return out


empty_stack.example(lambda: [Example((), ([],), {"shape": (2,)})])
