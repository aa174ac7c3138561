"""Assumptions of the generator about the speed of a GPU: figures of an H100, measured by `tests.gpu` where not said."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["RULES", "Rules", "cluster_of", "follows_early", "rules_of"]


@dataclass(frozen=True, slots=True)
class Rules:
    """Rates and costs, from which the scope of an instruction follows. A measurement may replace each of them.

    launch:        seconds from the end of a kernel to the start of the next one in a graph.
    grid_barrier:  seconds of a barrier of all blocks.
    cluster_barrier: seconds of a barrier of the blocks of a cluster. It takes 0.5 us alone; with 0.9 us the loops of
                   the bench get the scope that was faster.
    block_barrier: seconds of a barrier of one block.
    cluster:       blocks of a cluster, which wait for each other much faster than all blocks do; 1 if there are none.
    bandwidth, block_bandwidth: bytes per second of the device, and of one block that works alone.
    flops, block_flops:         operations per second, likewise.
    load_wait:     seconds until a load of memory has its value.
    shared_wait:   seconds until a load of shared memory has its value; assumed, not measured.
    row_wait:      seconds that a team takes for a short row which it reduces: a load, the reductions, the rest.
    trips:         of a loop whose number of trips only the run tells.
    product_flops: operations from which on a product is a segment of the kind "product".
    library:       whether such a product is a call of cuBLASLt, if that takes its arrays.
    shared_bytes:  most shared memory of a block.
    sorted_apart:  fewest keys of a sort in shared memory that has a launch of its own.
    tf32:          whether products of float32 numbers may round their operands to 11 bits, for tensor cores.
    """

    launch: float = 2.0e-6
    grid_barrier: float = 1.25e-6
    cluster_barrier: float = 9.0e-7
    block_barrier: float = 5.0e-8
    cluster: int = 1
    bandwidth: float = 3.0e12
    block_bandwidth: float = 1.2e10
    flops: float = 5e13
    block_flops: float = 1.2e11
    load_wait: float = 4.5e-7
    shared_wait: float = 2.0e-8
    row_wait: float = 7.0e-7
    trips: int = 10
    product_flops: int = 10**8
    library: bool = False
    shared_bytes: int = 99 << 10
    sorted_apart: int = 256
    tf32: bool = False


RULES = Rules()

CLUSTER = 8
"""Blocks of a cluster that every GPU with clusters has."""

HOPPER = 90
"""The number of the first architecture with clusters, and with launches that start before the one before has ended."""


def cluster_of(architecture: str) -> int:
    """Blocks of a cluster on an architecture, such as "sm_90"."""
    return CLUSTER if _number(architecture) >= HOPPER else 1


def follows_early(architecture: str) -> bool:
    """Whether the blocks of a launch may start, and wait, before the launch before it has ended."""
    return _number(architecture) >= HOPPER


def _number(architecture: str) -> int:
    return int(architecture.removeprefix("sm_"))


def rules_of(architecture: str) -> Rules:
    """The rules for a GPU of this architecture."""
    return replace(RULES, cluster=cluster_of(architecture))
