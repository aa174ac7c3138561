"""The analysis of a program and its gradients, as one JSON-ready document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from core.analysis.compiled import machine_code
from core.analysis.place import place
from core.backward.backward_program import Backward
from core.compiler.compile import GradientQuery, bind_shapes
from core.compiler.differentiate import differentiate
from core.cost import count_work, predict_memory
from core.cost.budget import Budget
from core.cost.step import Step
from core.ir import Block, Op, Program, StackType, inner_blocks
from core.ir.errors import CoreError
from core.ir.names import block_index
from core.ir.program import Type
from core.ir.recursion import headroom
from core.ir.registry import is_loop
from core.ops.common.types import byte_size
from core.ops.control.inner_blocks import LoopMemory
from core.runtime.outputs import gradient_step

__all__ = ["analyse"]


def analyse(
    program: Program,
    query: GradientQuery,
    shapes: Mapping[str, Sequence[int]] | None = None,
    trips: int = 100,
    backward: Backward | None = None,
    compiled: bool = True,
) -> dict[str, Any]:
    """Cost and memory of the step of `query`, with reasons, before anything runs.

    shapes:   of feeds with open sizes. A size that stays open counts as 1, and the document reports it.
    trips:    assumed number of trips of every loop.
    backward: the answer to `query`, if it is known already.
    compiled: whether the step runs as machine code, and the document reports on it.
    """
    with headroom():
        sized = bind_shapes(program, shapes)
        # the checkpoints that fit a budget depend on the sizes
        backward = backward or differentiate(program if query.budget is None else sized, query)[0]
        known = backward if sized is program else differentiate(sized, query)[0]
        step = gradient_step(known, query)
        report = _report(program, backward, query, shapes or {}, trips, sized, known, step)
        whole = _with_static_sizes(sized, query, step) if compiled else None
        return report | {"machine_code": whole and machine_code(whole, trips)}


def _with_static_sizes(sized: Program, query: GradientQuery, step: Block) -> Block | None:
    """`step`, the step of `sized`, with 1 for every open size of a feed. None if the program cannot have these
    sizes.

    A run knows all sizes. With open sizes, most of the step would not appear as machine code.
    """
    ones = {v.name: [max(n, 1) for n in v.type.shape] for v in sized.feeds if not v.type.is_static}
    if not ones:
        return step
    try:
        return gradient_step(differentiate(bind_shapes(sized, ones), query)[0], query)
    except CoreError:  # a constant size conflicts with 1, as in a reshape
        return None


def _report(
    program: Program,
    backward: Backward,
    query: GradientQuery,
    shapes: Mapping[str, Sequence[int]],
    trips: int,
    sized: Program,
    known: Backward,
    step: Block,
) -> dict[str, Any]:
    """The document. `sized` and `known` are `program` and `backward` with open sizes bound to `shapes`; `step` is the
    step that runs.
    """
    memory = predict_memory(step, trips)
    work = count_work(step, trips)
    forward = sum(1 for i in backward.roles if i in (0, 256))
    ops = backward.program.block.ops
    kept = _residuals(backward, forward, known.program.block.types)
    return {
        "types": _types(program.block),
        "ops": {
            "forward": dict(Counter(op.type for op in ops[:forward])),
            "backward": dict(Counter(op.type for op in ops[forward:])),
        },
        "flops": {"total": sum(work.values()), "by_op": work, "trips": trips},
        "memory": {
            "peak": memory.peak,
            "peak_at": place(memory.at.location if memory.at else None),
            "parameters": sum(byte_size(v.type) for v in program.parameters),
            "feeds": sum(byte_size(sized.block.types[v.name]) for v in program.feeds),
            "states": sum(byte_size(v.type) for v in program.states),
            "kept": sum(each["bytes"] for each in kept),
            "by_loop_memory": _by_policy(sized, known, query, step, memory.peak, trips),
            "choice": backward.choice.as_document() if backward.choice else None,
            "trips": trips,
        },
        "open_sizes": sorted(v.name for v in program.feeds if not v.type.is_static and v.name not in shapes),
        "kept": kept,
        "contributions": _contributions(backward),
        "ready_at": dict(backward.ready_at),
        "missing": {
            name: {"reason": why, "cut_at": place(backward.cut_at.get(name))} for name, why in backward.missing.items()
        },
        "densified": [each.as_document() for each in backward.densified],
    }


def _by_policy(
    program: Program, backward: Backward, query: GradientQuery, step: Block, peak: int, trips: int
) -> dict[str, int]:
    """Peak bytes under each memory policy, for the loops without a policy of their own."""
    found = dict.fromkeys(get_args(LoopMemory), peak)
    if isinstance(query.checkpoints, Budget):  # the budget would choose other checkpoints under each policy
        query = replace(query, checkpoints=())
    if not _has_loops(program.block):
        return found
    others = [policy for policy in found if policy != query.loop_memory]
    nests = None
    if not query.hooks and not query.checkpoints:
        if query.loop_memory != "store":
            query = replace(query, loop_memory="store")
            backward = differentiate(program, query)[0]
            step = gradient_step(backward, query)
        whole = Step(backward.forward, backward.rule_calls, step, trips)
        nests = whole.nests if whole.exact else None
    for policy in others:
        if nests is not None:
            found[policy] = whole.peak([whole.variant(n, (policy,) * len(n.loops)) for n in nests])
        else:  # checkpoints, hooks, sequences, and loops with their own policies
            requested = replace(query, loop_memory=policy)
            found[policy] = predict_memory(gradient_step(differentiate(program, requested)[0], requested), trips).peak
    return found


def _has_loops(block: Block) -> bool:
    return any(is_loop(op) or any(_has_loops(inner) for _, inner in inner_blocks(op)) for op in block.ops)


def _types(block: Block) -> list[dict[str, Any]]:
    """Each variable with its type, block by block, outer blocks first."""
    found = []
    level = [(0, block)]
    for index, each in level:  # the loop appends to the list it iterates
        found.append({"block": index, "variables": {name: str(type) for name, type in each.types.items()}})
        for op in each.ops:
            for _, inner in inner_blocks(op):
                at = block_index(inner)
                level.append((-1 if at is None else at, inner))
    return found


def _residuals(backward: Backward, forward: int, sized: Mapping[str, Type]) -> list[dict[str, Any]]:
    """The residuals: forward values of block 0 that backward ops read, with the ops that read them.

    sized: the types of variables with the sizes of feeds, where the same variable exists with these.
    """
    block = backward.program.block
    types = {name: sized.get(name, type) for name, type in block.types.items()}
    made = {name: op for op in block.ops[:forward] for name in op.outputs}
    readers: dict[str, list[dict[str, Any]]] = {}
    for i, op in enumerate(block.ops[forward:], start=forward):
        for name in dict.fromkeys(op.inputs):
            if name in made and _reads_value(op, name):
                readers.setdefault(name, []).append({"op": i, "type": op.type, "of": place(op.location)})
    return [
        {
            "variable": name,
            "type": str(types[name]),
            "bytes": byte_size(types[name]),
            "each_trip": isinstance(types[name], StackType),
            "made_by": place(made[name].location),
            "read_by": ops,
        }
        for name, ops in readers.items()
    ]


def _reads_value(op: Op, name: str) -> bool:
    """Whether the op reads the value of its input, and not only its shape."""
    return not (op.type in ("fill_zeros_like", "full_like") or (op.type.endswith("_like") and name == op.inputs[-1]))


def _contributions(backward: Backward) -> dict[str, list[dict[str, Any]]]:
    """For each gradient, the terms that are added up and the ops of block 0 that compute them."""
    block = backward.program.block
    made = {name: (i, op) for i, op in enumerate(block.ops) for name in op.outputs}
    found: dict[str, list[dict[str, Any]]] = {}
    for requested, grad in backward.params_grads:
        if grad is None or grad not in made:
            continue
        if requested in backward.sparse:
            _, grad = backward.sparse[requested]
        at, op = made[grad]
        parts = op.inputs if op.type == "sum" else (grad,)
        if [each.type for each in block.ops[at - 2 : at + 1]] == ["concat", "concat", "merge_rows"]:
            parts = block.ops[at - 1].inputs  # rows from several ops, merged
        found[requested] = [
            {"gradient": part, "op": made[part][0], "of": place(made[part][1].location)}
            for part in parts
            if part in made
        ]
    return found
