"""The values of attributes: their types beyond those of Python, and the way from JSON to a type and back."""

from __future__ import annotations

import math
import types
import typing
from typing import Annotated, Any, Literal

from core.ir.bounds import Bounds
from core.ir.program import Block, unknown_dtype

__all__ = ["INFINITE", "BlockIndex", "Extended", "LocalName", "convert", "json_value"]

Extended = Annotated[float, Bounds(infinite=True)]
"""Attribute type: a float that may also be infinite. JSON has no such number: it is written "inf" or "-inf"."""

FINITE = Bounds()

INFINITE = {"inf": math.inf, "-inf": -math.inf}
"""The infinite numbers by their words in JSON."""


class BlockIndex(int):
    """Attribute type of a construct: the index of an inner block that sees the variables of the outer block."""


class LocalName(str):
    """Attribute type of a construct: a name of the inner block that the outer one does not see."""


def convert(annotation: Any, value: Any) -> Any:
    """`value` as the type `annotation`: lists become tuples and integers become floats; nothing else is converted.

    Raises ValueError with the end of a sentence, "must be ...".
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return convert(next(a for a in args if a is not type(None)), value)
    if origin is Literal:
        if value in args and isinstance(value, str):
            return value
        raise ValueError(unknown_dtype(value, map(str, args)))
    if origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(convert(args[0], each) for each in value)
        raise ValueError(f"must be a list of {_words(args[0])[1]}")
    if origin is Annotated:
        bounds = next((note for note in args[1:] if isinstance(note, Bounds)), FINITE)
        found = _number(value, bounds) if args[0] is float else convert(args[0], value)
        if (wrong := bounds.wrong(found)) is not None:
            raise ValueError(wrong if found == 0 and bounds.nonzero else f"{wrong}, not {_brief(found)}")
        return found
    if annotation is float:
        return convert(Annotated[float, FINITE], value)
    if annotation is int and isinstance(value, int) and not isinstance(value, bool):
        if -(2**63) <= value < 2**63:
            return value
        raise ValueError("must be an integer within int64")
    if annotation is BlockIndex and isinstance(value, int) and not isinstance(value, bool):
        return value
    if annotation is LocalName and isinstance(value, str):
        return value
    if annotation is Any or (annotation in (bool, str, Block) and isinstance(value, annotation)):
        return value
    raise ValueError(f"must be {_words(annotation)[0]}, not {_words(type(value))[0]}")


JSON_WORDS: dict[Any, tuple[str, str]] = {
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("a boolean", "booleans"),
    str: ("text", "texts"),
    list: ("a list", "lists"),
    tuple: ("a list", "lists"),
    dict: ("an object", "objects"),
    type(None): ("null", "nulls"),
    BlockIndex: ("the index of a block", "indices of blocks"),
    LocalName: ("a name", "names"),
    Block: ("a block", "blocks"),
}
"""Type -> one value and several values of it, in words of JSON."""


def _words(annotation: Any) -> tuple[str, str]:
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    annotation = typing.get_origin(annotation) or annotation
    if annotation in JSON_WORDS:
        return JSON_WORDS[annotation]
    name = getattr(annotation, "__name__", str(annotation))
    return f"a {name}", f"{name}s"


def _number(value: Any, bounds: Bounds) -> float:
    """`value` as a float; the words for infinite values are read if `bounds` allow those. Raises ValueError."""
    if bounds.infinite and isinstance(value, str) and value in INFINITE:
        return INFINITE[value]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"must be a number, not {_words(type(value))[0]}")
    if isinstance(value, int) and (abs(value) > 2**1000 or int(float(value)) != value):
        raise ValueError("must be a number that float64 holds exactly")
    return float(value)


def _brief(value: Any) -> str:
    """`value` in an error message; of a string or list the length."""
    return str(len(value)) if isinstance(value, str | tuple) else str(value)


def json_value(value: Any) -> Any:
    """The value of an attribute in JSON form, the inverse of `convert`."""
    if isinstance(value, tuple):
        return [json_value(each) for each in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value
