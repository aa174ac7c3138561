"""Choosing among values of any shapes by an index, and ops that only look at a value."""

from __future__ import annotations

import numpy as np

from core.errors import ExecutionError, ProgramError
from core.ir import INTEGERS, TensorType
from core.ops.types import joined_type, matches
from core.registry import Example, lookup, op

__all__: list[str] = []

X = np.array([[1.0, -2.0], [0.5, 4.0]])
MOST_SAID, MOST_SHOWN = 200, 1000
"""Characters of a message and elements of a value that `print` may tell."""


def _check_index(index: TensorType) -> None:
    if index.dtype not in ("bool", *INTEGERS) or any(n not in (1, -1) for n in index.shape):
        raise ProgramError(f"the index must be one integer or bool, not {index}", "dtype_mismatch")


def _chosen(index, count: int) -> int:
    at = int(index)
    if not 0 <= at < count:
        raise ExecutionError(f"there is no value number {at} among {count}", "index_out_of_range")
    return at


@op
def select_input(xp, index, *x):
    """Value number `index` of x. Shapes may differ; the gradient goes to the one that was chosen."""
    return x[_chosen(index, len(x))]


@select_input.infer
def select_input_infer(index, *x):
    _check_index(index)
    if not x:
        raise ProgramError("there is nothing to select from", "bad_slot")
    out = x[0]
    for each in x[1:]:
        out = joined_type(out, each, "type_mismatch", "the values to select from differ")
    return out


select_input.vjp(lambda ct, out, index, *x: (None, *_each(ct, index, x)))


def _each(ct, index, like):
    found = lookup("select_output")(index, ct, *like)
    return found if isinstance(found, tuple) else (found,)


@op(outputs="out")
def select_output(xp, index, x, *like):
    """As many values as there are in `like`: x as number `index`, zeros shaped like the others."""
    at = _chosen(index, len(like))
    return tuple(x if i == at else xp.zeros(each.shape, each.dtype) for i, each in enumerate(like))


@select_output.infer
def select_output_infer(index, x, *like):
    _check_index(index)
    if not like or any(each.dtype != x.dtype or each.rank != x.rank for each in like):
        raise ProgramError(f"{x} cannot stand for any of its alternatives", "type_mismatch")
    return tuple(joined_type(each, x, "type_mismatch", "the alternatives differ") for each in like)


@select_output.vjp
def select_output_vjp(ct, out, index, x, *like):
    return (None, lookup("select_input")(index, *ct), *(None for _ in like))


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
def print_(xp, x, *, message: str = "", summarize: int = 20, first_n: int = -1):
    """x, unchanged; the answer of the run tells what it was, under `messages`: the first `summarize` elements of it.

    Like all that nobody needs, a print whose output is not read does nothing: write it over x, or read it. Inside loops
    each trip says something, up to `first_n` times (below 0: always), and a run up to 100 times; further messages are
    counted. The gradient passes through without a word, and what is computed again for it is not told again.
    """
    return x


@print_.infer
def print_infer(x, *, message, summarize, first_n):
    if len(message) > MOST_SAID or not 0 <= summarize <= MOST_SHOWN:
        raise ProgramError(f"a message has up to {MOST_SAID} characters and {MOST_SHOWN} elements", "bad_attr")
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
    """x, unchanged; where an element of `condition` is false the run ends with an error at this place."""
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
def check_shape(xp, x, *, shape: tuple[int, ...]):
    """x, unchanged; where it has another shape than `shape` the run ends with an error at this place.

    A size of -1 may be any. A function of the program takes values of unknown sizes this way where it declares them.
    """
    if x.ndim != len(shape) or any(wanted not in (-1, n) for n, wanted in zip(x.shape, shape, strict=True)):
        raise ExecutionError(f"a value has the shape {list(x.shape)}, not {list(shape)}", "shape_mismatch")
    return x


@check_shape.infer
def check_shape_infer(x, *, shape):
    if any(n < -1 for n in shape):
        raise ProgramError(f"a size is a whole number from 0, or -1, not {list(shape)}", "bad_attr")
    if not matches(x, TensorType(shape, x.dtype)):
        raise ProgramError(f"{x} has not the shape {list(shape)}", "shape_mismatch")
    return TensorType(tuple(m if n == -1 else n for m, n in zip(x.shape, shape, strict=True)), x.dtype)


check_shape.vjp(lambda ct, out, x, *, shape: ct)
check_shape.example(
    lambda: [
        Example((X,), (X,), {"shape": (*X.shape[:-1], -1)}),
        Example((X[:0],), (X[:0],), {"shape": X[:0].shape}),
        Example((X[0, 0],), (X[0, 0],), {"shape": ()}),
    ]
)
