"""Files of named arrays: safetensors and NPZ. Each array is a column; all have the same number of rows."""

from __future__ import annotations

import errno
import math
import mmap
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from service.datasets.mistakes import Mistakes, refused
from service.datasets.options import TEXT, Limits, Options
from service.datasets.read import Read
from service.datasets.scratch import BLOCK, allocate, check_columns, row_blocks, too_large
from service.datasets.vocabulary import Vocabulary
from service.formats.safetensors import header_size, read_header, views
from service.objects.tensor_file import CODE_OF
from service.settings import TensorLimits

__all__ = ["check_table", "read_npz", "read_safetensors"]

WIDENED: dict[str, np.dtype[Any]] = {"uint16": np.dtype(np.int32), "uint32": np.dtype(np.int64)}
DAMAGE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
    struct.error,
)
"""Exceptions of the readers of archives when a file is damaged."""

HEADER_BYTES = 2**16  # of an array in an NPZ file


def read_safetensors(path: Path, options: Options, scratch: Path, limits: Limits) -> Read:
    """The tensors of a safetensors file, as views. Raises HttpProblem 400 or 422."""
    with path.open("rb") as file:
        size = path.stat().st_size
        if size < 8:
            raise refused("the file is shorter than eight bytes")
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    start = header_size(whole)
    bounds = TensorLimits(rank=limits.rank, elements=2**62, bytes=limits.size)
    _, entries = read_header(bytes(whole[8:start]), size - start, limits=bounds)
    columns = views(whole[start:], entries)
    check_table(columns, options, limits)
    return Read(columns)


def check_table(columns: dict[str, np.ndarray], options: Options, limits: Limits) -> None:
    """Raises HttpProblem 422 unless the arrays are columns of one table."""
    mistakes = Mistakes()
    check_columns(list(columns), limits, mistakes)
    _check_rows({name: array.shape for name, array in columns.items()}, mistakes)
    _check_types({name: array.dtype.name for name, array in columns.items()}, options, mistakes)
    mistakes.check()
    if sum(array.nbytes for array in columns.values()) > limits.size:
        raise too_large(limits)


def _check_rows(shapes: dict[str, tuple[int, ...]], mistakes: Mistakes) -> None:
    """Report arrays whose first dimension is not that of the first array."""
    rows = next((shape[0] for shape in shapes.values() if shape), 0)
    for name, shape in shapes.items():
        if not shape:
            mistakes.add("the tensor is a scalar; a column needs a first dimension, the rows", name)
        elif shape[0] != rows:
            mistakes.add(f"{shape[0]} rows, but the first column has {rows}", name, code="ragged")
        elif math.prod(shape) == 0:
            mistakes.add("the column has no elements", name)


def _check_types(found: dict[str, str], options: Options, mistakes: Mistakes) -> None:
    """Report types that the request names and the columns do not have: such files are stored as they are."""
    for name, wanted in options.types.items():
        if found.get(name) != wanted:
            has = f"the column has the dtype {found[name]}" if name in found else "the file has no such column"
            mistakes.add(f"{has}; columns of this format keep their dtype", name, member=("types", name))


def read_npz(path: Path, options: Options, scratch: Path, limits: Limits) -> Read:
    """The arrays of an NPZ file. Texts become codes; pickled objects are refused. Raises HttpProblem 422."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _Archive(archive, options, scratch, limits).columns()
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which is a position before the file
            raise
        raise refused("the file is not a valid NPZ file, or is truncated") from None


class _Array:
    """One array of an NPZ file, as its header describes it."""

    def __init__(self, name: str, entry: zipfile.ZipInfo, dtype: np.dtype, shape: tuple[int, ...], order: str) -> None:
        self.name, self.entry, self.dtype, self.shape, self.order = name, entry, dtype, shape, order
        self.nbytes = math.prod(shape) * dtype.itemsize

    @property
    def stored(self) -> np.dtype:
        """The dtype in the dataset."""
        if self.dtype.kind == "U":
            return np.dtype(np.int64)
        native: np.dtype[Any] = self.dtype.newbyteorder("=")
        widened: np.dtype[Any] | None = WIDENED.get(native.name)
        return native if widened is None else widened


class _Archive:
    """An NPZ file that is read."""

    def __init__(self, archive: zipfile.ZipFile, options: Options, scratch: Path, limits: Limits) -> None:
        self._archive, self._options, self._scratch, self._limits = archive, options, scratch, limits
        self._mistakes = Mistakes()

    def columns(self) -> Read:
        entries = self._archive.infolist()
        check_columns([entry.filename.removesuffix(".npy") for entry in entries], self._limits, self._mistakes)
        self._mistakes.check()
        arrays = [array for entry in entries if (array := self._header(entry)) is not None]
        _check_rows({array.name: array.shape for array in arrays}, self._mistakes)
        found = {array.name: TEXT if array.dtype.kind == "U" else array.stored.name for array in arrays}
        _check_types(found, self._options, self._mistakes)
        self._mistakes.check()
        if sum(array.nbytes for array in arrays) > self._limits.size:
            raise too_large(self._limits)
        kinds = {array.name: (array.stored, array.shape[1:]) for array in arrays}
        stored = allocate(kinds, arrays[0].shape[0], self._scratch, self._limits)
        texts = {}
        for array in arrays:
            if (words := self._fill(array, stored[array.name])) is not None:
                texts[array.name] = words
        self._mistakes.check()
        return Read(stored, texts)

    def _header(self, entry: zipfile.ZipInfo) -> _Array | None:
        """The array of an entry, None with a mistake if it cannot be stored. No more than the header is read."""
        name = entry.filename.removesuffix(".npy")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            self._mistakes.add("the array is compressed by another method than deflate", name)
            return None
        with self._archive.open(entry) as file:
            try:
                version = np.lib.format.read_magic(file)
                read: Any = np.lib.format.read_array_header_1_0
                if version != (1, 0):
                    read = np.lib.format.read_array_header_2_0
                shape, fortran, dtype = read(file, max_header_size=HEADER_BYTES)
                if version > (3, 0):
                    raise ValueError(version)
            except (ValueError, EOFError, UnicodeDecodeError):
                self._mistakes.add("not an array as numpy.save writes it", name)
                return None
            begin = file.tell()
        why = self._refusal(dtype, shape)
        if why is None and entry.file_size - begin != math.prod(shape) * dtype.itemsize:
            why = "the header declares another size than the file has"
        if why is not None:
            self._mistakes.add(why, name)
            return None
        return _Array(name, entry, dtype, shape, "F" if fortran and len(shape) > 1 else "C")

    def _refusal(self, dtype: np.dtype, shape: tuple[int, ...]) -> str | None:
        """The reason why such an array cannot be stored."""
        if dtype.hasobject:
            return "the array has Python objects; pickled data is never read"
        if len(shape) > self._limits.rank:
            return f"the rank exceeds the limit of {self._limits.rank}"
        if any(size < 0 for size in shape):
            return "the header declares a negative size"
        if dtype.kind == "U" and len(shape) == 1 and dtype.itemsize <= BLOCK:
            return None
        native = dtype.newbyteorder("=")
        if dtype.kind not in "biuf" or (native not in CODE_OF and native.name not in WIDENED):
            return f"dtype {native.name[:40]} cannot be stored; convert the array to another one"
        return None

    def _fill(self, array: _Array, column: np.ndarray) -> list[str] | None:
        """Decompress the array into its column; the vocabulary of a column of texts."""
        with self._archive.open(array.entry) as file:
            np.lib.format.read_magic(file)
            reader = np.lib.format.read_array_header_1_0
            if array.entry.file_size and _version(self._archive, array.entry) != (1, 0):
                reader = np.lib.format.read_array_header_2_0
            reader(file, max_header_size=HEADER_BYTES)
            if array.dtype.kind == "U":
                vocabulary = Vocabulary(array.name)
                _in_blocks(file, array.dtype, column, lambda texts: vocabulary.codes(texts.tolist()))
                return vocabulary.sort(column)
            if array.order == "F":
                shape = array.shape[::-1]
                raw = allocate({"": (column.dtype, shape[1:])}, shape[0], self._scratch, self._limits)[""]
                _in_blocks(file, array.dtype, raw.reshape(-1), lambda values: self._valid(array.name, values))
                turned = raw.transpose()
                for rows in row_blocks(column):
                    column[rows] = turned[rows]
            else:
                _in_blocks(file, array.dtype, column.reshape(-1), lambda values: self._valid(array.name, values))
        return None

    def _valid(self, name: str, values: np.ndarray) -> np.ndarray:
        if values.dtype == np.bool_ and values.view(np.uint8).max() > 1:
            self._mistakes.add("a bool byte is neither 0 nor 1", name)
        return values


def _version(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> tuple[int, int]:
    with archive.open(entry) as file:
        return np.lib.format.read_magic(file)


def _in_blocks(file: IO[bytes], dtype: np.dtype, flat: np.ndarray, form: Callable[[np.ndarray], np.ndarray]) -> None:
    """Read the elements of `flat`, a view, from `file`. Raises EOFError if it ends too early."""
    step = max(1, BLOCK // dtype.itemsize)
    for begin in range(0, len(flat), step):
        count = min(step, len(flat) - begin)
        data = file.read(count * dtype.itemsize)
        if len(data) != count * dtype.itemsize:
            raise EOFError
        flat[begin : begin + count] = form(np.frombuffer(data, dtype))
