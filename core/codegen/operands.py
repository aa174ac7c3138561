"""The arrays of a row kernel: loads, stores and accumulation for one row at a time.

A sum over all rows and along them stays in a register until the last row is done, and a sum along each row until that
row is done. Any other sum is added to its array row by row; if the next row adds to the same elements and they are few,
they stay in registers until a row adds to others (`hold`).

A sum of floats in a register is moved to a second register every `MOST_ADDITIONS` additions and starts again at zero,
because the rounding error of a sum grows with the number of additions in sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.reductions import combine, identity, masked, padded, reduce_lanes
from core.codegen.vector_slices import load_strided, mask, unravel
from core.ir.errors import InternalError
from core.plan.row_kernels import RowInstruction, RowKernel

__all__ = ["MOST_ADDITIONS", "Operands", "RowSlice"]

MOST_ADDITIONS = 240
"""Additions in sequence to one register. A multiple of every unroll factor, so that the bits do not depend on it."""


MOST_HELD = 8
"""Registers for elements that several rows in a row add to. Other values of the rows need the rest."""


@dataclass(frozen=True, slots=True)
class RowSlice:
    """A vector of adjacent elements of a row. start: position of the first. count: lanes that hold an element."""

    start: IRValue
    lanes: int
    count: int

    @property
    def mask(self) -> IRValue | None:
        """The lanes that hold an element; None if all do."""
        return mask(self.count, self.lanes)


class Operands:
    """The arrays of `kernel`, whose addresses are the parameters of `f`; vectors have `lanes` lanes.

    Call `open` before the first row, `enter` before each row, `leave` after each row, `close` after the last row.
    Instructions are given by their numbers in the kernel.

    params: the parameter of `f` for each operand; None for those of the same numbers.
    turned: operands of which the elements of the present row are read and written elsewhere, side by side, at these
            addresses.
    summed: those among them that are sums, which begin at +0: a sum of -0 alone is +0.
    """

    def __init__(self, f: Function, kernel: RowKernel, lanes: int, params: Sequence[int] | None = None) -> None:
        self.f, self.kernel, self.lanes = f, kernel, lanes
        self._arrays = [f.param(f"p{i}") for i in (range(len(kernel.operands)) if params is None else params)]
        self._vectors = -(-kernel.inner // lanes)
        self.turned: dict[int, IRValue] = {}
        self.summed: set[int] = set()
        self._bases: list[IRValue] = []
        self._index: list[IRValue] = []
        self._totals: dict[int, IRValue] = {}
        self._aside: dict[int, IRValue] = {}
        self._held: dict[tuple[int, str], tuple[IRValue, RowSlice | None]] = {}
        sums = [n for n, i in enumerate(kernel.code) if i.kind == "accumulate" and not kernel.operands[i.operand].inner]
        self._whole = [n for n in sums if not any(kernel.operands[kernel.code[n].operand].outer)]
        self._of_rows = [n for n in sums if n not in self._whole and kernel.code[n].full]

    def open(self) -> None:
        """Start the sums over all rows."""
        self._begin(self._whole, self.kernel.rows * self._vectors)

    def close(self) -> None:
        """Add the sums over all rows to their arrays."""
        for number in self._whole:
            instr = self.kernel.code[number]
            self._add(instr, self._total(number), self._arrays[instr.operand])

    def enter(self, row: IRValue) -> None:
        """Go to row `row`: compute its addresses and start its sums."""
        f = self.f
        index = self._index = unravel(f, row, self.kernel.outer)
        self._bases = []
        for i, operand in enumerate(self.kernel.operands):
            offset: IRValue | None = None
            for at, stride in zip(index, operand.outer, strict=False):
                if stride == 0:
                    continue
                part = f.op(f"mul nsw {at}, {stride}", "int64")
                offset = part if offset is None else f.op(f"add nsw {offset}, {part.name}", "int64")
            base = self._arrays[i]
            self._bases.append(f.at(base, offset, operand.dtype) if offset else base)
        self._begin(self._of_rows, self._vectors)
        if self._held:
            with f.when(self._at_end_of_run(0, f.compare("icmp eq", row, f.param("first")))):
                for (number, _), (slot, piece) in self._held.items():
                    f.write(self.get_one(number) if piece is None else self.get(number, piece), slot)

    def base(self, operand: int) -> IRValue:
        """The address of the first element of an operand in the current row."""
        return self._bases[operand]

    def hold(self, pieces: Sequence[RowSlice], elsewhere: Collection[int] = ()) -> None:
        """Keep elements that several rows in a row add to in registers. pieces: of every row, whose code is straight.
        elsewhere: instructions whose sums are kept elsewhere.

        The order of additions stays the same, but none waits for the memory of the one before.
        """
        kernel = self.kernel
        touched = [i.operand for i in kernel.code if i.kind in ("load", "store", "accumulate")]
        if not kernel.outer or kernel.outer[-1] == 1:
            return
        for number, instr in enumerate(kernel.code):
            if instr.kind != "accumulate" or number in {*self._whole, *self._of_rows, *elsewhere}:
                continue
            operand = kernel.operands[instr.operand]
            own: list[RowSlice | None] = [*pieces] if instr.full else [None]
            if operand.outer[-1] or (instr.full and operand.inner != 1) or touched.count(instr.operand) > 1:
                continue
            if len(self._held) + len(own) > MOST_HELD:
                continue
            for piece in own:
                lanes, start = (1, "") if piece is None else (piece.lanes, piece.start.name)
                self._held[number, start] = self.f.slot(instr.dtype, lanes), piece

    def _at_end_of_run(self, position: int, otherwise: IRValue) -> IRValue:
        """Whether the present row is at this position of the last outer axis, or `otherwise` holds."""
        return self.f.binary("or", self.f.compare("icmp eq", self._index[-1], I64(position)), otherwise)

    def leave(self, row: IRValue) -> None:
        """Finish row `row`: add its sums to their arrays."""
        self.leave_held(row)
        for number in self._of_rows:
            instr = self.kernel.code[number]
            self._add(instr, self._total(number), self._bases[instr.operand])
        self.put_aside(row, *self._whole)

    def leave_held(self, row: IRValue, count: int = 1) -> None:
        """Store the elements in registers if the next rows add to others. count: rows from `row` on that are done."""
        if self._held:
            f, last = self.f, self.f.binary("sub", self.f.param("end"), I64(count))
            with f.when(self._at_end_of_run(self.kernel.outer[-1] - count, f.compare("icmp eq", row, last))):
                for (number, _), (slot, piece) in self._held.items():
                    instr = self.kernel.code[number]
                    value = f.read(slot, instr.dtype, 1 if piece is None else piece.lanes)
                    if piece is None:
                        f.store(value, self._bases[instr.operand])
                    else:
                        self.put(number, value, piece)

    def put_aside(self, row: IRValue, *numbers: int) -> None:
        """After every so many rows, of which `row` may be the last, add sums over all rows to those put aside."""
        if self._vectors <= MOST_ADDITIONS:
            self._put_aside(row, 1 << ((MOST_ADDITIONS // self._vectors).bit_length() - 1), 1, numbers)

    def along(self, at: IRValue, stride: int, together: int) -> None:
        """Finish `together` slices of the row, in a loop over `at` that counts by `stride`."""
        if self._vectors > MOST_ADDITIONS:
            self._put_aside(at, MOST_ADDITIONS // together, stride, (*self._whole, *self._of_rows))

    def _begin(self, numbers: Sequence[int], additions: int) -> None:
        """Start sums of `additions` values each, or of vectors of values."""
        f = self.f
        for number in numbers:
            instr = self.kernel.code[number]
            slots = [self._totals]
            if instr.op == "sum" and instr.dtype.startswith("float") and additions > 2 * MOST_ADDITIONS:
                slots.append(self._aside)
            for each in slots:
                if number not in each:
                    each[number] = f.slot(instr.dtype, self._lanes(instr))
                f.write(f.splat(identity(instr.op, instr.dtype), self._lanes(instr)), each[number])

    def _put_aside(self, at: IRValue, every: int, step: int, numbers: Sequence[int]) -> None:
        """After every `every` steps of a loop over `at`, add the sums to those put aside, and start them again."""
        f = self.f
        numbers = [n for n in numbers if n in self._aside]
        if not numbers:
            return
        within = f.op(f"urem {at}, {every * step}", "int64")
        with f.when(f.compare("icmp eq", within, I64((every - 1) * step))):
            for number in numbers:
                instr = self.kernel.code[number]
                f.write(self._in_lanes(number), self._aside[number])
                f.write(f.splat(identity(instr.op, instr.dtype), self._lanes(instr)), self._totals[number])

    def _in_lanes(self, number: int) -> IRValue:
        """The whole sum, still in lanes."""
        f, instr = self.f, self.kernel.code[number]
        value = f.read(self._totals[number], instr.dtype, self._lanes(instr))
        if number in self._aside:
            value = combine(f, instr.op, f.read(self._aside[number], instr.dtype, self._lanes(instr)), value)
        return value

    def _total(self, number: int) -> IRValue:
        return reduce_lanes(self.f, self.kernel.code[number].op, self._in_lanes(number))

    def _lanes(self, instr: RowInstruction) -> int:
        return self.lanes if instr.full else 1

    # --- values that are the same along the row --------------------------------------------------------------------

    def get_one(self, number: int) -> IRValue:
        instr = self.kernel.code[number]
        return self.f.load(self._bases[instr.operand], instr.dtype)

    def look_up_one(self, number: int, at: IRValue) -> IRValue:
        """The element at a position that is data."""
        return self.f.load(self._looked_up(number, at), self.kernel.code[number].dtype)

    def put_one(self, number: int, value: IRValue) -> None:
        """Store to an array that has one element for the whole row."""
        instr = self.kernel.code[number]
        operand = self.kernel.operands[instr.operand]
        if operand.inner != 0 and self.kernel.inner != 1:
            raise InternalError(
                f"instruction {number} stores one element of a row of {self.kernel.inner} to operand {instr.operand}, "
                f"whose elements along the row are {operand.inner} apart; wanted a stride of 0"
            )
        self.f.store(value, self._bases[instr.operand])

    def accumulate_one(self, number: int, value: IRValue) -> None:
        f, instr = self.f, self.kernel.code[number]
        if number in self._totals:
            slot = self._totals[number]
            f.write(combine(f, instr.op, f.read(slot, instr.dtype), value), slot)
        elif (number, "") in self._held:
            slot, _ = self._held[number, ""]
            f.write(combine(f, instr.op, f.read(slot, instr.dtype), value), slot)
        else:
            self._add(instr, value, self._bases[instr.operand])

    # --- a slice of the row ----------------------------------------------------------------------------------------

    def get(self, number: int, piece: RowSlice) -> IRValue:
        instr = self.kernel.code[number]
        operand = self.kernel.operands[instr.operand]
        if instr.operand in self.turned:
            at = self.f.at(self.turned[instr.operand], piece.start, operand.dtype)
            value = self.f.load(at, operand.dtype, piece.lanes, piece.mask)
            if instr.operand in self.summed and value.is_float:
                return self.f.binary("fadd", value, self.f.splat(literal(0, value.dtype), piece.lanes))
            return value
        address = self._address(instr, piece)
        if operand.inner in (0, 1) or piece.lanes == 1:
            return self.f.load(address, operand.dtype, piece.lanes, piece.mask)
        return load_strided(self.f, address, operand.dtype, operand.inner, piece.lanes, piece.count)

    def look_up(self, number: int, at: IRValue, piece: RowSlice) -> IRValue:
        """Elements at a position that is data, which may be another one for each element."""
        f, instr = self.f, self.kernel.code[number]
        operand = self.kernel.operands[instr.operand]
        if at.lanes == 1:
            first = self._looked_up(number, at)
            along = piece.start if operand.inner == 1 else f.op(f"mul nsw {piece.start}, {operand.inner}", "int64")
            address = f.at(first, along, operand.dtype)
            if operand.inner in (0, 1) or piece.lanes == 1:
                return f.load(address, operand.dtype, piece.lanes, piece.mask)
            return load_strided(f, address, operand.dtype, operand.inner, piece.lanes, piece.count)
        result = f.splat(literal(0, operand.dtype), piece.lanes)
        for lane in range(piece.count):
            one = self._looked_up(number, f.op(f"extractelement {at}, i64 {lane}", "int64"))
            along = f.op(f"mul nsw {f.binary('add', piece.start, I64(lane))}, {operand.inner}", "int64")
            value = f.load(f.at(one, along, operand.dtype), operand.dtype)
            result = f.op(f"insertelement {result}, {value}, i64 {lane}", operand.dtype, piece.lanes)
        return result

    def put(self, number: int, value: IRValue, piece: RowSlice) -> None:
        f, instr = self.f, self.kernel.code[number]
        operand = self.kernel.operands[instr.operand]
        if instr.operand in self.turned:
            f.store(value, f.at(self.turned[instr.operand], piece.start, operand.dtype), piece.mask)
            return
        address = self._address(instr, piece)
        if operand.inner == 1 or piece.lanes == 1:
            f.store(value, address, piece.mask)
            return
        for lane in range(piece.count):
            one = f.op(f"extractelement {value}, i64 {lane}", value.dtype)
            f.store(one, f.at(address, I64(lane * operand.inner), operand.dtype))

    def accumulate(self, number: int, value: IRValue, piece: RowSlice) -> None:
        f, instr = self.f, self.kernel.code[number]
        if number in self._totals:
            slot = self._totals[number]
            before = f.read(slot, instr.dtype, self.lanes)
            f.write(combine(f, instr.op, before, self.whole(instr.op, value, piece)), slot)
        elif (number, piece.start.name) in self._held:
            slot, _ = self._held[number, piece.start.name]
            f.write(combine(f, instr.op, f.read(slot, instr.dtype, piece.lanes), value), slot)
        else:
            self.put(number, combine(f, instr.op, self.get(number, piece), value), piece)

    # --- checks ------------------------------------------------------------------------------------------------------

    def check(self, instr: RowInstruction, holds: IRValue) -> None:
        """Write the number of a check to the error word if `holds` is false in any lane."""
        f = self.f
        if holds.lanes > 1:
            f.declarations.add(f"declare i1 @llvm.vector.reduce.and.v{holds.lanes}i1(<{holds.lanes} x i1>)")
            holds = f.op(f"call i1 @llvm.vector.reduce.and.v{holds.lanes}i1({holds})", "bool")
        with f.when(f.op(f"xor {holds}, true", "bool")):
            fail(f, self._arrays[instr.operand], I64(instr.value))

    def whole(self, op: str, value: IRValue, piece: RowSlice) -> IRValue:
        """A slice as a whole vector, with the identity of reduction `op` in the lanes that hold no element."""
        return padded(self.f, op, masked(self.f, op, value, piece.mask), self.lanes)

    # --- positions -------------------------------------------------------------------------------------------------

    def first_of(self, instr: RowInstruction) -> IRValue:
        """The value of an iota at the first element of the row."""
        f, total = self.f, I64(instr.value)
        for at, stride in zip(self._index, dict(instr.attrs)["outer"], strict=False):
            if stride:
                total = f.binary("add", f.op(f"mul nsw {at}, {stride}", "int64"), total)
        return total

    def positions(self, instr: RowInstruction, piece: RowSlice) -> IRValue:
        """The values of an iota at a slice of the row."""
        f, step = self.f, dict(instr.attrs)["inner"]
        start = f.op(f"mul nsw {piece.start}, {step}", "int64") if step != 1 else piece.start
        start = f.binary("add", start, self.first_of(instr))
        if piece.lanes == 1:
            return start
        lanes = ", ".join(f"i64 {i * step}" for i in range(piece.lanes))
        return f.binary("add", IRValue(f"<{lanes}>", "int64", piece.lanes), start)

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _address(self, instr: RowInstruction, piece: RowSlice) -> IRValue:
        operand = self.kernel.operands[instr.operand]
        at = piece.start if operand.inner == 1 else self.f.op(f"mul nsw {piece.start}, {operand.inner}", "int64")
        return self.f.at(self._bases[instr.operand], at, operand.dtype)

    def _looked_up(self, number: int, at: IRValue) -> IRValue:
        """The address of a lookup's element at the start of the row."""
        instr = self.kernel.code[number]
        further = self.f.op(f"mul nsw {at}, {dict(instr.attrs)['step']}", "int64")
        return self.f.at(self._bases[instr.operand], further, instr.dtype)

    def _add(self, instr: RowInstruction, value: IRValue, address: IRValue) -> None:
        """Combine a value with the element of an array at `address`."""
        self.f.store(combine(self.f, instr.op, self.f.load(address, instr.dtype), value), address)
