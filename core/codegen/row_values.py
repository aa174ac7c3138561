"""The instructions of a row kernel, one by one: of a row, or of a slice of it."""

from __future__ import annotations

from core.codegen.draws import DRAWS
from core.codegen.llvm import Function, IRValue, literal
from core.codegen.operands import Operands, RowSlice
from core.codegen.reductions import masked, repeated
from core.codegen.scalar import apply
from core.ir.stop import poll
from core.plan.row_kernels import RowInstruction, RowKernel

__all__ = ["RowValues"]


class RowValues:
    """Writes the instructions of `kernel`, whose arrays are `operands`.

    values: the value of each instruction that is the same along the row.
    """

    def __init__(self, f: Function, kernel: RowKernel, operands: Operands) -> None:
        self.f, self.kernel, self.code, self.operands = f, kernel, kernel.code, operands
        self.values: dict[int, IRValue] = {}

    def row(self, number: int) -> None:
        """Write an instruction whose value is the same along the row."""
        poll()
        f, instr, values = self.f, self.code[number], self.values
        if instr.kind == "constant":
            values[number] = literal(instr.value, instr.dtype)
        elif instr.kind == "load":
            values[number] = self.operands.get_one(number)
        elif instr.kind == "lookup":
            values[number] = self.operands.look_up_one(number, values[instr.args[0]])
        elif instr.kind == "iota":
            values[number] = self.operands.first_of(instr)
        elif instr.kind == "apply":
            values[number] = self._applied(instr, [values[a] for a in instr.args])
        elif instr.kind == "reduce":
            values[number] = repeated(f, instr.op, values[instr.args[0]], self.kernel.inner)
        elif instr.kind == "store":
            self.operands.put_one(number, values[instr.args[0]])
        elif instr.kind == "accumulate":
            value = values[instr.args[0]]
            if instr.value:
                value = repeated(f, instr.op, value, self.kernel.inner)
            self.operands.accumulate_one(number, value)
        elif instr.kind == "check":
            self.operands.check(instr, values[instr.args[0]])

    def full(self, number: int, piece: RowSlice, made: dict[int, IRValue]) -> None:
        """Write an instruction for a slice of the row. made: values of the slice; the new value is added to it."""
        poll()
        f, instr = self.f, self.code[number]
        args = [made[a] if a in made else self.values[a] for a in instr.args]
        if instr.kind == "load":
            made[number] = self.operands.get(number, piece)
        elif instr.kind == "lookup":
            made[number] = self.operands.look_up(number, args[0], piece)
        elif instr.kind == "iota":
            made[number] = self.operands.positions(instr, piece)
        elif instr.kind == "apply":
            made[number] = f.splat(self._applied(instr, args), piece.lanes)
        elif instr.kind == "store":
            self.operands.put(number, f.splat(args[0], piece.lanes), piece)
        elif instr.kind == "accumulate":
            self.operands.accumulate(number, f.splat(args[0], piece.lanes), piece)
        elif instr.kind == "check":
            self.operands.check(instr, masked(f, "and", f.splat(args[0], piece.lanes), piece.mask))

    def _applied(self, instr: RowInstruction, args: list[IRValue]) -> IRValue:
        attrs = dict(instr.attrs)
        if instr.op in DRAWS:
            return DRAWS[instr.op](self.f, attrs, args, self._pairs(instr))
        return apply(self.f, instr.op, attrs, args, instr.rounds)

    def _pairs(self, instr: RowInstruction) -> bool:
        """Whether every slice of positions that `instr` takes is adjacent and begins at an even one."""
        at = self.code[instr.args[0]]
        if at.kind != "iota":
            return False
        strides = dict(at.attrs)
        return strides["inner"] == 1 and at.value % 2 == 0 and not any(s % 2 for s in strides["outer"])
