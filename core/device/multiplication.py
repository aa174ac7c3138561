"""Large products as calls of a library between kernels: which products it takes, and how it sees them.

The library counts matrices by columns. An array in rows [m, n] is a matrix of n rows and m columns there, so that it
computes ``c^T = b^T a^T``: its left operand is b, its right one is a.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from core.codegen.llvm import itemsize
from core.ir.precision import HALVES
from core.plan.instructions import Gemm, Instruction, Rows
from core.plan.memory import View

__all__ = ["RESULTS", "Biased", "Matrix", "Multiplication", "Place", "biased", "multiplication_of", "place_in"]

RESULTS = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32",),
    "float64": ("float64",),
}
"""The dtypes that products of operands of each dtype may have. 16-bit results are rounded once, from float32 sums."""


@dataclass(frozen=True, slots=True)
class Place:
    """`offset` bytes behind the start of array number `given` of the caller, or of the arena if that is None."""

    given: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """Matrices in memory, column by column.

    leading: elements from column to column. step: from matrix to matrix. turned: whether the operand is the transpose.
    """

    place: Place
    rows: int
    columns: int
    leading: int
    step: int
    turned: bool


@dataclass(frozen=True, slots=True)
class Multiplication:
    """``out = left right``, or ``out += left right``, for `count` matrices.

    dtype, result: of the operands, and of out and the bias.
    bias: one number for each row of out, which is added; None adds nothing.
    tf32: whether float32 operands may be rounded to TF32.
    """

    dtype: str
    result: str
    left: Matrix
    right: Matrix
    out: Matrix
    count: int = 1
    accumulate: bool = False
    bias: Place | None = None
    tf32: bool = False

    @property
    def places(self) -> tuple[Place, ...]:
        """The operands as a call has their addresses: left, right, out, and the bias if there is one."""
        more = () if self.bias is None else (self.bias,)
        return (self.left.place, self.right.place, self.out.place, *more)


@dataclass(frozen=True, slots=True)
class Biased:
    """``out = c + bias`` for a product c [m, n]. bias: [n]."""

    bias: View
    out: View


def multiplication_of(
    each: Gemm, place: Callable[[View], Place | None], tf32: bool, then: Biased | None = None
) -> Multiplication | None:
    """The call for a product; None if its arrays have a layout that the library does not take.

    place: of the first element of an array; None if the host cannot know it.
    """
    dtype = each.a.dtype
    if each.b.dtype != dtype or each.c.dtype not in RESULTS.get(dtype, ()):
        return None
    results = each.c if then is None else then.out
    batch = results.shape[:-2]
    left, right, out = (_matrix(view, batch, place) for view in (each.b, each.a, results))
    count = math.prod(batch)
    if left is None or right is None or out is None or out.turned or (out.step == 0 and count > 1):
        return None
    bias = None if then is None else place(then.bias)
    if then is not None and bias is None:
        return None
    rounds = tf32 and dtype == "float32"
    return Multiplication(dtype, each.c.dtype, left, right, out, count, each.accumulate, bias, rounds)


def biased(each: Gemm, then: Instruction) -> Biased | None:
    """`then` as the sum of a product [m, n] and a row of n numbers, and nothing else; None if it is no such sum.

    A product in 16 bits is rounded before a bias is added to it.
    """
    if not isinstance(then, Rows) or each.accumulate or len(each.c.shape) != 2 or each.c.dtype in HALVES:
        return None
    kernel, (m, n) = then.kernel, each.c.shape
    kinds = [(instr.kind, instr.op, instr.full) for instr in kernel.code]
    loads = [("load", "", True)] * 2
    if kinds != [*loads, ("apply", "add", True), ("store", "", True)] or (kernel.outer, kernel.inner) != ((m,), n):
        return None
    first, second, _, store = (instr.operand for instr in kernel.code)
    if then.views[first].root is not each.c.root:
        first, second = second, first
    if any(then.views[i].dtype != each.c.dtype for i in (first, second, store)) or each.a.dtype != each.c.dtype:
        return None
    paths = [(kernel.operands[i].outer, kernel.operands[i].inner) for i in (first, second, store)]
    roots = {then.views[i].root for i in (first, second, store)}
    starts = then.views[first].root is each.c.root and then.views[first].offset == each.c.offset
    if not starts or len(roots) < 3 or paths != [((each.c.strides[0],), each.c.strides[1]), ((0,), 1), ((n,), 1)]:
        return None
    return Biased(then.views[second], replace(then.views[store], shape=(m, n), strides=(n, 1)))


def _matrix(view: View, batch: tuple[int, ...], place: Callable[[View], Place | None]) -> Matrix | None:
    step = _step(view, batch)
    at = place(view)
    if step is None or at is None:
        return None
    (p, q), (s, t) = view.shape[-2:], view.strides[-2:]
    if (t == 1 or q == 1) and (p == 1 or s >= q):
        return Matrix(at, q, p, s if p > 1 else q, step, turned=False)
    if (s == 1 or p == 1) and (q == 1 or t >= p):
        return Matrix(at, p, q, t if q > 1 else p, step, turned=True)
    return None


def _step(view: View, batch: tuple[int, ...]) -> int | None:
    """The elements from one matrix to the next; None if the matrices of `batch` are at no equal distance, or in
    descending order, of which the library says nothing.
    """
    if view.shape[:-2] != batch:
        return None
    axes = [(size, stride) for size, stride in zip(batch, view.strides, strict=False) if size > 1]
    if any(outer != inner * size for (_, outer), (size, inner) in pairwise(axes)):
        return None
    step = axes[-1][1] if axes else 0
    return step if step >= 0 else None


def place_in(view: View, given: int | None, start: int) -> Place:
    """The place of the first element of `view`. start: bytes from the start of the arena or array to its root."""
    return Place(given, start + view.offset * itemsize(view.dtype))
