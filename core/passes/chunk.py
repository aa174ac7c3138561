"""Nested loops for less memory: the memory policies "sqrt" and "binomial" of loops.

A loop of n trips becomes a loop over runs of trips. A step keeps only the values carried into each run. The backward
pass runs the trips of a run again and keeps all their values then. Run number k has k trips: for an unknown n there
are about sqrt(2 n) runs of at most as many trips. With "binomial" run number k consists of k such runs: the
schedule of Griewank and Walther (2000) for two snapshots' worth of recomputation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from core.ir import Block, Op, StackType, TensorType, Type, inner_blocks, with_inner
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import Place
from core.ir.registry import is_loop
from core.ops.control.inner_blocks import LoopMemory

__all__ = ["chunk_loops"]

ORDER = {"sqrt": 1, "binomial": 2}
COUNT = TensorType((), "int64")


def chunk_loops(
    block: Block, default: LoopMemory = "store", policies: Mapping[Place, LoopMemory] = MappingProxyType({})
) -> Block:
    """`block` with every loop of policy "sqrt" or "binomial" written as nested loops; the results are the same.

    default:  the policy of loops that have none of their own, that is "store".
    policies: the same for single loops, named by the client's op: its block and its position there.
    """
    if default == "store" and not policies and not _has_policy(block):
        return block
    return _chunk_loops(block, default, policies)


def _has_policy(block: Block) -> bool:
    """Whether a loop of `block` has a memory policy of its own."""
    return any(
        op.attrs.get("memory") in ORDER or any(_has_policy(inner) for _, inner in inner_blocks(op))
        for op in block.ops
        if op.attrs
    )


def _chunk_loops(block: Block, default: LoopMemory, policies: Mapping[Place, LoopMemory]) -> Block:
    b = BlockBuilder()
    b.params.extend(block.params)
    b.types.update(block.types)
    for op in block.ops:
        op = with_inner(op, lambda inner: _chunk_loops(inner, default, policies))
        if is_loop(op):
            policy = op.attrs["memory"]
            if policy == "store":
                policy = policies.get(op.location.place, default) if op.location else default
            if policy in ORDER and not op.attrs["is_test"]:
                with b.at(op.location):
                    _chunked(b, op, ORDER[policy])
                continue
            op = replace(op, attrs={**op.attrs, "memory": policy})
        b.ops.append(op)
    return Block(block.params, tuple(b.ops), block.results, b.types, block.stopped, block.index)


def _chunked(b: BlockBuilder, op: Op, order: int) -> None:
    n, m = op.attrs["carried"], op.attrs["captured"]
    values = [b.value(name) for name in op.inputs]
    state, fixed, stacks = values[:n], values[n : n + m], values[n + m :]
    trips = b.constant(0, "int64")
    if op.attrs["condition"]:
        outs = _runs(b, op, trips, state, fixed, None, order)
    else:
        outs = _split_stacks(b, op, trips, state, fixed, stacks, order)
    for name, out in zip(op.outputs, outs[1:], strict=True):
        b.append(Op("assign", (out.name,), (name,), {}, op.location))


def _split_stacks(
    b: BlockBuilder,
    op: Op,
    trips: Value,
    state: Sequence[Value],
    fixed: Sequence[Value],
    stacks: Sequence[Value],
    order: int,
) -> list[Value]:
    """The loop over stacks as a loop over runs of their elements. trips: the number of earlier trips.

    Its carried values are (trips, state...). Its recorded values are flat, one element a trip.
    """
    n, m = len(state), len(fixed)
    inner = _body(op) if order == 0 else BlockBuilder()
    inner.location = op.location
    own, inner.params = list(inner.params), []
    done = inner.param(COUNT)
    if order == 0:
        inner.params += own
        outs = [done + 1, *map(inner.value, op.attrs["sub_block"].results)]
    else:
        params = [inner.param(t) for t in _param_types(op)]
        outs = _split_stacks(inner, op, done, params[:n], params[n : n + m], params[n + m :], order - 1)
        stacks = [b.emit("array_chunks", s, order=order) for s in stacks]
    attrs = _attrs(op, inner, outs, order, carried=n + 1, counter=0)
    found = list(b.append(b.make("loop", trips, *state, *fixed, *stacks, **attrs)))
    return [*found[: n + 1], *(b.emit("array_flatten", s, order=order) if order else s for s in found[n + 1 :])]


def _runs(
    b: BlockBuilder,
    op: Op,
    trips: Value,
    state: Sequence[Value],
    fixed: Sequence[Value],
    limit: Value | None,
    order: int,
) -> list[Value]:
    """A loop on the condition that makes at most `limit` runs of this order; a run of order 0 is one trip.

    trips: the number of earlier trips. Its carried values are (go on, number of the run, trips, state...). Its recorded
    values are flat, one element a trip.
    """
    n = len(state)
    inner = _body(op) if order == 0 else BlockBuilder()
    inner.location = op.location
    own, inner.params = list(inner.params), []
    inner.param(state[0].type)
    number = inner.param(COUNT)
    done = inner.param(COUNT)
    if order == 0:
        inner.params += own
        outs = [done + 1, *map(inner.value, op.attrs["sub_block"].results)]
    else:
        inside = [inner.param(t) for t in _param_types(op)]
    bound = inner.param(COUNT) if limit is not None else None
    if order:
        outs = _runs(inner, op, done, inside[:n], inside[n:], number, order - 1)
    following = number + 1
    go = outs[1]
    if bound is not None:
        more = inner.emit("less_equal", following, bound)
        go = inner.emit("logical_and", go, more)
    captured = [*fixed, *([limit] if limit is not None else [])]
    attrs = _attrs(op, inner, [go, following, *outs], order, carried=n + 3, captured=len(captured), counter=2)
    first = b.constant(1, "int64")
    found = list(b.append(b.make("loop", state[0], first, trips, *state, *captured, **attrs)))
    return [*found[2 : n + 3], *(b.emit("array_flatten", s, order=order) if order else s for s in found[n + 3 :])]


def _body(op: Op) -> BlockBuilder:
    """A builder that holds the body of the loop, whose variables keep their names."""
    return BlockBuilder.like(op.attrs["sub_block"])


def _param_types(op: Op) -> list[Type]:
    """The types of the operands of one run: carried and captured values, and its part of each stack.

    Those of the loop's own body hold on every trip. An operand's type may hold for the first trip only: a size that
    changes from trip to trip is unknown in the body, but it may be known in the operand.
    """
    fixed = op.attrs["carried"] + op.attrs["captured"]
    types = op.attrs["sub_block"].param_types
    return [*types[:fixed], *map(StackType, types[fixed:])]


def _attrs(op: Op, inner: BlockBuilder, results: Sequence[Value], order: int, **changed: int) -> dict[str, Any]:
    """The attributes of a loop over runs of `order` whose body is in `inner`."""
    block = replace(inner.build(results), index=op.attrs["sub_block"].index if order == 0 else None)
    memory = "recompute" if order else "store"
    return {**op.attrs, "sub_block": block, "memory": memory, "checkpoints": (), **changed}
