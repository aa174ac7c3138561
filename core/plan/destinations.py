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
        self._changes: list[Callable[[], object]] = []  # undo one change of `taken` or `sums` each
        self._first: dict[str, View] = {}
        self._others: list[tuple[str, View]] = []
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
        self._changes.append(lambda: self.sums.pop(product))
        self.mark_taken(total)
        self.want(total, state)

    def store(self, product: str, total: str) -> None:
        """Undo `accumulate`: the op of `product` stores its result, and the op of `total` adds it."""
        state = self.sums.pop(product)
        self._changes.append(lambda: self.sums.update({product: state}))
        if total in self.taken:
            self.taken.remove(total)
            self._changes.append(lambda: self.taken.add(total))

    def mark_taken(self, name: str) -> None:
        """The value of `name` is at its first destination, or will be written there."""
        if name not in self.taken:
            self.taken.add(name)
            self._changes.append(lambda: self.taken.remove(name))

    @property
    def changes(self) -> int:
        """The number of changes of `taken` and `sums` so far."""
        return len(self._changes)

    def undo(self, changes: int) -> None:
        """Undo all changes of `taken` and `sums` but the first so many."""
        while len(self._changes) > changes:
            self._changes.pop()()

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
            self.mark_taken(name)
        return view

    def left(self) -> Iterator[tuple[str, View]]:
        """The destinations to which values must still be copied."""
        yield from ((name, view) for name, view in self._first.items() if name not in self.taken)
        yield from self._others
