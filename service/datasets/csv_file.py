"""CSV files: read twice, first to find the types of the columns, then to store them."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from service.datasets.cells import CellColumn, converted, dtype_named
from service.datasets.csv_quotes import check_quotes
from service.datasets.mistakes import Mistakes, refused
from service.datasets.options import TEXT, Limits, Options
from service.datasets.read import Read
from service.datasets.scratch import allocate, check_columns
from service.datasets.vocabulary import Vocabulary

__all__ = ["read_csv"]

BLOCK = 8 * 2**20
"""Bytes of the file that are parsed at a time; a row must fit."""

NULLS = ["", "NA", "N/A", "null", "NULL"]


def read_csv(path: Path, options: Options, scratch: Path, limits: Limits) -> Read:
    """The columns of a CSV file in UTF-8. Texts in quotes may contain delimiters and line ends.

    A cell without quotes that is empty, NA, N/A or null is missing. Raises HttpProblem 422 with all mistakes.
    """
    mistakes = Mistakes()
    file = _File(path, options, mistakes)
    check_columns(file.names, limits, mistakes)
    mistakes.check()
    for name in options.types.keys() - set(file.names):
        mistakes.add("a type is given for a column that the file does not have", name, member=("types", name))
    columns = [CellColumn(name, options.types.get(name, "")) for name in file.names]
    rows = _look(file, columns, options, mistakes)
    types = [column.type(options, mistakes) for column in columns]
    if not rows and not mistakes.full:
        mistakes.add("the file has no rows" if options.missing != "drop" else "no row is without missing values")
    mistakes.check()

    dtypes = [np.dtype(np.int64) if each == TEXT else dtype_named(each) for each in types]
    names = file.names
    stored = allocate({n: (dtype, ()) for n, dtype in zip(names, dtypes, strict=True)}, rows, scratch, limits)
    vocabularies = [Vocabulary(name) for name in names]
    at = 0
    for batch, first in file.batches():
        kept = _whole_rows(batch) if options.missing == "drop" else np.arange(batch.num_rows)
        if not len(kept):
            continue
        batch = batch.take(pa.array(kept)) if len(kept) < batch.num_rows else batch
        number = partial(file.number_of, first, kept)
        for i, cells in enumerate(batch.columns):
            values = converted(cells, names[i], types[i], columns[i].is_whole, vocabularies[i], number, mistakes)
            stored[names[i]][at : at + len(values)] = values
        if mistakes.full:
            break
        at += batch.num_rows
    mistakes.check()
    texts = {
        name: vocabulary.sort(stored[name])
        for name, vocabulary, type in zip(names, vocabularies, types, strict=True)
        if type == TEXT
    }
    return Read(stored, texts)


def _look(file: _File, columns: list[CellColumn], options: Options, mistakes: Mistakes) -> int:
    """Read the file once to learn about the `columns`; the number of rows to store."""
    rows = 0
    for batch, first in file.batches():
        number = partial(file.number_of, first, np.arange(batch.num_rows))
        for column, cells in zip(columns, batch.columns, strict=True):
            column.look(cells, number)
            if cells.null_count and options.missing == "refuse":
                for index in pc.indices_nonzero(pc.is_null(cells))[:50].to_pylist():
                    text = "a missing value; set `missing` to nan or drop to accept it"
                    mistakes.add(text, column.name, number(index))
        rows += len(_whole_rows(batch)) if options.missing == "drop" else batch.num_rows
    return rows


def _whole_rows(batch: pa.RecordBatch) -> np.ndarray:
    """The indices of rows without missing values."""
    whole = np.ones(batch.num_rows, bool)
    for cells in batch.columns:
        if cells.null_count:
            whole &= pc.is_valid(cells).to_numpy(zero_copy_only=False)
    return np.flatnonzero(whole)


class _File:
    """A CSV file that is read several times. names: of its columns.

    An empty line is a row with an empty cell if the file has one column; otherwise it does not count.
    """

    def __init__(self, path: Path, options: Options, mistakes: Mistakes) -> None:
        self._path, self._options, self._mistakes = path, options, mistakes
        self._wrong: list[int] = []
        _check_text(path)
        self._schema: pa.Schema | None = None
        self._told: set[int] = set()  # rows whose mistake is in the list: the file is read several times
        self._looking = False
        self._is_narrow = False  # it has one column, so that an empty line is a row
        self._empty_lines = 0  # before the header, of a narrow file
        names = self._opened(csv.ConvertOptions()).schema.names
        self._looking = True
        if len(names) == 1:
            self._is_narrow = True
            self._empty_lines = _leading_empty_lines(path) if options.header else 0
        self.names = [name.strip() for name in names]
        if options.header and self.names and all(_is_number(name) for name in self.names):
            raise refused("the first line has numbers, not the names of columns; set header to false")
        if options.header and self._is_narrow:
            _check_delimiter(self.names[0], options.delimiter, _first_line(path, self._empty_lines))
        check_quotes(path, options.delimiter, BLOCK)
        if not options.header:
            self.names = [f"column_{i}" for i in range(1, len(names) + 1)]
        self._types = dict.fromkeys(names, pa.string())

    def _opened(self, convert: csv.ConvertOptions) -> csv.CSVStreamingReader:
        try:
            return csv.open_csv(
                self._path,
                csv.ReadOptions(
                    use_threads=False,
                    block_size=BLOCK,
                    autogenerate_column_names=not self._options.header,
                    skip_rows=self._empty_lines,
                ),
                csv.ParseOptions(
                    delimiter=self._options.delimiter,
                    newlines_in_values=True,
                    ignore_empty_lines=not self._is_narrow,
                    invalid_row_handler=self._invalid,
                ),
                convert,
            )
        except pa.ArrowInvalid as error:
            raise self._refusal(error) from None

    @property
    def _lines_before(self) -> int:
        """Lines in front of the first row."""
        return self._empty_lines + self._options.header

    def _invalid(self, row: csv.InvalidRow) -> str:
        if not self._looking:
            return "skip"
        self._wrong.append(row.number)
        if row.number in self._told:
            return "skip"
        self._told.add(row.number)
        text = f"{row.actual_columns} cells, but the file has {row.expected_columns} columns"
        self._mistakes.add(text, row=row.number - self._lines_before)
        return "error" if self._mistakes.full else "skip"

    def batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The rows of the file, as texts, with the index of the first one of each batch among the valid rows."""
        self._wrong.clear()
        convert = csv.ConvertOptions(
            column_types=self._types, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=NULLS
        )
        reader, first = self._opened(convert), 0
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            except pa.ArrowInvalid as error:
                raise self._refusal(error) from None
            yield batch, first
            first += batch.num_rows

    def number_of(self, first: int, kept: np.ndarray, index: int) -> int:
        """The number of a row in the file, the first is 1. first: valid rows before its batch; kept: rows of the batch
        that are stored; index: of the row among these."""
        number = first + int(kept[index]) + 1
        for wrong in self._wrong:
            number += wrong - self._lines_before <= number
        return number

    def _refusal(self, error: pa.ArrowInvalid) -> Exception:
        text = str(error)
        if self._mistakes.full:
            return self._mistakes.stop()
        check_quotes(self._path, self._options.delimiter, BLOCK)
        if "straddling" in text:
            more = f"a row takes more than {BLOCK} bytes"
        elif "Empty CSV" in text:
            more = "the file is empty"
        else:
            more = "the file cannot be parsed as CSV"
        self._mistakes.add(more)
        return self._mistakes.stop()


def _check_text(path: Path) -> None:
    """Raises HttpProblem 422 unless the file is UTF-8. Arrow would pass over rows that are neither whole nor UTF-8."""
    decoder, at = codecs.getincrementaldecoder("utf-8")(), 0
    with path.open("rb") as file:
        while True:
            data = file.read(2**20)
            try:
                decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise refused(f"the file is not UTF-8 near byte {at + error.start}") from None
            if not data:
                return
            at += len(data)


def _leading_empty_lines(path: Path) -> int:
    """The number of empty lines before the first other one."""
    with path.open("rb") as file:
        if file.read(3) != codecs.BOM_UTF8:
            file.seek(0)
        count = 0
        while file.readline(3) in (b"\n", b"\r\n"):
            count += 1
        return count


def _first_line(path: Path, empty_lines: int) -> str:
    """The first of the lines after the empty ones, or its beginning."""
    with path.open("rb") as file:
        if file.read(3) != codecs.BOM_UTF8:
            file.seek(0)
        for _ in range(empty_lines):
            file.readline(3)
        return file.readline(BLOCK).decode(errors="replace").strip()


def _check_delimiter(name: str, delimiter: str, line: str) -> None:
    """Raises HttpProblem 422 if the name of the only column contains another delimiter than that of the options.

    line: the first line of the file. A name in quotes may contain each delimiter.
    """
    found = max(",;|\t", key=name.count)
    if found == delimiter or found not in name or line == f'"{name}"':
        return
    shown = "a tab" if found == "\t" else repr(found)
    raise refused(
        f"the file has one column, and its name contains {shown}: set delimiter to {shown}, or write the name in quotes"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
