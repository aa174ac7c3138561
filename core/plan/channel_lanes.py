"""Convolution with output channels in the lanes of vectors: `core.codegen.channel_lanes` on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from core.plan.geometry import Correlation
from core.plan.target import ChannelLaneLimits

__all__ = ["ChannelLanes", "FilterPanels", "channel_lanes_of"]


@dataclass(frozen=True, slots=True)
class ChannelLanes:
    """panel: output channels of one tile, a divisor of all output channels of a group."""

    conv: Correlation
    panel: int

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return self.conv.work


@dataclass(frozen=True, slots=True)
class FilterPanels:
    """The filters of `lanes` as [group, panel, channel, kernel, output channel of the panel].

    flipped: whether they are given as [group, channel, out, kernel] and each kernel axis is to be reversed; else they
             are given as [group, out, channel, kernel].
    """

    lanes: ChannelLanes
    flipped: bool

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 8 * self.lanes.conv.groups * self.lanes.conv.out * self.lanes.conv.depth


def channel_lanes_of(conv: Correlation, limits: ChannelLaneLimits) -> ChannelLanes | None:
    """The spec of the kernel, or None if another form is faster."""
    panel = limits.panel(conv.dtype, conv.out)
    row = conv.counts[2]
    if not panel or conv.depth < limits.depth:
        return None
    return ChannelLanes(conv, panel) if row >= limits.row else None
