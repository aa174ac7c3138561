"""The blocks of a launch: several for each processor where no thread waits for those of other blocks.

They hide the latency of memory from each other. Where all threads meet, all blocks must be resident, and each processor
has one.
"""

from __future__ import annotations

import math

from core.codegen.llvm import itemsize
from core.codegen.sweeps import EXPENSIVE
from core.device.fourier import fourier_units
from core.device.index_orders import NO_ROWS
from core.device.merging import merge_units
from core.device.row_sums import finishing_blocks
from core.device.row_teams import added_up, columns_of, kept_arrays, row_units, sums_room, width_of
from core.device.scatter import reducing_units
from core.device.segments import Segment
from core.device.threads import Threads
from core.device.transposition import transposition_units
from core.plan.flow import Branch, Loop
from core.plan.instructions import Gather, Instruction, Kernel, Rows, ScatterAdd
from core.plan.row_kernels import RowKernel

__all__ = ["SPREAD", "blocks_of", "is_resident", "joins_sums", "resident_blocks", "sums_of", "wanted_blocks"]

SPREAD = 8
"""Blocks for each processor in a launch of which no thread waits for others. All 2,048 threads of a processor."""

MANY_INSTRUCTIONS, MOST_RESIDENT = 24, 4
"""Instructions of a row kernel from which on all its blocks are resident, because a block that starts when others have
ended runs alone; and the most blocks of such a kernel for each processor, each thread of which has 64 registers. With
48 a third of such kernels of random ops spilled some.
"""

PROCESSOR_REGISTERS, OTHER_REGISTERS = 1 << 16, 24
"""Registers of a processor, and those of a thread for addresses, loops and the numbers inside of functions, about."""

FRUGAL = frozenset((
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "div", "exp", "expm1", "log", "log1p", "logsigmoid",
    "rsqrt", "sigmoid", "sinh", "softplus", "sqrt", "tanh",
))  # fmt: skip
"""Expensive ops that take no more registers than OTHER_REGISTERS in float32. Kernels with others, or with float64
numbers, have as many registers as the assembler gives them.
"""

MOST_SUMS = 1 << 22
"""Bytes that the sums of all teams of a row kernel may take for the sake of more teams."""


def blocks_of(each: Segment, launch: Threads) -> int:
    """The blocks of the launch of a segment. launch: any launch of the step."""
    if each.kind != "wide" or each.blocks == 1 or len(each.instructions) != 1:
        return each.blocks
    return max(each.blocks, wanted_blocks(each.instructions[0], each.blocks, launch))


def wanted_blocks(one: Instruction, processors: int, launch: Threads) -> int:
    """The number of blocks for which an instruction has work, at most several for each processor.

    It is 0 for kinds of instructions that run on one block for each processor. launch: any launch of the step.
    """
    spread, units, wide = SPREAD, 0, launch.on(processors)
    if isinstance(one, Gather):
        units = math.prod(one.out.shape)
    elif isinstance(one, Kernel) and one.kind == "fourier":
        units = fourier_units(one.spec, wide) * launch.block
    elif isinstance(one, ScatterAdd):
        units = reducing_units(one)
    elif isinstance(one, Kernel) and one.kind == NO_ROWS:
        units = math.prod(one.views[0].shape)
    elif isinstance(one, Kernel) and one.kind == "turn":
        units = transposition_units(one.spec) * launch.block
    elif isinstance(one, Kernel) and one.kind == "merge_rows":
        units = merge_units(one)
    elif isinstance(one, Rows):
        spread = _residents(one, launch) if is_resident(one) else SPREAD
        most = max(MOST_SUMS, sums_room(one, wide))
        while spread > 1 and sums_room(one, launch.on(processors * spread)) > most:
            spread //= 2
        units = row_units(one, launch.on(processors * spread))
    return min(processors * spread, -(-units // launch.block))


def resident_blocks(each: Segment, blocks: int) -> int:
    """The blocks of a segment's launch that each processor must run at once; 1 leaves that to the assembler.

    blocks: of the launch.
    """
    return -(-blocks // each.blocks) if each.kind == "wide" and is_resident(each.instructions[0]) else 1


def is_resident(one: Instruction) -> bool:
    """Whether all blocks of a kernel must be resident."""
    if not isinstance(one, Rows) or len(one.kernel.code) < MANY_INSTRUCTIONS:
        return False
    return not any(i.dtype == "float64" or i.op in EXPENSIVE - FRUGAL for i in one.kernel.code)


def _residents(each: Rows, launch: Threads) -> int:
    """The blocks of a row kernel that a processor has registers for."""
    kept = columns_of(each, width_of(each, launch)) * kept_arrays(each)
    registers = -(-(OTHER_REGISTERS + kept + _live_registers(each.kernel)) // 8) * 8
    return max(1, min(MOST_RESIDENT, PROCESSOR_REGISTERS // (registers * launch.block)))


def _live_registers(kernel: RowKernel) -> int:
    """The most registers of values that are needed later, at one place."""
    last = {arg: n for n, each in enumerate(kernel.code) for arg in each.args if kernel.code[arg].kind != "constant"}
    size = lambda n: 1 + (itemsize(kernel.code[n].dtype) == 8)
    most = now = 0
    for n, each in enumerate(kernel.code):
        now += (size(n) if n in last else 0) - sum(size(arg) for arg in set(each.args) if last.get(arg) == n)
        most = max(most, now)
    return most


def joins_sums(each: Segment, after: Segment, launch: Threads) -> bool:
    """Whether a segment of one block can run in the last launch of the one before it, which adds up on one block.

    launch: any launch of the step.
    """
    if (
        after.kind != "together"
        or after.blocks > 1
        or any(isinstance(one, Loop | Branch) for one in after.instructions)
    ):
        return False
    sums = sums_of(each, launch)
    return sums is not None and sums[2] == 1


def sums_of(each: Segment, launch: Threads) -> tuple[Rows, Threads, int] | None:
    """A row kernel whose sums have a launch of their own, the threads of the launch before, and its blocks; else None.

    launch: any launch of the step.
    """
    one, *more = each.instructions or (None,)
    blocks = blocks_of(each, launch)
    first = launch.on(blocks)
    if each.kind != "wide" or more or blocks == 1 or not isinstance(one, Rows) or not sums_room(one, first):
        return None
    sizes = [math.prod(view.shape) for view in one.views]
    sums = added_up(one, first).items()
    wanted = sum(finishing_blocks(sizes[one.kernel.code[n].operand], teams, first) for n, teams in sums)
    return one, first, min(blocks, wanted)
