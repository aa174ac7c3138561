"""Remembers what follows from the declaration of an op: output types, expansions, pullbacks.

Programs apply the same few ops to the same few types, and every derivation is a pure function of the declaration, the
types and the attributes. All threads of a process share one table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, TypeVar

from core.ir.exact import exact_attrs
from core.ir.lru import LRU
from core.ir.program import Block, Type
from core.ir.registry import OpSpec

__all__ = ["REMEMBERED", "derived"]

T = TypeVar("T")

ROOM = 100_000
"""Ops of all blocks remembered, and one for every entry: some 50 MB."""


def derived(
    what: Literal["types", "expansion", "pullback", "rule"],
    spec: OpSpec,
    types: tuple[Type | None, ...],
    attrs: Mapping[str, Any],
    derive: Callable[[], T],
    *more: Hashable,
) -> T:
    """`derive()`, remembered for the next call with the same other arguments, attributes compared bit by bit.

    derive: a pure function of the other arguments; it returns a block, a tuple of types, or a tuple with a block in
            it, never None. Two threads may call it at the same time for one key.
    more:   what else it depends on.
    """
    key = (what, spec, types, exact_attrs(attrs), *more)
    found = REMEMBERED.get(key)
    if found is None:
        found = derive()
        REMEMBERED.put(key, found)
    return found  # type: ignore[no-any-return]


def _size(value: Any) -> int:
    if isinstance(value, tuple):
        return 1 + sum([_size(each) - 1 for each in value if isinstance(each, Block)])
    return 1 + len(value.ops)


REMEMBERED: LRU[Any] = LRU(ROOM, _size)
