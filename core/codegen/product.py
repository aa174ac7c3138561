"""The function for one shape of matrix product.

Packed panels (`packed_parts`), unpacked tiles (`gemm`), a few rows (`gemv`), or the `blas`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.codegen import blas
from core.codegen.gemm import gemm_function, product_of
from core.codegen.gemv import gemv_function, gemv_of
from core.codegen.image_panels import ImageColumns
from core.codegen.llvm import Function, IRValue
from core.codegen.module import Module
from core.codegen.packed_gemm import PackedGemm, packed_gemm_of
from core.codegen.packed_parts import packed_gemm_function
from core.codegen.polling import product_polls
from core.ir.errors import InternalError
from core.plan.instructions import Gemm
from core.plan.memory import View, is_matrix

__all__ = ["ProductFunction", "batch_addresses", "packed_function", "product_function", "window_product"]


@dataclass(frozen=True, slots=True)
class ProductFunction:
    """``name(a, b, c, [operands of `then`...,] [stop,] first, end)`` for the parts from `first` to `end` of the result.

    parts: all parts of the result.
    unit:  parts in the smallest share of a thread.
    polls: whether it takes the address of the stop word.
    bands: arrays of partial results for each sum over rows.
    """

    name: str
    parts: int
    unit: int
    polls: bool
    bands: int = 1


def product_function(module: Module, each: Gemm, threads: int = 1, vanishes: bool = False) -> ProductFunction:
    """The function for a product, which `threads` share. Its parts are panels or blocks of columns, or rows.

    vanishes: whether it takes denormal numbers for zero (`denormals`).

    Raises InternalError for matrices with gaps inside of rows and columns: a kernel would write to other memory.
    """
    for view in (each.a, each.b, each.c):
        if not is_matrix(view):
            raise InternalError(f"no kernel multiplies matrices of {view}")
    (rows, k), n = each.a.shape[-2:], each.b.shape[-1]
    polls = product_polls(rows, n, k)
    packed = packed_gemm_of(each, threads)
    if packed is not None:
        return packed_function(module, replace(packed, vanishes=vanishes))
    if each.then is not None:
        raise InternalError(f"only a packed product has an epilogue, and a product into {each.c} is not packed")
    few = gemv_of(each)
    if few is not None:
        few = replace(few, vanishes=vanishes)
        name = module.function(few, "gemv", lambda name: gemv_function(name, few))
        return ProductFunction(name, few.parts, 1, polls)
    product = product_of(each)
    if product is not None:
        product = replace(product, vanishes=vanishes)
        name = module.function(product, "gemm", lambda name: gemm_function(name, product))
        return ProductFunction(name, product.parts, product.unit, polls)
    shape = (each.a.shape[-2:], each.b.shape[-1], *(v.strides[-2:] for v in (each.a, each.b, each.c)))
    key = ("blas", shape, each.c.dtype, each.accumulate, vanishes)
    name = module.function(key, "blas", lambda name: blas.function(module, name, each, vanishes))
    return ProductFunction(name, rows, blas.unit(each), polls)


def packed_function(module: Module, packed: PackedGemm) -> ProductFunction:
    name = module.function(packed, "packed", lambda name: packed_gemm_function(module, name, packed))
    polls = product_polls(packed.m, packed.n, 2 * packed.k if packed.pairs else packed.k)
    return ProductFunction(name, packed.parts, 1, polls, packed.bands)


def window_product(each: Gemm, columns: ImageColumns) -> PackedGemm | None:
    """The product of a matrix and windows of images, if it packs them; b has the shape of their matrix.

    It is computed by one thread: all rows are one band, and windows are packed once.
    """
    packed = packed_gemm_of(each)
    packed = packed and replace(packed, columns=columns, least=1)
    return packed if packed and packed.image_panels and packed.image_panels.fits else None


def batch_addresses(f: Function, each: Gemm, addresses: list[IRValue], number: IRValue) -> list[IRValue]:
    """The addresses of the arrays of product `number` of a batch."""
    index: list[IRValue] = []
    left = number
    for size in reversed(each.c.shape[:-2]):
        index.insert(0, f.op(f"urem {left}, {size}", "int64"))
        left = f.op(f"udiv {left}, {size}", "int64")
    return [_moved(f, view, at, index) for view, at in zip(each.arrays, addresses, strict=True)]


def _moved(f: Function, view: View, at: IRValue, index: list[IRValue]) -> IRValue:
    for one, stride in zip(index, view.strides, strict=False):
        if stride:
            at = f.at(at, f.op(f"mul nsw {one}, {stride}", "int64"), view.dtype)
    return at
