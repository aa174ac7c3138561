"""Bounds of the values of a stripe of attention under a mask, followed from instruction to instruction.

They rest on the assumption that all numbers that enter are between -limit and limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from core.plan.instructions import Rows
from core.plan.intervals import TRUTH, ZERO, Interval, applied, hull, product_bound
from core.plan.masks import Band, Given, position_bound
from core.plan.memory import Root, View
from core.plan.row_kernels import Operand, RowInstruction, RowKernel
from core.plan.striped import Domain, Striped, StripedProduct, Window

__all__ = ["FLOATS", "Known", "MaskedBounds", "Unknown"]

FLOATS = frozenset({"float32", "float64"})


class Values(NamedTuple):
    """The bounds of the elements of a row, of five kinds.

    shown:         an element that the mask shows for certain.
    open:          any other one that the mask may show.
    after, before: hidden, on that side.
    top:           the largest one of the masked scores.
    """

    shown: Interval
    open: Interval
    after: Interval
    before: Interval
    top: Interval

    @classmethod
    def same(cls, interval: Interval) -> Values:
        """The same bounds for all kinds."""
        return cls(interval, interval, interval, interval, interval)


class Unknown(Exception):
    """Some instruction may need the hidden columns."""


@dataclass(frozen=True, slots=True)
class Known:
    """An array that earlier stripes have computed in windows: its bounds, and the window that these are true for."""

    values: Values
    domain: Domain
    mask: Band | Given
    window: Window


@dataclass(slots=True)
class MaskedBounds:
    """The bounds of all values of one instruction under one mask. `follow` raises `Unknown`.

    writes: root -> how many instructions of the list write it.
    known:  arrays that earlier stripes have computed in windows.
    floats: dtypes of numbers that enter, which the run can check.
    """

    each: Striped
    mask: Band | Given
    limit: float
    hides: float
    writes: Mapping[Root, int]
    known: Mapping[Root, Known]
    floats: Set[str]
    values: dict[Root, Values] = field(default_factory=dict)
    guards: dict[object, Rows] = field(default_factory=dict)
    loads: Rows | None = None

    def hidden(self, values: Values) -> list[Interval]:
        """The bounds of the elements that the mask hides."""
        if isinstance(self.mask, Given):
            return [values.before, values.after]
        sides = (values.before, self.mask.first), (values.after, self.mask.last)
        return [interval for interval, edge in sides if edge is not None]

    def vanishes(self, values: Values) -> bool:
        """Whether all elements that the mask hides are 0."""
        return all(interval == ZERO for interval in self.hidden(values))

    def follow(self) -> None:
        written = {root for part in self.each.instructions for root in part.writes()}
        for part in self.each.body:
            if isinstance(part, Rows):
                _Row(self, part, written).follow()
            else:
                self._product(part, written)

    def window(self, block: int) -> Window:
        """The window under the mask, in blocks of columns."""
        band = self.mask if isinstance(self.mask, Band) else Band()
        guards = tuple(self.guards.values())
        return Window(block, band.first, band.last, self.loads, guards, self.limit, self.hides)

    def _earlier(self, root: Root) -> Known | None:
        found = self.known.get(root)
        return found if found is not None and found.domain == self.each.domain else None

    def from_earlier(self, root: Root) -> Values | None:
        """The bounds of an array of earlier stripes, with the conditions that they depend on."""
        found = self._earlier(root)
        if found is None:
            return None
        if found.mask != self.mask or (found.window.limit, found.window.hides) != (self.limit, self.hides):
            raise Unknown
        for guard in found.window.guards:
            self.guards.setdefault(_key(guard), guard)
        if found.window.mask is not None:
            self.loads = found.window.mask
        return found.values

    def guard(self, rows: Rows) -> Interval:
        """The bounds of numbers that the run checks, in an array that does not change."""
        if self.writes.get(rows.views[0].root, 0) > 1:
            raise Unknown
        self.guards.setdefault(_key(rows), rows)
        return -self.limit, self.limit

    def _product(self, part: StripedProduct, written: set[Root]) -> None:
        product, wide = part.product, part.wide
        if wide is None:
            raise Unknown
        read: list[Interval] = []
        for view in (product.a, product.b):
            values = self.values.get(view.root) or self.from_earlier(view.root)
            if view is wide:
                if values is None or not self.vanishes(values):
                    raise Unknown
                read.append(hull(*values))
            elif values is not None or view.root in written:
                raise Unknown
            else:
                read.append(self.guard(_matrix(view)))
        if wide is product.c:
            if product.c.root not in self.each.inside:
                raise Unknown
            bound = product_bound(product.a.shape[-1], read[0], read[1], product.c.dtype)
            self.values[product.c.root] = Values.same(bound)


class _Row:
    """The bounds of the values of one row kernel."""

    def __init__(self, bounds: MaskedBounds, rows: Rows, written: set[Root]) -> None:
        self.bounds, self.rows, self.written = bounds, rows, written
        self.kernel, self.domain = rows.kernel, bounds.each.domain
        self.values: list[Values] = []
        self.top: tuple[int, int] | None = None
        """The largest element of a row, and the values that it is the largest of."""

    def follow(self) -> None:
        for number, instr in enumerate(self.kernel.code):
            self.values.append(self._value(number, instr))

    def _value(self, number: int, instr: RowInstruction) -> Values:
        if instr.kind == "constant":
            value = float(instr.value)
            return Values.same(None if math.isnan(value) else (value, value))
        if instr.kind == "load":
            return self._load(number, instr)
        if instr.kind == "apply":
            return self._apply(number, instr)
        if instr.kind == "reduce":
            return self._reduce(number, instr)
        if instr.kind == "store":
            self._store(instr)
        elif instr.kind == "accumulate":
            if instr.full and (instr.op != "sum" or not self._vanishes(instr.args[0])):
                raise Unknown
        elif instr.kind == "check" and instr.full:
            raise Unknown
        return Values.same(None)  # lookups, positions

    def _vanishes(self, number: int) -> bool:
        return self.bounds.vanishes(self.values[number])

    def _load(self, number: int, instr: RowInstruction) -> Values:
        bounds, view = self.bounds, self.rows.views[instr.operand]
        found = bounds.values.get(view.root) or bounds.from_earlier(view.root)
        if found is not None:
            return found
        if view.root in self.written:
            raise Unknown
        one = _loading(self.rows, instr)
        if instr.full and isinstance(bounds.mask, Given) and Given.of(self.rows, number) == bounds.mask:
            bounds.loads = one
            if bounds.writes.get(view.root, 0) > 1:
                raise Unknown
            if instr.dtype == "bool":
                return Values(shown=(1.0, 1.0), open=TRUTH, after=ZERO, before=ZERO, top=TRUTH)
            most, hides = bounds.limit, (-math.inf, -bounds.hides)
            return Values((-most, most), open=(-math.inf, most), after=hides, before=hides, top=(-math.inf, most))
        if instr.dtype == "bool":
            return Values.same(TRUTH)
        return Values.same(bounds.guard(one) if instr.dtype in bounds.floats else None)

    def _apply(self, number: int, instr: RowInstruction) -> Values:
        band, sought = self.bounds.mask, position_bound(self.kernel, number, self.domain)
        if sought is not None and isinstance(band, Band):
            return _positions(band, *sought)
        args = [self.values[a] for a in instr.args]
        attrs = dict(instr.attrs)
        kinds = range(len(Values._fields))
        found = Values(*(applied(instr.op, attrs, [a[kind] for a in args], instr.dtype) for kind in kinds))
        if self.top is not None and instr.op == "sub" and instr.args == (self.top[1], self.top[0]):
            found = Values(*(None if x is None else (min(x[0], 0.0), min(x[1], 0.0)) for x in found))
            found = found._replace(top=ZERO)
        if self.top is not None and instr.op == "maximum" and instr.args[0] == self.top[0]:
            least, other = args[0].shown, args[1].open
            if least is not None and other is not None and other[1] <= least[0]:
                self.top = (number, self.top[1])
                return args[0]
        return found

    def _reduce(self, number: int, instr: RowInstruction) -> Values:
        (arg,) = instr.args
        values, columns = self.values[arg], self.domain.columns
        if not self.kernel.code[arg].full:
            if instr.op == "sum":
                return Values.same(product_bound(columns, values.shown, (1.0, 1.0), instr.dtype))
            return values if instr.op == "max" else Values.same(None)
        shown, rest = values.shown, hull(values.open, values.shown)
        if instr.op == "sum" and self._vanishes(arg):
            if shown is None or rest is None or instr.dtype not in FLOATS:
                return Values.same(None)
            if rest[0] < 0:
                return Values.same(product_bound(columns, rest, (1.0, 1.0), instr.dtype))
            top = values.top[0] if values.top is not None else 0.0
            return Values.same((max(shown[0], top), columns * rest[1]))
        if instr.op == "max" and shown is not None and rest is not None:
            hidden = self.bounds.hidden(values)
            if all(x is not None and x[1] < shown[0] for x in hidden):
                if self.top is None:
                    self.top = (number, arg)
                    self._shows_top(arg, shown[0])
                return Values.same((shown[0], rest[1]))
        raise Unknown

    def _shows_top(self, arg: int, least: float) -> None:
        """The mask shows the largest element, since the one that it puts in place of hidden ones is smaller."""
        instr = self.kernel.code[arg]
        if instr.kind == "apply" and instr.op == "where":
            condition, _, replaced = instr.args
            other = self.values[replaced].open
            if other is not None and other[1] < least:
                self.values[condition] = self.values[condition]._replace(top=(1.0, 1.0))

    def _store(self, instr: RowInstruction) -> None:
        view, operand = self.rows.views[instr.operand], self.kernel.operands[instr.operand]
        (arg,) = instr.args
        if operand.inner != 0 or self.kernel.code[arg].full:
            outside = view.root not in self.bounds.each.inside
            if operand.inner != 1 or (outside and not self._vanishes(arg)):
                raise Unknown
        values, before = self.values[arg], self.bounds.values.get(view.root)
        if before is not None:
            values = Values(*(hull(x, y) for x, y in zip(values, before, strict=True)))
        self.bounds.values[view.root] = values


def _positions(band: Band, sense: str, limit: int) -> Values:
    """The bounds of ``column - row <= limit``, or of ``column - row >= limit``, for the elements of a row."""
    low = -math.inf if band.first is None else band.first
    high = math.inf if band.last is None else band.last

    def truth(first: float, last: float) -> Interval:
        if first > last:
            return TRUTH
        always, never = (last <= limit, first > limit) if sense == "up to" else (first >= limit, last < limit)
        return (1.0, 1.0) if always else ZERO if never else TRUTH

    shown, after, before = truth(low, high), truth(high + 1, math.inf), truth(-math.inf, low - 1)
    return Values(shown, shown, after, before, shown)


def _key(rows: Rows) -> object:
    (view,), (operand,) = rows.views, rows.kernel.operands
    return view.root, view.offset, rows.kernel.outer, rows.kernel.inner, operand


def _loading(rows: Rows, instr: RowInstruction) -> Rows:
    """A kernel that does nothing but load the array of a load."""
    operand, view = rows.kernel.operands[instr.operand], rows.views[instr.operand]
    kernel = replace(
        rows.kernel, operands=(operand,), code=(RowInstruction("load", instr.dtype, instr.full, operand=0),)
    )
    return Rows(kernel, (view,))


def _matrix(view: View) -> Rows:
    """A kernel that loads all matrices of a view, in the order of their memory."""
    *batch, rows, columns = view.shape
    *steps, down, along = view.strides
    if down == 1 and along != 1:
        rows, columns, down, along = columns, rows, along, down
    operand = Operand(view.dtype, (*steps, down), along)
    kernel = RowKernel((*batch, rows), columns, (operand,), (RowInstruction("load", view.dtype, True, operand=0),))
    return Rows(kernel, (replace(view, shape=(), strides=()),))
