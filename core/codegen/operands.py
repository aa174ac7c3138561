"""The arrays of a row kernel where they meet a row: loaded, stored, accumulated into.

What is accumulated over all rows and along them stays in a register until the last row is done; any other sum goes back
to its array with every row.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.codegen.llvm import I64, Function, Value
from core.codegen.pieces import mask, parts, picked
from core.codegen.reductions import across, combine, identity, masked
from core.plan.data import Instr, RowKernel

__all__ = ["Operands", "Piece"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A vector of a row's elements. start: the first of them. count: how many of its lanes exist."""

    start: Value
    lanes: int
    count: int

    @property
    def mask(self) -> Value | None:
        """Which lanes exist, None if all do."""
        return mask(self.count, self.lanes)


class Operands:
    """The arrays of `kernel`, whose addresses are the parameters of `f`; vectors have so many lanes.

    `open` comes before the first row, `enter` before each, `close` behind the last. Instructions are named by their
    numbers in the kernel.
    """

    def __init__(self, f: Function, kernel: RowKernel, lanes: int) -> None:
        self.f, self.kernel, self.lanes = f, kernel, lanes
        self._bases: list[Value] = []
        self._totals: dict[int, Value] = {}

    def open(self) -> None:
        """Begin the sums that stay in registers."""
        for number, instr in enumerate(self.kernel.code):
            if instr.kind == "accumulate" and self._is_whole(instr):
                lanes = self.lanes if instr.full else 1
                self._totals[number] = self.f.slot(instr.dtype, lanes)
                self.f.write(self.f.splat(identity(instr.op, instr.dtype), lanes), self._totals[number])

    def close(self) -> None:
        """Bring them to their arrays."""
        f = self.f
        for number, slot in self._totals.items():
            instr = self.kernel.code[number]
            lanes = self.lanes if instr.full else 1
            total = across(f, instr.op, f.read(slot, instr.dtype, lanes))
            self._add(instr, total, f.param(f"p{instr.operand}"))

    def enter(self, row: Value) -> None:
        """All that follows is about this row."""
        f = self.f
        index = parts(f, row, self.kernel.outer)
        self._bases = []
        for i, operand in enumerate(self.kernel.operands):
            offset: Value | None = None
            for at, stride in zip(index, operand.outer, strict=False):
                if stride == 0:
                    continue
                part = f.op(f"mul nsw {at}, {stride}", "int64")
                offset = part if offset is None else f.op(f"add nsw {offset}, {part.name}", "int64")
            base = f.param(f"p{i}")
            self._bases.append(f.at(base, offset, operand.dtype) if offset else base)

    # --- the same along the row ------------------------------------------------------------------------------------

    def get_one(self, number: int) -> Value:
        instr = self.kernel.code[number]
        return self.f.load(self._bases[instr.operand], instr.dtype)

    def put_one(self, number: int, value: Value) -> None:
        """Store where the array has one element for the whole row."""
        instr = self.kernel.code[number]
        assert self.kernel.operands[instr.operand].inner == 0 or self.kernel.inner == 1, "a store that is not full"
        self.f.store(value, self._bases[instr.operand])

    def accumulate_one(self, number: int, value: Value) -> None:
        f, instr = self.f, self.kernel.code[number]
        if number in self._totals:
            slot = self._totals[number]
            f.write(combine(f, instr.op, f.read(slot, instr.dtype), value), slot)
        else:
            self._add(instr, value, self._bases[instr.operand])

    # --- a piece of the row ----------------------------------------------------------------------------------------

    def get(self, number: int, piece: Piece) -> Value:
        instr = self.kernel.code[number]
        operand = self.kernel.operands[instr.operand]
        address = self._address(instr, piece)
        if operand.inner in (0, 1) or piece.lanes == 1:
            return self.f.load(address, operand.dtype, piece.lanes, piece.mask)
        return picked(self.f, address, operand.dtype, operand.inner, piece.lanes, piece.count)

    def put(self, number: int, value: Value, piece: Piece) -> None:
        f, instr = self.f, self.kernel.code[number]
        operand = self.kernel.operands[instr.operand]
        address = self._address(instr, piece)
        if operand.inner == 1 or piece.lanes == 1:
            f.store(value, address, piece.mask)
            return
        for lane in range(piece.count):
            one = f.op(f"extractelement {value}, i64 {lane}", value.dtype)
            f.store(one, f.at(address, I64(lane * operand.inner), operand.dtype))

    def accumulate(self, number: int, value: Value, piece: Piece) -> None:
        f, instr = self.f, self.kernel.code[number]
        if number in self._totals:
            slot = self._totals[number]
            before = f.read(slot, instr.dtype, piece.lanes)
            f.write(combine(f, instr.op, before, masked(f, instr.op, value, piece.mask)), slot)
        elif self.kernel.operands[instr.operand].inner == 0:
            one = across(f, instr.op, masked(f, instr.op, value, piece.mask))
            self._add(instr, one, self._bases[instr.operand])
        else:
            self.put(number, combine(f, instr.op, self.get(number, piece), value), piece)

    # --- below them ------------------------------------------------------------------------------------------------

    def _address(self, instr: Instr, piece: Piece) -> Value:
        operand = self.kernel.operands[instr.operand]
        at = piece.start if operand.inner == 1 else self.f.op(f"mul nsw {piece.start}, {operand.inner}", "int64")
        return self.f.at(self._bases[instr.operand], at, operand.dtype)

    def _add(self, instr: Instr, value: Value, address: Value) -> None:
        """Combine one value with one of an array."""
        self.f.store(combine(self.f, instr.op, self.f.load(address, instr.dtype), value), address)

    def _is_whole(self, instr: Instr) -> bool:
        operand = self.kernel.operands[instr.operand]
        return not any(operand.outer) and operand.inner == 0
