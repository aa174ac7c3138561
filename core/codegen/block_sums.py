"""Sums in registers of many rows, in blocks: the rounding error grows with the additions in sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.codegen.llvm import I64, Function, IRValue, literal

__all__ = ["in_blocks"]


def in_blocks(
    f: Function,
    places: tuple[IRValue, IRValue],
    block: int | None,
    sums: Sequence[IRValue],
    lanes: int,
    add: Callable[[tuple[IRValue, IRValue]], None],
) -> None:
    """Add the rows at the `places`, from the first to the end, to `sums`, which are 0 before.

    block: places that are added one after another; None for all of them.
    sums:  slots of float32 vectors, of `lanes` elements.
    add:   adds the rows at some places to the sums.
    """
    if block is None:
        add(places)
        return
    first, end = places
    zero = f.splat(literal(0, "float32"), lanes)
    totals = [f.slot("float32", lanes) for _ in sums]
    for total in totals:
        f.write(zero, total)
    with f.loop(first, end, block) as start:
        add((start, f.intrinsic("smin", f.binary("add", start, I64(block)), end)))
        for one, total in zip(sums, totals, strict=True):
            added = f.binary("fadd", f.read(total, "float32", lanes), f.read(one, "float32", lanes))
            f.write(added, total)
            f.write(zero, one)
    for one, total in zip(sums, totals, strict=True):
        f.write(f.read(total, "float32", lanes), one)
