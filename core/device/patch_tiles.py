"""Tiles of operands that are no matrices in memory: the windows of images, which are read while a tile is loaded.

The address of an element is the sum of two offsets, one of its row and one of its term. So are its positions along some
axes, which tell whether it lies in the image: an element outside is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from core.codegen.llvm import I64, Function, IRValue
from core.device.threads import Threads
from core.device.tiles import Tile, load_vector

__all__ = ["PatchTile", "Place", "digits", "total"]


@dataclass(frozen=True, slots=True)
class Place:
    """The part of a row, or of a term, in the offset of an element in memory and in its positions."""

    offset: IRValue
    positions: tuple[IRValue, ...] = ()


@dataclass(slots=True)
class PatchTile(Tile):
    """limits: an element is zero unless each of its positions is at least 0 and below its limit; a limit of 0 is none.

    row_place, term_place: the place of a row and of a term, whose numbers have the dtype `index`.
    index:      the dtype in which offsets are computed.
    rows_first: whether threads side by side read several rows.
    """

    row_place: Callable[[IRValue], Place] = lambda row: Place(row)
    term_place: Callable[[IRValue], Place] = lambda term: Place(term)
    limits: tuple[int, ...] = ()
    index: str = "int64"
    rows_first: bool = True
    _begun: list[tuple[Place, IRValue]] = field(default_factory=list)

    @property
    def along_rows(self) -> bool:
        return self.rows_first

    @property
    def lanes(self) -> int:
        return 1

    def _units(self, f: Function, threads: Threads, local: IRValue) -> list[tuple[IRValue, IRValue, IRValue | None]]:
        """As those of a matrix, so that the row, or the term, of all units of a thread is one value where it can be."""
        across = self.rows if self.along_rows else self.depth
        if threads.block % across:
            return Tile._units(self, f, threads, local)
        second, first = f.op(f"urem {local}, {across}", "int64"), f.op(f"udiv {local}, {across}", "int64")
        step, down = threads.block // across, self.depth if self.along_rows else self.rows
        found = []
        for i in range(-(-down // step)):
            at = f.binary("add", first, I64(i * step)) if i else first
            inside = f.compare("icmp slt", at, I64(down)) if (i + 1) * step > down else None
            found.append((second, at, inside) if self.along_rows else (at, second, inside))
        return found

    def begin(self, f: Function, threads: Threads, local: IRValue, first: IRValue) -> None:
        """Compute the places of the rows from `first`, for all terms, if few registers hold them."""
        self._begun = []
        if self.along_rows:
            made: dict[str, tuple[Place, IRValue]] = {}
            for row, _, _ in self._units(f, threads, local):
                if row.name not in made:
                    made[row.name] = self._row(f, f.binary("add", first, row))
                self._begun.append(made[row.name])

    def _row(self, f: Function, row: IRValue) -> tuple[Place, IRValue]:
        """The place of a row, and whether there is such a row."""
        return self.row_place(f.convert(row, self.index)), f.compare("icmp slt", row, I64(self.view.shape[self.row]))

    def fetch(
        self, f: Function, threads: Threads, local: IRValue, base: IRValue, first: IRValue, term: IRValue, end: IRValue
    ) -> None:
        """See `Tile.fetch`. Where `begin` computed places of rows, it did so for `first`."""
        units = self._units(f, threads, local)
        while len(self._held) < len(units):
            self._held.append(f.slot(self.dtype))
        terms: dict[str, tuple[Place, IRValue]] = {}
        for i, (held, (row, along, inside)) in enumerate(zip(self._held, units, strict=True)):
            if along.name not in terms:
                k = f.binary("add", term, along)
                terms[along.name] = self.term_place(f.convert(k, self.index)), f.compare("icmp slt", k, end)
            of_term, here = terms[along.name]
            of_row, exists = self._begun[i] if self._begun else self._row(f, f.binary("add", first, row))
            here = f.binary("and", here, exists)
            here = here if inside is None else f.binary("and", here, inside)
            here = self._within(f, here, of_row, of_term)
            f.do(f"store {IRValue('', self.dtype).type} {'zeroinitializer'}, {held}")
            with f.when(here):
                offset = total(f, [of_row.offset, of_term.offset])
                f.write(load_vector(f, f.at(base, offset, self.dtype), self.dtype, 1), held)

    def _within(self, f: Function, here: IRValue, row: Place, term: Place) -> IRValue:
        """Whether the element of a row and a term lies within all limits too."""
        for one, other, limit in zip(row.positions, term.positions, self.limits, strict=True):
            if limit:
                at = total(f, [one, other])
                here = f.binary("and", here, f.compare("icmp ult", at, IRValue(str(limit), at.dtype)))
        return here


def digits(f: Function, at: IRValue, sizes: Sequence[int]) -> list[IRValue]:
    """A flat position, of any integer dtype, as one along each axis."""
    found: list[IRValue] = []
    for size in reversed(sizes[1:]):
        if size == 1:
            found.append(IRValue("0", at.dtype))
            continue
        found.append(f.op(f"urem {at}, {size}", at.dtype))
        at = f.op(f"udiv {at}, {size}", at.dtype)
    return [at, *reversed(found)] if sizes else []


def total(f: Function, parts: Sequence[IRValue], factors: Sequence[int] | None = None, start: int = 0) -> IRValue:
    """The sum of `start` and of integers of one dtype times their factors, 1 by default."""
    dtype = parts[0].dtype
    found: IRValue | None = None
    for part, factor in zip(parts, factors or [1] * len(parts), strict=True):
        if not part.name.startswith("%"):
            start += int(part.name) * factor
        elif factor:
            more = part if factor == 1 else f.op(f"mul nsw {part}, {factor}", dtype)
            found = more if found is None else f.op(f"add nsw {found}, {more.name}", dtype)
    if found is None:
        return IRValue(str(start), dtype)
    return f.op(f"add nsw {found}, {start}", dtype) if start else found
