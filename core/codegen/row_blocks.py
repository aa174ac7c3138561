"""Rows of a few elements, as many at a time as a vector has lanes: each lane computes one row.

A short row alone fills a fraction of a vector, and its reductions, with all that depends on them, are single numbers.
In a block of rows every vector is full: a value along the row is a vector for each position, any other one is a vector.

A block gives each row the bits that it has alone: its reductions combine the elements of a row in the same order. What
many rows add to the same elements is added up in each lane (`lane_sums`); what few rows add is turned back and added
row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.codegen.cpus import cpu
from core.codegen.draws import DRAWS
from core.codegen.lane_sums import LaneSums, summed_in_lanes
from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.operands import Operands, RowSlice
from core.codegen.reductions import combine, identity, repeated
from core.codegen.scalar import apply
from core.codegen.sweeps import EXPENSIVE, UNROLLED
from core.codegen.transpose import transposed_square
from core.codegen.vector_slices import WIDEST, interleaved, load_phases, load_strided, mask
from core.ir.precision import HALVES
from core.plan.row_kernels import Operand, RowInstruction, RowKernel

__all__ = ["LONGEST", "RowBlock", "block_sizes", "rows_together"]

LONGEST = 12
"""Most elements of a row: each has a vector of its own, and more than there are registers would wait in memory."""

LONGEST_EXPENSIVE = 24
"""Most elements of a row for which alone an elementary function would be computed."""

MANY = 1 << 9
"""Rows from which on blocks of longer rows than `WIDEST` pay for the time that LLVM takes for their code.

With so many rows, a loss over 5 to 12 classes takes some 20 us less in each step, and 0.05 to 0.1 s more to compile."""

KINDS = frozenset(["constant", "load", "iota", "apply", "reduce", "store", "check"])


def rows_together(kernel: RowKernel) -> int:
    """Rows in a block, or 1 if the rows of `kernel` are computed one by one."""
    code = kernel.code
    longest = LONGEST_EXPENSIVE if any(i.op in EXPENSIVE and not i.full for i in code) else LONGEST
    if not 2 <= kernel.inner <= longest or not kernel.outer:
        return 1
    rows = cpu().vector_bytes // max(
        min((itemsize(i.dtype) for i in code if i.dtype not in ("", "bool")), default=4), 4
    )
    in_lanes = summed_in_lanes(kernel, rows)
    if any(i.op in DRAWS or not (i.kind in KINDS or n in in_lanes or _adds_up(kernel, i)) for n, i in enumerate(code)):
        return 1
    reduced = any(i.kind == "reduce" and code[i.args[0]].full for i in code)
    few = kernel.rows < MANY or kernel.inner * len(code) > UNROLLED
    across = any(i.full and i.kind == "load" and _is_across(kernel.operands[i.operand]) for i in code)
    if kernel.inner > WIDEST and (few or not reduced) and not (across and reduced):
        return 1
    if rows < 2 or kernel.outer[-1] < rows or any(_overlaps(kernel, i) for i in code if i.kind == "store"):
        return 1
    scattered = any(
        i.full and i.kind in ("load", "store") and not _is_near(kernel.operands[i.operand], kernel.inner) for i in code
    )
    # numbers that are far apart are loaded one by one: long computations make up for that, and rows that lie across
    # those of an array, whose elements would be far apart otherwise
    return 1 if scattered and not across and not any(i.op in EXPENSIVE for i in code) else rows


def block_sizes(kernel: RowKernel) -> list[int]:
    """Rows in a block, and in a smaller one if the last axis leaves enough of them for one."""
    together = rows_together(kernel)
    # a vector of a row may have more lanes than rows, and a sum along the rows is one for the largest blocks only
    if any(i.kind == "accumulate" and i.full for i in kernel.code):
        return [together]
    rest = kernel.outer[-1] % together
    smaller = 1 << rest.bit_length() - 1 if rest else 1
    return [together, smaller] if smaller >= max(2, together // 4) else [together]


def _adds_up(kernel: RowKernel, instr: RowInstruction) -> bool:
    """Whether an instruction adds the rows of a block to the same elements, or to elements side by side, in any run.

    Not a sum along the rows to one element, nor a sum of 16-bit floats.
    """
    if instr.kind != "accumulate" or instr.dtype in HALVES:
        return False
    operand = kernel.operands[instr.operand]
    if instr.full:
        dense = operand.inner == 1 and (not operand.outer[-1] or operand.outer[-1] == kernel.inner)
        return dense or operand.outer[-1] == 1
    return not operand.inner and (operand.outer[-1] == 1 or not operand.outer[-1])


def _overlaps(kernel: RowKernel, instr: RowInstruction) -> bool:
    """Whether a store writes an element more than once: then the last row must come last."""
    operand = kernel.operands[instr.operand]
    return operand.outer[-1] == 0 or (instr.full and operand.inner == 0)


def _is_near(operand: Operand, inner: int) -> bool:
    """Whether elements of neighbouring rows are adjacent, the same, or in dense rows, or each row is some vectors."""
    return operand.outer[-1] in (0, 1) or (operand.inner == 1 and (operand.outer[-1] == inner or inner > WIDEST))


def _is_across(operand: Operand) -> bool:
    """Whether neighbours of an array lie in neighbouring rows, and those in a row are far apart."""
    return operand.outer[-1] == 1 and operand.inner not in (0, 1)


def _lanes_of(f: Function, vector: IRValue, first: int, count: int) -> IRValue:
    """Some adjacent lanes of a vector; one lane as a number."""
    if count == 1:
        return f.op(f"extractelement {vector}, i64 {first}", vector.dtype)
    places = ", ".join(f"i32 {first + j}" for j in range(count))
    return f.op(f"shufflevector {vector}, {vector.type} poison, <{count} x i32> <{places}>", vector.dtype, count)


class RowBlock:
    """Writes the rows of a block, after `operands` has entered the first one.

    rows:   in the block.
    single: vectors in a row that is computed alone, as (lanes, number): they decide the order of its reductions.
    pieces: those vectors, as they are read and written.
    summed: the instructions whose sums each lane has for itself: those of `summed_in_lanes`.
    """

    def __init__(
        self,
        f: Function,
        kernel: RowKernel,
        operands: Operands,
        single: tuple[int, int],
        pieces: Sequence[RowSlice],
        rows: int,
        summed: Sequence[int] = (),
    ) -> None:
        self.f, self.kernel, self.operands, self.rows = f, kernel, operands, rows
        self.single, self.pieces = single, pieces
        self.sums = LaneSums(f, kernel, operands, rows, summed)

    def run(self, start: IRValue, end: IRValue) -> None:
        """The rows from `start` to `end`, which are whole blocks of one run, if there are any."""
        f = self.f
        some = f.compare("icmp slt", start, end)
        with f.when(some), self.sums.of_run(start), f.loop(start, end, self.rows, polls=True) as row:
            self.operands.enter(row)
            self.write(row)
            self.sums.put_aside(start, row)

    def write(self, row: IRValue) -> None:
        """Every instruction once. The value of one that runs along the row has a vector for each position.

        row: the number of the first row.
        """
        made: list[list[IRValue]] = []
        for number, instr in enumerate(self.kernel.code):
            args = [made[a] for a in instr.args]
            made.append(self._instruction(instr, args))
            if number in self.sums.numbers:
                self.sums.add(number, args[0])
            elif instr.kind == "accumulate":
                self._accumulate(number, args[0], row)
        self.operands.leave_held(row, self.rows)

    def _instruction(self, instr: RowInstruction, args: list[list[IRValue]]) -> list[IRValue]:
        f, rows = self.f, self.rows
        along = range(self.kernel.inner if instr.full else 1)
        at = lambda j: [a[j] if len(a) > 1 else a[0] for a in args]
        if instr.kind == "constant":
            return [f.constant(instr.value, IRValue("", instr.dtype, rows))]
        if instr.kind == "load":
            return self._load(instr)
        if instr.kind == "iota":
            return [self._positions(instr, j) for j in along]
        if instr.kind == "apply":
            return [f.splat(apply(f, instr.op, dict(instr.attrs), at(j), instr.rounds), rows) for j in along]
        if instr.kind == "reduce":
            (values,) = args
            whole = len(values) > 1
            return [self._reduced(instr.op, values) if whole else repeated(f, instr.op, values[0], self.kernel.inner)]
        if instr.kind == "store":
            self._store(instr, [at(j)[0] for j in along])
        elif instr.kind == "check":
            self._check(instr, args[0])
        return []

    def _accumulate(self, number: int, values: list[IRValue], row: IRValue) -> None:
        """Add up the rows, in their order."""
        f, instr = self.f, self.kernel.code[number]
        between = self.kernel.operands[instr.operand].outer[-1]
        if instr.full and between == 1:
            self._accumulate_across(instr, values)
            return
        if instr.full:
            values = [f.splat(values[j if len(values) > 1 else 0], self.rows) for j in range(self.kernel.inner)]
            if 0 < between <= WIDEST:
                self._add(instr, self.operands.base(instr.operand), interleaved(f, values))
            else:
                self._accumulate_rows(number, values, between)
            return
        (value,) = values
        if instr.value:
            value = repeated(f, instr.op, value, self.kernel.inner)
        if between:
            self._add(instr, self.operands.base(instr.operand), f.splat(value, self.rows))
            return
        for lane in range(self.rows):
            one = f.op(f"extractelement {value}, i64 {lane}", value.dtype) if value.lanes > 1 else value
            self.operands.accumulate_one(number, one)
            self.operands.put_aside(f.binary("add", row, I64(lane)), number)

    def _accumulate_across(self, instr: RowInstruction, values: list[IRValue]) -> None:
        """Add to elements that are side by side for the rows of a block."""
        f, base, step = self.f, self.operands.base(instr.operand), self.kernel.operands[instr.operand].inner
        if not step:
            values = [self._reduced(instr.op, values)]
        for j in range(self.kernel.inner if step else 1):
            value = f.splat(values[j if len(values) > 1 else 0], self.rows)
            self._add(instr, f.at(base, I64(j * step), instr.dtype) if j else base, value)

    def _add(self, instr: RowInstruction, address: IRValue, values: IRValue, held: IRValue | None = None) -> None:
        """Add to adjacent elements. held: the lanes that are elements, if not all are."""
        f = self.f
        before = f.load(address, instr.dtype, values.lanes, held)
        f.store(combine(f, instr.op, before, values), address, held)

    def _accumulate_rows(self, number: int, values: list[IRValue], between: int) -> None:
        """Add whole rows, whose elements each have a vector in `values`. between: elements from row to row; 0 if all
        are added to one."""
        f, instr = self.f, self.kernel.code[number]
        rows = self.rows
        parts = [transposed_square(f, values[start : start + rows]) for start in range(0, len(values), rows)]
        for i in range(rows):
            start = 0
            for piece in self.pieces:
                part = _lanes_of(f, parts[start // rows][i], start % rows, piece.lanes)
                if between:
                    address = f.at(self.operands.base(instr.operand), I64(i * between + start), instr.dtype)
                    self._add(instr, address, part, piece.mask)
                else:
                    self.operands.accumulate(number, part, piece)
                start += piece.count

    def _reduced(self, op: str, values: list[IRValue]) -> IRValue:
        """A reduction of the elements of each row, in the order in which the lanes of one row are combined."""
        f, (lanes, number) = self.f, self.single
        rest = [f.splat(identity(op, values[0].dtype), self.rows)] * (lanes * number - len(values))
        padded = [*values, *rest]
        kept = [padded[i * lanes : (i + 1) * lanes] for i in range(number)]
        both: Callable[[list[IRValue], list[IRValue]], list[IRValue]] = lambda a, b: [
            combine(f, op, x, y) for x, y in zip(a, b, strict=True)
        ]
        while len(kept) > 1:
            pairs = [both(a, b) for a, b in zip(kept[::2], kept[1::2], strict=False)]
            kept = pairs + kept[len(pairs) * 2 :]
        (left,) = kept
        while len(left) > 1:
            left = both(left[: len(left) // 2], left[len(left) // 2 :])
        return left[0]

    def _load(self, instr: RowInstruction) -> list[IRValue]:
        f, rows, operand = self.f, self.rows, self.kernel.operands[instr.operand]
        base, between = self.operands.base(instr.operand), operand.outer[-1]
        # bools are shuffled as bytes
        dtype = "uint8" if instr.dtype == "bool" else instr.dtype
        count = self.kernel.inner if instr.full else 1
        if instr.full and operand.inner == 1 and between not in (0, 1) and count > WIDEST:
            found = self._load_squares(base, between, dtype)
        elif instr.full and operand.inner == 1 and between == count:
            found = load_phases(f, base, dtype, between, rows, rows, count)
        else:
            found = []
            for j in range(count):
                address = f.at(base, I64(j * operand.inner), dtype) if j * operand.inner else base
                if between == 0:
                    found.append(f.splat(f.load(address, dtype), rows))
                elif between == 1:
                    found.append(f.load(address, dtype, rows))
                else:
                    found.append(load_strided(f, address, dtype, between, rows, rows))
        return [f.convert(each, instr.dtype) for each in found]

    def _load_squares(self, base: IRValue, between: int, dtype: str) -> list[IRValue]:
        """The vector of each position, from rows of adjacent elements that are `between` elements apart."""
        f, rows, found = self.f, self.rows, list[IRValue]()
        for start in range(0, self.kernel.inner, rows):
            count = min(rows, self.kernel.inner - start)
            lines = [f.load(f.at(base, I64(i * between + start), dtype), dtype, rows, mask(count, rows))
                     for i in range(rows)]  # fmt: skip
            found += transposed_square(f, lines)[:count]
        return found

    def _store_squares(self, base: IRValue, between: int, values: list[IRValue]) -> None:
        f, rows = self.f, self.rows
        for start in range(0, len(values), rows):
            part = values[start : start + rows]
            for i, line in enumerate(transposed_square(f, part)):
                f.store(line, f.at(base, I64(i * between + start), line.dtype), mask(len(part), rows))

    def _store(self, instr: RowInstruction, values: list[IRValue]) -> None:
        f, operand = self.f, self.kernel.operands[instr.operand]
        base, between, dtype = self.operands.base(instr.operand), operand.outer[-1], instr.dtype
        values = [f.splat(each, self.rows) for each in values]
        if dtype == "bool":
            values, dtype = [f.convert(each, "uint8") for each in values], "uint8"
        if operand.inner == 1 and between > 1 and len(values) > WIDEST:
            self._store_squares(base, between, values)
            return
        if operand.inner == 1 and between == len(values):
            f.store(interleaved(f, values), base)
            return
        for j, value in enumerate(values):
            address = f.at(base, I64(j * operand.inner), dtype) if j * operand.inner else base
            if between == 1:
                f.store(value, address)
                continue
            for lane in range(self.rows):
                one = f.op(f"extractelement {value}, i64 {lane}", value.dtype)
                f.store(one, f.at(address, I64(lane * between), dtype))

    def _positions(self, instr: RowInstruction, j: int) -> IRValue:
        """The values of an iota at position `j` of each row."""
        strides = dict(instr.attrs)
        lanes = ", ".join(f"i64 {i * strides['outer'][-1] + j * strides['inner']}" for i in range(self.rows))
        return self.f.binary("add", IRValue(f"<{lanes}>", "int64", self.rows), self.operands.first_of(instr))

    def _check(self, instr: RowInstruction, holds: list[IRValue]) -> None:
        f = self.f
        every = holds[0]
        for each in holds[1:]:
            every = f.binary("and", every, each)
        self.operands.check(instr, every)
