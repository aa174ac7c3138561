"""Gradient checkpointing: recompute residuals in the backward pass instead of keeping them in memory.

The forward part is cut into segments. Variables that cross a cut are checkpoints and stay in memory. All other
variables of a segment are freed after their last forward use. They are computed again, from the checkpoints that the
segment reads, right before the first backward op that reads one of them. The last segment is not recomputed, because
its backward pass follows immediately. Chen, Xu, Zhang and Guestrin 2016.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from core.ir import HOLE, Block, Op, TensorType, Type
from core.ir.generated import numbered, tagged
from core.ir.registry import lookup
from core.ops.control.inner_blocks import silent

__all__ = ["Recomputed", "even_cuts", "recompute"]


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The backward ops with recomputed forward ops among them.

    types:       types of the new variables.
    checkpoints: forward variables that cross a cut, in order.
    again:       the number of recomputed ops.
    """

    ops: tuple[Op, ...]
    types: Mapping[str, Type]
    checkpoints: tuple[str, ...]
    again: int


def recompute(
    block: Block, adjoint: Sequence[Op], cuts: Sequence[int], checkpoints: Collection[str] = ()
) -> Recomputed:
    """The ops of `adjoint` with the recomputed ops; they read recomputed values instead of freed ones.

    block:       the forward part.
    cuts:        positions in the ops of the block after which a segment ends, ascending.
    checkpoints: further variables to keep in memory, whether they cross a cut or not.
    """
    made = {name: i for i, op in enumerate(block.ops) for name in op.outputs}
    segment = {name: bisect_left(cuts, i) for name, i in made.items()}
    last = bisect_left(cuts, len(block.ops) - 1)
    inside = {n for n, s in segment.items() if s < last}
    crossing = {
        n for i, op in enumerate(block.ops) for n in op.inputs if n in inside and segment[n] < bisect_left(cuts, i)
    }
    crossing.update(n for n in (*block.results, *checkpoints) if n in inside)
    lost = inside - crossing
    needed: dict[int, set[str]] = {}
    for op in adjoint:
        for n in op.inputs:
            if n in lost:
                needed.setdefault(segment[n], set()).add(n)
    taken = {*block.types, *(n for op in adjoint for n in op.outputs)}
    ops: list[Op] = []
    types: dict[str, Type] = {}
    renamed: dict[str, str] = {}
    count = 0
    for op in adjoint:
        for s in sorted({segment[n] for n in op.inputs if n in lost and n not in renamed}, reverse=True):
            again = _again(block, made, needed[s], lost, s, taken)
            ops += again.ops
            count += sum(op.type != "barrier" for op in again.ops)
            types.update((new, block.types[old]) for old, new in (again.own | again.passed).items())
            renamed.update((old, new) for old, new in again.own.items() if old in lost)
        ops.append(replace(op, inputs=tuple(renamed.get(n, n) for n in op.inputs)))
    return Recomputed(tuple(ops), types, tuple(n for n in made if n in crossing), count)


@dataclass(frozen=True, slots=True)
class _Again:
    """Recomputed ops; old -> new names of their outputs (`own`) and of the outside variables they read (`passed`)."""

    ops: list[Op]
    own: dict[str, str]
    passed: dict[str, str]


def _again(
    block: Block, made: Mapping[str, int], wanted: set[str], lost: set[str], number: int, taken: set[str]
) -> _Again:
    """The ops that compute `wanted` again. They read checkpoints through a `barrier`, so that no pass merges them
    with the original ops.

    taken: names in use, to which the new names are added. A backward program may contain recomputed ops already.
    """
    needed, positions = set(wanted), set()
    for position in range(max(made[n] for n in wanted), -1, -1):
        op = block.ops[position]
        if not needed.isdisjoint(op.outputs):
            positions.add(position)
            needed.update(n for n in op.inputs if n in lost)
    chosen = [silent(block.ops[i]) for i in sorted(positions)]
    last: dict[str, int] = {}

    def new(name: str, tag: str) -> str:
        free = numbered(tagged(name, tag), taken, last)
        taken.add(free)
        return free

    own = {n: new(n, "AGAIN") for op in chosen for n in op.outputs}
    read = dict.fromkeys(n for op in chosen for n in op.inputs if n not in own and n != HOLE)
    passed = {n: new(n, f"AGAIN{number}") for n in read}
    fresh = own | passed
    ops = [
        Op(
            op.type,
            tuple(fresh.get(n, n) for n in op.inputs),
            tuple(own[n] for n in op.outputs),
            op.attrs,
            op.location and replace(op.location, adjoint=True),
        )
        for op in chosen
    ]
    if passed:
        attrs = lookup("barrier").complete({"number": number})
        ops.insert(0, Op("barrier", tuple(passed), tuple(passed.values()), attrs, ops[0].location))
    return _Again(ops, own, passed)


def even_cuts(block: Block, segments: int) -> list[int]:
    """Positions that cut `block` into about `segments` parts: near even positions, where the fewest bytes cross."""
    n = len(block.ops)
    made = {name: i for i, op in enumerate(block.ops) for name in op.outputs}
    until: dict[str, int] = {}
    for i, op in enumerate(block.ops):
        until.update((name, i) for name in op.inputs if name in made)
    change = [0] * (n + 1)
    for name, i in made.items():
        size = _bytes(block.types[name])
        if name in until:
            change[i] += size
            change[until[name]] -= size
    crossing, total = [], 0
    for each in change[:n]:
        total += each
        crossing.append(total)
    cuts = set()
    width = n / segments
    for k in range(1, segments):
        low, high = math.ceil((k - 0.5) * width), min(math.ceil((k + 0.5) * width), n - 1)
        if low < high:
            cuts.add(min(range(low, high), key=lambda i: (crossing[i], abs(i - k * width))))
    return sorted(cuts)


def _bytes(type: Type) -> int:
    if not isinstance(type, TensorType):
        return 2**40  # a stack: avoid cuts that keep the recorded values of a loop
    width = 8 if type.dtype.endswith("64") else 1 if type.dtype in ("bool", "int8", "uint8") else 4
    return width * math.prod(max(n, 1) for n in type.shape)
