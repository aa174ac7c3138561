"""Predictions about executables: which are worth machine code, and which steps need not wait for it.

They depend on the program and its shapes alone and not on measured time, so that equal sessions give equal bits.
"""

from __future__ import annotations

from core.compiler.compile import Executable
from core.cost.work import count_work
from core.ir import Block, inner_blocks
from core.runtime.reference import NATIVE

__all__ = ["is_long", "is_nearly_code", "is_quick"]

LONG = 4_000_000_000
"""Floating-point operations of a call above which compilation pays even for a single call: numpy's matrix products do
about as many in the time of one compilation.
"""

QUICK_S, QUICK_BYTES = 0.1, 64 * 2**20
"""Predicted seconds and bytes of a step in the reference executor up to which a session does not wait for machine code
for its first step."""

OP_S = 2e-5
"""Predicted seconds of an op in the reference executor besides its operations."""

OPERATION_S = 1.25e-10
"""Predicted seconds of an operation inside a matrix product."""

PRODUCTS = ("matmul", "einsum")
SLOWER = 20
"""Time of an operation outside matrix products, relative to one inside: other ops are limited by memory."""

MOST_OUTSIDE = 16
"""Ops outside of machine code that a step with room for many sizes may have; none of them has inner blocks."""

TRIPS = 100
"""The assumed trips of a loop whose number of trips is unknown."""


def is_quick(executable: Executable) -> bool:
    """Whether a step in the reference executor is predicted to end sooner than its compilation."""
    block = executable.interpreter.block
    seconds = _work(block) * OPERATION_S + _executions(block) * OP_S
    return seconds <= QUICK_S and executable.peak(as_machine_code=False).peak <= QUICK_BYTES


def is_nearly_code(executable: Executable) -> bool:
    """Whether machine code runs all but a few simple ops."""
    if executable.machine is None:
        return False
    outside = [op for op in executable.machine.ops if op.type != NATIVE]
    return len(outside) <= MOST_OUTSIDE and not any(True for op in outside for _ in inner_blocks(op))


def _executions(block: Block) -> int:
    """Executions of ops, with `TRIPS` of each inner block."""
    return len(block.ops) + TRIPS * sum(_executions(inner) for op in block.ops for _, inner in inner_blocks(op))


def is_long(block: Block) -> bool:
    """Whether one run takes longer than compilation."""
    return _work(block) >= LONG


def _work(block: Block) -> int:
    """Operations, in those of matrix products that take as long."""
    work = count_work(block, TRIPS)
    return sum(n if type in PRODUCTS else SLOWER * n for type, n in work.items())
