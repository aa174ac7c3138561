"""The blocks of a launch: several for each processor where no thread waits for those of other blocks.

They hide the latency of memory from each other. Where all threads meet, all blocks must be resident, and each processor
has one.
"""

from __future__ import annotations

import math

from core.device.fourier import fourier_units
from core.device.index_orders import NO_ROWS
from core.device.merging import merge_units
from core.device.row_sums import finishing_blocks
from core.device.row_teams import added_up, row_units, sums_room
from core.device.scatter import reducing_units
from core.device.segments import Segment
from core.device.threads import Threads
from core.device.transposition import transposition_units
from core.plan.data import Gather, Kernel, Rows, ScatterAdd

__all__ = ["SPREAD", "blocks_of", "blocks_to_add_up"]

SPREAD = 8
"""Blocks for each processor in a launch of which no thread waits for others. All 2,048 threads of a processor."""

MOST_SUMS = 1 << 22
"""Bytes that the sums of all teams of a row kernel may take for the sake of more teams."""


def blocks_of(each: Segment, launch: Threads) -> int:
    """The blocks of the launch of a segment. launch: any launch of the step."""
    if each.kind != "wide" or each.blocks == 1 or len(each.instructions) != 1:
        return each.blocks
    (one,), spread, units = each.instructions, SPREAD, 0
    if isinstance(one, Gather):
        units = math.prod(one.out.shape)
    elif isinstance(one, Kernel) and one.kind == "fourier":
        units = fourier_units(one.spec, launch.on(each.blocks)) * launch.block
    elif isinstance(one, ScatterAdd):
        units = reducing_units(one)
    elif isinstance(one, Kernel) and one.kind == NO_ROWS:
        units = math.prod(one.views[0].shape)
    elif isinstance(one, Kernel) and one.kind == "turn":
        units = transposition_units(one.spec) * launch.block
    elif isinstance(one, Kernel) and one.kind == "merge_rows":
        units = merge_units(one)
    elif isinstance(one, Rows):
        most = max(MOST_SUMS, sums_room(one, launch.on(each.blocks)))
        while spread > 1 and sums_room(one, launch.on(each.blocks * spread)) > most:
            spread //= 2
        units = row_units(one, launch.on(each.blocks * spread))
    return max(each.blocks, min(each.blocks * spread, -(-units // launch.block)))


def blocks_to_add_up(each: Rows, first: Threads) -> int:
    """The blocks that add up what the teams of a row kernel have, which ran on the threads of `first`."""
    sizes = [math.prod(view.shape) for view in each.views]
    sums = added_up(each, first).items()
    return sum(finishing_blocks(sizes[each.kernel.code[n].operand], teams, first) for n, teams in sums)
