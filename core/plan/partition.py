"""Which parts of a block become machine code: as few regions as the order of their inputs allows."""

from __future__ import annotations

from collections.abc import Iterator

from core.ir import Block, Op, StackType

__all__ = ["partition"]


def partition(block: Block, refused: frozenset[int]) -> Iterator[Block | Op]:
    """The parts of `block`, in an order in which they can run: closed regions, and single ops between them.

    refused: positions of the ops that have no machine code. Region k runs before the single ops that need nothing
    later, which run before region k + 1.
    """
    refused = _spread(block, refused)
    after: dict[str, int] = {}  # the region that must have run before a variable can be there
    regions: dict[int, list[Op]] = {}
    singles: dict[int, list[Op]] = {}
    by_single: set[str] = set()
    for index, op in enumerate(block.ops):
        if index in refused:
            at = max((after.get(n, 0) for n in op.inputs), default=0)
            singles.setdefault(at, []).append(op)
            by_single.update(op.outputs)
        else:
            at = max((after.get(n, 0) + (n in by_single) for n in op.inputs), default=0)
            regions.setdefault(at, []).append(op)
        after.update((n, at) for n in op.outputs)
    read: dict[str, set[int]] = {}  # variable -> the regions that read it; -1 stands for all else
    for at, ops in regions.items():
        for op in ops:
            for n in op.inputs:
                read.setdefault(n, set()).add(at)
    for ops in singles.values():
        for op in ops:
            for n in op.inputs:
                read.setdefault(n, set()).add(-1)
    for n in block.results:
        read.setdefault(n, set()).add(-1)
    for at in sorted(regions.keys() | singles.keys()):
        if at in regions:
            yield _region(block, regions[at], at, read)
        yield from singles.get(at, ())


def _region(block: Block, ops: list[Op], at: int, read: dict[str, set[int]]) -> Block:
    made = {n for op in ops for n in op.outputs}
    params = dict.fromkeys(n for op in ops for n in op.inputs if n and n not in made)
    results = [n for op in ops for n in op.outputs if read.get(n, set()) - {at}]
    types = {n: block.types[n] for n in (*params, *made)}
    return Block(tuple(params), tuple(ops), tuple(results), types)


def _spread(block: Block, refused: frozenset[int]) -> frozenset[int]:
    """`refused`, and every op that shares a stack with one of them: a stack does not leave a region."""
    touching: dict[str, list[int]] = {}
    for index, op in enumerate(block.ops):
        for n in (*op.inputs, *op.outputs):
            if n and isinstance(block.types[n], StackType):
                touching.setdefault(n, []).append(index)
    found = set(refused)
    for n in (*block.params, *block.results):
        if isinstance(block.types[n], StackType):
            found.update(touching.get(n, ()))
    queue = list(found)
    while queue:
        op = block.ops[queue.pop()]
        for n in (*op.inputs, *op.outputs):
            for index in touching.get(n, ()):
                if index not in found:
                    found.add(index)
                    queue.append(index)
    return frozenset(found)
