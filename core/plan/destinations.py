"""The memory that the results of a block must be written to: results of a step, states of a loop, slots of a stack.

A value is computed in its destination where that is possible, and copied there at the end of the block elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from core.plan.memory import View

__all__ = ["Destinations"]


class Destinations:
    """Destinations of the variables of one block.

    taken: variables whose value is already at its first destination, or will be written there by its own op.
    sums:  product -> the state that it is added to where it is computed, instead of being stored (see `accumulate`).
    """

    def __init__(self, wanted: Sequence[tuple[str, View]] = ()) -> None:
        self.taken: set[str] = set()
        self.sums: dict[str, View] = {}
        self._first: dict[str, View] = {}
        self._others: list[tuple[str, View]] = []
        self._inverses: list[Callable[[], object]] = []  # of what happened, in order, for `undo`
        for name, view in wanted:
            self.want(name, view)

    def want(self, name: str, view: View) -> None:
        """The value of `name` must be in `view` at the end of the block."""
        if name in self._first:
            self._others.append((name, view))
        else:
            self._first[name] = view

    def accumulate(self, product: str, total: str, state: View) -> None:
        """The op of `product` adds its result to `state`, which is `total` afterwards."""
        self.sums[product] = state
        self.taken.add(total)
        self.want(total, state)

    def store(self, product: str, total: str) -> None:
        """Undo `accumulate`: the op of `product` stores its result, and the op of `total` adds it."""
        state = self.sums.pop(product)
        self.taken.discard(total)
        self._inverses += (lambda: self.sums.update({product: state}), lambda: self.taken.add(total))

    def write(self, name: str) -> None:
        """The value of `name` is at its first destination from now on."""
        self.taken.add(name)
        self._inverses.append(lambda: self.taken.discard(name))

    def mark(self) -> int:
        """A point in time for `undo`."""
        return len(self._inverses)

    def undo(self, mark: int) -> None:
        """Undo all `take`, `write` and `store` since `mark`, the last one first."""
        while len(self._inverses) > mark:
            self._inverses.pop()()

    def first(self, name: str) -> View | None:
        """The first destination of `name`, if it has one."""
        return self._first.get(name)

    def open(self, name: str) -> View | None:
        """The first destination of `name` if nothing has been written there yet."""
        return self._first.get(name) if name not in self.taken else None

    def take(self, name: str) -> View | None:
        """As `open`; the caller writes the value of `name` there."""
        view = self.open(name)
        if view is not None:
            self.write(name)
        return view

    def left(self) -> Iterator[tuple[str, View]]:
        """The destinations to which values must still be copied."""
        yield from ((name, view) for name, view in self._first.items() if name not in self.taken)
        yield from self._others
