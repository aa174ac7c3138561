"""Every op of the catalogue as a function, made from what `GET /v1/ops` says about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from backpass_client.arithmetic import is_number
from backpass_client.expression import Expression
from backpass_client.tape import current
from backpass_client.variable import Variable

if TYPE_CHECKING:
    from backpass_client.tape import Tape

__all__ = ["apply", "function"]


@cache
def function(type: str) -> Callable[..., Any]:
    """The op `type` as a function of its input slots, in order or by name, and of its attributes, by name.

    A slot that takes a list takes all arguments from there on, or one list. An array is a constant; a single number is
    as large as the first expression, and of its dtype.
    """

    def op(*inputs: Any, **named: Any) -> Any:
        return apply(type, inputs, named)

    op.__name__ = op.__qualname__ = type
    op.__doc__ = f"The op {type}; `Service.op({type!r})` has its documentation."
    return op


def apply(type: str, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Append the op `type` to the tape of its inputs. Raises TypeError for arguments that the op does not have."""
    tape = _tape_of([*inputs, *named.values()])
    spec = tape.service.op(type)
    slots = spec["inputs"]
    given: dict[str, Any] = {}
    rest = list(inputs)
    for slot in slots:
        if not rest:
            break
        if slot["variadic"]:
            several = len(rest) == 1 and isinstance(rest[0], list | tuple)
            given[slot["name"]] = list(rest[0]) if several else rest
            rest = []
        else:
            given[slot["name"]] = rest.pop(0)
    if rest:
        raise TypeError(f"{type} takes {len(slots)} inputs, not {len(inputs)}")
    attrs: dict[str, Any] = {}
    for name, value in named.items():
        if any(slot["name"] == name for slot in slots):
            if name in given:
                raise TypeError(f"{type} got {name!r} twice")
            given[name] = value
        elif name in spec["attributes"].get("properties", {}):
            attrs[name] = value
        else:
            raise TypeError(f"{type} has neither an input nor an attribute {name!r}")
    return tape.apply(type, _lifted(given, slots), attrs)


def _lifted(given: dict[str, Any], slots: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Inputs with numbers made as large as the first expression; those that are None left out."""
    flat = [x for each in given.values() for x in (each if isinstance(each, list) else [each])]
    like = next((x for x in flat if isinstance(x, Expression)), None)

    def lifted(x: Any) -> Any:
        if like is None or not is_number(x):
            return x
        if x != x:  # NaN, which no attribute can be
            return np.array(x, like.dtype)
        return like.tape.apply("full_like", {"x": like}, {"value": x.item() if isinstance(x, np.generic) else x})

    variadic = {slot["name"] for slot in slots if slot["variadic"]}
    return {
        slot: [lifted(x) for x in each] if slot in variadic else [lifted(each)]
        for slot, each in given.items()
        if each is not None
    }


def _tape_of(values: Sequence[Any]) -> Tape:
    """The tape of the first expression that has one; the current one if there are only variables and arrays."""
    for each in values:
        for x in each if isinstance(each, list | tuple) else [each]:
            if isinstance(x, Expression) and not isinstance(x, Variable):
                return x.tape
    return current()
