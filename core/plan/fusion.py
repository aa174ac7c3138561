"""Fusion of elementwise ops, broadcasts and reductions into one pass over the data.

A fusion has a domain, the shape of its largest values. A value inside it stays in registers; it is written to memory
only if something outside the fusion reads it. Each axis of a value is an axis of the domain, or None if the value does
not vary along it.

The last axes of the domain are the row, or another axis of a few elements, such as the classes of each pixel. A
reduction along the row, as in softmax or layer_norm, gives a value that the same fusion can use; any other reduction
accumulates into memory. When no op can join it any more, a fusion becomes a row kernel (`core.plan.fused_kernel`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from core.ir.errors import InternalError, Location
from core.plan.memory import Root, View, contiguous
from core.plan.row_kernels import RowInstruction
from core.plan.target import RowLimits

__all__ = ["Axes", "Draft", "Fusion", "Member"]

Axes = tuple[int | None, ...]
"""For each axis of a value, the axis of the domain, or None if the value does not vary along it."""


@dataclass(frozen=True, slots=True)
class Member:
    """A value inside a fusion. number: of the instruction that computes it. axes: for each axis of `shape`."""

    fusion: Fusion
    number: int
    dtype: str
    shape: tuple[int, ...]
    axes: Axes

    def layout(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The sizes of an array of its own, row-major along the axes of the domain, and its strides along `shape`."""
        varies = self.fusion.drafts[self.number].varies
        sizes = tuple(n if i in varies else 1 for i, n in enumerate(self.fusion.shape))
        steps = contiguous(sizes)
        return sizes, tuple(steps[axis] if axis is not None and axis in varies else 0 for axis in self.axes)


@dataclass(slots=True, eq=False)
class Draft:
    """An instruction of a fusion that still grows.

    strides: of its array, or of the positions that it counts, for each axis of the domain.
    varies:  the axes of the domain along which its value varies.
    lookup:  what a "lookup" looks up (`rows_at.Lookup`), and the axes of the domain of its views.
    guards:  the lookup whose position a "check" checks.
    """

    instr: RowInstruction
    view: View | None = None
    strides: tuple[int, ...] = ()
    varies: frozenset[int] = frozenset()
    lookup: Any = None
    axes: Axes = ()
    guards: int | None = None

    @property
    def walks(self) -> bool:
        """Whether it goes through the domain with strides."""
        return self.view is not None or self.instr.kind == "iota"


@dataclass(slots=True, eq=False)
class Fusion:
    """A fusion that still grows.

    shape:    the domain.
    position: of the fusion among all instructions of its block.
    row:      the axes that are the row; None until a reduction along the row is used inside.
    ops:      the ops in it, for profiles.
    size:     the size of the first axis of the domain, if only the run tells it: rows beyond the length are left out.
    sums:     the number of reductions along the row.
    """

    shape: tuple[int, ...]
    position: int
    limits: RowLimits
    row: frozenset[int] | None = None
    drafts: list[Draft] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    location: Location | None = None
    size: Any = None
    sums: int = 0
    _loads: dict[Any, int] = field(default_factory=dict)
    _live: tuple[int, int] = (0, 0)
    _loaded: set[Root] = field(default_factory=set)

    # --- questions ---------------------------------------------------------------------------------------

    def aligned(self, shape: tuple[int, ...], members: Iterable[Member]) -> Axes | None:
        """The axes of a result of `shape` that is computed from `members` and other values; None if it does not fit."""
        axes: list[int | None] = [None] * len(shape)
        for member in members:
            shift = len(shape) - len(member.shape)
            for i, axis in enumerate(member.axes):
                if axis is None or member.shape[i] == 1:
                    continue
                if axes[i + shift] not in (None, axis):
                    return None
                axes[i + shift] = axis
        used = {a for a in axes if a is not None}
        if len(used) != sum(a is not None for a in axes):
            return None
        for i, size in enumerate(shape):
            if axes[i] is None and size > 1:
                axis = i - len(shape) + len(self.shape)
                if not 0 <= axis < len(self.shape) or axis in used or self.shape[axis] != size:
                    return None
                axes[i] = axis
                used.add(axis)
        return tuple(axes)

    def loads(self, view: View) -> bool:
        """Whether it loads an element of the memory of `view`."""
        return view.root in self._loaded

    def live(self) -> int:
        """The most values that are needed later at one place."""
        if self._live[0] != len(self.drafts):
            last = {
                arg: n
                for n, draft in enumerate(self.drafts)
                for arg in draft.instr.args
                if self.drafts[arg].instr.kind != "constant"
            }
            ends = Counter(last.values())
            now = most = 0
            for n in range(len(self.drafts)):
                now += (n in last) - ends[n]
                most = max(most, now)
            self._live = len(self.drafts), most
        return self._live[1]

    def can_load(self, strides: Sequence[int]) -> bool:
        """Whether a row of an array with these strides along the domain is one walk with a single stride."""
        return self.row is None or _mergeable(self.shape, [strides], self.row)

    def can_reduce(self, axes: frozenset[int], across: bool = False) -> bool:
        """Whether the fusion itself can use the result of a reduction over these axes of the domain.

        across: whether axes that are not the last ones may become the row; then later reductions over the last ones
                leave the fusion.
        """
        if self.row is not None:
            return self._wide(self.row) == self._wide(axes)
        row, size, total = self._row_of(axes), math.prod(self.shape[i] for i in axes), math.prod(self.shape)
        if not self._is_last(axes) and not (across and self._goes_across(axes)):
            return False
        if size > self.limits.longest_row or (size == total and total > self.limits.longest_total):
            return False
        return _mergeable(self.shape, [d.strides for d in self.drafts if d.walks], row)

    def _goes_across(self, axes: frozenset[int]) -> bool:
        """Whether rows along `axes`, which are not the last ones, can be computed together."""
        most, fewest, beside = self.limits.across
        last, total = max(axes), math.prod(self.shape)
        few = math.prod(self.shape[i] for i in axes) <= most and fewest <= total
        return few and math.prod(self.shape[last + 1 :]) >= beside and self.size is None and self.is_plain

    @property
    def is_across(self) -> bool:
        """Whether its row is not the last axes."""
        return self.row is not None and not self._is_last(self.row)

    @property
    def is_plain(self) -> bool:
        """Whether it neither draws random numbers nor looks up elements, which rows across the last axes do not."""
        return not any(d.instr.kind == "lookup" or d.instr.op == "draw" for d in self.drafts)

    def _wide(self, axes: frozenset[int]) -> frozenset[int]:
        """`axes` without those of size 1."""
        return frozenset(i for i in axes if self.shape[i] > 1)

    def _is_last(self, axes: frozenset[int]) -> bool:
        """Whether no axis behind the first one of `axes` is missing, but for axes of size 1."""
        return all(n == 1 or i in axes for i, n in enumerate(self.shape) if i >= min(axes, default=len(self.shape)))

    def _row_of(self, axes: frozenset[int]) -> frozenset[int]:
        """The axes of the row that a reduction over `axes` needs."""
        rank = len(self.shape)
        return frozenset(range(min(axes, default=rank), rank)) if self._is_last(axes) else axes

    # --- adding --------------------------------------------------------------------------------------------------

    def load(self, view: View, axes: Axes) -> int:
        """Load the array `view`, whose axes are `axes` of the domain; return the number of its value."""
        strides = self.strides(view, axes)
        key = (view.root, view.offset, view.dtype, strides)
        if key not in self._loads:
            varies = frozenset(i for i, s in enumerate(strides) if s and self.shape[i] > 1)
            self._loads[key] = self._add(Draft(RowInstruction("load", view.dtype), view, strides, varies))
            self._loaded.add(view.root)
        return self._loads[key]

    def lookup(self, view: View, axes: Axes, at: int, step: int, of: Any) -> int:
        """Load the elements of `view` that are `step` times the value `at` further on. of: the `rows_at.Lookup`."""
        strides = self.strides(view, axes)
        varies = frozenset(i for i, s in enumerate(strides) if s and self.shape[i] > 1) | self.drafts[at].varies
        instr = RowInstruction("lookup", view.dtype, args=(at,), attrs=(("step", step),))
        return self._add(Draft(instr, view, strides, varies, of, axes))

    def once(self, key: object, write: Callable[[], int]) -> int:
        """The number of the value that `write` writes, which it does at its first call with this key."""
        if key not in self._loads:
            self._loads[key] = write()
        return self._loads[key]

    def strides(self, view: View, axes: Axes) -> tuple[int, ...]:
        """The strides of `view` along the axes of the domain."""
        return self.along(view.shape, view.strides, axes)

    def along(self, shape: Sequence[int], strides: Sequence[int], axes: Axes) -> tuple[int, ...]:
        """The strides of an array of `shape` along the axes of the domain."""
        found = [0] * len(self.shape)
        for axis, stride, size in zip(axes, strides, shape, strict=True):
            if axis is not None and size > 1:
                found[axis] = stride
        return tuple(found)

    def constant(self, value: Any, dtype: str) -> int:
        return self._add(Draft(RowInstruction("constant", dtype, value=value)))

    def iota(self, axis: int) -> int:
        """The position along `axis`, as int64."""
        return self.count(tuple(int(i == axis) for i in range(len(self.shape))))

    def count(self, strides: tuple[int, ...], first: int = 0) -> int:
        """`first` plus the position along each axis of the domain times its stride, as int64."""
        key = ("count", strides, first)
        if key not in self._loads:
            varies = frozenset(i for i, s in enumerate(strides) if s and self.shape[i] > 1)
            self._loads[key] = self._add(Draft(RowInstruction("iota", "int64", value=first), None, strides, varies))
        return self._loads[key]

    def apply(self, op: str, attrs: Iterable[tuple[str, Any]], args: Sequence[int], dtype: str) -> int:
        """The value of elementwise op `op`. Ops with the same attributes and arguments share it."""
        instr = RowInstruction("apply", dtype, args=tuple(args), op=op, attrs=tuple(attrs))

        def write() -> int:
            varies = frozenset[int]().union(*(self.drafts[a].varies for a in args))
            return self._add(Draft(instr, varies=varies))

        return self.once((op, dtype, instr.args, repr(instr.attrs)), write)  # 0.0 equals -0.0 but is another attribute

    def take_row(self, axes: frozenset[int]) -> None:
        """Make `axes` the row (see `can_reduce`)."""
        self.row = self._row_of(axes) | (self.row or frozenset())

    def reduce(self, op: str, arg: int, axes: frozenset[int], dtype: str) -> int:
        """A reduction over `axes`, the row, whose result the fusion can use (see `can_reduce`)."""
        self.take_row(axes)
        self.sums += 1
        varies = self.drafts[arg].varies - axes
        return self._add(Draft(RowInstruction("reduce", dtype, args=(arg,), op=op), varies=varies))

    def store(self, arg: int, view: View, axes: Axes) -> None:
        strides = self.strides(view, axes)
        self._add(Draft(RowInstruction("store", view.dtype, args=(arg,)), view, strides))

    def covers(self, gone: frozenset[int], kept: Axes) -> bool:
        """Whether the pass visits each element of a value with these reduced and kept axes once.

        All axes of the domain that the value does not have must be part of the row.
        """
        others = {i for i, n in enumerate(self.shape) if n > 1} - gone - {a for a in kept if a is not None}
        row = self.row or frozenset()
        return not others or (others <= row and row.isdisjoint(gone))

    def accumulate(self, op: str, arg: int, view: View, axes: Axes, gone: frozenset[int]) -> None:
        """Reduce over the axes `gone` into `view`. A value that is constant along a kept row counts once."""
        strides = self.strides(view, axes)
        along = self.row is None or not self.row.isdisjoint(gone)
        self._add(Draft(RowInstruction("accumulate", view.dtype, args=(arg,), op=op, value=along), view, strides))

    def check(self, arg: int, view: View, number: int, guards: int | None = None) -> None:
        """Write `number` to `view` if `arg`, a bool, is false anywhere. guards: the lookup that it is for."""
        draft = Draft(RowInstruction("check", args=(arg,), value=number), view, (0,) * len(self.shape), guards=guards)
        self._add(draft)

    def _add(self, draft: Draft) -> int:
        if draft.walks and not self.can_load(draft.strides):
            raise InternalError("a row would be several walks, and its sums partial")
        self.drafts.append(draft)
        return len(self.drafts) - 1


def _mergeable(shape: tuple[int, ...], arrays: Sequence[Sequence[int]], row: frozenset[int]) -> bool:
    """Whether the axes `row` are one walk with a single stride in each of `arrays`."""
    axes = [i for i in sorted(row) if shape[i] > 1]
    return all(strides[i] == strides[j] * shape[j] for strides in arrays for i, j in pairwise(axes))
