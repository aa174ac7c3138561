"""One nest under other memory policies, differentiated and optimised by itself: its residuals, memory and work."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from core.autodiff.adjoint import Adjoint
from core.cost.memory import Lives, lives
from core.cost.nests import Nest, alone
from core.cost.work import count_work
from core.ir import HOLE, Block, Op, inner_blocks
from core.ir.exact import exact_attrs
from core.ops.control.inner_blocks import LoopMemory
from core.passes import optimize
from core.passes.chunk import chunk_loops

__all__ = ["Variant", "constant", "variant_of"]


@dataclass(frozen=True, slots=True)
class Variant:
    """A nest under one choice of policies, one for each of its loops.

    residuals: bytes that the forward part keeps only for the backward part.
    outputs:   (number of the output, bytes) for the client's outputs.
    gradients: bytes of the outputs of the gradient.
    forward:   peak bytes of the forward part, not counting arrays that the step counts outside of the nest.
    backward:  the same for the backward part.
    reads:     numbers of the inputs that the backward part reads; outputs are numbered after the inputs.
    fixed:     (constant, bytes, whether the backward part reads it) for the constants outside of its blocks.
    work:      floating-point operations of both parts.
    """

    policies: tuple[LoopMemory, ...]
    residuals: int
    outputs: tuple[tuple[int, int], ...]
    gradients: tuple[int, ...]
    forward: int
    backward: int
    reads: tuple[int, ...]
    fixed: tuple[tuple[Hashable, int, bool], ...]
    work: int


def constant(op: Op) -> Hashable:
    """A key of an op without inputs."""
    return op.type, exact_attrs(op.attrs)


def variant_of(nest: Nest, forward: Block, step: Block, policies: tuple[LoopMemory, ...], trips: int) -> Variant:
    """Compile `nest` alone under `policies` and measure it."""
    op, call = nest.op, nest.call
    small = chunk_loops(alone(op, forward), "store", dict(zip(nest.loops, policies, strict=True)))
    a = Adjoint(small)
    found = {}
    if call is not None:
        seeds = [(name, a.seed(name)) for name, seeded in zip(op.outputs, call.seeded, strict=True) if seeded]
        wanted = {name for name, w in zip(op.inputs, call.wanted, strict=True) if w}
        found = a.run(seeds, [name for name in small.params if name in wanted])
    live = [name for name in op.outputs if name in step.ops[nest.at].outputs]
    block = optimize(a.joined([*live, *(ct.name for ct in found.values())]))
    return _measured(block, nest, live, policies, trips)


def _measured(block: Block, nest: Nest, live: Sequence[str], policies: tuple[LoopMemory, ...], trips: int) -> Variant:
    """The memory and work of `block`, the forward and backward part of the nest. It returns `live`, then gradients."""
    taken = lives(block, trips)
    outputs = [taken.array[name] for name in block.results[: len(live)]]
    split = 1 + next((i for i, op in enumerate(block.ops) if any(inner_blocks(op))), -1)
    # the backward part has the gradient op, and constants such as zeros that the step has too
    gradient = next((op for op in reversed(block.ops[split:]) if any(inner_blocks(op))), None)
    late = {taken.array[n] for n in gradient.inputs if n != HOLE} if gradient else set()
    stacks = tuple((nest.op.outputs.index(n), taken.sizes[i]) for n, i in zip(live, outputs, strict=True))
    gradients = tuple(taken.sizes[taken.array[n]] for n in gradient.outputs) if gradient else ()
    fixed = []
    for op in block.ops:
        if not op.inputs:
            array = taken.array[op.outputs[0]]
            fixed.append((constant(op), taken.sizes[array], array in late))
            taken.sizes[array] = 0
    for array in outputs:  # the step counts the outputs outside of the nest
        taken.sizes[array] = 0
    residuals = [i for i, birth in enumerate(taken.births) if len(block.params) <= i and birth < split and i in late]
    total = sum(taken.sizes[i] for i in residuals)
    for array in residuals:
        taken.sizes[array] = 0
    names = (*nest.op.inputs, *nest.op.outputs)
    reads = tuple(i for i, name in enumerate(names) if name in taken.array and taken.array[name] in late)
    back = max(taken.inside[split:], default=0)
    work = sum(count_work(block, trips).values())
    return Variant(
        policies,
        total,
        stacks,
        gradients,
        _top(taken, split),
        back,
        reads,
        tuple(fixed),
        work,
    )


def _top(taken: Lives, split: int) -> int:
    """The peak of the first `split` ops."""
    inside = taken.inside[:split]
    early = [i for i, birth in enumerate(taken.births) if birth < split]
    sizes, births, deaths = ([each[i] for i in early] for each in (taken.sizes, taken.births, taken.deaths))
    return Lives({}, sizes, births, deaths, inside).peak()[0]
