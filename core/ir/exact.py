"""Keys that tell apart values that Python calls equal.

``0.0 == -0.0`` and ``1 == 1.0 == True``, but a program gives other results for one than for the other, so attributes
themselves must not be keys of a cache.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

__all__ = ["exact", "exact_attrs"]

_BITS = struct.Struct("<d").pack
_BOOLS = ((bool, 0), (bool, 1))


def exact(value: Any) -> Hashable:
    """A key that is equal for values of the same type and the same bits only; every NaN equals itself.

    value: None, a bool, an int, a float, a string, or a tuple, a list, a frozenset, a mapping or a dataclass of such
           values (a `Block`, say). As with ==, the order of a mapping does not count, and neither do fields that a
           dataclass does not compare.
    Raises TypeError for anything else: a key that is not exact would be a wrong result without an error.
    """
    kind = type(value)
    if kind is str or kind is int or value is None:
        return value  # type: ignore[no-any-return]
    if kind is float:
        return _BITS(value)
    if kind is bool:
        return _BOOLS[value]
    if kind is tuple:
        return tuple([exact(each) for each in value])
    return _exact_whole(value)


def exact_attrs(attrs: Mapping[str, Any]) -> Hashable:
    """`exact` of the attributes of an op, which most ops have none of. Names in another order are another key."""
    return (*attrs, *[exact(each) for each in attrs.values()]) if attrs else ()


def _exact_whole(value: Any) -> Hashable:
    """`exact` of a value that has parts. Its type is part of the key, so that no two kinds of values meet."""
    kind = type(value)
    if is_dataclass(kind):
        return (kind, *[exact(getattr(value, name)) for name in _compared(kind)])
    if kind is list:
        return (kind, *[exact(each) for each in value])
    if kind is frozenset:
        return (kind, frozenset([exact(each) for each in value]))
    if isinstance(value, Mapping):
        return (Mapping, frozenset([(exact(k), exact(v)) for k, v in value.items()]))
    raise TypeError(f"a {kind.__name__} has no exact key")


@cache
def _compared(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.compare)
