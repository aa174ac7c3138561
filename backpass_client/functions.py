"""Every op of the catalogue as a Python function."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from backpass_client.expression import apply

__all__ = ["function"]


@cache
def function(type: str) -> Callable[..., Any]:
    """The op `type` as a function of its input slots, in order or by name, and of its attributes, by name.

    A variadic slot takes all remaining positional arguments, or one list. An array argument becomes a constant; a
    number is expanded to the shape and dtype of the first expression.
    """

    def op(*inputs: Any, **named: Any) -> Any:
        return apply(type, inputs, named)

    op.__name__ = op.__qualname__ = type
    op.__doc__ = f"The op {type}; `Service.op({type!r})` returns its documentation."
    return op
