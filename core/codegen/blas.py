"""Matrix products by the BLAS that SciPy ships, called by address.

SciPy's OpenBLAS then computes on the thread that calls it, for the rest of the process.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

from core.codegen.denormals import vanishing
from core.codegen.llvm import I64, Function, IRValue, element_type, literal
from core.codegen.module import Module
from core.codegen.polling import STOP_PARAM, product_polls
from core.codegen.vector_slices import move
from core.plan.instructions import Gemm
from core.plan.memory import View
from core.runtime.blas_threads import use_one_thread

__all__ = ["address_of", "function", "unit"]

PIECE = 1_000_000_000
"""Operations of one call of the BLAS in a long product."""

COLUMNS = 256
"""Fewest columns of one call of the BLAS in a long product: it packs the rows again for each."""

ROUTINES = {"float32": "sgemm", "float64": "dgemm"}


@cache
def address_of(routine: str) -> int:
    """The address of a routine of BLAS or LAPACK with Fortran's calling convention. It uses no threads of its own."""
    use_one_thread("scipy")  # the pool of the step shares the work
    capsule = {**_capsules("cython_lapack"), **_capsules("cython_blas")}[routine]
    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    return int(pointer_of(capsule, name_of(capsule)))


def _capsules(name: str) -> dict[str, Any]:
    """The functions in C of a module of `scipy.linalg`, by name.

    It is loaded without the package, whose import takes as long as the compilation of many steps. A later import of the
    package finds the same module.
    """
    (package,) = importlib.import_module("scipy").__path__
    spec = PathFinder.find_spec(f"scipy.linalg.{name}", [str(Path(package, "linalg"))])
    if spec is None or spec.loader is None:
        raise ImportError(f"SciPy has no module linalg.{name}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.__pyx_capi__)


def function(module: Module, name: str, each: Gemm, vanishes: bool = False) -> Function:
    """``name(a, b, c[, stop], first, end)`` for rows `first` (included) to `end` (excluded) of the result.

    vanishes: whether it takes denormal numbers for zero.

    A long product (`product_polls`) is many calls, each for some rows or some columns; `stop` is read between them.
    """
    (m, k), n = each.a.shape[-2:], each.b.shape[-1]
    polls = product_polls(m, n, k)
    pointers = [("a", "ptr"), ("b", "ptr"), ("c", "ptr"), *([STOP_PARAM] if polls else [])]
    f = Function(name, [*pointers, ("first", "int64"), ("end", "int64")], noalias=False)
    f.stop = f.param("stop") if polls else None
    rows = max(unit(each), PIECE // (2 * n * k)) if polls else m
    columns = max(COLUMNS, PIECE // (2 * min(rows, m) * k)) if polls else n
    with vanishing(f, vanishes), f.loop(f.param("first"), f.param("end"), rows, polls=True) as first:
        count = f.binary("sub", f.intrinsic("smin", f.binary("add", first, I64(rows)), f.param("end")), first)
        with f.loop(I64(0), I64(n), min(columns, n), polls=True) as column:
            wide = f.intrinsic("smin", f.binary("sub", I64(n), column), I64(columns))
            dtype, strides = each.c.dtype, each.c.strides
            a = move(f, f.param("a"), dtype, (first, each.a.strides[-2]))
            b = move(f, f.param("b"), dtype, (column, each.b.strides[-1]))
            c = move(f, f.param("c"), dtype, (first, strides[-2]), (column, strides[-1]))
            _call(module, f, each, a, b, c, count, wide)
    return f


def unit(each: Gemm) -> int:
    """Rows of the result in the smallest share of a thread."""
    return 32 if each.c.shape[-2] >= 64 else each.c.shape[-2]


def _call(
    module: Module, f: Function, each: Gemm, a: IRValue, b: IRValue, c: IRValue, rows: IRValue, columns: IRValue
) -> None:
    """Multiply `rows` rows of the matrix at `a` by `columns` columns of the matrix at `b`."""
    routine = ROUTINES[each.c.dtype]
    module.symbols[routine] = address_of(routine)
    f.declarations.add(f"declare void @{routine}({', '.join(['ptr'] * 13)})")
    m, width = f.slot("int32"), f.slot("int32")
    f.write(f.convert(rows, "int32"), m)
    f.write(f.convert(columns, "int32"), width)
    n, k = each.b.shape[-1], each.a.shape[-1]
    if each.c.strides[-1] != 1 and n != 1:  # the result is stored by columns: compute its transpose
        left, right, out = _transposed(each.b), _transposed(each.a), _transposed(each.c)
        sizes = (width.name, m.name)
        a, b = b, a
    else:
        left, right, out = each.a, each.b, each.c
        sizes = (m.name, width.name)
    # Fortran sees the transposed arrays: C' = B' A'
    how_b, step_b = _layout(right)
    how_a, step_a = _layout(left)
    _, step_c = _layout(out)
    one = _number(module, 1.0, each.c.dtype)
    start = _number(module, 1.0 if each.accumulate else 0.0, each.c.dtype)
    args = [
        _letter(module, how_b), _letter(module, how_a), sizes[1], sizes[0], _integer(module, k), one,
        b.name, _integer(module, step_b), a.name, _integer(module, step_a), start, c.name, _integer(module, step_c),
    ]  # fmt: skip
    f.do(f"call void @{routine}({', '.join(f'ptr {x}' for x in args)})")


def _transposed(view: View) -> View:
    shape, strides = view.shape, view.strides
    return View(view.root, view.dtype, (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2]))


def _layout(view: View) -> tuple[str, int]:
    """Fortran's letter for the transposed view of a row-major matrix, and its leading dimension."""
    (rows, columns), (down, along) = view.shape[-2:], view.strides[-2:]
    if columns == 1 or along == 1:
        if columns == 1 and rows > 1:
            return "N", max(down, 1)
        return "N", max(down, columns) if rows > 1 else columns
    return "T", max(along, rows) if columns > 1 else rows


def _integer(module: Module, value: int) -> str:
    name = f"@int.{value}"
    module.globals[name] = f"{name} = private constant i32 {value}"
    return name


def _letter(module: Module, letter: str) -> str:
    name = f"@letter.{letter}"
    module.globals[name] = f"{name} = private constant i8 {ord(letter)}"
    return name


def _number(module: Module, value: float, dtype: str) -> str:
    name = f"@number.{dtype}.{str(value).replace('-', 'm').replace('+', 'p')}"
    module.globals[name] = f"{name} = private constant {element_type(dtype)} {literal(value, dtype).name}"
    return name
