"""The admission of a run: its predicted peak is compared with the memory that is left, before its first op."""

from __future__ import annotations

from core.cost.memory import Memory, lives
from core.ir import Block, TensorType, Type
from core.runtime.memory_limit import GRAIN
from core.runtime.reference import NATIVE, Interpreter
from core.runtime.run import Run

__all__ = ["admission_peak", "admit"]

TRIPS = 1
"""Trips that the prediction assumes for each loop. The records of further trips are checked while they run."""


def admission_peak(interpreter: Interpreter) -> Memory:
    """The peak of one run, not counting its arguments: temporary arrays of kernels and arenas included."""
    block = interpreter.block
    types: dict[str, Type] = {**block.types}
    for op in interpreter.ops:
        if op.type == NATIVE:  # its results of open sizes are parts of arrays of the largest size
            given = op.attrs["region"].plan.results
            types |= {n: TensorType(v.shape, v.dtype) for n, v in zip(op.outputs, given, strict=False)}
    parts = Block(block.params, interpreter.ops, block.results, types)
    found = lives(parts, TRIPS, scratch=True)
    for i, op in enumerate(interpreter.ops):
        if op.type == NATIVE:
            region = op.attrs["region"]
            found.inside[i] = region.arena_bytes + max(
                [0, *(_interpreted_bytes(each.block) for each in region.plan.interpreted)]
            )
    peak, at = found.peak()
    return Memory(peak, parts.ops[at] if at >= 0 else None)


def _interpreted_bytes(block: Block) -> int:
    """Bytes that an op takes that machine code leaves to the reference executor: it copies the results."""
    return lives(block, TRIPS, scratch=True).peak()[0]


def admit(run: Run, peak: Memory) -> None:
    """Refuse the run if its predicted peak exceeds the memory that is left. Raises OutOfMemory."""
    if peak.peak >= GRAIN:
        run.admit(peak.peak, peak.at.location if peak.at else None)
