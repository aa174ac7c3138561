"""Merge loops that make the same trips into one loop that records the values of both.

The gradient of an op that contains a loop runs that loop again to record its residuals. Merged with the forward loop,
it runs once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from core.ir import Block, Op
from core.ir.builder import BlockBuilder
from core.ir.registry import roles_of

__all__ = ["merge_loops"]


def merge_loops(first: Op, second: Op, share: Callable[[Block], Block]) -> tuple[Op, dict[str, str]] | None:
    """`first` with the recorded values of `second` too, and new names for the outputs of `second`.

    first, second: loops with equal inputs and attributes, except for their bodies.
    share:         common subexpression elimination.
    Returns None if the loops carry different values.
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
    """The ops of both blocks on the parameters of `first`. Returns the results of `first`, then those of `second`."""
    b = BlockBuilder.like(first)
    others = b.inline(second, [b.value(p) for p in first.params])
    return b.build([*first.results, *others])
