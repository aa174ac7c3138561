"""Loops that make the same trips become one, which records what any of them did.

The gradient of an op that contains a loop runs that loop again to record what it needs: it should be the first run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from core.ir import Block, Op
from core.ir.builder import BlockBuilder
from core.ir.registry import roles_of

__all__ = ["merge_loops"]


def merge_loops(first: Op, second: Op, share: Callable[[Block], Block]) -> tuple[Op, dict[str, str]] | None:
    """`first` with what `second` records as well, and what outputs of `second` are called now.

    Both have the same inputs and the same attributes but for their bodies. None if they carry different values.
    share: makes equal ops of a block one.
    """
    roles = roles_of(first)
    assert roles is not None
    carried = len(roles.carried)
    both = share(_side_by_side(first.attrs["sub_block"], second.attrs["sub_block"]))
    results, others = both.results[: len(first.outputs)], both.results[len(first.outputs) :]
    if results[:carried] != others[:carried]:
        return None
    recorded = dict(zip(results[carried:], first.outputs[carried:], strict=True))
    renamed = dict(zip(second.outputs[:carried], first.outputs[:carried], strict=True))
    added: dict[str, str] = {}
    for result, output in zip(others[carried:], second.outputs[carried:], strict=True):
        renamed[output] = recorded.get(result) or added.setdefault(result, output)
    body = replace(both, results=(*results, *added))
    outputs = (*first.outputs, *added.values())
    return replace(first, outputs=outputs, attrs={**first.attrs, "sub_block": body}), renamed


def _side_by_side(first: Block, second: Block) -> Block:
    """What both blocks do, with the parameters of `first`: its results, then those of `second`."""
    b = BlockBuilder.like(first)
    others = b.inline(second, [b.value(p) for p in first.params])
    return b.build([*first.results, *others])
