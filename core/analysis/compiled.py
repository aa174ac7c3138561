"""Which parts of a step are machine code, what these need, and why the others are not."""

from __future__ import annotations

from collections import Counter
from typing import Any

from core.analysis.place import place
from core.analysis.records import record_bytes
from core.codegen.backend import CPU
from core.cost.memory import lives
from core.ir import Block, Op, inner_blocks
from core.ops.common.types import byte_size
from core.plan import plan_block
from core.plan.partition import SHARES, parts_of, refusals
from core.runtime.memory import LINE, keeps_result
from core.runtime.reference import NATIVE

__all__ = ["machine_code"]


def machine_code(step: Block, trips: int) -> dict[str, Any]:
    """Of a block whose composites are expanded: its regions of machine code, in the order they run, and the other ops.

    arena_bytes of a region is what it needs beside arguments, results and what loops record; record_bytes is the memory
    of that, in as many `stacks`, when every loop makes `trips` trips. Both are there from the first step to the last;
    a large arena is lent to other steps meanwhile.
    peak_bytes is the most that is there at once of those and of all arrays of a step, but for what it is given and what
    ops without machine code need for themselves. Ops that have no machine code, be they between regions or called from
    inside one, are counted by type, reason and the client's op they come from. Ops in loops and branches count too.
    """
    refused = refusals(step, CPU.target)
    reasons = {id(step.ops[i]): reason for i, reason in refused.items()}
    regions: list[dict[str, Any]] = []
    others: Counter[tuple[Any, ...]] = Counter()
    inside: Counter[tuple[Any, ...]] = Counter()
    parts: list[Op] = []
    for part in parts_of(step, frozenset(refused)):
        if isinstance(part, Op):
            key = part.type, reasons.get(id(part), SHARES), part.location
            others[key] += 1
            inside[key] += _ops(part)
            parts.append(part)
            continue
        plan = plan_block(part, CPU.target)
        called = 0
        for each in plan.interpreted:
            (op,) = each.block.ops
            key = op.type, each.reason, each.location
            others[key] += 1
            inside[key] += _ops(op)
            called += _ops(op)
        records = record_bytes(plan, trips)
        region = {
            "ops": sum(map(_ops, part.ops)) - called,
            "arena_bytes": CPU.arena_bytes(plan),
            "stacks": len(plan.stacks),
            "record_bytes": records,
        }
        regions.append(region | {"first": place(part.ops[0].location), "last": place(part.ops[-1].location)})
        parts.append(Op(NATIVE, part.params, part.results, {}, part.ops[0].location))
    held = sum(each["arena_bytes"] + LINE + each["record_bytes"] for each in regions)
    return {
        "ops": {"compiled": sum(each["ops"] for each in regions), "interpreted": inside.total()},
        "peak_bytes": held + _arrays(step, parts, trips),
        "regions": regions,
        "interpreted": [
            {"type": key[0], "reason": key[1], "of": place(key[2]), "count": count, "ops": inside[key]}
            for key, count in others.items()
        ],
    }


def _ops(op: Op) -> int:
    """How many ops `op` is, with those in its blocks."""
    return 1 + sum(_ops(each) for _, inner in inner_blocks(op) for each in inner.ops)


def _arrays(step: Block, parts: list[Op], trips: int) -> int:
    """The most bytes that the results of `parts` take at once."""
    found = lives(Block(step.params, tuple(parts), step.results, step.types), trips)
    for part in parts:
        for name in part.outputs:
            if part.type == NATIVE and keeps_result(byte_size(step.types[name])):
                found.deaths[found.array[name]] = len(parts)
    return found.peak()[0]
