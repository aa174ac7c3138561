"""Every op of the catalogue as a Python function, on a tape or in a program; and functions of programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from backpass_client.builder.calls import Function
from backpass_client.recorder import apply

__all__ = ["function", "op_function"]


def function(of: str | Callable[..., Any]) -> Any:
    """The op named `of` as a function; or, as a decorator, a Python function as a function of programs.

        @bp.function
        def hard(x):
            return bp.sign(x)

        @hard.gradient
        def straight(x, result, ct):
            return ct

    A program has a function once for each combination of operand types. It sees no other symbols than its operands, and
    has no parameters and no random ops.
    """
    return op_function(of) if isinstance(of, str) else Function(of)


@cache
def op_function(type: str) -> Callable[..., Any]:
    """The op `type` as a function of its input slots, in order or by name, and of its attributes, by name.

    A variadic slot takes all remaining positional arguments, or one list. An array argument becomes a constant. A
    number, or a list of numbers, becomes one with the dtype of the first expression, or of integers where positions
    belong; only elementwise ops broadcast a number.
    """

    def op(*inputs: Any, **named: Any) -> Any:
        return apply(type, inputs, named)

    op.__name__ = op.__qualname__ = type
    op.__doc__ = f"The op {type}; `Service.op({type!r})` returns its documentation."
    return op
