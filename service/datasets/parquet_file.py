"""Parquet files: numbers, booleans, texts, and lists of equal length as tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.datasets.cells import dtype_named
from service.datasets.exactness import inexact
from service.datasets.mistakes import Mistakes, refused
from service.datasets.options import TEXT, Limits, Options
from service.datasets.read import Read
from service.datasets.scratch import allocate, check_columns, too_large
from service.datasets.vocabulary import Vocabulary

__all__ = ["read_parquet"]

BATCH_BYTES = 16 * 2**20
LARGEST_BATCH = 65_536
DTYPES = {
    pa.bool_(): "bool",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.uint8(): "uint8",
    pa.uint16(): "int32",
    pa.uint32(): "int64",
    pa.uint64(): "int64",
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
}
"""Type in the file -> dtype of the column. Values of uint64 must fit into int64."""
FLOATS = ("float16", "bfloat16", "float32", "float64")
DAMAGED = "the file is not a valid Parquet file, or is truncated"


@dataclass(slots=True)
class _Column:
    """A column of the file.

    stored:   its dtype in the dataset, or `text`.
    shape:    of a row, None before the first one.
    is_whole: whether missing values made decimal numbers of integers, which must be exact.
    """

    name: str
    stored: str
    shape: tuple[int, ...] | None
    is_whole: bool = False


def read_parquet(path: Path, options: Options, scratch: Path, limits: Limits) -> Read:
    """The columns of a Parquet file. Raises HttpProblem 422 with all mistakes."""
    try:
        file = pq.ParquetFile(path, memory_map=False, pre_buffer=False)
        schema, rows = file.schema_arrow, file.metadata.num_rows
        texts = [field.name for field in schema if _is_text(field.type)]
        file.close()
        file = pq.ParquetFile(path, read_dictionary=texts, pre_buffer=False)
        return _Reading(file, schema, rows, options, scratch, limits).columns()
    except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowIndexError, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise refused(DAMAGED) from None
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise refused("the file uses a feature of Parquet that is not supported") from None


def _is_text(type: pa.DataType) -> bool:
    if pa.types.is_dictionary(type):
        type = type.value_type
    return pa.types.is_string(type) or pa.types.is_large_string(type)


class _Reading:
    """One file that is read."""

    def __init__(
        self, file: pq.ParquetFile, schema: pa.Schema, rows: int, options: Options, scratch: Path, limits: Limits
    ) -> None:
        self._file, self._options, self._scratch, self._limits = file, options, scratch, limits
        self._mistakes = Mistakes()
        self._rows = rows
        check_columns(schema.names, limits, self._mistakes)
        self._columns = [column for field in schema if (column := self._declared(field)) is not None]
        for name in options.types.keys() - set(schema.names):
            self._mistakes.add("a type is given for a column that the file does not have", name, member=("types", name))
        if rows == 0:
            self._mistakes.add("the file has no rows")
        self._mistakes.check()
        if rows > limits.size:  # a row takes a byte at least
            raise too_large(limits)

    def _declared(self, field: pa.Field) -> _Column | None:
        """The column of a field, None with a mistake if it cannot be stored."""
        type, shape, depth = field.type, (), 0
        known: tuple[int, ...] | None = ()
        if isinstance(type, pa.FixedShapeTensorType):
            if type.permutation not in (None, list(range(len(type.shape)))):
                self._mistakes.add("a tensor with permuted axes cannot be stored", field.name)
                return None
            shape, type, depth = tuple(type.shape), type.storage_type.value_type, 1
            known = shape
        while pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
            if pa.types.is_fixed_size_list(type) and known is not None:
                known = (*known, type.list_size)
            else:
                known = None
            type, depth = type.value_type, depth + 1
        if (depth and known is not None and len(known) + 1 > self._limits.rank) or depth >= self._limits.rank:
            self._mistakes.add("the lists are nested too deeply", field.name)
            return None
        wanted = self._options.types.get(field.name)
        if _is_text(type):
            if depth:
                self._mistakes.add("lists of texts cannot be stored", field.name)
            elif wanted not in (None, TEXT):
                self._mistakes.add(f"the column has texts, but its type is {wanted}", field.name)
            return _Column(field.name, TEXT, ())
        found = DTYPES.get(type)
        if found is None or wanted == TEXT:
            if found:
                what = "the type text is for columns of texts"
            elif pa.types.is_null(type):
                what = "the column has no values; leave it out"
            else:
                what = f"values of type {str(type)[:100]} cannot be stored; convert them to numbers or texts"
            self._mistakes.add(what, field.name)
            return None
        stored = wanted or found
        missing = self._options.missing == "nan" and found not in (*FLOATS, "bool") and self._has_nulls(field.name)
        is_whole = missing and not wanted
        return _Column(field.name, self._options.floats if is_whole else stored, known, is_whole)

    def _has_nulls(self, name: str) -> bool:
        about, is_known = self._file.metadata, True
        for group in range(about.num_row_groups):
            for i in range(about.num_columns):
                chunk = about.row_group(group).column(i)
                if chunk.path_in_schema != name:
                    continue
                if chunk.statistics is None or not chunk.statistics.has_null_count:
                    is_known = False
                elif chunk.statistics.null_count:
                    return True
        if is_known:
            return False
        return any(batch.column(0).null_count for batch in self._file.iter_batches(columns=[name], use_threads=False))

    def columns(self) -> Read:
        drop = self._options.missing == "drop"
        rows = self._rows if not drop else 0
        if drop or any(column.shape is None for column in self._columns):
            for batch, _ in self._batches():
                rows += int(_whole(batch).sum()) if drop else 0
                for column, values in zip(self._columns, batch.columns, strict=True):
                    if column.shape is None:
                        column.shape = _shape_of(values)
            if not rows:
                self._mistakes.add("no row is without missing values")
        for column in self._columns:
            if column.shape is None or 0 in column.shape:
                self._mistakes.add("the lists are empty", column.name)
        self._mistakes.check()
        kinds = {
            column.name: (
                np.dtype(np.int64) if column.stored == TEXT else dtype_named(column.stored),
                column.shape or (),
            )
            for column in self._columns
        }
        stored = allocate(kinds, rows, self._scratch, self._limits)
        vocabularies = {each.name: Vocabulary(each.name) for each in self._columns if each.stored == TEXT}
        at = 0
        for batch, first in self._batches():
            kept = np.flatnonzero(_whole(batch)) if drop else np.arange(batch.num_rows)
            batch = batch.take(pa.array(kept)) if drop else batch
            if not len(kept):
                continue
            for column, values in zip(self._columns, batch.columns, strict=True):
                numbers = first + 1 + kept
                if column.stored == TEXT:
                    array = self._codes(values, column, vocabularies[column.name], numbers)
                else:
                    array = self._numbers(values, column, numbers)
                if array is not None:
                    if at + len(array) > rows:
                        raise refused(DAMAGED)
                    stored[column.name][at : at + len(array)] = array
            at += len(kept)
            if self._mistakes.full:
                break
        self._mistakes.check()
        if at != rows:
            raise refused(DAMAGED)
        return Read(stored, {name: each.sort(stored[name]) for name, each in vocabularies.items()})

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Parts of the file with the index of their first row."""
        width = sum(8 * int(np.prod(column.shape or (64,))) for column in self._columns)
        size = max(1, min(LARGEST_BATCH, BATCH_BYTES // width))
        first = 0
        for batch in self._file.iter_batches(size, use_threads=False):
            yield batch, first
            first += batch.num_rows

    def _missing(self, column: _Column, nulls: Any, numbers: np.ndarray) -> None:
        for at in np.flatnonzero(nulls.to_numpy(zero_copy_only=False)):
            text = "a missing value; set `missing` to nan or drop to accept it"
            if self._options.missing == "nan":
                text = f"a missing value, which {column.stored} does not have"
            self._mistakes.add(text, column.name, int(numbers[at]))

    def _codes(self, values: Any, column: _Column, vocabulary: Vocabulary, numbers: np.ndarray) -> np.ndarray | None:
        """The codes of the texts, None with texts that are not UTF-8: Arrow does not check them."""
        if values.null_count and self._options.missing != "nan":
            self._missing(column, pc.is_null(values), numbers)
        encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        try:
            texts = encoded.dictionary.to_pylist()
        except UnicodeDecodeError:
            wrong = [
                i for i, text in enumerate(encoded.dictionary.cast(pa.large_binary())) if not _is_utf8(text.as_py())
            ]
            for at in np.flatnonzero(np.isin(encoded.indices.to_numpy(zero_copy_only=False), wrong)):
                self._mistakes.add("a text that is not UTF-8", column.name, int(numbers[at]))
            return None
        indices = pc.fill_null(encoded.indices.cast(pa.int64()), len(texts)).to_numpy(zero_copy_only=False)
        used, places = np.unique(indices, return_inverse=True)
        return vocabulary.codes("" if i == len(texts) else texts[i] for i in used)[places]

    def _numbers(self, values: Any, column: _Column, numbers: np.ndarray) -> np.ndarray | None:
        """The values as an array [rows, *shape], None with mistakes."""
        shape = column.shape or ()
        count = len(values)
        levels = list(shape)
        if isinstance(values, pa.ExtensionArray):
            values, levels = values.storage, [int(np.prod(shape))]
        if levels and values.null_count:
            self._missing(column, pc.is_null(values), numbers)
            return None
        for wanted in levels:
            sizes = pc.list_value_length(values).to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(sizes != wanted)
            if len(wrong):
                row = numbers[int(wrong[0]) * count // len(values)]
                self._mistakes.add(f"a list whose length is not {wanted}", column.name, int(row))
                return None
            values = values.flatten()
            if values.null_count:
                self._mistakes.add("a missing value inside of a list", column.name, int(numbers[0]))
                return None
        return self._plain(values, column, shape, count, numbers)

    def _plain(
        self, values: Any, column: _Column, shape: tuple[int, ...], count: int, numbers: np.ndarray
    ) -> np.ndarray | None:
        dtype = dtype_named(column.stored)
        is_float = column.stored in FLOATS
        source_is_float, is_bool = pa.types.is_floating(values.type), pa.types.is_boolean(values.type)
        nulls = pc.is_null(values)
        if values.null_count:
            if not (is_float and self._options.missing == "nan"):
                self._missing(column, nulls, numbers)
                return None
            values = pc.fill_null(values, float("nan") if source_is_float else False if is_bool else 0)
        wide = values.to_numpy(zero_copy_only=False)
        if source_is_float and not is_float:
            self._mistakes.add(f"decimal numbers, but the type is {column.stored}", column.name)
            return None
        if (wide.dtype == np.bool_) != (column.stored == "bool"):
            self._mistakes.add(f"values of type {values.type}, but the type is {column.stored}", column.name)
            return None
        if wide.dtype == np.bool_:
            return wide.reshape(count, *shape)
        if is_float:
            with np.errstate(over="ignore"):
                narrow = wide.astype(dtype)
            wrong = np.isfinite(wide) & ~np.isfinite(narrow.astype(np.float64))
            if column.is_whole:
                rounded = inexact(wide, narrow) & ~wrong
                for at in np.flatnonzero(rounded.reshape(count, -1).any(axis=1)):
                    text = f"the integer is not exact as {column.stored}"
                    self._mistakes.add(text, column.name, int(numbers[at]))
            if not source_is_float and nulls.true_count:
                narrow[nulls.to_numpy(zero_copy_only=False)] = np.nan
        else:
            limits = np.iinfo(dtype)
            narrow = wide.astype(dtype)
            wrong = (wide < limits.min) | (wide > limits.max)
        for at in np.flatnonzero(wrong.reshape(count, -1).any(axis=1)):
            self._mistakes.add(f"a number is outside of the range of {column.stored}", column.name, int(numbers[at]))
        return narrow.reshape(count, *shape)


def _whole(batch: pa.RecordBatch) -> np.ndarray:
    """Whether each row is without missing values."""
    whole = np.ones(batch.num_rows, bool)
    for values in batch.columns:
        if values.null_count:
            whole &= pc.is_valid(values).to_numpy(zero_copy_only=False)
    return whole


def _shape_of(values: Any) -> tuple[int, ...] | None:
    """The shape of the first row that has a value."""
    for at in range(len(values)):
        value, shape = values[at].as_py(), []
        while isinstance(value, list) and value:
            shape.append(len(value))
            value = value[0]
        if value is not None and not isinstance(value, list):
            return tuple(shape)
    return None


def _is_utf8(text: bytes | None) -> bool:
    try:
        return text is None or text.decode() is not None
    except UnicodeDecodeError:
        return False
