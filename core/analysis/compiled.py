"""Which parts of a step are machine code, what these need, and why the others are not."""

from __future__ import annotations

from collections import Counter
from typing import Any

from core.analysis.place import place
from core.ir import Block, Op
from core.runtime.native import parts_of, refusals, written

__all__ = ["machine_code"]


def machine_code(step: Block) -> dict[str, Any]:
    """Of a block whose composites are expanded: its regions of machine code, in the order they run, and the other ops.

    arena_bytes of a region is the exact peak of its memory beside arguments and results, except for what loops record:
    there are as many `stacks`, which grow with the trips. Ops that have no machine code are counted by type, reason and
    the client's op they come from.
    """
    refused = refusals(step)
    reasons = {id(step.ops[i]): reason for i, reason in refused.items()}
    regions: list[dict[str, Any]] = []
    others: Counter[tuple[Any, ...]] = Counter()
    for part in parts_of(step, frozenset(refused)):
        if isinstance(part, Op):
            others[part.type, reasons.get(id(part), "stacks"), part.location] += 1
            continue
        plan, _, arena_bytes = written(part)
        region = {"ops": len(part.ops), "arena_bytes": arena_bytes, "stacks": len(plan.stacks)}
        regions.append(region | {"first": place(part.ops[0].location), "last": place(part.ops[-1].location)})
    return {
        "ops": {"compiled": sum(each["ops"] for each in regions), "interpreted": others.total()},
        "regions": regions,
        "interpreted": [
            {"type": type, "reason": reason, "of": place(location), "count": count}
            for (type, reason, location), count in others.items()
        ],
    }
