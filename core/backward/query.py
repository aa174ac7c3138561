"""The query of a client: the gradients to compute, how to compute them, and the variables that this concerns."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from core.autodiff.hooks import Hook
from core.cost.budget import Budget, Policies
from core.ir import Block, Program, inner_blocks
from core.ir.errors import ProgramError, pointing_to
from core.ir.members import Member, Name, read_members
from core.ir.names import (
    ClientNames,
    block_index,
    check_place,
    inner_name,
    list_of_names,
    names_of_all,
    root_variable,
    unversioned,
)
from core.ir.suggest import near
from core.ops.control.inner_blocks import LoopMemory
from core.passes.chunk import chunk_loops
from core.passes.recompute import even_cuts

__all__ = ["GradientQuery", "Options", "Unconnected", "check_hooks", "cuts", "with_memory", "without_flow"]

Unconnected = Literal["null", "zeros", "error"]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the computation, for gradients of a loss and of targets alike."""

    no_grad_set: Annotated[
        Collection[Name], Member("Variables that no gradient flows through; `1:h` names one of block 1.")
    ] = ()
    unconnected: Annotated[
        Unconnected,
        Member(
            "Treatment of a gradient that does not exist: `null` leaves it out and gives the reason under "
            "`missing`, `zeros` returns zeros, `error` refuses the request."
        ),
    ] = "null"
    hooks: Annotated[
        tuple[Hook, ...],
        Member("Actions on gradients while they are computed, in this order.", max_length=1000),
    ] = ()
    checkpoints: Annotated[
        tuple[Name, ...] | Literal["auto"] | Budget,
        Member(
            "Variables at which the forward pass is cut into segments: only these are stored, and the backward pass "
            "runs each segment again. `1:h` names a variable of block 1; `auto` cuts block 0 into about sqrt(ops) "
            "segments. With a budget, as many segments at the front of block 0 as the budget needs run again.",
            examples=(["h"], "auto", {"bytes": 100_000_000}),
        ),
    ] = ()
    loop_memory: Annotated[
        LoopMemory | Budget,
        Member(
            "Values that loops store for the backward pass, unless a loop sets its own policy: `store` keeps those of "
            "all trips; `recompute` keeps only carried values; `sqrt` and `binomial` keep those of some trips (see the "
            "op `loop`). The backward pass recomputes all other values. A budget chooses a policy for each loop.",
            examples=("sqrt", {"bytes": 100_000_000, "trips": 500}),
        ),
    ] = "store"

    @property
    def budget(self) -> Budget | None:
        """The budget of the step, the tighter one if two are given."""
        given = [each for each in (self.loop_memory, self.checkpoints) if isinstance(each, Budget)]
        return min(given, key=lambda each: (each.bytes, -each.trips), default=None)


@dataclass(frozen=True, slots=True)
class GradientQuery(Options):
    """Gradients to compute: of a scalar `loss` with respect to parameters, or of `targets` with respect to `inputs`."""

    loss: Annotated[Name | None, Member("A floating-point variable of one element in block 0.", examples=("loss",))] = (
        None
    )
    parameter_list: Annotated[
        tuple[Name, ...] | None,
        Member("Parameters to differentiate with respect to; by default all trainable ones. Only with `loss`."),
    ] = None
    targets: Annotated[
        tuple[Name, ...], Member("In place of `loss`: floating-point variables of block 0, of any shape.")
    ] = ()
    inputs: Annotated[tuple[Name, ...], Member("With `targets`: the variables to differentiate with respect to.")] = ()
    target_gradients: tuple[bool, ...] = ()
    """For each target True if each step provides its cotangent, as ``target_gradients/<i>``, and False for ones;
    empty means ones for all. Not a member of requests: those carry the tensors.
    """

    def __post_init__(self) -> None:
        if (self.loss is None) == (not self.targets):
            raise ProgramError("give either a loss or targets and inputs", "bad_query", pointer="/loss")
        if self.loss is not None and (self.inputs or self.target_gradients):
            raise ProgramError(
                "inputs and target_gradients go with targets, not with a loss: name the loss as a target",
                "bad_query",
                pointer="/inputs" if self.inputs else "/target_gradients",
            )
        if self.targets and self.parameter_list is not None:
            raise ProgramError(
                "parameter_list goes with a loss, not with targets", "bad_query", pointer="/parameter_list"
            )

    @classmethod
    def read(cls, raw: Any, target_gradients: Sequence[bool] = ()) -> GradientQuery:
        """A query from its JSON form. Raises ProgramError (bad_query, bad_hook)."""
        query = read_members(cls, raw, "a query", "bad_query")
        return replace(query, target_gradients=tuple(target_gradients)) if target_gradients else query


def with_memory(block: Block, options: Options, policies: Policies = ()) -> Block:
    """`block` with its loops rewritten by their memory policies, checkpoints inside them included.

    policies: what single loops store in place of ``options.loop_memory``, by the place of the client's op.
    Raises ProgramError (checkpoint_unknown).
    """
    named = options.checkpoints if isinstance(options.checkpoints, tuple | list) else ()
    places = list(map(inner_name, named))
    if inner := {place for place in places if place[0]}:
        _check_each(block, places, "checkpoints", "checkpoint_unknown")
        block = _with_checkpoints(block, inner)
    assert not isinstance(options.loop_memory, Budget)
    return chunk_loops(block, options.loop_memory, dict(policies))


def cuts(
    program: Program, block: Block, options: Options, chosen: Sequence[int] = ()
) -> tuple[list[int], set[str]] | None:
    """The positions in `block` after which to cut, and the variables to store there; None for no cut.

    block:  block 0 of `program` `with_memory`.
    chosen: the positions, if a budget chose them.
    Raises ProgramError (checkpoint_unknown).
    """
    if chosen:
        return list(chosen), set()
    if options.checkpoints == "auto":
        return even_cuts(block, max(1, round(math.sqrt(len(block.ops))))), set()
    assert not isinstance(options.checkpoints, Budget)
    if not options.checkpoints:
        return None
    written = {name: i for i, op in enumerate(block.ops) for name in op.outputs}
    kept, names = set(), ClientNames(block, 0)
    for i, name in enumerate(options.checkpoints):
        number, name = inner_name(name)
        if number:
            kept.update(names.called(number, name)[-1:])
            continue
        try:
            kept.add(root_variable(program, name, "checkpoint_unknown"))
        except ProgramError as error:
            raise ProgramError(error.message, "checkpoint_unknown", pointer=f"/checkpoints/{i}") from None
    return (sorted({written[n] for n in kept if n in written}), kept) if kept else None


def without_flow(program: Program, block: Block, options: Options) -> tuple[set[str], Collection[tuple[int, str]]]:
    """The variables of block 0 that no gradient flows through by `no_grad_set`, and the places of inner ones.

    block: block 0 of `program` `with_memory`.
    Raises ProgramError (bad_no_grad_set).
    """
    stopped: set[str] = set()
    places = [inner_name(name) for name in list_of_names(options.no_grad_set, "bad_no_grad_set")]
    if not places:
        return stopped, ()
    inner = {place for place in places if place[0]}
    names = ClientNames(program.block, 0)
    for i, (number, name) in enumerate(places):
        if number:
            continue
        versions = set(names.called(0, name))
        if not versions:
            hint = near(name, [each for each in block.types if "@" not in each])
            text, at = f"block 0 has no variable {name!r}", f"/no_grad_set/{i}"
            raise ProgramError(text, "bad_no_grad_set", suggestion=hint, pointer=at)
        stopped |= versions
    if inner:
        _check_each(block, places, "no_grad_set", "bad_no_grad_set")
        with_inlined = ClientNames(block, 0)
        stopped.update(n for place in inner for n in with_inlined.called(*place))
    return stopped, inner


def check_hooks(program: Program, hooks: Sequence[Hook]) -> None:
    """Raises ProgramError (bad_hook) for a hook on a variable that does not exist."""
    every = names_of_all(program.block) if any(hook.match.variable is not None for hook in hooks) else []
    for i, hook in enumerate(hooks):
        if hook.match.variable is not None:
            with pointing_to(f"/hooks/{i}/match/variable"):
                check_place(every, hook.place, "bad_hook")


def _check_each(block: Block, places: Sequence[tuple[int, str]], member: str, code: str) -> None:
    """As `check_place` for the `places` in inner blocks. member: of the request, which lists all places in order."""
    every = names_of_all(block)
    for i, place in enumerate(places):
        if place[0]:
            with pointing_to(f"/{member}/{i}"):
                check_place(every, place, code)


def _with_checkpoints(block: Block, places: Collection[tuple[int, str]]) -> Block:
    """`block` in which control flow with a named variable inside recomputes all but the named variables."""
    ops = []
    for op in block.ops:
        attrs, kept = dict(op.attrs), set(op.attrs.get("checkpoints", ()))
        for attr, inner in inner_blocks(op):
            names = ClientNames(inner, block_index(inner))
            for place in places:
                kept.update(map(unversioned, names.called(*place)))
            attrs[attr] = _with_checkpoints(inner, places)
        if kept:
            attrs["checkpoints"] = tuple(sorted(kept))
            attrs["memory"] = "recompute" if attrs["memory"] == "store" else attrs["memory"]
        ops.append(replace(op, attrs=attrs) if attrs else op)
    return replace(block, ops=tuple(ops))
