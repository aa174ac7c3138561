"""Arguments of an op: Python's positional and keyword arguments become input slots and attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from backpass_client.arithmetic import is_number
from backpass_client.op_results import Results
from backpass_client.op_table import op_table
from backpass_client.recorder import Operand

__all__ = [
    "NOT_A_CONDITION",
    "POSITIONS",
    "Constants",
    "DtypeName",
    "Signature",
    "as_json",
    "attributes_as_json",
    "dtype_name",
    "misfit",
]


POSITIONS = frozenset(
    {
        "counts", "ends", "ids", "image", "index", "input_lengths", "label_lengths", "lengths", "more", "offsets",
        "path_code", "path_table", "rows", "samples", "sizes", "starts", "steps", "times", "x_lengths",
    }
)  # fmt: skip
"""Slots whose operands are integers in every op. A test compares them with the declarations of the ops."""

CONDITIONS = frozenset({"condition", "mask"})
"""Slots whose operands choose elements."""

OTHER_DTYPE = POSITIONS | CONDITIONS
"""Slots whose dtype says nothing about the dtype of the other operands."""

NUMBERS = POSITIONS | {"value"}
"""Optional slots whose operand can well be a number."""

NOT_A_CONDITION = "is the Python value {}: `==` and `!=` compare identities, bp.equal and bp.not_equal compare values"


class DtypeName:
    """A dtype by its name, which is the value of an attribute."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Constants(Protocol):
    """A recorder of ops, as it makes constants."""

    def full_like(self, like: Any, value: int | float) -> Any:
        """An array of `value` with the shape and dtype of the operand `like`."""

    def array_like(self, like: Any, values: Any) -> Any:
        """`values`, a number or an array, as a constant with the dtype of the operand `like`, which may be None.

        Raises an error for values that the dtype does not have.
        """


class Signature:
    """The slots and attributes of one op.

    slots, outputs: names of the input and output slots, in order.
    is_plain:       whether every slot takes one variable.
    is_variadic:    whether only the service knows the number of outputs.
    is_elementwise: whether the operands broadcast and the output has their shape.
    """

    __slots__ = (
        "_attributes",
        "_optional",
        "_variadic",
        "is_elementwise",
        "is_plain",
        "is_variadic",
        "outputs",
        "slots",
        "type",
    )

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """spec: the op's entry in the catalogue."""
        self.type: str = spec["type"]
        self.slots = tuple(slot["name"] for slot in spec["inputs"])
        self.outputs = tuple(slot["name"] for slot in spec["outputs"])
        self._variadic = frozenset(slot["name"] for slot in spec["inputs"] if slot["variadic"])
        self._optional = frozenset(slot["name"] for slot in spec["inputs"] if slot["optional"])
        self.is_variadic = any(slot["variadic"] for slot in spec["outputs"])
        self.is_plain = not self._variadic and not self.is_variadic
        self._attributes = tuple(spec["attributes"].get("properties", {}))
        self.is_elementwise: bool = op_table()["ops"].get(self.type, {}).get("elementwise", False)

    def arguments(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(slot -> its argument, attribute -> its value).

        A variadic slot takes all remaining positional arguments, or one list. Raises TypeError for an argument that the
        op does not have, and for a positional one that is meant as an attribute.
        """
        given: dict[str, Any] = {}
        rest = list(inputs)
        for slot in self.slots:
            if not rest:
                break
            if slot in self._variadic:
                is_list = len(rest) == 1 and isinstance(rest[0], list | tuple)
                given[slot] = list(rest[0]) if is_list else self._one_by_one(rest)
                rest = []
            else:
                given[slot] = self._in_order(slot, rest.pop(0))
        if rest:
            count = f"{len(self.slots) or 'no'} input{'s' * (len(self.slots) != 1)}"
            along = f"dynamic_{self.type}"
            hint = f"; {along} takes them as arrays" if along in op_table()["ops"] else ""
            raise TypeError(f"{self.type} takes {count}, not {len(inputs)}{self._by_name()}{hint}")
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
                along = f"reduce_{self.type}"  # mean and sum take all elements
                hint = f"; {along} has axes" if along in op_table()["ops"] else ""
                raise TypeError(f"{self.type} has no input and no attribute {name!r}; it has {known}{hint}")
        if "dtype" not in self._attributes or attrs.get("dtype") == "bool":
            attrs |= {name: _without_bools(attrs[name]) for name in ("value", "values") if name in attrs}
        return given, attrs

    def _in_order(self, slot: str, x: Any) -> Any:
        """`x`, the positional argument for `slot`. Raises TypeError if it is meant as an attribute."""
        takes_numbers = slot not in self._optional or slot in NUMBERS or self.is_elementwise
        if not takes_numbers and (isinstance(x, str) or is_number(x) or _is_list_of_integers(x)):
            constant = "" if isinstance(x, str) else f"; {slot}={x!r} is a constant"
            raise TypeError(f"the input {slot!r} of {self.type} is an array, not {x!r}{self._by_name()}{constant}")
        return x

    def _one_by_one(self, arrays: Sequence[Any]) -> list[Any]:
        """`arrays`, the positional arguments for a variadic slot. Raises TypeError unless these are several arrays."""
        nested = any(isinstance(x, list | tuple) and _has_operand(x) for x in arrays)
        if nested or any(isinstance(x, str) for x in arrays):
            raise TypeError(f"{self.type} takes arrays one by one, or one list of them{self._by_name()}")
        if self.type == "sum" and len(arrays) == 1:
            raise TypeError("sum adds several arrays; reduce_sum, or the method `sum`, adds the elements of one")
        return list(arrays)

    def _by_name(self) -> str:
        return f"; its attributes are given by name: {', '.join(self._attributes)}" if self._attributes else ""

    def with_constants(self, given: Mapping[str, Any], constants: Constants) -> dict[str, Any]:
        """slot -> its operand, or a list of them, where numbers and lists of numbers are constants; no Nones.

        They have the dtype of the first operand. A number has no axes, but in an elementwise op it has the shape of
        that operand, as broadcasting would give it. Raises TypeError for other lists, for decimal numbers where
        positions belong, and for a plain bool as a condition.
        """
        like = self.first_operand(given)

        def operand(slot: str, x: Any) -> Any:
            if isinstance(x, bool) and slot in CONDITIONS:
                raise TypeError(f"the input {slot!r} of {self.type} {NOT_A_CONDITION.format(x)}")
            is_list = isinstance(x, list | tuple)
            if not (is_list or is_number(x)):
                return x
            array = self._array(slot, x)
            if slot in POSITIONS:
                if array.size and array.dtype.kind not in "iu":
                    raise TypeError(f"the input {slot!r} of {self.type} takes integers, not {x!r}")
                return array.astype(np.int64)
            if is_list:
                return array if array.dtype.kind == "b" else constants.array_like(like, array)
            if like is None:
                return x
            value = x.item() if isinstance(x, np.generic) else x
            return constants.full_like(like, value) if self.is_elementwise else constants.array_like(like, value)

        return {
            slot: [operand(slot, x) for x in each] if slot in self._variadic else operand(slot, each)
            for slot, each in given.items()
            if each is not None
        }

    def first_operand(self, given: Mapping[str, Any]) -> Any:
        """The operand whose dtype numbers among the arguments have; None if there is none."""
        flat = [(slot, x) for slot, each in given.items() for x in (each if slot in self._variadic else [each])]
        return next((x for slot, x in flat if isinstance(x, Operand) and slot not in OTHER_DTYPE), None)

    def _array(self, slot: str, given: Any) -> np.ndarray:
        """A number or list of numbers as an array. Raises TypeError for any other list."""
        if _has_operand(given):
            kind = "list" if isinstance(given, list) else "tuple"
            wrong = f"the input {slot!r} of {self.type} is one array, not a {kind} of them"
            if isinstance(given, Results):
                raise TypeError(f"{wrong}: {given.advice}")
            raise TypeError(f"{wrong}; take one of them, or bp.stack makes one of all")
        try:
            array = np.asarray(given)
        except ValueError:
            array = np.asarray(given, object)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"the input {slot!r} of {self.type} cannot be {given!r}: it is no array of numbers")
        return array


def _without_bools(value: Any) -> Any:
    """An attribute with 1 and 0 in place of True and False, which JSON programs do not have as numbers."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_without_bools(each) for each in value]
    return int(value) if isinstance(value, bool | np.bool_) else value


def _is_list_of_integers(x: Any) -> bool:
    return isinstance(x, list | tuple) and all(isinstance(each, int | np.integer) for each in x)


def _has_operand(given: Any) -> bool:
    return any(map(_has_operand, given)) if isinstance(given, list | tuple) else isinstance(given, Operand)


def misfit(values: Any, dtype: str) -> Any:
    """The first of `values` (a number or an array of numbers) that `dtype` does not have; None if it has all."""
    if dtype != "bool" and not dtype.startswith(("int", "uint")):
        return None
    low, high = (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    given = np.ravel(np.asarray(values, object)).tolist()
    return next((x for x in given if not (low <= x <= high and x == int(x))), None)


def attributes_as_json(op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of `op` as JSON values. Raises TypeError, which names the attribute, for any other value."""
    found = {}
    for name, value in attrs.items():
        try:
            found[name] = as_json(value)
        except TypeError:
            raise TypeError(f"attribute {name!r} of {op} cannot be {value!r}") from None
    return found


def dtype_name(value: Any) -> str | None:
    """The name of a dtype of this package or of numpy; None for anything else."""
    if isinstance(value, DtypeName | np.dtype):
        return value.name
    return np.dtype(value).name if isinstance(value, type) and issubclass(value, np.generic) else None


def as_json(value: Any) -> Any:
    """An attribute as a JSON value; infinity is a string, because JSON has no number for it, and a dtype its name.

    Raises TypeError for a value that is no number, text, bool, dtype or None, and no list of these.
    """
    if (name := dtype_name(value)) is not None:
        return name
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"cannot write a {type(value).__name__} as JSON")
