"""Kernels in parallel: chunks of rows, of parts of a product, of the products of a batch, or of other units of work.

The number of chunks depends on shapes and on the number of threads of the pool, not on which thread runs what, and the
sums of chunks are added in the order of the chunks. So a step gives the same bits every time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from core.codegen.gather_scatter import gather_work, indexed_units, rounds
from core.codegen.kernels import scratch_bytes, units, work
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.machine import lanes
from core.codegen.merged_operands import merged_scratch
from core.codegen.module import Module
from core.codegen.packed_gemm import sums_bytes
from core.codegen.product import ProductFunction, batch_addresses
from core.codegen.reductions import combine, identity
from core.codegen.rows import row_cost, rows_poll
from core.plan.instructions import Gather, Gemm, Kernel, Rows, ScatterAdd
from core.plan.memory import View
from core.plan.row_kernels import RowKernel

__all__ = [
    "batch_task",
    "choice_task",
    "combine_partials",
    "indexed_chunks",
    "kernel_chunks",
    "kernel_task",
    "limited_task",
    "partial_bytes",
    "product_chunks",
    "product_task",
    "range_task",
    "row_chunks",
    "row_task",
    "rows_apart",
    "run",
]

LONG = 400_000
"""Fewest element operations of a row kernel that runs in parallel: some ten microseconds. A fork costs one or two."""

LONG_PRODUCT = 1_000_000
"""Fewest floating-point operations of a product that runs in parallel: some ten microseconds."""

FEW = 4
"""Rows or columns of a product up to which it takes as long as with so many: its larger operand is read once."""


def row_chunks(kernel: RowKernel, threads: int) -> int:
    """The number of chunks of a row kernel."""
    if threads == 1 or kernel.rows == 1 or kernel.rows * kernel.inner * row_cost(kernel) < LONG:
        return 1
    return min(kernel.rows, 4 * threads)


def rows_apart(kernel: RowKernel, threads: int) -> tuple[int, dict[int, str]]:
    """How many adjacent rows a chunk takes together, and the operands that chunks add to in sums of their own.

    An array whose elements belong to one position of the leading axes needs no such sums if no two chunks share a
    position. Returns the operands with the reductions of their sums.
    """
    sums = {i.operand: i.op for i in kernel.code if i.kind == "accumulate"}
    depths = {operand: _own_axes(kernel, operand) for operand in sums}
    groups = {operand: math.prod(kernel.outer[:depth]) for operand, depth in depths.items()}
    least = min((n for n in groups.values() if n >= 2 * threads), default=0)
    if not least:
        return 1, sums
    return kernel.rows // least, {operand: op for operand, op in sums.items() if groups[operand] < least}


def _own_axes(kernel: RowKernel, operand: int) -> int:
    """The number of leading axes along which an operand's elements are others for every position."""
    strides, sizes = kernel.operands[operand].outer, kernel.outer
    for depth in range(len(sizes), 0, -1):
        leading = sorted((s, n) for s, n in zip(strides[:depth], sizes[:depth], strict=True) if n > 1)
        within = zip(strides[depth:], sizes[depth:], strict=True)
        reach = 1 + kernel.operands[operand].inner * (kernel.inner - 1) + sum(s * (n - 1) for s, n in within)
        for stride, size in leading:
            if stride < reach:
                break
            reach += stride * (size - 1)
        else:
            return depth
    return 0


def product_chunks(each: Gemm, function: ProductFunction, threads: int) -> int:
    """The number of chunks of a product or of a batch of products."""
    batch = int(np.prod(each.c.shape[:-2], dtype=np.int64))
    (m, k), n = each.a.shape[-2:], each.b.shape[-1]
    work = 2 * batch * max(m, FEW) * max(n, FEW) * k
    if threads == 1 or work < LONG_PRODUCT:
        return 1
    if batch > 1:
        return min(batch, 4 * threads)
    return min(-(-function.parts // function.unit), threads if work < 5 * LONG_PRODUCT else 4 * threads)


def kernel_chunks(each: Kernel, threads: int) -> int:
    """The number of chunks of another kernel."""
    if threads == 1 or work(each) < LONG_PRODUCT:
        return 1
    return min(units(each), 4 * threads)


def indexed_chunks(each: Gather | ScatterAdd, threads: int) -> int:
    """The number of chunks of a gather or scatter. Every chunk of a scatter in place reads the whole index."""
    if threads == 1 or gather_work(each) < LONG_PRODUCT:
        return 1
    return min(indexed_units(each), 4 * threads if isinstance(each, Gather) or rounds(each) else threads)


def run(module: Module, f: Function, task: str, addresses: list[IRValue], chunks: int) -> None:
    """Write a call that runs all chunks of `task` on the pool. addresses: the context of the task."""
    f.declarations |= {"declare void @parallel_for(ptr, ptr, ptr, i64)"}
    module.globals["@backpass_pool"] = "@backpass_pool = external global i8"
    module.uses_threads = True
    context = f.fresh("context")
    f.top.append(f"  {context} = alloca [{len(addresses)} x ptr], align 16")
    for i, address in enumerate(addresses):
        f.store(address, f.at(IRValue(context, "ptr"), I64(i), "ptr"))
    f.do(f"call void @parallel_for(ptr @backpass_pool, ptr @{task}, ptr {context}, i64 {chunks})")


def row_task(module: Module, name: str, each: Rows, chunks: int, together: int, own: Mapping[int, str]) -> str:
    """A task that runs row function `name` on a chunk of the rows. together, own: see `rows_apart`.

    Its context: the arrays, the stop word if the function polls, the scratch memory if it has some, the partial
    results.
    """

    def make(task: str) -> Function:
        f = _task(task)
        chunk = f.param("chunk")
        given, room = len(each.views) + rows_poll(each.kernel), merged_scratch(each.kernel)
        addresses = [_context(f, i) for i in range(given)]
        if room:
            addresses.append(f.at(_context(f, given), f.op(f"mul nsw {chunk}, {room}", "int64"), "uint8"))
            given += 1
        for number, (operand, op) in enumerate(own.items()):
            view = each.views[operand]
            base = _context(f, given + number)
            partial = f.at(base, f.op(f"mul nsw {chunk}, {partial_bytes(view)}", "int64"), "uint8")
            with f.loop(I64(0), I64(_size(view))) as i:
                f.store(identity(op, view.dtype), f.at(partial, i, view.dtype))
            addresses[operand] = partial
        first, end = _share(f, chunk, each.kernel.rows // together, chunks)
        if together > 1:
            first, end = (f.op(f"mul nsw {at}, {together}", "int64") for at in (first, end))
        f.do(f"call void @{name}({', '.join(map(str, [*addresses, first, end]))})")
        return f

    return module.function(("task", name, chunks), "task", make)


def product_task(module: Module, function: ProductFunction, each: Gemm, chunks: int) -> str:
    """A task that computes a chunk of the parts of a product: whole units, except for the last chunk."""

    def make(task: str) -> Function:
        f = _task(task)
        parts, unit = function.parts, function.unit
        first, end = _share(f, f.param("chunk"), -(-parts // unit), chunks)
        first = f.op(f"mul nsw {first}, {unit}", "int64")
        end = f.intrinsic("smin", f.op(f"mul nsw {end}, {unit}", "int64"), I64(parts))
        given = len(each.arrays) + function.polls
        addresses = [_context(f, i) for i in range(given)]
        f.do(f"call void @{function.name}({', '.join(map(str, [*addresses, first, end]))})")
        return f

    return module.function(("task", function.name, chunks), "task", make)


def batch_task(module: Module, function: ProductFunction, each: Gemm, chunks: int) -> str:
    """A task that computes a chunk of the products of a batch. Its context: the arrays, the stop word."""

    def make(task: str) -> Function:
        f = _task(task)
        given = [_context(f, i) for i in range(len(each.arrays))]
        f.stop = _context(f, len(given))
        batch = int(np.prod(each.c.shape[:-2], dtype=np.int64))
        with f.loop(*_share(f, f.param("chunk"), batch, chunks), polls=True) as number:
            moved = batch_addresses(f, each, given, number)
            if function.polls:
                moved.append(f.stop)
            f.do(f"call void @{function.name}({', '.join(map(str, moved))}, i64 0, i64 {function.parts})")
        return f

    strides = tuple(v.strides for v in each.arrays)
    return module.function(("batch", function.name, each.c.shape, strides, chunks), "task", make)


def kernel_task(module: Module, name: str, each: Kernel, chunks: int) -> str:
    """A task that runs kernel `name` on a chunk of its units. Each chunk has its own scratch memory."""

    def make(task: str) -> Function:
        f = _task(task)
        chunk, room = f.param("chunk"), scratch_bytes(each)
        addresses = [_context(f, i) for i in range(len(each.views) + 1)]
        if room:
            scratch = _context(f, len(each.views) + 1)
            addresses.append(f.at(scratch, f.op(f"mul nsw {chunk}, {room}", "int64"), "uint8"))
        first, end = _share(f, chunk, units(each), chunks)
        f.do(f"call void @{name}({', '.join(map(str, [*addresses, I64(each.check), first, end]))})")
        return f

    return module.function(("task", name, chunks, each.check), "task", make)


def limited_task(module: Module, name: str, addresses: int, more: str, chunks: int, room: int = 0) -> str:
    """A task that runs ``name(addresses..., more, first, end)`` on a chunk of the units.

    Its context: the arrays, and the address of the number of units, which only the run tells.
    room: bytes of the scratch memory of a chunk, which the last of the addresses has for all of them.
    """

    def make(task: str) -> Function:
        f = _task(task)
        given = [_context(f, i) for i in range(addresses)]
        total, chunk = f.load(_context(f, addresses), "int64"), f.param("chunk")
        if room:
            given[-1] = f.at(given[-1], f.op(f"mul nsw {chunk}, {room}", "int64"), "uint8")
        ends = (chunk, f.binary("add", chunk, I64(1)))
        first, end = (f.op(f"udiv {f.binary('mul', each, total)}, {chunks}", "int64") for each in ends)
        f.do(f"call void @{name}({', '.join(map(str, given))}, {more}{first}, {end})")
        return f

    return module.function(("limited", name, chunks, more, room), "task", make)


def range_task(module: Module, name: str, addresses: int, check: int, units: int, chunks: int) -> str:
    """A task that runs ``name(addresses..., check, first, end)`` on a chunk of the units."""

    def make(task: str) -> Function:
        f = _task(task)
        given = [_context(f, i) for i in range(addresses)]
        first, end = _share(f, f.param("chunk"), units, chunks)
        f.do(f"call void @{name}({', '.join(map(str, [*given, I64(check), first, end]))})")
        return f

    return module.function(("range", name, chunks, check), "task", make)


def choice_task(module: Module, names: list[str], arguments: int) -> str:
    """A task whose chunk i runs function ``names[i](arguments...)``. Its context: the arguments."""

    def make(task: str) -> Function:
        f = _task(task)
        given = ", ".join(map(str, [_context(f, i) for i in range(arguments)]))
        for number, name in enumerate(names):
            with f.when(f.compare("icmp eq", f.param("chunk"), I64(number))):
                f.do(f"call void @{name}({given})")
        return f

    return module.function(("choice", *names), "task", make)


def partial_bytes(view: View) -> int:
    """Bytes for the sums of one chunk."""
    return sums_bytes(_size(view), view.dtype)


def combine_partials(
    module: Module, f: Function, view: View, op: str, target: IRValue, partials: IRValue, chunks: int
) -> None:
    """Add the partial results of the chunks to `target`, in the order of the chunks."""
    size, dtype = _size(view), view.dtype

    def make(name: str) -> Function:
        g = Function(name, [("target", "ptr"), ("partials", "ptr")])
        width = min(lanes(dtype), size)
        while width & (width - 1):
            width &= width - 1
        whole = size // width * width
        for start, end, step in ((0, whole, width), (whole, size, 1)):
            if start == end:
                continue
            with g.loop(I64(start), I64(end), step) as i:
                total = g.load(g.at(g.param("target"), i, dtype), dtype, step)
                for chunk in range(chunks):
                    base = g.at(g.param("partials"), I64(chunk * partial_bytes(view)), "uint8")
                    total = combine(g, op, total, g.load(g.at(base, i, dtype), dtype, step))
                g.store(total, g.at(g.param("target"), i, dtype))
        return g

    name = module.function(("combine", op, dtype, size, chunks), "combine", make)
    f.do(f"call void @{name}({target}, {partials})")


def _task(name: str) -> Function:
    return Function(name, [("context", "ptr"), ("chunk", "int64")], noalias=False)


def _context(f: Function, number: int) -> IRValue:
    return f.load(f.at(f.param("context"), I64(number), "ptr"), "ptr")


def _share(f: Function, chunk: IRValue, total: int, chunks: int) -> tuple[IRValue, IRValue]:
    """The share of `total` units that belongs to a chunk: the first unit, and the one after the last."""
    following = f.binary("add", chunk, I64(1))
    first, end = (f.op(f"udiv {f.op(f'mul nuw {c}, {total}', 'int64')}, {chunks}", "int64") for c in (chunk, following))
    return first, end


def _size(view: View) -> int:
    return int(np.prod(view.shape, dtype=np.int64))
