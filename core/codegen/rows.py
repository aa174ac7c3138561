"""Row kernels: one function for each, that does all its instructions for a range of rows.

A short row is straight code, its values in registers from the first instruction to the last. A long one is swept, once
and then once more for every reduction that later instructions need; a value of an earlier sweep is computed again, or,
where that costs more than memory does, kept in a row of scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, Value, literal
from core.codegen.machine import cpu
from core.codegen.scalar import FUNCTIONS, apply
from core.plan.data import Instr, RowKernel

__all__ = ["row_function"]

STRAIGHT = 1500
"""Vector instructions up to which a row is straight code."""

DEAR = frozenset(
    [
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cos",
        "cosh",
        "div",
        "erf",
        "erfc",
        "exp",
        "expm1",
        "log",
        "log10",
        "log1p",
        "log2",
        "logsigmoid",
        "pow",
        "rsqrt",
        "sigmoid",
        "sin",
        "sinh",
        "softplus",
        "sqrt",
        "tan",
        "tanh",
    ]
)
"""Ops that are read from scratch memory rather than computed again."""

CYCLES, DEAR_CYCLES = 3, 40
"""From the operands of an op to its result, of one in `DEAR` also."""

REACH = 100
"""Cycles of such waiting that a processor fills by itself: it looks ahead some 300 instructions."""

MOST_ABREAST = 4

COMBINE: dict[str, str] = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "and": "logical_and",
    "or": "logical_or",
}


def identity(op: str, dtype: str) -> Value:
    """What changes nothing under `op`."""
    if op in ("sum", "or"):
        return literal(0, dtype)
    if op in ("prod", "and"):
        return literal(1, dtype)
    if dtype in ("float32", "float64"):
        return literal(-np.inf if op == "max" else np.inf, dtype)
    if dtype == "bool":
        return literal(op == "min", dtype)
    limits = np.iinfo(dtype)
    return literal(limits.min if op == "max" else limits.max, dtype)


def combine(f: Function, op: str, a: Value, b: Value) -> Value:
    return FUNCTIONS[COMBINE[op]](f, a, b)


def _power(f: Function, value: Value, exponent: int) -> Value:
    """A whole number to a power above 0, by squaring; what it cannot hold is left out, as in a product of as many."""
    result = None
    while exponent:
        if exponent & 1:
            result = value if result is None else FUNCTIONS["multiply"](f, result, value)
        exponent >>= 1
        if exponent:
            value = FUNCTIONS["multiply"](f, value, value)
    assert result is not None
    return result


def row_function(name: str, kernel: RowKernel) -> Function:
    """``name(operands..., first row, end row)``. Arrays that are accumulated into must hold the start values."""
    params = [(f"p{i}", "ptr") for i in range(len(kernel.operands))]
    f = Function(name, [*params, ("first", "int64"), ("end", "int64")], noalias=False)
    _Writer(f, kernel).write()
    return f


@dataclass(slots=True)
class _Piece:
    """Some lanes of a row. start: first element. mask: which lanes exist, None if all do."""

    start: Value
    lanes: int
    mask: Value | None


class _Writer:
    def __init__(self, f: Function, kernel: RowKernel) -> None:
        self.f, self.kernel = f, kernel
        self.code = kernel.code
        self.lanes = self._lanes()
        self.steps, self.rest = divmod(kernel.inner, self.lanes)
        self.stage = self._stages()
        self.row_values: dict[int, Value] = {}
        self.whole: dict[int, Value] = {}
        self.bases: list[Value] = []
        self.scratch: dict[int, Value] = {}

    def _lanes(self) -> int:
        """Elements of one vector: as many of the smallest floats in use as a register holds, if a row has so many."""
        sizes = [np.dtype(i.dtype).itemsize for i in self.code if i.full and i.dtype not in ("", "bool")]
        width = cpu().vector_bytes // max(min(sizes, default=4), 4)
        while width // 2 >= self.kernel.inner:
            width //= 2
        return width

    def _stages(self) -> list[int]:
        """The sweep in which each instruction can run: one more than that of a reduction it needs."""
        stages: list[int] = []
        for instr in self.code:
            at = max((stages[a] for a in instr.args), default=0)
            stages.append(at + 1 if instr.kind == "reduce" and self.code[instr.args[0]].full else at)
        return stages

    # --- the whole ---------------------------------------------------------------------------------------------

    def write(self) -> None:
        f = self.f
        self._open_accumulators()
        vectors = self.steps + bool(self.rest)
        straight = vectors == 1 or (vectors <= 16 and vectors * len(self.code) <= STRAIGHT)
        if not straight:
            self._reserve_scratch()
        with f.loop(f.param("first"), f.param("end")) as row:
            self.row_values.clear()
            self.bases = self._row_addresses(row)
            if straight:
                self._straight()
            else:
                for stage in range(max(self.stage, default=0) + 1):
                    self._sweep(stage)
        self._close_accumulators()

    def _row_addresses(self, row: Value) -> list[Value]:
        """The address of each operand's first element in this row."""
        f = self.f
        index: list[Value] = []
        left = row
        for size in reversed(self.kernel.outer[1:]):
            index.insert(0, f.op(f"urem {left}, {size}", "int64"))
            left = f.op(f"udiv {left}, {size}", "int64")
        index.insert(0, left)
        bases = []
        for i, operand in enumerate(self.kernel.operands):
            offset: Value | None = None
            for at, stride in zip(index, operand.outer, strict=False):
                if stride == 0:
                    continue
                part = f.op(f"mul nsw {at}, {stride}", "int64")
                offset = part if offset is None else f.op(f"add nsw {offset}, {part.name}", "int64")
            base = f.param(f"p{i}")
            bases.append(f.at(base, offset, operand.dtype) if offset else base)
        return bases

    # --- a row as straight code --------------------------------------------------------------------------------

    def _straight(self) -> None:
        """Every instruction once, for all pieces of the row."""
        pieces = [_Piece(I64(i * self.lanes), self.lanes, None) for i in range(self.steps)]
        if self.rest:
            pieces.append(self._tail())
        values: dict[int, list[Value]] = {}
        for number, instr in enumerate(self.code):
            if instr.kind == "reduce":
                self.row_values[number] = self._reduced(instr, values.get(instr.args[0]), pieces)
            elif instr.full:
                found = []
                for i, piece in enumerate(pieces):
                    value = self._full(instr, piece, partial(self._at, values, i))
                    if value is not None:
                        found.append(value)
                values[number] = found
            else:
                self._row(number, instr)

    def _at(self, values: dict[int, list[Value]], piece: int, number: int) -> Value:
        return values[number][piece] if number in values else self.row_values[number]

    def _reduced(self, instr: Instr, values: list[Value] | None, pieces: list[_Piece]) -> Value:
        if values is None:
            return self._repeated(instr, self.row_values[instr.args[0]])
        f = self.f
        kept = [self._masked(v, p, instr.op) for v, p in zip(values, pieces, strict=True)]
        while len(kept) > 1:  # in pairs: shorter chains, smaller errors
            pairs = [combine(f, instr.op, a, b) for a, b in zip(kept[::2], kept[1::2], strict=False)]
            kept = pairs + kept[len(pairs) * 2 :]
        return self._across(kept[0], instr.op)

    def _repeated(self, instr: Instr, value: Value) -> Value:
        """The reduction of one value that stands for a whole row."""
        f, n = self.f, self.kernel.inner
        if instr.op == "sum" and n > 1:
            return FUNCTIONS["multiply"](f, value, literal(n, value.dtype))
        if instr.op == "prod" and n > 1:
            return apply(f, "pow", {}, [value, literal(n, value.dtype)]) if value.is_float else _power(f, value, n)
        return value

    def _tail(self) -> _Piece:
        bits = ", ".join(f"i1 {'true' if i < self.rest else 'false'}" for i in range(self.lanes))
        if self.lanes == 1:
            return _Piece(I64(self.steps * self.lanes), 1, None)
        return _Piece(I64(self.steps * self.lanes), self.lanes, Value(f"<{bits}>", "bool", self.lanes))

    # --- a row in sweeps ---------------------------------------------------------------------------------------

    def _reserve_scratch(self) -> None:
        """Room for a row of each dear value that a later sweep needs again."""
        again = list(self.stage)
        for number in reversed(range(len(self.code))):
            instr = self.code[number]
            if instr.full and instr.kind == "apply" and instr.op in DEAR and again[number] > self.stage[number]:
                lanes = (self.steps + bool(self.rest)) * self.lanes
                slot = self.f.fresh("row")
                self.f.top.append(f"  {slot} = alloca [{lanes} x {Value('', instr.dtype).type}], align 64")
                self.scratch[number] = Value(slot, "ptr")
                again[number] = self.stage[number]
            if instr.full:
                for a in instr.args:
                    again[a] = max(again[a], again[number])

    def _sweep(self, stage: int) -> None:
        """What can run in this sweep: first the values of the whole row, then along the row."""
        for number, instr in enumerate(self.code):
            if self.stage[number] == stage and not instr.full and number not in self.row_values:
                if instr.kind == "reduce":
                    if self.code[instr.args[0]].full:
                        continue  # left here by the sweep before
                    self.row_values[number] = self._repeated(instr, self.row_values[instr.args[0]])
                else:
                    self._row(number, instr)
        ends = [
            n
            for n, i in enumerate(self.code)
            if (i.full and self.stage[n] == stage and (i.kind in ("store", "accumulate", "check") or n in self.scratch))
            or (i.kind == "reduce" and self.stage[n] == stage + 1 and self.code[i.args[0]].full)
        ]
        if not ends:
            return
        f = self.f
        totals = {}
        for n in ends:
            if self.code[n].kind == "reduce":
                totals[n] = f.slot(self.code[n].dtype, self.lanes)
                f.write(f.splat(identity(self.code[n].op, self.code[n].dtype), self.lanes), totals[n])

        order = self._needed(ends, stage)

        def one(n: int, piece: _Piece, made: dict[int, Value]) -> None:
            def value(number: int) -> Value:
                return made[number] if number in made else self.row_values[number]

            instr = self.code[n]
            if instr.kind == "reduce":
                kept = self._masked(value(instr.args[0]), piece, instr.op)
                f.write(combine(f, instr.op, f.read(totals[n], instr.dtype, self.lanes), kept), totals[n])
            elif n in self.scratch and self.stage[n] < stage:
                made[n] = f.load(f.at(self.scratch[n], piece.start, instr.dtype), instr.dtype, piece.lanes)
            else:
                result = self._full(instr, piece, value)
                if result is not None:
                    made[n] = result
                if n in self.scratch:
                    f.store(made[n], f.at(self.scratch[n], piece.start, instr.dtype))

        def body(*pieces: _Piece) -> None:
            made: list[dict[int, Value]] = [{} for _ in pieces]
            for n in order:
                uses = f.uses
                for piece, each in zip(pieces, made, strict=True):
                    f.uses = uses.copy()  # side by side they count as one
                    one(n, piece, each)

        self._along(body, self._abreast(order, stage))
        for n, slot in totals.items():
            self.row_values[n] = self._across(f.read(slot, self.code[n].dtype, self.lanes), self.code[n].op)

    def _needed(self, ends: list[int], stage: int) -> list[int]:
        """The instructions along the row that a sweep must do for the sake of `ends`, in order."""
        needed = set(ends)
        for number in reversed(range(len(self.code))):
            if number in needed and not (number in self.scratch and self.stage[number] < stage):
                needed.update(a for a in self.code[number].args if self.code[a].full)
        return sorted(needed)

    def _abreast(self, order: list[int], stage: int) -> int:
        """How many pieces of the row to compute side by side: more where each result waits for another."""
        ready: dict[int, int] = {}
        for n in order:
            instr = self.code[n]
            if n in self.scratch and self.stage[n] < stage:
                ready[n] = CYCLES
            else:
                waits = max((ready.get(a, 0) for a in instr.args), default=0)
                ready[n] = waits + (DEAR_CYCLES if instr.op in DEAR else CYCLES)
        wanted = 1 + max(ready.values(), default=0) // REACH
        return max(1, min(wanted, MOST_ABREAST, STRAIGHT // len(order), self.steps))

    def _along(self, body: Callable[..., None], abreast: int = 1) -> None:
        """`body` for all pieces of the row, in order, so many of them at a time."""
        f, done, whole = self.f, 0, self.steps * self.lanes
        for together in sorted({abreast, 1}, reverse=True):
            stride = together * self.lanes
            end = done + (whole - done) // stride * stride
            if end > done:
                with f.loop(I64(done), I64(end), stride) as at:
                    starts = [at, *(f.binary("add", at, I64(i * self.lanes)) for i in range(1, together))]
                    body(*(_Piece(start, self.lanes, None) for start in starts))
            done = end
        if self.rest:
            body(self._tail())

    # --- single instructions -----------------------------------------------------------------------------------

    def _row(self, number: int, instr: Instr) -> None:
        """An instruction whose value is the same along the row."""
        f = self.f
        if instr.kind == "constant":
            self.row_values[number] = literal(instr.value, instr.dtype)
        elif instr.kind == "load":
            self.row_values[number] = f.load(self.bases[instr.operand], instr.dtype)
        elif instr.kind == "iota":
            self.row_values[number] = I64(0)
        elif instr.kind == "apply":
            args = [self.row_values[a] for a in instr.args]
            self.row_values[number] = apply(f, instr.op, dict(instr.attrs), args)
        elif instr.kind == "store":
            value = self.row_values[instr.args[0]]
            self._spread(value, instr)
        elif instr.kind == "accumulate":
            value = self.row_values[instr.args[0]]
            value = self._repeated(instr, value) if instr.value else value
            self._accumulate_row(number, instr, value)
        elif instr.kind == "check":
            self._check(self.row_values[instr.args[0]], instr)

    def _spread(self, value: Value, instr: Instr) -> None:
        """One value for a whole row of an array."""
        stride = self.kernel.operands[instr.operand].inner
        if stride == 0 or self.kernel.inner == 1:
            self.f.store(value, self.bases[instr.operand])
            return
        wide = value

        def body(piece: _Piece) -> None:
            self._put(self.f.splat(wide, piece.lanes), instr, piece)

        self._along(body)

    def _full(self, instr: Instr, piece: _Piece, value: Callable[[int], Value]) -> Value | None:
        """An instruction for some lanes of the row."""
        f = self.f
        if instr.kind == "load":
            return self._get(instr, piece)
        if instr.kind == "iota":
            if piece.lanes == 1:
                return piece.start
            lanes = ", ".join(f"i64 {i}" for i in range(piece.lanes))
            return f.binary("add", Value(f"<{lanes}>", "int64", piece.lanes), piece.start)
        if instr.kind == "apply":
            return f.splat(apply(f, instr.op, dict(instr.attrs), [value(a) for a in instr.args]), piece.lanes)
        given = f.splat(value(instr.args[0]), piece.lanes)
        if instr.kind == "store":
            self._put(given, instr, piece)
        elif instr.kind == "accumulate":
            self._accumulate(instr, given, piece)
        elif instr.kind == "check":
            self._check(self._masked(given, piece, "and"), instr)
        return None

    def _address(self, instr: Instr, piece: _Piece) -> Value:
        stride = self.kernel.operands[instr.operand].inner
        at = piece.start if stride == 1 else self.f.op(f"mul nsw {piece.start}, {stride}", "int64")
        return self.f.at(self.bases[instr.operand], at, self.kernel.operands[instr.operand].dtype)

    def _get(self, instr: Instr, piece: _Piece) -> Value:
        f, operand = self.f, self.kernel.operands[instr.operand]
        address = self._address(instr, piece)
        if operand.inner in (0, 1) or piece.lanes == 1:
            return f.load(address, operand.dtype, piece.lanes, piece.mask)
        result = f.splat(literal(0, operand.dtype), piece.lanes)
        for lane in range(piece.lanes if piece.mask is None else self.rest):
            one = f.load(f.at(address, I64(lane * operand.inner), operand.dtype), operand.dtype)
            result = f.op(f"insertelement {result}, {one}, i64 {lane}", operand.dtype, piece.lanes)
        return result

    def _put(self, value: Value, instr: Instr, piece: _Piece) -> None:
        f, operand = self.f, self.kernel.operands[instr.operand]
        address = self._address(instr, piece)
        if operand.inner == 1 or piece.lanes == 1:
            f.store(value, address, piece.mask)
            return
        for lane in range(piece.lanes if piece.mask is None else self.rest):
            one = f.op(f"extractelement {value}, i64 {lane}", value.dtype)
            f.store(one, f.at(address, I64(lane * operand.inner), operand.dtype))

    def _check(self, holds: Value, instr: Instr) -> None:
        f = self.f
        if holds.lanes > 1:
            holds = f.op(f"call i1 @llvm.vector.reduce.and.v{holds.lanes}i1({holds})", "bool")
            f.declarations.add(f"declare i1 @llvm.vector.reduce.and.v{self.lanes}i1(<{self.lanes} x i1>)")
        fails = f.op(f"xor {holds}, true", "bool")
        with f.when(fails):
            fail(f, f.param(f"p{instr.operand}"), I64(instr.value))

    # --- reductions --------------------------------------------------------------------------------------------

    def _masked(self, value: Value, piece: _Piece, op: str) -> Value:
        value = self.f.splat(value, piece.lanes)
        if piece.mask is None:
            return value
        return self.f.select(piece.mask, value, self.f.splat(identity(op, value.dtype), piece.lanes))

    def _across(self, value: Value, op: str) -> Value:
        """One value from all lanes, by halves."""
        f = self.f
        while value.lanes > 2:
            lanes = value.lanes // 2
            low = ", ".join(f"i32 {i}" for i in range(lanes))
            high = ", ".join(f"i32 {i + lanes}" for i in range(lanes))
            halves = [
                f.op(f"shufflevector {value}, {value.type} poison, <{lanes} x i32> <{which}>", value.dtype, lanes)
                for which in (low, high)
            ]
            value = combine(f, op, *halves)
        if value.lanes == 1:
            return value
        return combine(f, op, *[f.op(f"extractelement {value}, i64 {i}", value.dtype) for i in (0, 1)])

    def _open_accumulators(self) -> None:
        """What is summed over all rows and along them stays in a register until the end."""
        for number, instr in enumerate(self.code):
            if instr.kind == "accumulate" and self._is_whole(instr):
                lanes = self.lanes if instr.full else 1
                self.whole[number] = self.f.slot(instr.dtype, lanes)
                self.f.write(self.f.splat(identity(instr.op, instr.dtype), lanes), self.whole[number])

    def _is_whole(self, instr: Instr) -> bool:
        operand = self.kernel.operands[instr.operand]
        return not any(operand.outer) and operand.inner == 0

    def _close_accumulators(self) -> None:
        f = self.f
        for number, slot in self.whole.items():
            instr = self.code[number]
            lanes = self.lanes if instr.full else 1
            total = f.read(slot, instr.dtype, lanes)
            if lanes > 1:
                total = self._across(total, instr.op)
            address = f.param(f"p{instr.operand}")
            f.store(combine(f, instr.op, f.load(address, instr.dtype), total), address)

    def _accumulate(self, instr: Instr, value: Value, piece: _Piece) -> None:
        f, operand = self.f, self.kernel.operands[instr.operand]
        number = next(n for n, i in enumerate(self.code) if i is instr)
        if number in self.whole:
            slot = self.whole[number]
            f.write(
                combine(f, instr.op, f.read(slot, instr.dtype, piece.lanes), self._masked(value, piece, instr.op)), slot
            )
        elif operand.inner == 0:
            one = self._across(self._masked(value, piece, instr.op), instr.op)
            address = self.bases[instr.operand]
            f.store(combine(f, instr.op, f.load(address, instr.dtype), one), address)
        else:
            self._put(combine(f, instr.op, self._get(instr, piece), value), instr, piece)

    def _accumulate_row(self, number: int, instr: Instr, value: Value) -> None:
        f = self.f
        if number in self.whole:
            f.write(combine(f, instr.op, f.read(self.whole[number], instr.dtype), value), self.whole[number])
            return
        address = self.bases[instr.operand]
        f.store(combine(f, instr.op, f.load(address, instr.dtype), value), address)
