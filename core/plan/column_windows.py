"""Which columns a stripe of attention need not compute, because a mask hides them.

Behind a mask the probabilities are exactly 0, and so are their gradients: products with them add zeros. That is true if
the numbers that enter are moderate: the exponential of a score behind a mask of -1e9 is 0 only next to a score that is
far above -1e9, and 0 times infinity is no zero. So the analysis follows bounds through the instructions of a stripe,
from the assumption that all numbers that enter are between -limit and limit. The run checks the assumption.

Bounds are followed for five kinds of elements of a row: `SHOWN`, one that the mask shows for certain; `OPEN`, any other
one that the mask may show; `AFTER` and `BEFORE`, hidden on that side; `TOP`, the largest one of the masked scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from core.ir.precision import HALVES
from core.plan.instructions import Gemm, Instruction, Rows
from core.plan.intervals import TRUTH, ZERO, Interval, applied, hull, product_bound
from core.plan.masks import Band, Given, edges_of, position_bound
from core.plan.memory import Root, View
from core.plan.row_kernels import Operand, RowInstruction, RowKernel
from core.plan.striped import Domain, Striped, StripedProduct, Window

__all__ = ["ColumnWindows"]

SHOWN, OPEN, AFTER, BEFORE, TOP = range(5)

FLOATS = frozenset({"float32", "float64"})

Values = tuple[Interval, Interval, Interval, Interval, Interval]

ASSUMED = ((1024.0, 2.0**26), (16.0, 9000.0))
"""Limits of the numbers that enter, and the size of numbers in a mask that hide. Under the second ones, float16 has
numbers for scores of up to 255 terms."""


EDGES = 2
"""Most edges of a band that are tried, on each side."""


class _Unknown(Exception):
    """Some instruction may need the hidden columns."""


@dataclass(frozen=True, slots=True)
class _Known:
    """An array that earlier stripes have computed in windows: its bounds, and the window that these are true for."""

    values: Values
    domain: Domain
    mask: Band | Given
    window: Window


class ColumnWindows:
    """The windows of the `Striped` instructions of a list, one after another.

    instructions: all of the list; an array that several of them write has no bounds.
    halves:       whether generated code can check 16-bit numbers that enter.
    """

    def __init__(self, instructions: Sequence[Instruction], block: int, halves: bool = False) -> None:
        self.block = block
        self.floats = FLOATS.union(HALVES) if halves else FLOATS
        self.known: dict[Root, _Known] = {}
        self.written: dict[Root, int] = {}
        for each in instructions:
            for root in set(each.writes()):
                self.written[root] = self.written.get(root, 0) + 1

    def of(self, each: Striped) -> Window | None:
        """The window of an instruction, after those before it; None if it needs all columns."""
        parts = list(each.instructions)
        dtypes = {v.dtype for g in parts if isinstance(g, Gemm) for v in (g.a, g.b, g.c)}
        if each.shared or each.domain.columns < 2 * self.block or not dtypes <= self.floats:
            return None
        for mask in self._masks(each):
            for limit, hides in ASSUMED:
                bounds = _Bounds(self, each, mask, limit, hides)
                try:
                    bounds.follow()
                except _Unknown:
                    continue
                window = bounds.window()
                for root, values in bounds.values.items():
                    if root not in each.inside and self.written.get(root) == 1:
                        self.known[root] = _Known(values, each.domain, mask, window)
                return window
        return None

    def _masks(self, each: Striped) -> Iterator[Band | Given]:
        """The masks to try: that of the arrays of earlier stripes, or bands, or arrays that are loaded."""
        known = (self.known[root] for root in each.reads() if root in self.known)
        earlier = list(dict.fromkeys(k.mask for k in known if k.domain == each.domain))
        if earlier:
            yield from earlier[:1] if len(earlier) == 1 else ()
            return
        rows = [part for part in each.body if isinstance(part, Rows)]
        edges = list(dict.fromkeys(edge for part in rows for edge in edges_of(part, each.domain)))
        first = [None, *dict.fromkeys(edge.first for edge in edges if edge.first is not None)]
        last = [None, *dict.fromkeys(edge.last for edge in edges if edge.last is not None)]
        pairs = [Band(a, b) for a in first[: EDGES + 1] for b in last[: EDGES + 1]]
        for band in sorted(pairs, key=lambda band: (band.first is None) + (band.last is None)):
            if band != Band() and band.shows_each_row(each.domain):
                yield band
        loaded = (
            Given.of(part, n)
            for part in rows
            for n, i in enumerate(part.kernel.code)
            if i.kind == "load" and i.full and part.views[i.operand].root not in each.inside
        )
        yield from dict.fromkeys(g for g in loaded if g is not None and g.dtype in ("bool", *self.floats))


@dataclass(slots=True)
class _Bounds:
    """The bounds of all values of one instruction under one mask. `follow` raises `_Unknown`."""

    all: ColumnWindows
    each: Striped
    mask: Band | Given
    limit: float
    hides: float
    values: dict[Root, Values] = field(default_factory=dict)
    guards: dict[object, Rows] = field(default_factory=dict)
    loads: Rows | None = None

    @property
    def hidden(self) -> tuple[int, ...]:
        if isinstance(self.mask, Given):
            return (BEFORE, AFTER)
        return tuple(at for at, edge in ((BEFORE, self.mask.first), (AFTER, self.mask.last)) if edge is not None)

    def follow(self) -> None:
        written = {root for part in self.each.instructions for root in part.writes()}
        for part in self.each.body:
            if isinstance(part, Rows):
                _Row(self, part, written).follow()
            else:
                self._product(part, written)

    def window(self) -> Window:
        band = self.mask if isinstance(self.mask, Band) else Band()
        guards = tuple(self.guards.values())
        return Window(self.all.block, band.first, band.last, self.loads, guards, self.limit, self.hides)

    def _earlier(self, root: Root) -> _Known | None:
        found = self.all.known.get(root)
        return found if found is not None and found.domain == self.each.domain else None

    def from_earlier(self, root: Root) -> Values | None:
        """The bounds of an array of earlier stripes, with the conditions that they depend on."""
        found = self._earlier(root)
        if found is None:
            return None
        if found.mask != self.mask or (found.window.limit, found.window.hides) != (self.limit, self.hides):
            raise _Unknown
        for guard in found.window.guards:
            self.guards.setdefault(_key(guard), guard)
        if found.window.mask is not None:
            self.loads = found.window.mask
        return found.values

    def guard(self, rows: Rows) -> Interval:
        """The bounds of numbers that the run checks, in an array that does not change."""
        if self.all.written.get(rows.views[0].root, 0) > 1:
            raise _Unknown
        self.guards.setdefault(_key(rows), rows)
        return -self.limit, self.limit

    def _product(self, part: StripedProduct, written: set[Root]) -> None:
        product, wide = part.product, part.wide
        if wide is None:
            raise _Unknown
        read: list[Interval] = []
        for view in (product.a, product.b):
            values = self.values.get(view.root) or self.from_earlier(view.root)
            if view is wide:
                if values is None or any(values[at] != ZERO for at in self.hidden):
                    raise _Unknown
                read.append(hull(*values))
            elif values is not None or view.root in written:
                raise _Unknown
            else:
                read.append(self.guard(_matrix(view)))
        if wide is product.c:
            if product.c.root not in self.each.inside:
                raise _Unknown
            bound = product_bound(product.a.shape[-1], read[0], read[1], product.c.dtype)
            self.values[product.c.root] = _same(bound)


class _Row:
    """The bounds of the values of one row kernel."""

    def __init__(self, bounds: _Bounds, rows: Rows, written: set[Root]) -> None:
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
            return _same(None if math.isnan(value) else (value, value))
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
                raise _Unknown
        elif instr.kind == "check" and instr.full:
            raise _Unknown
        return _same(None)  # lookups, positions

    def _vanishes(self, number: int) -> bool:
        return all(self.values[number][at] == ZERO for at in self.bounds.hidden)

    def _load(self, number: int, instr: RowInstruction) -> Values:
        bounds, view = self.bounds, self.rows.views[instr.operand]
        found = bounds.values.get(view.root) or bounds.from_earlier(view.root)
        if found is not None:
            return found
        if view.root in self.written:
            raise _Unknown
        one = _loading(self.rows, instr)
        if instr.full and isinstance(bounds.mask, Given) and Given.of(self.rows, number) == bounds.mask:
            bounds.loads = one
            if bounds.all.written.get(view.root, 0) > 1:
                raise _Unknown
            if instr.dtype == "bool":
                return (1.0, 1.0), TRUTH, ZERO, ZERO, TRUTH
            most, hides = bounds.limit, (-math.inf, -bounds.hides)
            return (-most, most), (-math.inf, most), hides, hides, (-math.inf, most)
        if instr.dtype == "bool":
            return _same(TRUTH)
        return _same(bounds.guard(one) if instr.dtype in bounds.all.floats else None)

    def _apply(self, number: int, instr: RowInstruction) -> Values:
        band, sought = self.bounds.mask, position_bound(self.kernel, number, self.domain)
        if sought is not None and isinstance(band, Band):
            return _positions(band, *sought)
        args = [self.values[a] for a in instr.args]
        attrs = dict(instr.attrs)
        found = [applied(instr.op, attrs, [a[at] for a in args], instr.dtype) for at in range(5)]
        if self.top is not None and instr.op == "sub" and instr.args == (self.top[1], self.top[0]):
            found = [None if x is None else (min(x[0], 0.0), min(x[1], 0.0)) for x in found]
            found[TOP] = ZERO
        if self.top is not None and instr.op == "maximum" and instr.args[0] == self.top[0]:
            least, other = args[0][SHOWN], args[1][OPEN]
            if least is not None and other is not None and other[1] <= least[0]:
                self.top = (number, self.top[1])
                return args[0]
        a, b, c, d, e = found
        return a, b, c, d, e

    def _reduce(self, number: int, instr: RowInstruction) -> Values:
        (arg,) = instr.args
        values, columns = self.values[arg], self.domain.columns
        if not self.kernel.code[arg].full:
            if instr.op == "max":
                return values
            return _same(product_bound(columns, values[SHOWN], (1.0, 1.0), instr.dtype)) if instr.op == "sum" else (
                _same(None))  # fmt: skip
        shown, rest = values[SHOWN], hull(values[OPEN], values[SHOWN])
        if instr.op == "sum" and self._vanishes(arg):
            if shown is None or rest is None or instr.dtype not in FLOATS:
                return _same(None)
            if rest[0] < 0:
                return _same(product_bound(columns, rest, (1.0, 1.0), instr.dtype))
            top = values[TOP]
            return _same((max(shown[0], top[0] if top is not None else 0.0), columns * rest[1]))
        if instr.op == "max" and shown is not None and rest is not None:
            hidden = [values[at] for at in self.bounds.hidden]
            if all(x is not None and x[1] < shown[0] for x in hidden):
                if self.top is None:
                    self.top = (number, arg)
                    self._shows_top(arg, shown[0])
                return _same((shown[0], rest[1]))
        raise _Unknown

    def _shows_top(self, arg: int, least: float) -> None:
        """The mask shows the largest element, since the one that it puts in place of hidden ones is smaller."""
        instr = self.kernel.code[arg]
        if instr.kind == "apply" and instr.op == "where":
            other = self.values[instr.args[2]][OPEN]
            if other is not None and other[1] < least:
                a, b, c, d, _ = self.values[instr.args[0]]
                self.values[instr.args[0]] = (a, b, c, d, (1.0, 1.0))

    def _store(self, instr: RowInstruction) -> None:
        view, operand = self.rows.views[instr.operand], self.kernel.operands[instr.operand]
        (arg,) = instr.args
        if operand.inner != 0 or self.kernel.code[arg].full:
            outside = view.root not in self.bounds.each.inside
            if operand.inner != 1 or (outside and not self._vanishes(arg)):
                raise _Unknown
        values, before = self.values[arg], self.bounds.values.get(view.root)
        if before is not None:
            a, b, c, d, e = (hull(x, y) for x, y in zip(values, before, strict=True))
            values = a, b, c, d, e
        self.bounds.values[view.root] = values


def _same(interval: Interval) -> Values:
    return interval, interval, interval, interval, interval


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
    return shown, shown, after, before, shown


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
