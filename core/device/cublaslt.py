"""Products by cuBLASLt, called by ctypes: cupy's own calls of cuBLAS cannot be captured in a graph.

The constants are those of `cublasLt.h` and `cublas_api.h` of CUDA 12; those of CUDA 13 are the same. Sums that are
split among blocks are added up in memory of their own, in a fixed order, so that equal calls give equal bits.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from core.device.driver import DeviceFault, Driver, Memory
from core.device.multiplication import RESULTS, Matrix, Multiplication, Place
from core.ir.errors import ExecutionError
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype

__all__ = ["CublasLt", "check_products", "load_cublaslt", "workspace_bytes"]

TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
"""cudaDataType."""

COMPUTE_FLOAT32, COMPUTE_TF32, COMPUTE_FLOAT64 = 68, 77, 70
"""cublasComputeType_t. Sums of products of 16-bit numbers are float32 numbers."""

TURN_LEFT, TURN_RIGHT, EPILOGUE, BIAS = 3, 4, 7, 8
"""cublasLtMatmulDescAttributes_t."""

NO_EPILOGUE, ADD_BIAS = 1, 4
"""cublasLtEpilogue_t."""

COUNT, STEP = 5, 6
"""cublasLtMatrixLayoutAttribute_t: number of matrices, and elements from one to the next."""

WORKSPACE, REDUCTION, ALIGNMENTS = 1, 3, (5, 6, 7, 8)
"""cublasLtMatmulPreferenceAttributes_t; alignments of left, right, the old and the new result."""

IN_WORKSPACE = 2
"""cublasLtReductionScheme_t: parts of sums have the type of the computation, and lie in the workspace."""

MOST_ALIGNMENT = 16
"""Bytes; no algorithm needs more."""

ROWS, TERMS, COLUMNS = 24, 40, 16
"""Sizes of the products that are computed to check the library."""


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class _Call:
    """A product as the library knows it: descriptors, and the algorithm that it chose for them."""

    def __init__(self, library: _Library, each: Multiplication, alignments: Sequence[int], workspace: int) -> None:
        self._library = library
        wide = each.dtype == "float64"
        compute = COMPUTE_FLOAT64 if wide else COMPUTE_TF32 if each.tf32 else COMPUTE_FLOAT32
        number = ctypes.c_double if wide else ctypes.c_float
        self.one, self.beta = number(1.0), number(1.0 if each.accumulate else 0.0)
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        self.product = self._make("MatmulDesc", compute, TYPES["float64" if wide else "float32"])
        self._set(self.product, "MatmulDesc", TURN_LEFT, ctypes.c_int32(each.left.turned))
        self._set(self.product, "MatmulDesc", TURN_RIGHT, ctypes.c_int32(each.right.turned))
        self._set(self.product, "MatmulDesc", EPILOGUE, ctypes.c_uint32(ADD_BIAS if each.bias else NO_EPILOGUE))
        self.has_bias = each.bias is not None
        if self.has_bias:  # the search for an algorithm looks at the alignment of the address alone
            self.set_bias(alignments[3])
        self.left, self.right, self.out = (
            self._matrix(matrix, dtype, each.count)
            for matrix, dtype in ((each.left, each.dtype), (each.right, each.dtype), (each.out, each.result))
        )
        self.algorithm = self._choose(alignments, workspace)

    def set_bias(self, address: int) -> None:
        self._set(self.product, "MatmulDesc", BIAS, ctypes.c_void_p(address))

    def __del__(self) -> None:
        for kind, each in self._made:
            self._library.call(f"{kind}Destroy", each)

    def _matrix(self, matrix: Matrix, dtype: str, count: int) -> ctypes.c_void_p:
        rows, columns, leading = map(ctypes.c_uint64, (matrix.rows, matrix.columns, matrix.leading))
        made = self._make("MatrixLayout", TYPES[dtype], rows, columns, leading)
        if count > 1:
            self._set(made, "MatrixLayout", COUNT, ctypes.c_int32(count))
            self._set(made, "MatrixLayout", STEP, ctypes.c_int64(matrix.step))
        return made

    def _choose(self, alignments: Sequence[int], workspace: int) -> Any:
        preference, found, count = self._make("MatmulPreference"), _Found(), ctypes.c_int(0)
        self._set(preference, "MatmulPreference", WORKSPACE, ctypes.c_size_t(workspace))
        self._set(preference, "MatmulPreference", REDUCTION, ctypes.c_uint32(IN_WORKSPACE))
        left, right, *others = alignments
        out = min(others)  # a kernel reads as many elements of a bias at once as it writes of the result
        for which, alignment in zip(ALIGNMENTS, (left, right, out, out), strict=True):
            self._set(preference, "MatmulPreference", which, ctypes.c_uint32(alignment))
        layouts = (self.left, self.right, self.out, self.out)
        self._library.call(
            "MatmulAlgoGetHeuristic", self._library.handle, self.product, *layouts, preference, ctypes.c_int(1),
            ctypes.byref(found), ctypes.byref(count),
        )  # fmt: skip
        if not count.value or found.status:
            raise _Refused(found.status)
        return found.algorithm

    def _make(self, kind: str, *args: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._library.call(f"{kind}Create", ctypes.byref(made), *args)
        self._made.append((kind, made))
        return made

    def _set(self, what: ctypes.c_void_p, kind: str, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._library.call(f"{kind}SetAttribute", what, ctypes.c_int(attribute), ctypes.byref(value), size)


class _Refused(Exception):
    """The library refused a call."""


class _Library:
    """The functions of the library and a handle. library: anything with the functions `cublasLt*`."""

    def __init__(self, library: Any) -> None:
        self._functions = library
        self.handle = ctypes.c_void_p()
        self.call("Create", ctypes.byref(self.handle))

    def call(self, name: str, *args: Any) -> None:
        """Raises _Refused."""
        status = getattr(self._functions, f"cublasLt{name}")(*args)
        if status:
            raise _Refused(f"cublasLt{name} returned status {status}")


class CublasLt:
    """The products of one GPU, one at a time.

    library:   anything with the functions `cublasLt*`.
    allocate:  gives memory of the GPU.
    workspace: bytes that a product may use besides its arrays.
    """

    def __init__(self, library: Any, allocate: Callable[[int], Memory], workspace: int) -> None:
        """Raises ExecutionError (compiler_failed) if the library does not start, DeviceFull, DeviceFault."""
        try:
            self._library = _Library(library)
        except (_Refused, AttributeError) as error:
            raise ExecutionError(f"cuBLASLt does not start: {error}", "compiler_failed") from error
        self._workspace = allocate(workspace)
        self._calls: dict[tuple[Multiplication, tuple[int, ...]], _Call] = {}

    def prepare(self, each: Multiplication, addresses: Sequence[int]) -> None:
        """Choose the algorithm for a product, which cannot be done during a capture.

        addresses: of `Multiplication.places`. Raises ExecutionError (compiler_failed).
        """
        self._call(each, addresses)

    def run(self, each: Multiplication, addresses: Sequence[int], stream: int) -> None:
        """Give a product to a stream, whose address is `stream`.

        Raises ExecutionError (compiler_failed), DeviceFault.
        """
        call = self._call(each, addresses)
        left, right, out = map(ctypes.c_void_p, addresses[:3])
        if call.has_bias:
            call.set_bias(addresses[3])
        try:
            self._library.call(
                "Matmul", self._library.handle, call.product, ctypes.byref(call.one), left, call.left, right,
                call.right, ctypes.byref(call.beta), out, call.out, out, call.out, ctypes.byref(call.algorithm),
                ctypes.c_void_p(self._workspace.address), ctypes.c_size_t(self._workspace.nbytes),
                ctypes.c_void_p(stream),
            )  # fmt: skip
        except _Refused as error:
            raise DeviceFault(f"the GPU failed: {error}") from error

    def _call(self, each: Multiplication, addresses: Sequence[int]) -> _Call:
        alignments = tuple(min(address & -address, MOST_ALIGNMENT) for address in addresses)
        key = (each, alignments)
        found = self._calls.get(key)
        if found is None:
            try:
                found = self._calls[key] = _Call(self._library, each, alignments, self._workspace.nbytes)
            except _Refused as error:
                raise ExecutionError(f"cuBLASLt does not take a product: {error}", "compiler_failed") from error
        return found


def check_products(driver: Driver) -> None:
    """Compute products with known results: whole numbers that each dtype has exactly, with sums that 16 bits round.

    Raises RuntimeError for a wrong result; ExecutionError (compiler_failed), DeviceFull, DeviceFault.
    """
    for dtype, results in RESULTS.items():
        for result in results:
            for turned, biased in ((False, False), (True, result not in HALVES and dtype == result)):
                for tf32 in (False, True) if dtype == "float32" else (False,):
                    if not _is_right(driver, dtype, result, turned, biased, tf32):
                        rounded = " rounded to TF32" if tf32 else ""
                        raise RuntimeError(f"cuBLASLt computes wrong {result} products of {dtype} numbers{rounded}")


def _is_right(driver: Driver, dtype: str, result: str, turned: bool, biased: bool, tf32: bool) -> bool:
    """Whether one product is right. turned: the right operand of the library."""
    xp, stream = driver.xp, driver.current()
    x, y = _whole_numbers((ROWS, TERMS), 127), _whole_numbers((TERMS, COLUMNS), 30)
    bias = _whole_numbers((COLUMNS,), 3)
    shape = (ROWS, TERMS) if turned else (TERMS, ROWS)
    right = Matrix(Place(0, 0), *shape, shape[0], 0, turned)
    left, out = (Matrix(Place(0, 0), COLUMNS, count, COLUMNS, 0, False) for count in (TERMS, ROWS))
    product = Multiplication(dtype, result, left, right, out, bias=Place(0, 0) if biased else None, tf32=tf32)
    given = [y.astype(as_dtype(dtype)), (x.T if turned else x).astype(as_dtype(dtype), order="C")]
    given += [np.zeros((ROWS, COLUMNS), as_dtype(result)), *([bias.astype(as_dtype(result))] if biased else [])]
    arrays = [xp.asarray(_bits(each)) for each in given]
    stream.multiply(product, [driver.address(each) for each in arrays])
    stream.synchronize()
    wanted = xp.asarray(_bits((x @ y + bias * biased).astype(np.float32).astype(as_dtype(result))))
    return not bool((arrays[2] != wanted).any())


def _bits(numbers: np.ndarray) -> np.ndarray:
    """16-bit floats as their bits: cupy has no bfloat16."""
    return numbers.view(np.uint16) if numbers.dtype.itemsize == 2 else numbers


def _whole_numbers(shape: tuple[int, ...], most: int) -> np.ndarray:
    """Numbers from -most to most."""
    return (np.arange(math.prod(shape)) * 5 % (2 * most + 1) - most).reshape(shape)


def workspace_bytes(architecture: str) -> int:
    """The size that NVIDIA recommends: 32 MiB from sm_90 on, and 4 MiB before."""
    return (32 if int(architecture.removeprefix("sm_")) >= 90 else 4) << 20


def load_cublaslt() -> Any:
    """The library as cupy finds it. Raises ImportError, OSError, RuntimeError."""
    finder: Any = import_module("cuda.pathfinder")
    return ctypes.CDLL(finder.load_nvidia_dynamic_lib("cublasLt").abs_path)
