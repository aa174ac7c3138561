"""Tiles of matrices in shared memory: threads copy them together, several numbers at once where memory allows it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from core.codegen import halves
from core.codegen.llvm import I64, Function, IRValue, itemsize, storage_type
from core.device.threads import Threads, flat_offset, split
from core.ir.precision import HALVES
from core.plan.memory import View

__all__ = ["VECTOR_BYTES", "Tile", "bits_of", "load_vector", "store_vector", "vector_of"]

VECTOR_BYTES = 16
"""Bytes that one instruction of a thread can copy."""


def bits_of(dtype: str) -> str:
    """The dtype in which numbers are copied: a 16-bit float as its bits."""
    return "uint16" if dtype in HALVES else dtype


def vector_of(view: View, axis: int) -> int:
    """How many numbers along `axis`, whose stride is 1, can be copied at once wherever a matrix of `view` begins.

    The arena and the arrays of the caller begin at multiples of `VECTOR_BYTES`; of other places that is not known.
    """
    lanes = VECTOR_BYTES // itemsize(view.dtype)
    steps = [s for i, s in enumerate(view.strides) if i - len(view.strides) != axis and view.shape[i] > 1]
    fits = (
        view.root.place in ("arena", "given", "constant")
        and view.strides[axis] == 1
        and all(n % lanes == 0 for n in (view.offset, view.shape[axis], *steps))
    )
    return lanes if fits else 1


def load_vector(f: Function, address: IRValue, dtype: str, lanes: int) -> IRValue:
    """`lanes` numbers from an address that is a multiple of their bytes."""
    one = storage_type(dtype)
    type, nbytes = (one if lanes == 1 else f"<{lanes} x {one}>"), lanes * itemsize(dtype)
    return f.op(f"load {type}, {address}, align {nbytes}", dtype, lanes)


def store_vector(f: Function, value: IRValue, address: IRValue) -> None:
    """Numbers to an address that is a multiple of their bytes."""
    if value.dtype in HALVES:
        value = halves.narrowed(f, IRValue(value.name, "float32", value.lanes), value.dtype)
    f.do(f"store {value}, {address}, align {value.lanes * itemsize(value.dtype)}")


@dataclass(slots=True)
class Tile:
    """A tile of `rows` rows and `depth` terms of one operand, in shared memory at `base`. There are two copies of it:
    one is read while the other one is filled.

    view:   the operand. row, term: its axes, from the end: those of the rows of the tile, and of the terms of the sums.
    pitch:  elements between two rows, or between two terms if `by_term`, whose numbers lie side by side otherwise.
    """

    view: View
    row: int
    term: int
    rows: int
    depth: int
    pitch: int
    by_term: bool
    base: IRValue = field(default_factory=lambda: I64(0))
    _held: list[IRValue] = field(default_factory=list)

    @property
    def dtype(self) -> str:
        return bits_of(self.view.dtype)

    @property
    def elements(self) -> int:
        """Elements of one of the two copies, a multiple of those of a vector."""
        return (self.depth if self.by_term else self.rows) * self.pitch

    @property
    def nbytes(self) -> int:
        return 2 * self.elements * itemsize(self.dtype)

    @property
    def along_rows(self) -> bool:
        """Whether threads side by side copy numbers of several rows."""
        return self.view.strides[self.row] == 1 and self.view.strides[self.term] != 1

    @property
    def lanes(self) -> int:
        return vector_of(self.view, self.row if self.along_rows else self.term)

    def address(self, f: Function, copy: IRValue, row: IRValue, term: IRValue) -> IRValue:
        """The address of an element. copy: the position of the first element of one of the two copies."""
        strides = (1, self.pitch) if self.by_term else (self.pitch, 1)
        return f.at(self.base, f.binary("add", copy, flat_offset(f, (row, term), strides)), self.dtype)

    def _units(self, f: Function, threads: Threads, local: IRValue) -> list[tuple[IRValue, IRValue, IRValue | None]]:
        """The row and term of each vector that this thread copies, and whether it is one of the tile if not sure."""
        across = self.rows if self.along_rows else self.depth
        down = self.depth if self.along_rows else self.rows
        total = self.rows * self.depth // self.lanes
        found = []
        for i in range(-(-total // threads.block)):
            at = f.binary("add", local, I64(i * threads.block))
            inside = f.compare("icmp slt", at, I64(total)) if (i + 1) * threads.block > total else None
            first, second = split(f, at, (down, across // self.lanes))
            second = f.op(f"mul nsw {second}, {self.lanes}", "int64")
            found.append((second, first, inside) if self.along_rows else (first, second, inside))
        return found

    def fetch(
        self, f: Function, threads: Threads, local: IRValue, base: IRValue, first: IRValue, term: IRValue, end: IRValue
    ) -> None:
        """Read numbers of the tile at row `first` and `term` of the operand to registers; zeros outside of it.

        base: the matrix. end: terms of the sums are smaller.
        """
        units = self._units(f, threads, local)
        while len(self._held) < len(units):
            self._held.append(f.slot(self.dtype, self.lanes))
        for held, (row, along, inside) in zip(self._held, units, strict=True):
            at, k = f.binary("add", first, row), f.binary("add", term, along)
            here = f.compare("icmp slt", at, I64(self.view.shape[self.row]))
            here = f.binary("and", here, f.compare("icmp slt", k, end))
            here = here if inside is None else f.binary("and", here, inside)
            one = IRValue("", self.dtype, self.lanes).type
            f.do(f"store {one} zeroinitializer, {held}")
            with f.when(here):
                offset = flat_offset(f, (at, k), (self.view.strides[self.row], self.view.strides[self.term]))
                f.write(load_vector(f, f.at(base, offset, self.dtype), self.dtype, self.lanes), held)

    def put(self, f: Function, threads: Threads, local: IRValue, copy: IRValue, rounds: bool) -> None:
        """Store what `fetch` has read. rounds: float32 numbers to those of tensor cores."""
        for held, (row, term, inside) in zip(self._held, self._units(f, threads, local), strict=True):
            value = f.read(held, self.dtype, self.lanes)
            value = _rounded(f, value) if rounds else value
            guard = literal_true() if inside is None else inside
            with f.when(guard):
                if self.lanes == 1 or self.along_rows == self.by_term:
                    store_vector(f, value, self.address(f, copy, row, term))
                    continue
                for i in range(self.lanes):
                    one = f.op(f"extractelement {value}, i64 {i}", self.dtype)
                    row_i = f.binary("add", row, I64(i)) if self.along_rows else row
                    term_i = term if self.along_rows else f.binary("add", term, I64(i))
                    store_vector(f, one, self.address(f, copy, row_i, term_i))


def literal_true() -> IRValue:
    return IRValue("true", "bool")


def _rounded(f: Function, value: IRValue) -> IRValue:
    """float32 numbers with 11 bits, the nearest; half way the one further from zero. NaN stays NaN."""
    bits = f.bitcast(value, "uint32")
    more = f.binary("add", bits, f.constant(0x1000, bits))
    short = f.bitcast(f.binary("and", more, f.constant(0xFFFFE000, bits)), "float32")
    return f.select(f.compare("fcmp uno", value, value), f.constant(math.nan, value), short)
