"""How gradients are computed, whichever are asked for, and what that means for the variables of a program."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from core.autodiff.hooks import Hook
from core.cost.budget import Budget, Policies
from core.ir import Block, Program, inner_blocks, with_inner
from core.ir.errors import ProgramError
from core.ir.names import block_index, called, check_places, inner_name, list_of_names, root_variable, unversioned
from core.ops.control.inner_blocks import LoopMemory
from core.passes.chunk import chunk_loops
from core.passes.recompute import even_cuts

__all__ = ["Options", "Unconnected", "check_hooks", "cuts", "with_memory", "without_flow"]

Unconnected = Literal["null", "zeros", "error"]


@dataclass(frozen=True, slots=True)
class Options:
    """How gradients are computed, whichever are asked for.

    no_grad_set: variables through which nothing flows; ``"1:h"`` names a variable of block 1.
    unconnected: what stands for a gradient that does not exist: null, real zeros, or an error.
    hooks:       what is done to gradients on the way.
    checkpoints: variables at which the forward part is cut: between them it is run again in the backward pass, and
                 only they and what else crosses a cut are kept. ``"1:h"`` names one inside a loop or branch. "auto"
                 cuts block 0 into about as many segments as each has ops. A budget cuts as much of its front as needed.
    loop_memory: what loops keep that do not say so themselves. A budget chooses for each loop.
    policies:    what single loops keep, by the place of the client's op: block and position.
    cuts:        positions in block 0 after which to cut, once loops are written as their policies ask.
    """

    no_grad_set: Collection[str] = ()
    unconnected: Unconnected = "null"
    hooks: tuple[Hook, ...] = ()
    checkpoints: tuple[str, ...] | Literal["auto"] | Budget = ()
    loop_memory: LoopMemory | Budget = "store"
    policies: Policies = ()
    cuts: tuple[int, ...] = ()

    @property
    def budget(self) -> Budget | None:
        """The budget of the step, the tighter one if two are given."""
        given = [each for each in (self.loop_memory, self.checkpoints) if isinstance(each, Budget)]
        return min(given, key=lambda each: (each.bytes, -each.trips), default=None)


def with_memory(block: Block, options: Options) -> Block:
    """`block` with its loops written as their memory policies ask, checkpoints inside them included.

    Raises ProgramError (checkpoint_unknown).
    """
    named = options.checkpoints if isinstance(options.checkpoints, tuple | list) else ()
    if inner := {place for place in map(inner_name, named) if place[0]}:
        check_places(block, inner, "checkpoint_unknown")
        block = _with_checkpoints(block, inner)
    assert not isinstance(options.loop_memory, Budget)
    return chunk_loops(block, options.loop_memory, dict(options.policies))


def cuts(program: Program, block: Block, options: Options) -> tuple[list[int], set[str]] | None:
    """The positions in `block` after which to cut, and the variables to keep there; None for no cut.

    block: block 0 of `program` `with_memory`.
    Raises ProgramError (checkpoint_unknown).
    """
    if options.cuts:
        return list(options.cuts), set()
    if options.checkpoints == "auto":
        return even_cuts(block, max(1, round(math.sqrt(len(block.ops))))), set()
    assert not isinstance(options.checkpoints, Budget)
    written = {name: i for i, op in enumerate(block.ops) for name in op.outputs}
    kept = set()
    for name in options.checkpoints:
        number, name = inner_name(name)
        if number:
            kept.update(called(block, 0, number, name)[-1:])
            continue
        try:
            kept.add(root_variable(program, name, "checkpoint_unknown"))
        except ProgramError as error:
            raise ProgramError(error.message, "checkpoint_unknown") from None
    return (sorted({written[n] for n in kept if n in written}), kept) if kept else None


def without_flow(program: Program, block: Block, options: Options) -> tuple[Block, set[str]]:
    """`block` with the inner variables of `no_grad_set` stopped, and the variables of block 0 that are to be.

    block: block 0 of `program` `with_memory`.
    Raises ProgramError (bad_no_grad_set).
    """
    stopped: set[str] = set()
    inner: set[tuple[int, str]] = set()
    for name in list_of_names(options.no_grad_set, "bad_no_grad_set"):
        number, name = inner_name(name)
        if number:
            inner.add((number, name))
            continue
        versions = set(called(program.block, 0, 0, name))
        if not versions:
            raise ProgramError(f"there is no variable {name!r} in block 0", "bad_no_grad_set")
        stopped |= versions
    if inner:
        check_places(block, inner, "bad_no_grad_set")
        stopped.update(n for place in inner for n in called(block, 0, *place))
        block = _stopped_inside(block, inner)
    return block, stopped


def check_hooks(program: Program, hooks: Sequence[Hook]) -> None:
    """Raises ProgramError (bad_hook) for a hook on a variable that does not exist."""
    for hook in hooks:
        if hook.variable is not None:
            check_places(program.block, [hook.place], "bad_hook")


def _with_checkpoints(block: Block, places: Collection[tuple[int, str]]) -> Block:
    """`block` with the control flow whose inner blocks are named recomputing all but those variables."""
    ops = []
    for op in block.ops:
        attrs, kept = dict(op.attrs), set(op.attrs.get("checkpoints", ()))
        for attr, inner in inner_blocks(op):
            for place in places:
                kept.update(map(unversioned, called(inner, block_index(inner), *place)))
            attrs[attr] = _with_checkpoints(inner, places)
        if kept:
            attrs["checkpoints"] = tuple(sorted(kept))
            attrs["memory"] = "recompute" if attrs["memory"] == "store" else attrs["memory"]
        ops.append(replace(op, attrs=attrs) if attrs else op)
    return replace(block, ops=tuple(ops))


def _stopped_inside(block: Block, places: Collection[tuple[int, str]]) -> Block:
    """`block` with the variables of its inner blocks that are named stopped."""

    def stopped(inner: Block) -> Block:
        names = {n for place in places for n in called(inner, block_index(inner), *place)}
        return replace(_stopped_inside(inner, places), stopped=inner.stopped | names)

    return replace(block, ops=tuple(with_inner(op, stopped) for op in block.ops))
