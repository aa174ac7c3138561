"""Selection among values of any shapes by an index; `print` and `assert`."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from core.ir import INTEGERS, TensorType
from core.ir.bounds import Bounds
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, op
from core.ops.common.ranges import OpenSize
from core.ops.common.types import axis_of, joined_type, matches, same_size

__all__: list[str] = []

X = np.array([[1.0, -2.0], [0.5, 4.0]])
MAX_MESSAGE, MAX_ELEMENTS = 200, 1000
"""Limits of `print`: characters of a message, and elements of a value."""


def _check_index(index: TensorType) -> None:
    if index.dtype not in ("bool", *INTEGERS) or any(n not in (1, -1) for n in index.shape):
        raise ProgramError(f"the index must be one integer or bool, not {index}", "dtype_mismatch")


def _chosen(index, count: int) -> int:
    at = int(index.reshape(()))
    if not 0 <= at < count:
        raise ExecutionError(f"index {at} is out of range for {count} values", "index_out_of_range")
    return at


@op
def select_input(xp, index, *x):
    """``out = x[index]``: one of several values, whose shapes may differ. Only the selected one gets the gradient."""
    return x[_chosen(index, len(x))]


@select_input.infer
def select_input_infer(index, *x):
    _check_index(index)
    if not x:
        raise ProgramError("select_input needs at least one value", "bad_slot")
    out = x[0]
    for each in x[1:]:
        out = joined_type(out, each, "type_mismatch", "the values to select from differ")
    return out


select_input.vjp(lambda ct, out, index, *x: (None, *_each(ct, index, x)))


def _each(ct, index, like):
    found = select_output(index, ct, *like)
    return found if isinstance(found, tuple) else (found,)


@op(outputs="out")
def select_output(xp, index, x, *like):
    """One value for each of `like`: ``out[index] = x``, and zeros shaped like the others."""
    at = _chosen(index, len(like))
    return tuple(x if i == at else xp.zeros(each.shape, each.dtype) for i, each in enumerate(like))


@select_output.infer
def select_output_infer(index, x, *like):
    _check_index(index)
    if not like or any(each.dtype != x.dtype or each.rank != x.rank for each in like):
        raise ProgramError(f"{x} cannot stand for any of its alternatives", "type_mismatch")
    return tuple(joined_type(each, x, "type_mismatch", "x and its alternatives differ") for each in like)


@select_output.vjp
def select_output_vjp(ct, out, index, x, *like):
    return (None, select_input(index, *ct), *(None for _ in like))


_ONE, _ZERO = np.array(1), np.array(0)
select_input.example(
    lambda: [
        Example((_ONE, X, X + 1), (X + 1,)),
        Example((np.array(True), X, X[:1]), (X[:1],)),
        Example((_ZERO, X[:0], X[:0]), (X[:0],)),
    ]
)
select_output.example(
    lambda: [
        Example((_ONE, X, X, X), (0 * X, X)),
        Example((_ZERO, X[:1], X[:1], X[:1], X[:1]), (X[:1], 0 * X[:1], 0 * X[:1])),
        Example((_ZERO, X[:0], X[:0]), (X[:0],)),
    ]
)


@op(reports=True)
def print_(
    xp,
    x,
    *,
    message: Annotated[str, Bounds(max_length=MAX_MESSAGE)] = "",
    summarize: Annotated[int, Bounds(ge=0, le=MAX_ELEMENTS)] = 20,
    first_n: int = -1,
):
    """``out = x``. The answer of the run reports the first `summarize` elements of x under `messages`.

    A print whose output is not read does nothing, as any op that no result needs: write it over x, or read it. Inside a
    loop each trip reports, up to `first_n` times (below 0: always) and 100 times in a run; further messages are only
    counted. The backward pass reports nothing, not even where it computes x again.
    """
    return x


@print_.infer
def print_infer(x, *, message, summarize, first_n):
    return x


print_.vjp(lambda ct, out, x, **how: ct)
print_.example(
    lambda: [
        Example((X,), (X,), {"message": "x is"}),
        Example((X[:0],), (X[:0],)),
        Example((X[0, 0],), (X[0, 0],), {"summarize": 0, "first_n": 1}),
    ]
)


@op
def assert_(xp, x, condition):
    """``out = x``. If an element of `condition` is false, the run ends with an error at this op."""
    if not bool(xp.all(condition)):
        raise ExecutionError("an assertion of the program does not hold", "assertion_failed")
    return x


@assert_.infer
def assert_infer(x, condition):
    if condition.dtype != "bool":
        raise ProgramError(f"the condition must be bool, not {condition}", "dtype_mismatch")
    return x


assert_.vjp(lambda ct, out, x, condition: (ct, None))
assert_.example(
    lambda: [
        Example((X, X > -9), (X,)),
        Example((X[:0], np.array(True)), (X[:0],)),
        Example((X[0, 0], X > -9), (X[0, 0],)),
    ]
)


@op
def check_shape(xp, x, like=None, *, shape: tuple[OpenSize, ...], axes: tuple[int, ...] = ()):
    """x, unchanged. A shape other than `shape` is an error of the run, at this op.

    A size of -1 matches any size. A function that declares sizes checks operands of unknown sizes this way.

    - `axes`: an axis of x and one of `like`, and so on. The sizes of x and `like` along each of these pairs are equal,
      or the run has an error.
    """
    for i, j in _pairs(axes):
        if x.shape[i] != like.shape[j]:
            raise ExecutionError(
                f"axis {i} of {list(x.shape)} and axis {j} of {list(like.shape)} must have one size", "shape_mismatch"
            )
    if x.ndim != len(shape) or any(wanted not in (-1, n) for n, wanted in zip(x.shape, shape, strict=True)):
        raise ExecutionError(f"a value has the shape {list(x.shape)}, not {list(shape)}", "shape_mismatch")
    return x


@check_shape.infer
def check_shape_infer(x, like, *, shape, axes):
    if not matches(x, TensorType(shape, x.dtype)):
        raise ProgramError(f"{x} cannot have the shape {list(shape)}", "shape_mismatch")
    sizes = [m if n == -1 else n for m, n in zip(x.shape, shape, strict=True)]
    if len(axes) % 2 or (like is None) != (not axes):
        raise ProgramError("axes must be pairs of an axis of x and an axis of like", "bad_attr")
    for i, j in _pairs(axes):
        i, j = axis_of(i, x.rank, "axes"), axis_of(j, like.rank, "axes")
        sizes[i] = same_size(sizes[i], like.shape[j], f"axis {i} of {x} and axis {j} of {like} differ")
    return TensorType(tuple(sizes), x.dtype)


def _pairs(axes: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(axes[::2], axes[1::2], strict=False))


check_shape.vjp(lambda ct, out, x, like, **how: (ct, None))
check_shape.example(
    lambda: [
        Example((X,), (X,), {"shape": (*X.shape[:-1], -1)}),
        Example((X[:0],), (X[:0],), {"shape": X[:0].shape}),
        Example((X[0, 0],), (X[0, 0],), {"shape": ()}),
        Example((X, X[0]), (X,), {"shape": (-1, -1), "axes": (1, 0)}),
        Example((X[:0], X.T), (X[:0],), {"shape": (0, -1), "axes": (-1, 0)}),
    ]
)
