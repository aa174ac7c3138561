"""Gradients of Python functions, as in HIPS autograd: ``grad(f)`` is a function that can be differentiated again.

On a tape the service computes them at once. In a program they are ops, which the service writes when it reads the
program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import numpy as np

from backpass_client.builder.build import Builder
from backpass_client.builder.symbol import Symbol
from backpass_client.builder.trees import flattened, like
from backpass_client.builder.types import FLOATS, InvalidOp
from backpass_client.expression import Expression, current
from backpass_client.recorder import apply, current_recorder
from backpass_client.variable import Variable

__all__ = ["grad", "is_recorded", "leaf", "recording_gradients", "value_and_grad"]

_depth: ContextVar[int] = ContextVar("depth", default=0)


def grad(f: Callable[..., Any], argnum: int | tuple[int, ...] = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """The gradient of `f` with respect to positional argument `argnum`; a tuple of gradients for a tuple of numbers.

    f:       returns a scalar on the current tape or in the program under construction.
    has_aux: `f` returns (scalar, anything else), and its gradient (gradient, anything else).

    On a tape the gradient is an expression inside another `grad` or if an argument is an expression; otherwise it is an
    array. The `grad` of variables does not change.
    In a program it is a symbol, also inside of loops and branches. The argument may be a tuple, list or dictionary of
    symbols there; the gradient then has the same structure.
    """
    _check_function(f, "grad")
    both = value_and_grad(f, argnum, has_aux=has_aux)

    @wraps(f)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def _check_function(f: Any, name: str) -> None:
    """Raises TypeError unless `f` is a function."""
    if not callable(f):
        raise TypeError(f"{name} differentiates a function, such as bp.{name}(lambda x: (x**2).sum())(x), not {f!r}")


def value_and_grad(
    f: Callable[..., Any], argnum: int | tuple[int, ...] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """(value, gradient) of `f` from one pass: see `grad`. With `has_aux` the value is (scalar, anything else).

    Raises TypeError if `f` has no positional argument `argnum` or does not return a scalar.
    """
    _check_function(f, "value_and_grad")
    numbers = argnum if isinstance(argnum, tuple) else (argnum,)

    @wraps(f)
    def both(*args: Any, **kwargs: Any) -> Any:
        if has_aux:
            alone, rest = _without_aux(f)
            scalar, slope = value_and_grad(alone, argnum)(*args, **kwargs)
            return (scalar, rest[0]), slope
        for i in numbers:
            if not 0 <= i < len(args):
                raise TypeError(f"cannot differentiate argument {i}: f got {len(args)} positional arguments")
        recorder = current_recorder.get()
        if isinstance(recorder, Builder):
            symbol, slopes = _in_program(recorder, f, args, kwargs, numbers)
            return symbol, slopes if isinstance(argnum, tuple) else slopes[0]
        nested = any(is_recorded(args[i]) for i in numbers)
        # a new variable for each argument: other readers of the old one are not part of f
        fresh = {i: leaf(args[i]) for i in numbers}
        with recording_gradients():
            value = f(*(fresh.get(i, each) for i, each in enumerate(args)), **kwargs)
        found: list[Any]
        if not isinstance(value, Expression):
            if not isinstance(value, int | float | np.generic | np.ndarray):
                raise TypeError(f"f returned a {type(value).__name__}, not a scalar")
            found = [np.zeros(fresh[i].shape, fresh[i].dtype) for i in numbers]
        elif nested:
            recorded = value.tape.record_gradients(value, [fresh[i] for i in numbers])
            found = [
                apply("zeros_like", [fresh[i]], {}) if each is None else each
                for i, each in zip(numbers, recorded, strict=True)
            ]
        else:
            arrays = value.tape.gradients(value, [fresh[i] for i in numbers])
            found = [
                np.zeros(fresh[i].shape, fresh[i].dtype) if each is None else each
                for i, each in zip(numbers, arrays, strict=True)
            ]
            value = value.value
        return value, tuple(found) if isinstance(argnum, tuple) else found[0]

    return both


def _without_aux(f: Callable[..., Any]) -> tuple[Callable[..., Any], list[Any]]:
    """`f` with its scalar alone as result, and a list that gets the rest. Raises TypeError for other results."""
    rest: list[Any] = []

    @wraps(f)
    def alone(*args: Any, **kwargs: Any) -> Any:
        result = f(*args, **kwargs)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"with has_aux=True f returns a tuple of its scalar and anything else, not {result!r}")
        rest.append(result[1])
        return result[0]

    return alone, rest


def _in_program(
    b: Builder, f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], numbers: tuple[int, ...]
) -> tuple[Symbol, tuple[Any, ...]]:
    """(value, gradients with respect to the arguments `numbers`) as symbols of a program."""
    trees = tuple(args[i] for i in numbers)
    copies: list[Symbol] = [b.call("assign", (x,), {}) for x in flattened(trees)]  # other readers are not part of f
    for each in copies:
        if each.type.dtype is not None and each.type.dtype not in FLOATS:
            raise InvalidOp(f"only floating-point values have gradients, not {each!r}")
    fresh = dict(zip(numbers, like(trees, copies), strict=True))
    value = b.operand(f(*(fresh.get(i, each) for i, each in enumerate(args)), **kwargs))
    if value.type.shape not in ((), None):
        raise InvalidOp(f"the function to differentiate must return one number, not {value!r}")
    found = b.call("gradients", (), {"targets": [value], "inputs": copies}) if copies else ()
    return value, like(trees, list(found))


def is_recorded(x: Any) -> bool:
    """Whether a gradient with respect to the argument `x` of a function is an expression, and not an array."""
    return _depth.get() > 0 or isinstance(x, Expression)


@contextmanager
def recording_gradients() -> Iterator[None]:
    """Gradients in the block are expressions."""
    token = _depth.set(_depth.get() + 1)
    try:
        yield
    finally:
        _depth.reset(token)


def leaf(x: Any) -> Expression:
    """`x` as a new value of the current tape, which nothing else reads."""
    if isinstance(x, Expression):
        return apply("assign", [x], {})
    current()  # raises BackpassError if there is no tape
    return Variable(x)
