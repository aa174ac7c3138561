"""Products of matrices by the BLAS that SciPy ships, called through its address."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

from core.codegen.llvm import Function, Value
from core.plan.data import Gemm, View

if TYPE_CHECKING:
    from core.codegen.step import Module

__all__ = ["address_of", "call"]

ROUTINES = {"float32": "sgemm", "float64": "dgemm"}


@cache
def address_of(routine: str) -> int:
    """The address of a BLAS routine with Fortran's calling convention."""
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__[routine]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer(capsule, name(capsule)))


def call(module: Module, f: Function, each: Gemm, a: Value, b: Value, c: Value) -> None:
    """One product, of the matrices at these addresses."""
    routine = ROUTINES[each.c.dtype]
    module.symbols[routine] = address_of(routine)
    f.declarations.add(f"declare void @{routine}({', '.join(['ptr'] * 13)})")
    views = (each.a, each.b, each.c)
    if views[2].strides[-1] != 1 and views[2].shape[-1] != 1:  # a result stored by columns: the product transposed
        views = (_turned(views[1]), _turned(views[0]), _turned(views[2]))
        a, b = b, a
    (m, k), n = views[0].shape[-2:], views[1].shape[-1]
    # Fortran sees the transposed arrays: C' = B' A'
    how_b, step_b = _layout(views[1])
    how_a, step_a = _layout(views[0])
    _, step_c = _layout(views[2])
    one = _number(module, each.scale, each.c.dtype)
    zero = _number(module, 1.0 if each.accumulate else 0.0, each.c.dtype)
    numbers = {name: _integer(module, value) for name, value in
               {"m": m, "n": n, "k": k, "a": step_a, "b": step_b, "c": step_c}.items()}  # fmt: skip
    args = [
        _letter(module, how_b), _letter(module, how_a), numbers["n"], numbers["m"], numbers["k"], one,
        b.name, numbers["b"], a.name, numbers["a"], zero, c.name, numbers["c"],
    ]  # fmt: skip
    f.do(f"call void @{routine}({', '.join(f'ptr {x}' for x in args)})")


def _turned(view: View) -> View:
    shape, strides = view.shape, view.strides
    return View(view.root, view.dtype, (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2]))


def _layout(view: View) -> tuple[str, int]:
    """Fortran's letter for the transposed view of a row-major matrix, and the distance of its rows or columns."""
    (rows, columns), (down, along) = view.shape[-2:], view.strides[-2:]
    if columns == 1 or along == 1:
        if columns == 1 and rows > 1 and down == 1:
            return "N", 1
        if columns == 1 and along != 1:
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
    from core.codegen.llvm import element_type, literal

    name = f"@number.{dtype}.{str(value).replace('-', 'm').replace('+', 'p')}"
    module.globals[name] = f"{name} = private constant {element_type(dtype)} {literal(value, dtype).name}"
    return name
