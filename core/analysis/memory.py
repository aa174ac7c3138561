"""The peak memory of a step, from the types: the reference executor's run, played without arrays.

Every value is freed after its last use. Reshapes, transposes and the like share the memory of their input. What a
kernel needs for itself while it runs is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from core.ir import Block, Op, StackType, inner_blocks
from core.ops.types import byte_size

__all__ = ["Memory", "predict_memory", "runs_of"]

VIEWS = frozenset(
    {
        "array_chunks",
        "array_flatten",
        "array_regroup",
        "array_unstack",
        "assign",
        "assert",
        "barrier",
        "check_finite",
        "diagonal",
        "expand",
        "expand_as",
        "reshape",
        "reshape_as",
        "slice",
        "split",
        "split_like",
        "squeeze",
        "stop_gradient",
        "transpose",
        "unsqueeze",
        "unstack",
    }
)
"""Ops whose outputs are views of their first input."""


@dataclass(frozen=True, slots=True)
class Memory:
    """peak: bytes alive at once, parameters of the block not counted; at: the op during which that is so."""

    peak: int
    at: Op | None


def _nest(op: Op) -> int:
    """The number of loops, this one included, that stand for one loop of the client."""
    inner = [each for _, block in inner_blocks(op) for each in block.ops if each.type == "loop"]
    same = [each for each in inner if _place(each) == _place(op) and _place(op) is not None]
    return 1 + max(map(_nest, same), default=0)


def _place(op: Op) -> tuple[int, int] | None:
    return (op.location.block, op.location.op) if op.location else None


Nests = Mapping[tuple[int, int], int]
"""The client's op -> how many loops, one in the other, stand for it; of the loops around a block."""


def runs_of(op: Op, trips: int, outer: Nests) -> tuple[int, Nests]:
    """How often the body of a loop runs, where the client's loop makes `trips` trips, and the nests inside it.

    A memory policy writes one loop as several, one in the other, all at the client's op; a nest of k such loops covers
    binom(m + k - 1, k) trips with m runs at every level.
    """
    place = _place(op)
    depth = outer.get(place, 0) if place else 0
    depth = depth or _nest(op)
    runs = trips
    if depth > 1:
        runs = 1
        while math.comb(runs + depth - 1, depth) < trips:
            runs += 1
        runs = min(runs, trips)
    return runs, {**outer, place: depth} if place else outer


def predict_memory(block: Block, trips: int, outer: Nests = MappingProxyType({})) -> Memory:
    """The peak of one run of `block`, whose loops make `trips` trips each."""
    last: dict[str, int] = {}  # the last op that names it; results are alive after it
    for i, op in enumerate(block.ops):
        for name in op.inputs:
            last[name] = i
        for name in op.outputs:
            last[name] = i
    last.update(dict.fromkeys(block.results, len(block.ops)))
    root: dict[str, str] = {name: name for name in block.params}
    size: dict[str, int] = dict.fromkeys(block.params, 0)
    users: dict[str, int] = dict.fromkeys(block.params, 1)
    types = block.types
    alive, peak, at = 0, 0, None
    for i, op in enumerate(block.ops):
        inputs, outputs = op.inputs, op.outputs
        recorded = _recorded(op, trips, outer) if op.type == "loop" else {}
        source = root.get(inputs[0]) if op.type in VIEWS and inputs else None
        for name in outputs:
            if source is None:
                root[name], users[name] = name, 1
                made = size[name] = recorded[name] if name in recorded else byte_size(types[name])
                alive += made
            else:
                root[name] = source
                users[source] += 1
        inside = _peak_inside(op, trips, outer) if op.attrs else 0
        if alive + inside > peak:
            peak, at = alive + inside, op
        # in the order of their names: an op that reads a value twice lets go of it once
        ending = [name for name in inputs if last[name] == i and name in root]
        ending += [name for name in outputs if last[name] == i]
        for name in dict.fromkeys(ending) if len(ending) > 1 else ending:
            at_root = root[name]
            users[at_root] -= 1
            if users[at_root] == 0:
                alive -= size[at_root]
    return Memory(peak, at)


def _peak_inside(op: Op, trips: int, outer: Nests) -> int:
    """The highest peak of the inner blocks of `op`."""
    peak, below = 0, None
    for _, inner in inner_blocks(op):
        if below is None:
            below = runs_of(op, trips, outer)[1] if op.type == "loop" else outer
        peak = max(peak, predict_memory(inner, trips, below).peak)
    return peak


def _recorded(op: Op, trips: int, outer: Nests) -> Mapping[str, int]:
    """Bytes of all elements of each stack that a loop records."""
    sizes: dict[str, int] = {}
    carried = op.attrs["carried"]
    body: Block = op.attrs["sub_block"]
    runs, _ = runs_of(op, trips, outer)
    recorded = body.results[carried:]
    passed = {body.params[i]: body.results[i] for i in range(carried)}
    seen: set[str] = set(body.params[carried:])  # captured values and elements exist already
    for name, inner in zip(op.outputs[carried:], recorded, strict=True):
        # what enters a trip is what left the one before: recorded under either name it is one array
        array = passed.get(inner, inner)
        element = body.types[inner]
        depth = 1
        while isinstance(element, StackType):
            element, depth = element.element, depth + 1
        sizes[name] = 0 if array in seen else byte_size(element) * runs**depth
        seen.add(array)
    return sizes
