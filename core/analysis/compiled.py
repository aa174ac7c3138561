"""The parts of a step that are machine code, the memory they need, and the reasons why other parts are not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from core.analysis.place import place
from core.analysis.records import record_bytes
from core.compiler.backends import CHOSEN
from core.cost.memory import lives
from core.ir import Block, Op, TensorType, Type, inner_blocks
from core.ir.aligned import LINE
from core.ops.common.types import byte_size
from core.passes.row_bounds import bound_rows
from core.plan.partition import SHARES, plan_parts
from core.runtime.memory import keeps_result
from core.runtime.reference import NATIVE

__all__ = ["machine_code"]


def machine_code(step: Block, trips: int) -> dict[str, Any]:
    """The regions of machine code of a block with expanded composites, in the order they run, and the other ops.

    arena_bytes: memory of a region, not counting arguments, results and the stacks that loops record.
    record_bytes: memory of these `stacks` if every loop makes `trips` trips. Arenas and stacks exist from the first
    step to the last; a large arena is lent to other steps in between.
    peak_bytes: the most memory at one time of arenas, stacks and arrays of a step, not counting its inputs and the
    memory that ops without machine code use internally.
    Ops without machine code, between regions or called from inside one, are counted by type, reason and the client's op
    they come from. Ops in loops and branches count too.
    """
    backend = CHOSEN.backend
    bounded = bound_rows(step)
    step = step if bounded is None else bounded.block
    planned = plan_parts(step, backend.target)
    reasons = {id(step.ops[i]): reason for i, reason in planned.refused.items()}
    regions: list[dict[str, Any]] = []
    others: Counter[tuple[Any, ...]] = Counter()
    inside: Counter[tuple[Any, ...]] = Counter()
    parts: list[Op] = []
    types: dict[str, Type] = {**step.types}  # a region gives results of open sizes in arrays of the largest size
    for part in planned.parts:
        if isinstance(part, Op):
            key = part.type, reasons.get(id(part), SHARES), part.location
            others[key] += 1
            inside[key] += _op_count(part)
            parts.append(part)
            continue
        own, called = part.block, 0
        for each in part.interpreted:
            (op,) = each.block.ops
            key = op.type, each.reason, each.location
            others[key] += 1
            inside[key] += _op_count(op)
            called += _op_count(op)
        records = record_bytes(part, trips)
        region = {
            "ops": sum(map(_op_count, own.ops)) - called,
            "arena_bytes": backend.arena_bytes(part),
            "stacks": len(part.stacks),
            "record_bytes": records,
        }
        regions.append(region | {"first": place(own.ops[0].location), "last": place(own.ops[-1].location)})
        parts.append(Op(NATIVE, own.params, own.results, {}, own.ops[0].location))
        types |= {n: TensorType(v.shape, v.dtype) for n, v in zip(own.results, part.results, strict=False)}
    region_bytes = sum(each["arena_bytes"] + LINE + each["record_bytes"] for each in regions)
    return {
        "ops": {"compiled": sum(each["ops"] for each in regions), "interpreted": inside.total()},
        "peak_bytes": region_bytes + _peak_bytes(replace(step, types=types), parts, trips),
        "regions": regions,
        "interpreted": [
            {"type": key[0], "reason": key[1], "of": place(key[2]), "count": count, "ops": inside[key]}
            for key, count in others.items()
        ],
    }


def _op_count(op: Op) -> int:
    """The number of ops in `op`, those in its blocks included."""
    return 1 + sum(_op_count(each) for _, inner in inner_blocks(op) for each in inner.ops)


def _peak_bytes(step: Block, parts: list[Op], trips: int) -> int:
    """Peak bytes of the results of `parts`."""
    found = lives(Block(step.params, tuple(parts), step.results, step.types), trips)
    made = [name for part in parts if part.type == NATIVE for name in part.outputs]
    for array in {found.array[name] for name in made if keeps_result(byte_size(step.types[name]))}:
        found.deaths[array] = len(parts)
        found.sizes[array] += LINE  # `array_in` needs a line more than the array has
    return found.peak()[0]
