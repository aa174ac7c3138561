"""Tables of which a step changes few rows: written where they lie, unless somebody else looks at them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from core.runtime.sparse_rows import RowArray

__all__ = ["own_tables"]


def own_tables(
    new: Mapping[str, Any], held: Mapping[str, Any], others: Iterable[Any], xp: ModuleType
) -> dict[str, tuple[RowArray, Any]]:
    """For each RowArray of `new` its name, itself, and the table to write it to: that of `held`, or a copy.

    held:   all values of a session by name; no other of them may change with a table.
    others: arrays that must stay as they are, such as those of an answer that is not yet sent.
    Nothing is written here, so that a lack of memory for a copy leaves everything as it was.
    """
    rest = [*others, *(value for value in new.values() if not isinstance(value, RowArray))]
    found = {}
    for name, value in new.items():
        if not isinstance(value, RowArray):
            continue
        table = held[name]
        seen = (*rest, *(each for other, each in held.items() if other != name))
        shared = any(isinstance(each, xp.ndarray) and xp.may_share_memory(table, each) for each in seen)
        writeable = getattr(table, "flags", None) is None or getattr(table.flags, "writeable", True)
        found[name] = (value, table.copy() if shared or not writeable else table)
    return found
