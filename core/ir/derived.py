"""One cache for the derivations of an op: output types, expansions, pullbacks and the blocks of VJP rules.

Every derivation is a pure function of the op's declaration, its input types and its attributes, and programs apply the
same few ops to the same few types. All threads of a process share the cache.
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

LIMIT = 100_000
"""Limit of the cache: the ops of all cached blocks, plus one for each entry. About 50 MB."""


def derived(
    what: Literal["types", "expansion", "pullback", "rule"],
    spec: OpSpec,
    types: tuple[Type | None, ...],
    attrs: Mapping[str, Any],
    derive: Callable[[], T],
    *more: Hashable,
) -> T:
    """The cached result of `derive()`. The other arguments are the key; attributes are compared bit by bit.

    derive: a pure function of the other arguments. It returns a block, a tuple of types, or a tuple that contains a
            block, never None. Two threads may call it at the same time for one key.
    more:   further parts of the key: all other values that the result depends on.
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


REMEMBERED: LRU[Any] = LRU(LIMIT, _size)
