"""Least cuts of graphs with capacities, by shortest augmenting paths (Edmonds and Karp, 1972)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

__all__ = ["Flow"]


@dataclass(slots=True)
class Flow:
    """A graph with capacities. edges: node -> the nodes after it, each with the capacity that is left."""

    edges: dict[Hashable, dict[Hashable, int]] = field(default_factory=dict)

    def edge(self, start: Hashable, end: Hashable, capacity: int) -> None:
        self.edges.setdefault(start, {})[end] = capacity
        self.edges.setdefault(end, {}).setdefault(start, 0)

    def least_cut(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """The nodes on the side of `source` of a least cut."""
        while True:
            before: dict[Hashable, Hashable] = {source: source}
            waiting = deque([source])
            while waiting and sink not in before:
                here = waiting.popleft()
                for end, left in self.edges.get(here, {}).items():
                    if left > 0 and end not in before:
                        before[end] = here
                        waiting.append(end)
            if sink not in before:
                return {*before}
            way, end = [], sink
            while end != source:
                way.append((before[end], end))
                end = before[end]
            least = min(self.edges[a][b] for a, b in way)
            for a, b in way:
                self.edges[a][b] -= least
                self.edges[b][a] += least
