"""The peak memory of a step, predicted from types: a simulation of the reference executor without arrays.

Every value is freed after its last use. Views, such as reshapes and transposes, share the memory of their input.
Temporary memory inside a kernel counts on request: machine code has none, and budgets compare plans that share it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from core.cost.scratch import scratch_bytes
from core.cost.views import VIEWS
from core.ir import HOLE, Block, Op, StackType, inner_blocks
from core.ir.errors import Place
from core.ir.registry import is_loop, roles_of
from core.ir.stop import poll
from core.ops.common.types import byte_size

__all__ = ["Lives", "Memory", "lives", "nested_runs", "predict_memory", "runs_of"]


@dataclass(frozen=True, slots=True)
class Memory:
    """peak: the largest number of bytes alive at once, not counting parameters of the block; at: the op of the peak."""

    peak: int
    at: Op | None


def _nest(op: Op) -> int:
    """The number of nested loops, this one included, that implement one loop of the client."""
    inner = [each for _, block in inner_blocks(op) for each in block.ops if is_loop(each)]
    same = [each for each in inner if _place(each) == _place(op) and _place(op) is not None]
    return 1 + max(map(_nest, same), default=0)


def _place(op: Op) -> Place | None:
    return op.location.place if op.location else None


Nests = Mapping[Place, int]
"""For the loops around a block: the client's op -> the number of nested loops that implement it."""


def runs_of(op: Op, trips: int, outer: Nests) -> tuple[int, Nests]:
    """How often the body of a loop runs if the client's loop makes `trips` trips, and the nests around its body."""
    place = _place(op)
    depth = outer.get(place, 0) if place else 0
    depth = depth or _nest(op)
    return nested_runs(depth, trips), {**outer, place: depth} if place else outer


def nested_runs(depth: int, trips: int) -> int:
    """The number of runs at every level of `depth` nested loops that implement one loop of `trips` trips.

    A memory policy writes one loop of the client as nested loops. k nested loops with m runs at every level cover
    binom(m + k - 1, k) trips.
    """
    if depth == 1:
        return trips
    runs = 1
    while math.comb(runs + depth - 1, depth) < trips:
        runs += 1
    return min(runs, trips)


@dataclass(slots=True)
class Lives:
    """The lifetimes of the arrays of a block. Parameters of the block have size 0.

    array:  variable -> number of its array; a view has the number of its source.
    sizes:  for each array, its bytes.
    births: for each array, the position of the op that writes it.
    deaths: for each array, the position of the last op that reads it; for results the number of ops.
    inside: for each op, the peak of its inner blocks.
    """

    array: dict[str, int]
    sizes: list[int]
    births: list[int]
    deaths: list[int]
    inside: list[int]

    def peak(self) -> tuple[int, int]:
        """The most bytes alive during one op, and the position of that op; (0, -1) if no array is ever alive."""
        change = [0] * (len(self.inside) + 1)
        for size, birth, death in zip(self.sizes, self.births, self.deaths, strict=True):
            change[birth] += size
            change[min(death + 1, len(self.inside))] -= size
        top, at, alive = 0, -1, 0
        for i, inside in enumerate(self.inside):
            alive += change[i]
            if alive + inside > top:
                top, at = alive + inside, i
        return top, at


def lives(
    block: Block,
    trips: int,
    outer: Nests = MappingProxyType({}),
    unread: Mapping[int, Collection[str]] = MappingProxyType({}),
    scratch: bool = False,
) -> Lives:
    """The lifetimes of the arrays in one run of `block`, whose loops make `trips` trips each.

    unread:  position of an op -> inputs that do not count as read by it.
    scratch: count the temporary memory inside kernels.
    """
    count = len(block.params)
    array = {name: i for i, name in enumerate(block.params)}
    sizes, births, deaths = [0] * count, [0] * count, [-1] * count
    inside: list[int] = []
    types = block.types
    for i, op in enumerate(block.ops):
        poll()
        inputs = op.inputs
        if i in unread:
            inputs = tuple(name for name in inputs if name not in unread[i])
        for name in inputs:
            if name != HOLE:
                deaths[array[name]] = i
        if op.type in VIEWS and op.inputs:
            source = array[op.inputs[0]]
            deaths[source] = i
            array.update(dict.fromkeys(op.outputs, source))
        else:
            recorded = _recorded(op, trips, outer) if is_loop(op) else {}
            for name in op.outputs:
                array[name] = len(sizes)
                sizes.append(recorded[name] if name in recorded else byte_size(types[name]))
                births.append(i)
                deaths.append(i)
        inner = _peak_inside(op, trips, outer, scratch) if op.attrs else 0
        if scratch and not any(inner_blocks(op)):
            operands = [None if name == HOLE else types[name] for name in op.inputs]
            inner = scratch_bytes(op.type, operands, [types[name] for name in op.outputs])
        inside.append(inner)
    for name in block.results:
        deaths[array[name]] = len(block.ops)
    return Lives(array, sizes, births, deaths, inside)


def predict_memory(block: Block, trips: int, outer: Nests = MappingProxyType({}), scratch: bool = False) -> Memory:
    """The peak of one run of `block`, whose loops make `trips` trips each. scratch: see `lives`."""
    peak, at = lives(block, trips, outer, scratch=scratch).peak()
    return Memory(peak, block.ops[at] if at >= 0 else None)


def _peak_inside(op: Op, trips: int, outer: Nests, scratch: bool) -> int:
    """The highest peak of the inner blocks of `op`."""
    peak, below = 0, None
    for _, inner in inner_blocks(op):
        if below is None:
            below = runs_of(op, trips, outer)[1] if is_loop(op) else outer
        peak = max(peak, predict_memory(inner, trips, below, scratch).peak)
    return peak


def _recorded(op: Op, trips: int, outer: Nests) -> Mapping[str, int]:
    """Bytes of all elements of each stack that a loop records."""
    sizes: dict[str, int] = {}
    roles = roles_of(op)
    assert roles is not None
    body: Block = op.attrs["sub_block"]
    runs, _ = runs_of(op, trips, outer)
    passed = {body.params[i]: body.results[i] for i in roles.carried}
    seen = {body.params[i] for i in (*roles.captured, *roles.elements)}  # captured values and elements exist already
    for name, inner in ((op.outputs[i], body.results[i]) for i in roles.optional):
        # the value that enters a trip left the previous one: recorded under either name it is one array
        array = passed.get(inner, inner)
        element = body.types[inner]
        depth = 1
        while isinstance(element, StackType):
            element, depth = element.element, depth + 1
        sizes[name] = 0 if array in seen else byte_size(element) * runs**depth
        seen.add(array)
    return sizes
