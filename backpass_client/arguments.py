"""Arguments of an op: Python's positional and keyword arguments become input slots and attributes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from backpass_client.arithmetic import is_number
from backpass_client.recorder import Operand

__all__ = ["Signature", "as_json", "attributes_as_json"]


class Signature:
    """The slots and attributes of one op.

    slots, outputs: names of the input and output slots, in order.
    is_plain:       whether every slot takes one variable.
    is_variadic:    whether only the service knows the number of outputs.
    """

    __slots__ = ("_attributes", "_variadic", "is_plain", "is_variadic", "outputs", "slots", "type")

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """spec: the op's entry in the catalogue."""
        self.type: str = spec["type"]
        self.slots = tuple(slot["name"] for slot in spec["inputs"])
        self.outputs = tuple(slot["name"] for slot in spec["outputs"])
        self._variadic = frozenset(slot["name"] for slot in spec["inputs"] if slot["variadic"])
        self.is_variadic = any(slot["variadic"] for slot in spec["outputs"])
        self.is_plain = not self._variadic and not self.is_variadic
        self._attributes = frozenset(spec["attributes"].get("properties", {}))

    def arguments(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(slot -> its argument, attribute -> its value).

        A variadic slot takes all remaining positional arguments, or one list. Raises TypeError for an argument that the
        op does not have.
        """
        given: dict[str, Any] = {}
        rest = list(inputs)
        for slot in self.slots:
            if not rest:
                break
            if slot in self._variadic:
                is_list = len(rest) == 1 and isinstance(rest[0], list | tuple)
                given[slot] = list(rest[0]) if is_list else rest
                rest = []
            else:
                given[slot] = rest.pop(0)
        if rest:
            raise TypeError(f"{self.type} takes {len(self.slots)} inputs, not {len(inputs)}")
        attrs: dict[str, Any] = {}
        for name, value in named.items():
            if name in self.slots:
                if name in given:
                    raise TypeError(f"{self.type} got two values for the input {name!r}")
                given[name] = value
            elif name in self._attributes:
                attrs[name] = value
            else:
                known = ", ".join([*self.slots, *sorted(self._attributes)])
                raise TypeError(f"{self.type} has no input and no attribute {name!r}; it has {known}")
        return given, attrs

    def with_expanded_numbers(
        self, given: Mapping[str, Any], full_like: Callable[[Any, int | float], Any]
    ) -> dict[str, Any]:
        """slot -> its input, or a list of them, where numbers have the first operand's shape and dtype; no Nones.

        full_like: the op that makes an array of one number, of the shape and dtype of an operand.
        """
        flat = [x for each in given.values() for x in (each if isinstance(each, list) else [each])]
        like = next((x for x in flat if isinstance(x, Operand)), None)

        def expanded(x: Any) -> Any:
            if like is None or not is_number(x):
                return x
            return full_like(like, x.item() if isinstance(x, np.generic) else x)

        return {
            slot: [expanded(x) for x in each] if slot in self._variadic else expanded(each)
            for slot, each in given.items()
            if each is not None
        }


def attributes_as_json(attrs: Mapping[str, Any]) -> str:
    """`attrs` as JSON text. Empty without attributes."""
    return json.dumps({name: as_json(value) for name, value in attrs.items()}) if attrs else ""


def as_json(value: Any) -> Any:
    """An attribute as a JSON value; infinity is a string, because JSON has no number for it.

    Raises TypeError for a value that is no number, text, bool or None, and no list of these.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"cannot write a {type(value).__name__} as JSON")
