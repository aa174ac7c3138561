"""Cells of a text table as numbers: the type of each column, found from all of its cells, and their conversion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.datasets.exactness import inexact
from service.datasets.mistakes import Mistakes
from service.datasets.options import TEXT, Options
from service.datasets.vocabulary import Vocabulary

__all__ = ["CellColumn", "converted", "dtype_named"]

NUMBER = r"^\s*[+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|(?i:nan|inf|infinity))\s*$"
INTEGER = r"^\s*[+-]?[0-9]+\s*$"
INFINITE = r"^\s*[+-]?(?i:inf|infinity)\s*$"
FOREIGN = (
    r"^\s*[+-]?[$€£¥]?\s*[+-]?"
    r"(?:[0-9]{1,3}(?:[,.'_ \x{00A0}\x{202F}][0-9]{3})+(?:[.,][0-9]+)?|[0-9]+[.,]?[0-9]*)"
    r"\s*[%$€£¥]?\s*$"
)
"""Numbers as people write them: 1,5 or 1,000 or $5 or 50 %. Those of NUMBER match, too."""

SAMPLE = 256  # cells that show the kind of most columns
TRUE, FALSE = ("true",), ("false",)
RowNumber = Callable[[int], int]
"""The number of a row in the file, from its index among the valid rows of a block."""


def dtype_named(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@dataclass(slots=True)
class CellColumn:
    """Properties of the cells of one column.

    wanted: the type that the request names, or "".
    """

    name: str
    wanted: str
    cells: int = 0
    missing: int = 0
    numbers: int = 0
    integers: int = 0
    booleans: int = 0
    foreign: int = 0  # cells that are numbers for people only
    first_foreign: int | None = None  # the first row with one
    not_number: int | None = None  # the first row whose cell is no number
    beyond: int | None = None  # the first row whose integer is outside of int64

    @property
    def is_whole(self) -> bool:
        """Whether the cells are integers; `missing` may store them as decimal numbers, which must be exact."""
        return not self.wanted and 0 < self.cells == self.integers

    def look(self, cells: pa.Array, number: RowNumber) -> None:
        """Note the kinds of these cells; a null is a missing one. number: as of RowNumber."""
        self.missing += cells.null_count
        count = len(cells) - cells.null_count
        self.cells += count
        if self.wanted or not count:
            return
        if _cast(cells, pa.int64()) is not None:
            self.integers += count
            self.numbers += count
            return
        if _cast(cells, pa.float64()) is not None:
            self.numbers += count
            if not _all(pc.match_substring_regex(cells[:SAMPLE], INTEGER)):
                return
            digits = pc.fill_null(pc.match_substring_regex(cells, INTEGER), True)
            whole = pc.sum(digits).as_py() or 0
            if whole == len(cells):  # integers of which one is too large
                self.integers += count
            if self.beyond is None:
                self.beyond = _first(digits, cells, number)
            return
        is_number = pc.match_substring_regex(cells, NUMBER)
        self.numbers += pc.sum(is_number).as_py() or 0
        lowered = pc.utf8_lower(pc.utf8_trim_whitespace(cells))
        self.booleans += pc.sum(pc.is_in(lowered, pa.array(TRUE + FALSE))).as_py() or 0
        if self.not_number is None:
            wrong = pc.fill_null(pc.invert(is_number), False)
            at = pc.index(wrong, True).as_py()
            self.not_number = None if at < 0 else number(at)
        foreign = pc.fill_null(pc.and_not(pc.match_substring_regex(cells, FOREIGN), is_number), False)
        self.foreign += pc.sum(foreign).as_py() or 0
        if self.first_foreign is None:
            at = pc.index(foreign, True).as_py()
            self.first_foreign = None if at < 0 else number(at)

    def type(self, options: Options, mistakes: Mistakes) -> str:
        """The type of the column: a dtype, or `text`. Reports cells that forbid one."""
        if self.wanted:
            return self.wanted
        if not self.cells:
            mistakes.add("the column has no values; leave it out", self.name)
        elif self.numbers == self.cells:
            if self.integers < self.cells:
                return options.floats
            if self.beyond is not None:
                text = "the integer is outside of int64; set a type for the column"
                mistakes.add(text, self.name, self.beyond)
            return options.floats if self.missing and options.missing == "nan" else "int64"
        elif self.booleans == self.cells:
            return "bool"
        elif self.numbers * 2 >= self.cells:
            text = f"not a number, but {self.numbers} of {self.cells} cells are; correct it, or set the type text"
            mistakes.add(text, self.name, self.not_number)
        elif (self.numbers + self.foreign) * 2 >= self.cells:
            text = "a number in another notation than 1234.5; rewrite the column, or set the type text"
            mistakes.add(text, self.name, self.first_foreign)
        return TEXT


def _first(digits: pa.Array, cells: pa.Array, number: RowNumber) -> int | None:
    """The first row with an integer outside of int64."""
    for at in pc.indices_nonzero(digits).to_pylist():
        text = cells[at].as_py()
        if text is not None and not _fits(text):
            return number(at)
    return None


def _fits(text: str) -> bool:
    """Whether int64 has the integer, which may have any number of digits: Python reads 4300 of them."""
    text = text.strip()
    digits = text.lstrip("+-").lstrip("0") or "0"
    return len(digits) < 20 and -(2**63) <= int(digits) * (-1 if text[0] == "-" else 1) < 2**63


def _cast(cells: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """The cells as numbers, None if one is no number."""
    if len(cells) > SAMPLE and _cast(cells[:SAMPLE], wanted) is None:
        return None
    if wanted == pa.int64() and _has_an_x(cells):  # arrow takes 0x10 for an integer
        return None
    try:
        return pc.cast(cells, wanted)
    except pa.ArrowInvalid:
        pass
    try:
        trimmed = pc.utf8_trim_whitespace(cells)
        return pc.cast(pc.replace_substring_regex(trimmed, r"^\+([0-9])", r"\1"), wanted)
    except pa.ArrowInvalid:
        return None


def _has_an_x(cells: pa.Array) -> bool:
    """Whether a cell has the letter x. Looks at all bytes first, because most columns of numbers have none."""
    data = cells.buffers()[-1]
    if data is None or not any(x in data.to_pybytes() for x in (b"x", b"X")):
        return False
    return pc.any(pc.match_substring(cells, "x", ignore_case=True)).as_py() is True


def _all(found: pa.Array) -> bool:
    return pc.all(found).as_py() is not False


def converted(
    cells: pa.Array,
    name: str,
    wanted: str,
    is_whole: bool,
    vocabulary: Vocabulary,
    number: RowNumber,
    mistakes: Mistakes,
) -> np.ndarray:
    """The cells as an array. A null is NaN; other dtypes than floats have none, so that it is a mistake.

    is_whole: whether the cells are integers, which decimal numbers must hold exactly.
    Reports each cell that is not of the type `wanted`.
    """
    if wanted == TEXT:
        encoded = pc.fill_null(cells, "").dictionary_encode()
        codes = vocabulary.codes(encoded.dictionary.to_pylist())
        return codes[encoded.indices.to_numpy()]
    dtype = dtype_named(wanted)
    is_float = dtype.kind in "fV"
    if cells.null_count and not is_float:
        for at in pc.indices_nonzero(pc.is_null(cells)).to_pylist():
            mistakes.add(f"a missing value, which {wanted} does not have", name, number(at))
        cells = pc.fill_null(cells, "0" if wanted != "bool" else "false")
    if wanted == "bool":
        return _booleans(cells, name, number, mistakes)
    source = pa.float32() if wanted == "float32" else pa.float64() if is_float else pa.int64()
    found = _cast(cells, source)
    if found is None:
        kind = "a number" if is_float else "an integer of int64"
        found = _one_by_one(cells, source, name, f"not {kind}", number, mistakes)
    if is_float:
        exact = pc.fill_null(found, float("nan")).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            values = exact.astype(dtype)
        beyond = np.isinf(values.astype(np.float32) if values.dtype.itemsize == 2 else values)
        if beyond.any():
            written = pc.fill_null(pc.match_substring_regex(cells, INFINITE), False).to_numpy(zero_copy_only=False)
            for at in np.flatnonzero(beyond & ~written):
                mistakes.add(f"the number is outside of the range of {wanted}", name, number(int(at)))
        integers = _cast(cells, pa.int64()) if is_whole else None
        if integers is not None:
            wrong = inexact(pc.fill_null(integers, 0).to_numpy(zero_copy_only=False), values) & ~beyond
            for at in np.flatnonzero(wrong & pc.is_valid(cells).to_numpy(zero_copy_only=False)):
                mistakes.add(f"the integer is not exact as {wanted}", name, number(int(at)))
        return values
    wide = found.to_numpy(zero_copy_only=False)
    limits = np.iinfo(dtype)
    for at in np.flatnonzero((wide < limits.min) | (wide > limits.max)):
        mistakes.add(f"the integer is outside of the range of {wanted}", name, number(int(at)))
    return wide.astype(dtype)


def _booleans(cells: pa.Array, name: str, number: RowNumber, mistakes: Mistakes) -> np.ndarray:
    lowered = pc.utf8_lower(pc.utf8_trim_whitespace(cells))
    true = pc.is_in(lowered, pa.array((*TRUE, "1")))
    known = pc.or_(true, pc.is_in(lowered, pa.array((*FALSE, "0"))))
    for at in np.flatnonzero(~known.to_numpy(zero_copy_only=False)):
        mistakes.add("neither true nor false", name, number(int(at)))
    return true.to_numpy(zero_copy_only=False)


def _one_by_one(
    cells: pa.Array, source: pa.DataType, name: str, text: str, number: RowNumber, mistakes: Mistakes
) -> pa.Array:
    """The cells as numbers, with 0 and a mistake in place of those that are none."""
    values = []
    for at in range(len(cells)):
        one = _cast(cells.slice(at, 1), source) if not mistakes.full else None
        if one is None:
            mistakes.add(text, name, number(at))
        values.append(0 if one is None else one[0].as_py())
    return pa.array(values, source)
