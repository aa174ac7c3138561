"""Arguments of an op: Python's positional and keyword arguments become input slots and attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from backpass_client.arithmetic import is_number
from backpass_client.expression import Expression

__all__ = ["slots_and_attributes", "with_expanded_numbers"]


def slots_and_attributes(
    spec: Mapping[str, Any], inputs: Sequence[Any], named: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(slot -> its argument, attribute -> its value).

    spec: the op's entry in the catalogue.
    A variadic slot takes all remaining positional arguments, or one list. Raises TypeError for an argument that the op
    does not have.
    """
    type, slots = spec["type"], spec["inputs"]
    given: dict[str, Any] = {}
    rest = list(inputs)
    for slot in slots:
        if not rest:
            break
        if slot["variadic"]:
            is_list = len(rest) == 1 and isinstance(rest[0], list | tuple)
            given[slot["name"]] = list(rest[0]) if is_list else rest
            rest = []
        else:
            given[slot["name"]] = rest.pop(0)
    if rest:
        raise TypeError(f"{type} takes {len(slots)} inputs, not {len(inputs)}")
    attrs: dict[str, Any] = {}
    for name, value in named.items():
        if any(slot["name"] == name for slot in slots):
            if name in given:
                raise TypeError(f"{type} got two values for the input {name!r}")
            given[name] = value
        elif name in spec["attributes"].get("properties", {}):
            attrs[name] = value
        else:
            raise TypeError(f"{type} has no input and no attribute {name!r}")
    return given, attrs


def with_expanded_numbers(
    given: Mapping[str, Any], spec: Mapping[str, Any], full_like: Callable[[Expression, int | float], Any]
) -> dict[str, list[Any]]:
    """slot -> list of inputs, where numbers are expanded to the first expression's shape and dtype; without Nones.

    full_like: the op that makes an array of one number, of the shape and dtype of an expression.
    """
    flat = [x for each in given.values() for x in (each if isinstance(each, list) else [each])]
    like = next((x for x in flat if isinstance(x, Expression)), None)

    def expanded(x: Any) -> Any:
        if like is None or not is_number(x):
            return x
        if x != x:  # NaN cannot be an attribute of full_like
            return np.array(x, like.dtype)
        return full_like(like, x.item() if isinstance(x, np.generic) else x)

    variadic = {slot["name"] for slot in spec["inputs"] if slot["variadic"]}
    return {
        slot: [expanded(x) for x in each] if slot in variadic else [expanded(each)]
        for slot, each in given.items()
        if each is not None
    }
