"""The backward pass over a tape: its ops, their order, and the op after which each gradient is final.

The tape needs no sorting: in the reversed list each reader of a variable comes before its writer. The uses of a
variable among the ops of the backward pass are counted. Its gradient is final after the last of these ops (DyNet), and
can be sent to another machine at that moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from core.ir import Block

__all__ = ["Playback", "play_back"]


@dataclass(frozen=True, slots=True)
class Playback:
    """The order of a backward pass.

    played: positions of the ops in the block, in the order of the backward pass.
    final: (variable, position of the op after which its gradient is final), in the order in which they become final.
    The position is None where the gradient is the seed itself.
    """

    played: tuple[int, ...]
    final: tuple[tuple[str, int | None], ...]


def play_back(block: Block, active: Collection[str], reached: Collection[str], wrt: Sequence[str]) -> Playback:
    """The backward pass that computes the gradients of `wrt`.

    active:  variables that depend on `wrt`.
    reached: variables to which a cotangent flows.
    """
    played = [
        i
        for i in range(len(block.ops) - 1, -1, -1)
        if any(n in active and n in reached for n in block.ops[i].outputs)
        and any(n in active for n in block.ops[i].inputs)
    ]
    uses = Counter(name for i in played for name in block.ops[i].inputs)
    final: list[tuple[str, int | None]] = [(name, None) for name in wrt if not uses[name]]
    waiting = {name for name in wrt if uses[name]}
    for i in played:
        for name in block.ops[i].inputs:
            uses[name] -= 1
            if not uses[name] and name in waiting:
                final.append((name, i))
    return Playback(tuple(played), tuple(final))
