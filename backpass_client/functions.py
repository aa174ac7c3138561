"""Every op of the catalogue as a Python function, on a tape or in a program; and functions of programs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ParamSpec, TypeVar, overload

from backpass_client.builder.calls import Function
from backpass_client.op_table import op_table
from backpass_client.recorder import apply

__all__ = ["function", "op_function"]

P = ParamSpec("P")
T = TypeVar("T")


@overload
def function(of: str) -> Callable[..., Any]: ...


@overload
def function(of: Callable[P, T]) -> Function[P, T]: ...


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
    op.__module__ = "backpass_client"  # where pickle finds it
    entry = op_table()["ops"].get(type)
    summary = f"The op {type}." if entry is None else entry["summary"]
    op.__doc__ = f"{summary}\n\n`Service.op({type!r})` returns its documentation."
    if entry is not None:
        op.__signature__ = _signature(entry)  # type: ignore[attr-defined]
    return op


def _signature(entry: Mapping[str, Any]) -> inspect.Signature:
    """The signature of an op. entry: its line in the table; see `service.cli.signatures`."""
    found: dict[str, inspect.Parameter] = {}
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    default: Any = inspect.Parameter.empty
    for slot in entry.get("inputs", ()):
        name = slot.rstrip("?*")
        if "*" in slot and kind is not inspect.Parameter.KEYWORD_ONLY:
            found[name] = inspect.Parameter(name, inspect.Parameter.VAR_POSITIONAL)
            kind = inspect.Parameter.KEYWORD_ONLY  # of all after it
            continue
        default = None if "?" in slot else default  # after an optional slot, all are optional to Python
        found[name] = inspect.Parameter(name, kind, default=default)
    for name, schema in entry.get("attributes", {}).items():
        default = schema.get("default") if name not in entry.get("required", ()) else inspect.Parameter.empty
        found[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
    return inspect.Signature(list(found.values()))
