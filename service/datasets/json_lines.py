"""JSON lines: one object per line, whose members are the columns. Read twice, as CSV."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from service.datasets.cells import dtype_named
from service.datasets.exactness import inexact
from service.datasets.mistakes import Mistakes
from service.datasets.options import TEXT, Limits, Options
from service.datasets.read import Read
from service.datasets.scratch import allocate, check_columns
from service.datasets.vocabulary import Vocabulary
from service.formats.strict_json import parse_json
from service.problems import HttpProblem

__all__ = ["read_json_lines"]

BLOCK = 4 * 2**20
LINE = 8 * 2**20
DEPTH = 12
BROKEN: dict[str, Any] = {}
"""In place of a row that cannot be read, whose mistake is in the list."""

KINDS = {bool: "bool", int: "int64", float: "float", str: TEXT}


def read_json_lines(path: Path, options: Options, scratch: Path, limits: Limits) -> Read:
    """The columns of a file with one JSON object in each line. Lists of equal shape in all rows become tensors.

    A member that is null or absent is missing. Raises HttpProblem 422 with all mistakes.
    """
    mistakes = Mistakes()
    columns: dict[str, _Column] = {}
    rows = 0
    for first, objects in _blocks(path, mistakes):
        _look(objects, first, columns, options, limits, mistakes)
        rows += sum(1 for each in objects if _is_kept(each, columns, options))
        if mistakes.full:
            break
    for name in options.types.keys() - columns.keys():
        mistakes.add("a type is given for a column that the file does not have", name, member=("types", name))
    if not rows and not mistakes.full:
        mistakes.add("the file has no rows" if options.missing != "drop" else "no row is without missing values")
    types = {name: column.type(options, mistakes) for name, column in columns.items()}
    mistakes.check()

    kinds = {name: (np.dtype(np.int64) if type == TEXT else dtype_named(type)) for name, type in types.items()}
    stored = allocate(
        {name: (kinds[name], column.shape or ()) for name, column in columns.items()}, rows, scratch, limits
    )
    vocabularies = {name: Vocabulary(name) for name, type in types.items() if type == TEXT}
    at = 0
    for first, objects in _blocks(path, mistakes):
        kept = [i for i, each in enumerate(objects) if _is_kept(each, columns, options)]
        if not kept:
            continue
        for name, column in columns.items():
            values = [objects[i].get(name) for i in kept]
            array: np.ndarray | None
            if name in vocabularies:
                array = vocabularies[name].codes("" if value is None else value for value in values)
            else:
                array = _array(values, column, kinds[name], [first + i for i in kept], mistakes)
            if array is not None:
                stored[name][at : at + len(kept)] = array
        at += len(kept)
        if mistakes.full:
            break
    mistakes.check()
    return Read(stored, {name: each.sort(stored[name]) for name, each in vocabularies.items()})


def _is_kept(row: dict[str, Any], columns: dict[str, Any], options: Options) -> bool:
    return options.missing != "drop" or all(row.get(name) is not None for name in columns)


def _blocks(path: Path, mistakes: Mistakes) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """(number of the first row, objects) of each part of the file. Lines with nothing but spaces do not count."""
    number, rest = 1, b""
    with path.open("rb") as file:
        while True:
            part = file.read(BLOCK)
            lines = (rest + part).split(b"\n")
            rest = lines.pop() if part else b""
            if number == 1 and lines and lines[0].startswith(b"\xef\xbb\xbf"):
                lines[0] = lines[0][3:]
            if len(rest) > LINE:
                mistakes.add(f"a line takes more than {LINE} bytes", row=number + len(lines))
                raise mistakes.stop()
            objects: list[dict[str, Any]] = []
            for line in lines:
                if line.strip():
                    objects.append(_object(line, number + len(objects), mistakes))
            yield number, objects
            number += len(objects)
            if not part:
                return


def _object(line: bytes, number: int, mistakes: Mistakes) -> dict[str, Any]:
    try:
        return parse_json(line.rstrip(b"\r"), max_depth=DEPTH)
    except HttpProblem as problem:
        mistakes.add(problem.detail, row=number)
        return BROKEN


@dataclass(slots=True)
class _Column:
    """The type of one column, so far. kinds: of its values; shape: of a row's tensor, None before the first value."""

    name: str
    wanted: str
    kinds: set[str]
    shape: tuple[int, ...] | None = None
    missing: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the values are integers; `missing` may store them as decimal numbers, which must be exact."""
        return not self.wanted and self.kinds == {"int64"}

    def type(self, options: Options, mistakes: Mistakes) -> str:
        if self.shape is None:
            mistakes.add("the column has no values; leave it out", self.name)
        if self.wanted:
            fits = {TEXT: self.kinds <= {TEXT}, "bool": self.kinds <= {"bool"}}
            if not fits.get(self.wanted, TEXT not in self.kinds):
                mistakes.add(f"the values are not of the type {self.wanted}", self.name)
            return self.wanted
        if len(self.kinds) > 1 and self.kinds != {"int64", "float"}:
            kinds = " and ".join(sorted(KIND_WORDS[kind] for kind in self.kinds))
            mistakes.add(f"the column has {kinds}", self.name)
        if self.kinds == {TEXT}:
            if self.shape:
                mistakes.add("lists of texts cannot be stored", self.name)
            return TEXT
        if self.kinds == {"bool"}:
            return "bool"
        return "int64" if self.is_whole and not self.missing else options.floats


KIND_WORDS = {"bool": "booleans", "int64": "integers", "float": "decimal numbers", TEXT: "texts"}


def _look(
    objects: Sequence[dict[str, Any]],
    first: int,
    columns: dict[str, _Column],
    options: Options,
    limits: Limits,
    mistakes: Mistakes,
) -> None:
    """Learn about the columns from `objects`, whose first is row `first`; the first whole row names the columns."""
    rows = [(number, row) for number, row in enumerate(objects, first) if row is not BROKEN]
    if not columns and rows:
        for name in rows[0][1]:
            columns[name] = _Column(name, options.types.get(name, ""), set())
        check_columns(list(columns), limits, mistakes)
    for number, row in rows:
        if not row.keys() <= columns.keys():
            for name in row.keys() - columns.keys():
                mistakes.add("the first row does not have this column", name, number)
        if mistakes.full:
            return
    for name, column in columns.items():
        for number, row in rows:
            value = row.get(name)
            if value is None:
                if options.missing == "refuse":
                    mistakes.add("a missing value; set `missing` to nan or drop to accept it", name, number)
                column.missing += options.missing != "drop"
                continue
            shape = _shape(value, column, number, limits, mistakes)
            if column.shape is None:
                column.shape = shape
            elif shape is not None and shape != column.shape:
                text = f"a value of shape {list(shape)}, but earlier ones have {list(column.shape)}"
                mistakes.add(text, name, number)
            if mistakes.full:
                return


def _shape(value: Any, column: _Column, number: int, limits: Limits, mistakes: Mistakes) -> tuple[int, ...] | None:
    """The shape of one value, noting the kinds of its elements; None with a mistake if it has none."""
    kind = KINDS.get(type(value))
    if kind is not None:
        column.kinds.add(kind)
        return ()
    if not isinstance(value, list):
        mistakes.add("an object, not a number, a boolean, a text or a list", column.name, number)
        return None
    sizes: list[int] = []  # elements down to each level: [2, 6] of two lists with three elements each
    level: list[Any] = value
    while True:
        sizes.append(len(level))
        kinds = set(map(type, level))
        if kinds == {list}:
            if len(set(map(len, level))) > 1 or len(sizes) >= limits.rank - 1:
                mistakes.add("a list whose lists differ in length, or nested too deeply", column.name, number)
                return None
            level = list(itertools.chain.from_iterable(level))
            continue
        break
    found = {KINDS.get(kind) for kind in kinds}
    if not kinds or None in found:
        mistakes.add("a list that is empty, or has other elements than numbers of one kind", column.name, number)
        return None
    column.kinds |= {kind for kind in found if kind is not None}
    return tuple(size // before for size, before in zip(sizes, [1, *sizes[:-1]], strict=True))


def _array(
    values: list[Any], column: _Column, dtype: np.dtype, numbers: list[int], mistakes: Mistakes
) -> np.ndarray | None:
    """The values as an array of `dtype`. Reports each that the dtype does not have."""
    shape = column.shape or ()
    is_float = dtype.kind in "fV"
    whole = is_float and column.is_whole
    present = np.array([value is not None for value in values])
    if None in values:
        blank = np.zeros(shape, int).tolist() if whole else np.full(shape, np.nan).tolist()
        if not is_float:
            for value, number in zip(values, numbers, strict=True):
                if value is None:
                    mistakes.add(f"a missing value, which {dtype.name} does not have", column.name, number)
            return None
        values = [blank if value is None else value for value in values]
    try:
        kind = np.int64 if whole else np.float64 if is_float else bool if dtype == np.bool_ else None
        wide = np.array(values, kind)
        if wide.dtype == object or (dtype.kind in "iu" and wide.dtype.kind == "u"):
            raise OverflowError
    except (OverflowError, ValueError):
        for value, number in zip(values, numbers, strict=True):
            if any(abs(each) >= 2**63 for each in np.ravel(np.array(value, object)) if isinstance(each, int)):
                mistakes.add("an integer is outside of int64; set a type for the column", column.name, number)
        return None
    wide = wide.reshape(len(values), *shape)
    if is_float:
        with np.errstate(over="ignore"):
            narrow = wide.astype(dtype)
        wrong = ~np.isfinite(narrow.astype(np.float64)) & np.isfinite(wide)
        if whole:
            rounded = inexact(wide, narrow) & ~wrong
            for at in np.flatnonzero(rounded.reshape(len(values), -1).any(axis=1)):
                mistakes.add(f"the integer is not exact as {dtype.name}", column.name, numbers[at])
            narrow[~present] = np.nan
    elif dtype.kind in "iu":
        if wide.dtype.kind == "f":
            mistakes.add(f"decimal numbers, but the type is {dtype.name}", column.name)
            return None
        limits = np.iinfo(dtype)
        narrow = wide.astype(dtype)
        wrong = (wide < limits.min) | (wide > limits.max)
    else:
        return wide
    for at in np.flatnonzero(wrong.reshape(len(values), -1).any(axis=1)):
        mistakes.add(f"a number is outside of the range of {dtype.name}", column.name, numbers[at])
    return narrow
