"""In-place updates of tables: a step with a sparse gradient writes a few rows of a table, or of a copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from core.runtime.sparse_rows import RowArray

__all__ = ["own_tables"]


def own_tables(
    new: Mapping[str, Any], held: Mapping[str, Any], others: Iterable[Any], xp: ModuleType
) -> dict[str, tuple[RowArray, Any]]:
    """name -> (rows, table to write them to), for each RowArray in `new`. The table is that of `held`, or a copy.

    held:   all values of a session by name; writing to one table must not change another value.
    others: arrays that must not change, such as those of an answer that is not sent yet.
    This function writes nothing, so that a lack of memory for a copy changes nothing.
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
