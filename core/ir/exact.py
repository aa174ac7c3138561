"""Cache keys that distinguish values which Python compares as equal.

``0.0 == -0.0`` and ``1 == 1.0 == True``, but a program may give different results for them. Raw attributes are
therefore no safe cache keys.
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
    """A key that is equal only for values of the same type and the same bits; a NaN equals a NaN of the same bits.

    value: None, a bool, an int, a float, a string, or a tuple, list, frozenset, mapping or dataclass of such values
           (for example a `Block`). As with ==, the key ignores the order of a mapping and the fields that a dataclass
           does not compare.
    Raises TypeError for any other value: an inexact key would give a wrong result without an error.
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
    return _exact_container(value)


def exact_attrs(attrs: Mapping[str, Any]) -> Hashable:
    """`exact` of the attributes of an op; fast for an op without attributes. The key keeps the order of the names."""
    return (*attrs, *[exact(each) for each in attrs.values()]) if attrs else ()


def _exact_container(value: Any) -> Hashable:
    """`exact` of a value that has parts. The key contains the type: a list and a tuple get different keys."""
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
