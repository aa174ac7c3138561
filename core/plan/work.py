"""The work of one call of a kernel: operations and bytes, for profiles and for the time between two polls."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from core.ir.precision import HALVES
from core.ops.common.types import as_dtype
from core.plan.channel_lanes import ChannelLanes
from core.plan.covering import Covering
from core.plan.filter_sums import FilterSums
from core.plan.geometry import Correlation, Pool
from core.plan.growing import ArrayWork
from core.plan.instructions import Gather, Gemm, Instruction, Interpreted, Kernel, Limited, Rows, ScatterAdd
from core.plan.memory import View
from core.plan.patches import Patches
from core.plan.striped import Striped
from core.plan.systems import System
from core.plan.winograd import Winograd, WinogradSums

__all__ = ["Work", "work_of"]

FREE = frozenset({"cast", "where"})


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one call.

    kernel: its kind and sizes, as text.
    flops:  operations; an elementary function counts as one.
    nbytes: bytes read and written, each array once.
    dtype:  of its arithmetic: 16-bit floats are widened, except in products that multiply them as they are.
    ops:    the ops of the core that are fused in it.
    """

    kernel: str
    flops: int
    nbytes: int
    dtype: str
    ops: tuple[str, ...] = ()


def work_of(each: Instruction) -> Work:
    """The work of an instruction that is no loop or branch; the most work if only the run tells how much it is."""
    if isinstance(each, Limited):
        return work_of(each.instruction)
    if isinstance(each, Rows):
        return _rows(each)
    if isinstance(each, Gemm):
        *batch, m, n = each.c.shape
        k = each.a.shape[-1]
        flops = 2 * math.prod(batch) * m * n * k
        views = (each.a, each.b, *((each.c,) if each.kept else ()), *((each.c,) if each.accumulate else ()))
        work = Work(f"product {_by(batch, m, k, n)}", flops, _bytes(*views), each.a.dtype)
        if each.then is None:
            return work
        own = _bytes(each.c) * sum(v.root is each.c.root for v in each.then.views)  # the epilogue reads it in registers
        more = _rows(each.then)
        flops += math.prod(batch) * more.flops
        return replace(work, flops=flops, nbytes=work.nbytes + _bytes(*each.then.views) - own, ops=more.ops)
    if isinstance(each, Gather):
        return Work(f"gather {_by(each.out.shape)}", 0, 2 * _bytes(each.out) + _bytes(each.index), each.out.dtype)
    if isinstance(each, ScatterAdd):
        outer, _, inner = each.x.shape
        added = (outer, each.index.shape[0], inner)
        count = math.prod(added)
        nbytes = 2 * count * as_dtype(each.x.dtype).itemsize + _bytes(each.index, each.out)
        return Work(f"scatter_add {_by(added)}", count, nbytes, each.x.dtype)
    if isinstance(each, Interpreted):
        op, out = each.block.ops[0], each.views[-1]
        return Work(f"interpreted {op.type}", 0, _bytes(*each.views), out.dtype, (op.type,))
    if isinstance(each, Striped):
        return _striped(each)
    if isinstance(each, ArrayWork):
        stack = each.target.stack if each.target is not None else None
        return Work("tensor array", 0, 2 * stack.slot_bytes if stack is not None else 0, "")
    assert isinstance(each, Kernel), each
    out = each.views[-each.written]
    given = each.spec.given if isinstance(each.spec, Correlation) else ""
    return Work(f"{each.kind} {_by(out.shape)}", _windows(each), _bytes(*each.views), given or _widened(out.dtype))


def _striped(each: Striped) -> Work:
    """The work of all instructions; arrays that exist for one stripe count no bytes."""
    domain, parts = each.domain, [work_of(part) for part in each.instructions]
    outer = [root for part in each.instructions for root in (*part.reads(), *part.writes()) if root not in each.inside]
    sizes = _by(domain.batch, domain.rows, domain.columns)
    ops = tuple(op for part in parts for op in part.ops)
    nbytes = sum(root.nbytes for root in dict.fromkeys(outer))
    dtype = next((part.dtype for part in parts if part.dtype in HALVES), parts[0].dtype)
    return Work(f"stripes {sizes}", sum(part.flops for part in parts), nbytes, dtype, ops)


def _widened(dtype: str) -> str:
    return "float32" if dtype in HALVES else dtype


def _rows(each: Rows) -> Work:
    kernel = each.kernel
    kernels = [kernel, *(rows.made.kernel for rows in kernel.merged if rows.made)]
    flops = sum(
        part.rows * (part.inner if instr.full or instr.kind in ("reduce", "accumulate") else 1)
        for part in kernels
        for instr in part.code
        if instr.kind in ("apply", "reduce", "accumulate") and instr.op not in FREE
    )
    nbytes = 0
    for part in kernels:
        for operand in part.operands:
            rows = math.prod(size for size, stride in zip(part.outer, operand.outer, strict=True) if stride)
            nbytes += rows * (part.inner if operand.inner else 1) * as_dtype(operand.dtype).itemsize
    dtypes = [o.dtype for o in kernel.operands]
    dtype = next((d for d in dtypes if "float" in d), dtypes[0] if dtypes else "float32")
    return Work(f"rows {_by(kernel.outer, kernel.inner)}", flops, nbytes, _widened(dtype), each.ops)


def _windows(each: Kernel) -> int:
    """Two operations for each element of each convolved window; one for each element of each pooled window. The usual
    counts of LAPACK's routines for factorisations."""
    spec = each.spec
    if isinstance(spec, Correlation | FilterSums | ChannelLanes | Patches):
        return spec.work
    if isinstance(spec, Covering):
        return spec.planes * math.prod(spec.windows.size) * spec.over
    if isinstance(spec, Winograd):
        return spec.conv.work
    if isinstance(spec, WinogradSums):
        return spec.squares.conv.work
    if isinstance(spec, System):
        return spec.flops
    if isinstance(spec, Pool):
        return spec.planes * math.prod(spec.kernel) * math.prod(spec.counts)
    return 0


def _bytes(*views: View) -> int:
    """Bytes of all views; elements that a view repeats count once."""
    return sum(
        math.prod(n for n, stride in zip(v.shape, v.strides, strict=True) if stride) * as_dtype(v.dtype).itemsize
        for v in views
    )


def _by(*sizes: object) -> str:
    flat = [n for each in sizes for n in (each if isinstance(each, tuple | list) else (each,))]
    return " x ".join(map(str, flat))
