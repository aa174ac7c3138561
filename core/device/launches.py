"""A step of a GPU as a list of launches and products, which run one after the other, or as if they did: what generator
and host agree on.

The text of a step defines one function for each kernel. All take the same four addresses (`PARAMETERS`), which stay the
same while a step is bound, so that the host may capture the launches once as a graph, and then the numbers of the
launch, by which launches of the same kernel differ. A kernel finds in the arena what
an earlier one has left there; registers, shared memory and stack positions do not survive a launch.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.device.multiplication import Multiplication

__all__ = ["PARAMETERS", "DeviceCode", "Launch"]

PARAMETERS = ("given", "arena", "control", "stacks")
"""The parameters of each kernel: the table of the addresses of the caller's arrays, the arena, the control words, and
the table of stacks: for each its address, its bytes, and the bytes that a run wanted (int64).
"""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel on `grid` blocks of `block` threads. block: a multiple of the threads of a warp.

    kernel:      the name of its function in the text.
    shared:      bytes of shared memory that each block needs.
    cooperative: whether blocks wait for each other, so that all must be resident at once.
    cluster:     the blocks, if they wait for each other as one cluster; else 1.
    numbers:     further arguments of the kernel, int64 each.
    resident:    blocks for which each processor must have enough registers at the same time.
    early:       whether its blocks may start before the launch before it has ended.
    beside:      the number of launches and products directly behind it that may overlap it.
    """

    kernel: str
    grid: int
    block: int
    shared: int = 0
    cooperative: bool = False
    numbers: tuple[int, ...] = ()
    cluster: int = 1
    resident: int = 1
    early: bool = True
    beside: int = 0

    @property
    def entry(self) -> str:
        """The name of its entry in PTX and machine code."""
        return f"run_{self.kernel}" + (f"_on_{self.cluster}" if self.cluster > 1 else "")


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """The text of a step and its work in order: kernels of the text, and products that the library computes.

    arena_bytes: with scratch memory behind the arena.
    """

    text: str
    work: tuple[Launch | Multiplication, ...]
    arena_bytes: int

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(each for each in self.work if isinstance(each, Launch))

    @property
    def products(self) -> tuple[Multiplication, ...]:
        return tuple(each for each in self.work if isinstance(each, Multiplication))
