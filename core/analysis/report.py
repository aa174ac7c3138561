"""The analysis of a program and of its gradients, as one JSON-ready document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from core.analysis.memory import predict_memory
from core.analysis.work import count_work
from core.backward import Backward, append_backward, gradients
from core.compile import GradientQuery, compile_gradient
from core.errors import Location
from core.hooks import block_index
from core.ir import Block, Op, Program, StackType, inner_blocks
from core.ops.control import LoopMemory
from core.ops.types import byte_size

__all__ = ["analyse"]


def analyse(
    program: Program, query: GradientQuery, shapes: Mapping[str, Sequence[int]] | None = None, trips: int = 100
) -> dict[str, Any]:
    """What the step of `query` costs and why, before anything runs.

    shapes: of feeds whose declaration leaves sizes open; a size that stays open counts as 1, and is told.
    trips:  how often every loop is taken to run.
    """
    options = query.options
    if query.loss is not None:
        backward = append_backward(program, query.loss, query.parameter_list, options)
    else:
        backward = gradients(program, query.targets, query.inputs, None, options)
    step = compile_gradient(program, query, shapes=shapes).plan.block
    forward = sum(1 for i in backward.roles if i in (0, 256))
    ops = backward.program.block.ops
    memory = predict_memory(step, trips)
    policies = dict.fromkeys(get_args(LoopMemory), memory.peak)
    if _has_loops(program.block):
        for policy in policies:
            if policy != query.loop_memory:
                other = compile_gradient(program, replace(query, loop_memory=policy), shapes=shapes).plan.block
                policies[policy] = predict_memory(other, trips).peak
    work = count_work(step, trips)
    return {
        "types": _types(program.block),
        "ops": {
            "forward": dict(Counter(op.type for op in ops[:forward])),
            "backward": dict(Counter(op.type for op in ops[forward:])),
        },
        "flops": {"total": sum(work.values()), "by_op": work, "trips": trips},
        "memory": {
            "peak": memory.peak,
            "peak_at": _place(memory.at.location if memory.at else None),
            "parameters": sum(byte_size(v.type) for v in program.parameters),
            "feeds": sum(byte_size(program.block.types[v.name]) for v in program.feeds),
            "states": sum(byte_size(v.type) for v in program.states),
            "kept": sum(each["bytes"] for each in _kept(backward, forward)),
            "by_loop_memory": policies,
            "trips": trips,
        },
        "open_sizes": sorted(v.name for v in program.feeds if not v.type.is_static and v.name not in (shapes or {})),
        "kept": _kept(backward, forward),
        "contributions": _contributions(backward),
        "ready_at": dict(backward.ready_at),
        "missing": {
            name: {"reason": why, "cut_at": _place(backward.cut_at.get(name))} for name, why in backward.missing.items()
        },
        "densified": [each.as_document() for each in backward.densified],
    }


def _has_loops(block: Block) -> bool:
    return any(op.type == "loop" or any(_has_loops(inner) for _, inner in inner_blocks(op)) for op in block.ops)


def _types(block: Block) -> list[dict[str, Any]]:
    """Every variable with its type, block by block, outer blocks first."""
    found = []
    level = [(0, block)]
    for index, each in level:  # grows while it is walked
        found.append({"block": index, "variables": {name: str(type) for name, type in each.types.items()}})
        for op in each.ops:
            for _, inner in inner_blocks(op):
                at = block_index(inner)
                level.append((-1 if at is None else at, inner))
    return found


def _kept(backward: Backward, forward: int) -> list[dict[str, Any]]:
    """The forward values of block 0 that backward ops read, and which ops these are."""
    block = backward.program.block
    made = {name: op for op in block.ops[:forward] for name in op.outputs}
    readers: dict[str, list[dict[str, Any]]] = {}
    for i, op in enumerate(block.ops[forward:], start=forward):
        for name in dict.fromkeys(op.inputs):
            if name in made and _needs(op, name):
                readers.setdefault(name, []).append({"op": i, "type": op.type, "of": _place(op.location)})
    return [
        {
            "variable": name,
            "type": str(block.types[name]),
            "bytes": byte_size(block.types[name]),
            "each_trip": isinstance(block.types[name], StackType),
            "made_by": _place(made[name].location),
            "read_by": ops,
        }
        for name, ops in readers.items()
    ]


def _needs(op: Op, name: str) -> bool:
    """Whether the op reads the value, and not the shape alone."""
    return not (op.type in ("fill_zeros_like", "full_like") or (op.type.endswith("_like") and name == op.inputs[-1]))


def _contributions(backward: Backward) -> dict[str, list[dict[str, Any]]]:
    """For each gradient the parts that are added up to it, and the ops of block 0 that make them."""
    block = backward.program.block
    made = {name: (i, op) for i, op in enumerate(block.ops) for name in op.outputs}
    found: dict[str, list[dict[str, Any]]] = {}
    for requested, grad in backward.params_grads:
        if grad is None or grad not in made:
            continue
        _, op = made[grad]
        parts = op.inputs if op.type == "sum" else (grad,)
        found[requested] = [
            {"gradient": part, "op": made[part][0], "of": _place(made[part][1].location)}
            for part in parts
            if part in made
        ]
    return found


def _place(location: Location | None) -> dict[str, Any] | None:
    if location is None:
        return None
    return {"block": location.block, "op": location.op, "type": location.type, "backward": location.adjoint}
