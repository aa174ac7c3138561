"""Playing a tape back: which ops take part, in which order, and when each gradient is final.

A list tape needs no sorting: its reverse is an order in which every reader of a variable comes before its writer.
Counting the uses of a variable among the ops that are played back tells when its gradient is complete: when the last
of them has been played (DyNet). A gradient can leave for another machine at that moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from core.ir import Block

__all__ = ["Playback", "play_back"]


@dataclass(frozen=True, slots=True)
class Playback:
    """played: positions of ops in the block, in the order of the playback, which is the reverse of the list.

    final: (variable, position of the op after which its gradient is final), in the order in which they became final;
    None in place of a position where the gradient is the seed itself.
    """

    played: tuple[int, ...]
    final: tuple[tuple[str, int | None], ...]


def play_back(block: Block, active: Collection[str], reached: Collection[str], wanted: Sequence[str]) -> Playback:
    """What happens when the gradients of `wanted` are computed.

    active:  variables that move with those asked for.
    reached: variables to which a cotangent flows.
    """
    played = [
        i
        for i in range(len(block.ops) - 1, -1, -1)
        if any(n in active and n in reached for n in block.ops[i].outputs)
        and any(n in active for n in block.ops[i].inputs)
    ]
    uses = Counter(name for i in played for name in block.ops[i].inputs)
    final: list[tuple[str, int | None]] = [(name, None) for name in wanted if not uses[name]]
    waiting = {name for name in wanted if uses[name]}
    for i in played:
        for name in block.ops[i].inputs:
            uses[name] -= 1
            if not uses[name] and name in waiting:
                final.append((name, i))
    return Playback(tuple(played), tuple(final))
