"""Weights in panels, for the products of loops.

A product with few rows reads a weight in place, some columns at a time. The rows of these columns are far apart in
memory: the processor does not fetch them ahead, and rows whose distance is a power of two displace each other in the
nearest cache. So a weight that no trip changes is copied once, before the loop: each panel of columns then lies in one
piece, and the product is a batch with one product for each panel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from core.plan.flow import Loop, outer_roots
from core.plan.instructions import Gemm, Instruction, Instructions
from core.plan.lowering import Lowering
from core.plan.memory import Root, View
from core.plan.movement import part_of
from core.plan.storage import Storage

__all__ = ["with_panels"]

FEWEST_TRIPS = 4
"""A copy takes as long as two or three products of a few rows."""

LASTING = ("arena", "given", "constant")
"""The places of roots that are at one address in all trips."""


def with_panels(low: Lowering, loop: Loop, own: Collection[Root]) -> Loop:
    """`loop` with products that read their weights in panels, which are copied before it.

    low: of the block around the loop. own: arena roots that the body allocated.
    """
    if loop.length is not None and loop.length < FEWEST_TRIPS:
        return loop
    changing = {*own, *(root for each in loop.body.instructions for root in each.writes())}
    body: list[Instruction] = []
    for each in loop.body.instructions:
        if isinstance(each, Gemm) and each.b.root.place in LASTING and each.b.root not in changing:
            body.extend(_in_panels(low, each))
        else:
            body.append(each)
    everything = (*body, *(product for each in loop.joint for product in (each.one, each.many)))
    return replace(loop, body=Instructions(tuple(body)), outside=outer_roots(Instructions(everything), own))


def _in_panels(low: Lowering, each: Gemm) -> Iterator[Gemm]:
    """The product with its weight in panels, and one for the columns that fill none."""
    width = low.target.products.panel(each)
    if width == 0:
        yield each
        return
    (m, k), n = each.a.shape, each.c.shape[-1]
    count = n // width
    whole = part_of(each.b, 1, 0, count * width)
    down, along = whole.strides
    apart = replace(whole, shape=(count, k, width), strides=(width * along, down, along))
    panels = low.hoist_invariant(apart, _copied)
    yield replace(
        each,
        a=replace(each.a, shape=(count, m, k), strides=(0, *each.a.strides)),
        b=panels,
        c=replace(each.c, shape=(count, m, width), strides=(width, *each.c.strides)),
    )
    if n % width:
        b, c = (part_of(v, 1, count * width, n % width) for v in (each.b, each.c))
        yield replace(each, b=b, c=c)


def _copied(low: Storage, view: View) -> View:
    target = low.allocate(view.shape, view.dtype)
    low.copy(view, target)
    return target
