"""Gradients of Python functions, as HIPS autograd has them: ``grad(f)`` is a function, and has a gradient itself."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

import numpy as np

from backpass_client.expression import Expression, Variable
from backpass_client.functions import apply
from backpass_client.tape import current

__all__ = ["grad", "value_and_grad"]

_depth: ContextVar[int] = ContextVar("depth", default=0)


def grad(f: Callable[..., Any], argnum: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The gradient of `f` by its argument `argnum`, or a tuple of them by several.

    f: returns a single number on the current tape. Inside another `grad`, and where an argument is an expression, the
    gradient is an expression too; otherwise it is an array.
    """
    both = value_and_grad(f, argnum)

    @wraps(f)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return gradient


def value_and_grad(f: Callable[..., Any], argnum: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The value of `f` and its gradient, from one pass."""
    numbers = argnum if isinstance(argnum, tuple) else (argnum,)

    @wraps(f)
    def both(*args: Any, **kwargs: Any) -> Any:
        inner = _depth.get() > 0 or any(isinstance(args[i], Expression) for i in numbers)
        # a new variable for each argument: what else reads the old one is no part of f
        fresh = {i: _fresh(args[i]) for i in numbers}
        token = _depth.set(_depth.get() + 1)
        try:
            value = f(*(fresh.get(i, each) for i, each in enumerate(args)), **kwargs)
        finally:
            _depth.reset(token)
        found: list[Any]
        if not isinstance(value, Expression):
            found = [np.zeros(fresh[i].shape) for i in numbers]
        elif inner:
            found = [
                apply("zeros_like", [fresh[i]], {}) if each is None else each
                for i, each in zip(numbers, value.tape.gradients(value, list(fresh.values())), strict=True)
            ]
        else:
            value.tape.backward(value)
            found = [np.zeros(fresh[i].shape) if fresh[i].grad is None else fresh[i].grad for i in numbers]
            value = value.value
        return value, tuple(found) if isinstance(argnum, tuple) else found[0]

    return both


def _fresh(x: Any) -> Expression:
    if isinstance(x, Expression):
        return apply("assign", [x], {})
    current()  # raises where there is no tape
    return Variable(x)
