"""Short texts of results for people: shapes and dtypes in place of a million numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

__all__ = ["NamedArrays", "fields", "shown"]

FEW = 8  # elements of an array, or members of a collection, to show


class NamedArrays(dict[str, np.ndarray]):
    """NamedArrays by name, with a short `repr`."""

    __slots__ = ()

    def __missing__(self, name: Any) -> NoReturn:
        raise KeyError(f"there is no {name!r}; there are {', '.join(map(repr, self)) or 'no arrays'}")

    def __repr__(self) -> str:
        return shown(dict(self))


def shown(value: Any) -> str:
    """`value` in one line: an array of more than 8 elements as its type and shape, a long collection as its start."""
    if isinstance(value, np.ndarray | np.generic):
        if value.ndim == 0:
            return f"{value.dtype} {value.item()!r}"
        if value.size > FEW:
            return f"{value.dtype}{list(value.shape)}"
        return repr(value) if value.ndim == 1 else f"{value.dtype}{list(value.shape)} {value.tolist()}"
    if isinstance(value, Mapping):
        inside = [f"{name}: {shown(each)}" for name, each in [*value.items()][:FEW]]
        return "{" + ", ".join([*inside, *_rest(len(value))]) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return "[" + ", ".join([*map(shown, value[:FEW]), *_rest(len(value))]) + "]"
    return value if isinstance(value, str) else repr(value)


def fields(value: Any, *names: str) -> str:
    """The class of `value` and those of its fields `names` that are neither None nor empty."""
    members = [(name, getattr(value, name)) for name in names]
    told = [f"{name}={shown(each)}" for name, each in members if each is not None and not _is_empty(each)]
    return f"{type(value).__name__}({', '.join(told)})"


def _rest(count: int) -> list[str]:
    return [f"... {count - FEW} more"] if count > FEW else []


def _is_empty(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple) and not value
