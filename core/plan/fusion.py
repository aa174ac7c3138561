"""Fusion of elementwise ops, broadcasts and reductions into one pass over the data, which becomes a row kernel.

A fusion has a domain, the shape of its largest values. A value inside it stays in registers; it is written to memory
only if something outside the fusion reads it. Each axis of a value is an axis of the domain, or None if the value does
not vary along it.

The last axes of the domain are the row, or another axis of a few elements, such as the classes of each pixel. A
reduction along the row, as in softmax or layer_norm, gives a value that the same fusion can use; any other reduction
accumulates into memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from core.ir.errors import InternalError, Location
from core.plan.instructions import Rows
from core.plan.memory import Root, View, contiguous
from core.plan.row_kernels import Operand, RowInstruction, RowKernel
from core.plan.target import RowLimits

__all__ = ["Axes", "Fusion", "Member"]

IN_ANY_ORDER = frozenset(("accumulate", "apply", "constant", "iota", "load", "reduce", "store"))
"""Instructions of fusions whose rows may come in any order."""

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

        return self.once(repr(instr), write)  # 0.0 equals -0.0 but is another attribute

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

    # --- the row kernel ------------------------------------------------------------------------------------------

    def finish(self) -> Rows | None:
        """The fusion as an instruction: axes are merged where every array allows it, and a row is chosen.

        None if nothing is left to do, because other fusions compute or look up the same themselves.
        """
        self._drop_unused()
        if not self.drafts:
            return None
        row = self.row or frozenset()
        order = sorted(range(len(self.shape)), key=lambda i: i in row)
        first = len(self.shape) - len(row) if self.row is not None else None
        arrays = [[d.strides[i] for i in order] for d in self.drafts if d.walks]
        merged, columns = _merged([self.shape[i] for i in order], arrays, first)
        if first is None and len(merged) == 1:
            merged, columns = _cut(merged, columns, self.limits)
        # rows beyond a length are left out at the end, so the axis that has it stays the outermost one
        if self.size is None and all(d.instr.kind in IN_ANY_ORDER for d in self.drafts):
            stored = [bool(d.view) for d in self.drafts if d.walks]
            _bring_dense_last(merged, columns, [c for c, is_stored in zip(columns, stored, strict=True) if is_stored])
        outer, inner = tuple(merged[:-1]), merged[-1] if merged else 1
        operands: list[Operand] = []
        views: list[View] = []
        code: list[RowInstruction] = []
        at = iter(columns)
        full: list[bool] = []
        for draft in self.drafts:
            instr, attrs = draft.instr, draft.instr.attrs
            operand, wide = -1, any(full[a] for a in instr.args)
            column = next(at) if draft.walks else []
            along = column[-1] if column else 0
            if instr.kind == "iota":
                attrs = (("outer", tuple(column[:-1])), ("inner", along))
                wide = along != 0
            if draft.view:
                operand = len(operands)
                written = instr.kind not in ("load", "lookup")
                operands.append(Operand(draft.view.dtype, tuple(column[:-1]), along, written))
                views.append(draft.view)
                wide = wide or along != 0
            wide = wide and instr.kind != "reduce" and inner > 1
            full.append(wide)
            code.append(
                RowInstruction(instr.kind, instr.dtype, wide, instr.args, instr.op, attrs, operand, instr.value)
            )
        kernel = RowKernel(outer, inner, tuple(operands), tuple(code))
        if self.size is None and all(i.kind in IN_ANY_ORDER for i in code):
            kernel = _with_rows_together(kernel, self.limits)
        return Rows(kernel, tuple(views), tuple(self.ops), location=self.location)

    def _drop_unused(self) -> None:
        """Drop values that nothing in this fusion reads or stores, and the checks of lookups among them."""
        used = {n for n, d in enumerate(self.drafts) if d.instr.kind in ("store", "accumulate", "check")}
        used = {n for n in used if self.drafts[n].guards is None}
        for n in reversed(range(len(self.drafts))):
            if n in used:
                used.update(self.drafts[n].instr.args)
            if self.drafts[n].lookup is not None and n in used:
                used.update(m for m, d in enumerate(self.drafts) if d.guards == n)
                used.update(a for m in used.copy() if self.drafts[m].guards == n for a in self.drafts[m].instr.args)
        place = {n: i for i, n in enumerate(sorted(used))}
        kept = []
        for n in place:
            draft = self.drafts[n]
            draft.instr = replace(draft.instr, args=tuple(place[a] for a in draft.instr.args))
            kept.append(draft)
        self.drafts = kept


def _mergeable(shape: tuple[int, ...], arrays: Sequence[Sequence[int]], row: frozenset[int]) -> bool:
    """Whether the axes `row` are one walk with a single stride in each of `arrays`."""
    axes = [i for i in sorted(row) if shape[i] > 1]
    return all(strides[i] == strides[j] * shape[j] for strides in arrays for i, j in pairwise(axes))


def _merged(
    shape: Sequence[int], arrays: Sequence[Sequence[int]], first: int | None
) -> tuple[list[int], list[list[int]]]:
    """The domain with neighbouring axes merged where all arrays allow it, and the strides of the arrays then.

    first: the first axis of the row, which is not merged with the axis before it.
    """
    sizes: list[int] = []
    columns: list[list[int]] = [[] for _ in arrays]
    fixed = False
    for i, size in enumerate(shape):
        if i == first:
            fixed = True
        if size == 1:
            continue
        if sizes and not fixed and all(c[-1] == a[i] * size for c, a in zip(columns, arrays, strict=True)):
            sizes[-1] *= size
            for column, strides in zip(columns, arrays, strict=True):
                column[-1] = strides[i]
        else:
            sizes.append(size)
            for column, strides in zip(columns, arrays, strict=True):
                column.append(strides[i])
            fixed = False
    if first is not None and math.prod(shape[first:]) == 1:  # the row is a single element
        sizes.append(1)
        for column in columns:
            column.append(0)
    return sizes, columns


def _bring_dense_last(sizes: list[int], columns: list[list[int]], stored: list[list[int]]) -> None:
    """Move an axis to the place before the row, if an array that lies across the row is dense along it.

    stored: the columns of arrays. Squares of such an array are then read together.
    """
    across = [column for column in stored if column and column[-1] > 1]
    if any(column[-2] == 1 for column in across if len(column) > 1):
        return
    for column in across:
        for axis, stride in enumerate(column[:-2]):
            if stride == 1 and sizes[axis] > 1:
                for each in (sizes, *columns):
                    each.insert(-1, each.pop(axis))
                return


def _with_rows_together(kernel: RowKernel, limits: RowLimits) -> RowKernel:
    """`kernel` with a long axis before the row, if its rows are computed together then, and only then."""
    if limits.together is None or len(kernel.outer) < 2 or limits.together(kernel):
        return kernel
    long = max(range(len(kernel.outer)), key=lambda axis: kernel.outer[axis])
    order = [*(axis for axis in range(len(kernel.outer)) if axis != long), long]
    turned: Callable[[Sequence[int]], tuple[int, ...]] = lambda numbers: tuple(numbers[axis] for axis in order)
    code = [
        replace(i, attrs=(("outer", turned(dict(i.attrs)["outer"])), *i.attrs[1:])) if i.kind == "iota" else i
        for i in kernel.code
    ]
    operands = [replace(each, outer=turned(each.outer)) for each in kernel.operands]
    found = replace(kernel, outer=turned(kernel.outer), operands=tuple(operands), code=tuple(code))
    return found if limits.together(found) else kernel


def _cut(sizes: list[int], columns: list[list[int]], limits: RowLimits) -> tuple[list[int], list[list[int]]]:
    """A single long axis, split into rows of a length that divides it, if there is one."""
    size = sizes[0]
    most, fewest, step = limits.split_rows
    if size <= most:
        return sizes, columns
    row = next((n for n in range(most, fewest - 1, -step) if size % n == 0), None)
    if row is None:
        return sizes, columns
    return [size // row, row], [[c[0] * row, c[0]] for c in columns]
