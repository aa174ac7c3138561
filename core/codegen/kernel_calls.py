"""Calls of kernels in the step. A kernel is a function of the module; long ones run in chunks on several threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from core.codegen import kernels, parallel, rounded_scatter
from core.codegen.column_sums import summing_function
from core.codegen.gather_scatter import (
    adds_in_blocks,
    gather_function,
    gather_work,
    indexed_units,
    rounds,
    scatter_function,
    totals_bytes,
)
from core.codegen.llvm import I64, IRValue, itemsize, literal
from core.codegen.merged_operands import merged_scratch
from core.codegen.polling import is_long
from core.codegen.product import batch_addresses, product_function
from core.codegen.reductions import identity
from core.codegen.rows import rows_poll
from core.codegen.step_writer import StepWriter
from core.plan.instructions import Gather, Gemm, Instruction, Interpreted, Kernel, Limited, Rows, ScatterAdd
from core.plan.memory import View

__all__ = ["KernelCalls", "scratch_of"]

FILL_BYTES = 1 << 28
"""Bytes that are set to zero between two reads of the stop word."""


class KernelCalls(StepWriter):
    """Appends calls of kernels.

    loops:          the number of loops around the present instruction.
    others_scratch: bytes of scratch memory that belong to other threads.
    """

    loops = 0
    others_scratch = 0

    def rows(self, each: Rows, fresh: bool = True) -> None:
        name = summing_function(self.module, each.kernel)
        addresses = [self.address(v) for v in each.views]
        chunks = parallel.row_chunks(each.kernel, self.threads)
        stop = [self.stop_word()] if rows_poll(each.kernel) else []
        room, offset = merged_scratch(each.kernel), self.arena.size + self.others_scratch
        scratch = [self.f.at(self.f.param("arena"), I64(offset), "uint8")] if room else []
        self.module.scratch = max(self.module.scratch, self.others_scratch + room)
        if fresh:
            self.start_sums(each)
        if chunks == 1:
            arguments = ", ".join([*map(str, [*addresses, *stop, *scratch]), "i64 0", f"i64 {each.kernel.rows}"])
            self.f.do(f"call void @{name}({arguments})")
            return
        together, own = parallel.rows_apart(each.kernel, self.threads)
        chunks = min(chunks, each.kernel.rows // together)
        task = parallel.row_task(self.module, name, each, chunks, together, own)
        partials = []
        offset += chunks * room
        for operand in own:
            partials.append(self.f.at(self.f.param("arena"), I64(offset), "uint8"))
            offset += chunks * parallel.partial_bytes(each.views[operand])
        self.module.scratch = max(self.module.scratch, offset - self.arena.size)
        parallel.run(self.module, self.f, task, [*addresses, *stop, *scratch, *partials], chunks)
        for partial, (operand, op) in zip(partials, own.items(), strict=True):
            parallel.combine_partials(self.module, self.f, each.views[operand], op, addresses[operand], partial, chunks)

    def fill(self, view: View, number: IRValue) -> None:
        """Set all elements of a dense array to one number."""
        f = self.f
        size = int(np.prod(view.shape, dtype=np.int64))
        address = self.address(view)
        if size == 1:
            f.store(number, address)
        elif number.name in ("0", "false", literal(0, number.dtype).name):
            f.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
            nbytes = size * itemsize(view.dtype)
            if nbytes <= FILL_BYTES:
                f.do(f"call void @llvm.memset.p0.i64({address}, i8 0, i64 {nbytes}, i1 false)")
                return
            with f.loop(I64(0), I64(nbytes), FILL_BYTES, polls=True) as start:
                count = f.intrinsic("smin", f.binary("sub", I64(nbytes), start), I64(FILL_BYTES))
                f.do(f"call void @llvm.memset.p0.i64({f.at(address, start, 'uint8')}, i8 0, {count}, i1 false)")
        else:
            with f.loop(I64(0), I64(size), polls=True) as i:
                f.store(number, f.at(address, i, view.dtype))

    def limited(self, each: Limited) -> None:
        """Write the part of an instruction that the length of its arrays asks for."""
        f, inner = self.f, each.instruction
        length = f.load(self.address(each.length), "int64")
        if isinstance(inner, Rows):
            kernel, name = inner.kernel, summing_function(self.module, inner.kernel)
            elements = kernel.rows * kernel.inner // each.bound
            end = f.binary("add", f.binary("mul", length, I64(elements)), I64(kernel.inner - 1))
            end = f.op(f"udiv {end}, {kernel.inner}", "int64")
            has_sums = self.start_sums(inner)
            addresses = [*map(self.address, inner.views), *([self.stop_word()] if rows_poll(kernel) else [])]
            self.up_to(name, addresses, "", end, 1 if has_sums else parallel.row_chunks(kernel, self.threads))
        elif isinstance(inner, Gather):
            name = self.gather_function(inner)
            end = f.binary("mul", length, I64(indexed_units(inner) // each.bound))
            self.module.polls |= is_long(gather_work(inner))
            addresses = [*map(self.address, (inner.x, inner.index, inner.out)), self.error_word]
            self.up_to(name, addresses, f"i64 {inner.check}, ", end, parallel.indexed_chunks(inner, self.threads))
        elif isinstance(inner, Kernel):
            name, addresses, chunks, room = self.kernel_parts(inner)
            end = f.binary("add", f.binary("mul", length, I64(kernels.units(inner))), I64(each.bound - 1))
            end = f.op(f"udiv {end}, {each.bound}", "int64")
            self.up_to(name, addresses, f"i64 {inner.check}, ", end, chunks, room)
        else:
            self.blocks(each, inner, length)

    def up_to(self, name: str, addresses: list[IRValue], more: str, end: IRValue, chunks: int, room: int = 0) -> None:
        """Write calls of ``name(addresses..., more, first, end)`` for the units before `end`.

        room: bytes of scratch memory of each chunk, at the last address.
        """
        f = self.f
        if chunks == 1:
            f.do(f"call void @{name}({', '.join(map(str, addresses))}, {more}i64 0, {end})")
            return
        word = f.slot("int64")
        f.write(end, word)
        task = parallel.limited_task(self.module, name, len(addresses), more, chunks, room)
        parallel.run(self.module, f, task, [*addresses, word], chunks)

    def blocks(self, each: Limited, whole: Gemm, length: IRValue) -> None:
        """Write a product of as many blocks of rows, or of terms of its sums, as the length asks for."""
        f, by_rows = self.f, each.along == "rows"
        if not by_rows and not whole.accumulate:
            self.fill(whole.c, literal(0, whole.c.dtype))
        views = (whole.a, whole.b, whole.c)
        axes = (0, None, 0) if by_rows else (1, 0, None)
        bases = [self.address(v) for v in views]
        rows = each.block
        steps = [0 if axis is None else v.strides[axis] * rows for v, axis in zip(views, axes, strict=True)]
        a, b, c = (
            replace(v, shape=tuple(rows if i == axis else n for i, n in enumerate(v.shape)))
            for v, axis in zip(views, axes, strict=True)
        )
        block = Gemm(a, b, c, accumulate=whole.accumulate or not by_rows, location=whole.location)
        count = f.op(f"udiv {f.binary('add', length, I64(rows - 1))}, {rows}", "int64")
        ends = [None if v is None else self.address(v) for v in (*each.last, None)]
        with f.loop(I64(0), count) as i:
            parted = f.compare("icmp eq", i, f.op(f"udiv {length}, {rows}", "int64"))
            addresses = []
            for view, base, step, end in zip(views, bases, steps, ends, strict=True):
                at = f.at(base, f.binary("mul", i, I64(step)), view.dtype) if step else base
                addresses.append(at if end is None else f.select(parted, end, at))
            self.gemm(block, addresses)

    def gemm(self, each: Gemm, addresses: list[IRValue] | None = None) -> None:
        """Write a product. addresses: of its matrices, if they are not those of its views."""
        function = product_function(self.module, each, self.threads, self.loops > 0)
        if addresses is None:
            addresses = [self.address(v) for v in each.arrays]
        sums = self.sums_of_bands(each, function.bands, addresses)
        batch = int(np.prod(each.c.shape[:-2], dtype=np.int64))
        chunks = parallel.product_chunks(each, function, self.threads)
        f, all_parts = self.f, f"i64 0, i64 {function.parts}"
        stop = [self.stop_word()] if function.polls else []
        if chunks > 1 and batch == 1:
            task = parallel.product_task(self.module, function, each, chunks)
            parallel.run(self.module, f, task, [*addresses, *stop], chunks)
        elif chunks > 1:
            task = parallel.batch_task(self.module, function, each, chunks)
            parallel.run(self.module, f, task, [*addresses, self.stop_word()], chunks)
        elif batch == 1:
            f.do(f"call void @{function.name}({', '.join(map(str, [*addresses, *stop]))}, {all_parts})")
        else:
            with f.loop(I64(0), I64(batch), polls=True) as i:
                moved = batch_addresses(f, each, addresses, i)
                f.do(f"call void @{function.name}({', '.join(map(str, [*moved, *stop]))}, {all_parts})")
        for view, op, target, partials in sums:
            parallel.combine_partials(self.module, f, view, op, target, partials, function.bands)

    def sums_of_bands(
        self, each: Gemm, bands: int, addresses: list[IRValue]
    ) -> list[tuple[View, str, IRValue, IRValue]]:
        """The sums over rows in a product's epilogue: (array, op, address of the result, address of the bands' sums).

        The address of the bands' sums replaces that of the array in `addresses`; the caller combines them afterwards.
        """
        found: list[tuple[View, str, IRValue, IRValue]] = []
        if each.then is None or bands == 1:
            return found
        offset = self.arena.size
        for instr in each.then.kernel.code:
            if instr.kind != "accumulate":
                continue
            view, at = each.then.views[instr.operand], 3 + instr.operand
            self.fill(view, identity(instr.op, instr.dtype))
            partials = self.f.at(self.f.param("arena"), I64(offset), "uint8")
            offset += bands * parallel.partial_bytes(view)
            found.append((view, instr.op, addresses[at], partials))
            addresses[at] = partials
        self.module.scratch = max(self.module.scratch, offset - self.arena.size)
        return found

    def gather(self, each: Gather) -> None:
        self._indexed(self.gather_function(each), each)

    def gather_function(self, each: Gather) -> str:
        key = ("gather", each.x.shape, each.x.strides, each.out.shape, each.x.dtype, each.index.dtype)
        return self.module.function(key, "gather", lambda name: gather_function(name, each))

    def scatter(self, each: ScatterAdd) -> None:
        rows = (each.rows.dtype, each.rows_check) if each.rows is not None else ()
        dtypes = each.x.dtype, each.index.dtype, each.out.dtype
        key = ("scatter", each.op, each.x.shape, each.index.shape, each.out.shape, *dtypes, rows)
        if rounds(each):
            if rounded_scatter.is_sparse(each):
                self.fill(each.out, literal(0, each.out.dtype))
            name = self.module.function(key, "scatter", lambda name: rounded_scatter.sum_function(name, each))
            self._indexed(name, each, [self._lists(each)])
            return
        self.fill(each.out, identity(each.op, each.out.dtype))
        name = self.module.function(key, "scatter", lambda name: scatter_function(name, each))
        self._indexed(name, each, [self._scratch(each)] if adds_in_blocks(each) else [])

    def _lists(self, each: ScatterAdd) -> IRValue:
        """Write the lists of the rows that a scatter adds up; their address."""
        key = ("lists", each.index.shape, each.out.shape[1], each.index.dtype)
        name = self.module.function(key, "lists", lambda name: rounded_scatter.list_function(name, each))
        lists = self._scratch(each)
        given = self.address(each.index), self.error_word, lists, I64(each.check)
        self.f.do(f"call void @{name}({', '.join(map(str, given))})")
        if is_long(rounded_scatter.list_work(each)):
            self.poll()  # the sums use the lists as positions
        return lists

    def _scratch(self, each: ScatterAdd) -> IRValue:
        """The address of the scratch memory of a scatter."""
        self.module.scratch = max(self.module.scratch, self.others_scratch + scratch_of(each))
        return self.f.at(self.f.param("arena"), I64(self.arena.size + self.others_scratch), "uint8")

    def _indexed(self, name: str, each: Gather | ScatterAdd, more: Iterable[IRValue] = ()) -> None:
        self.module.polls |= is_long(gather_work(each))
        addresses = [*map(self.address, (each.x, each.index, each.out)), self.error_word]
        if isinstance(each, ScatterAdd) and each.rows is not None:
            addresses.append(self.address(each.rows))
        addresses += more
        units, chunks = indexed_units(each), parallel.indexed_chunks(each, self.threads)
        if chunks > 1:
            task = parallel.range_task(self.module, name, len(addresses), each.check, units, chunks)
            parallel.run(self.module, self.f, task, addresses, chunks)
        else:
            self.f.do(f"call void @{name}({', '.join(map(str, addresses))}, i64 {each.check}, i64 0, i64 {units})")

    def interpreted(self, each: Interpreted) -> None:
        f = self.f
        addresses = f.fresh("addresses")
        f.top.append(f"  {addresses} = alloca [{len(each.arrays)} x ptr], align 16")
        for i, view in enumerate(each.arrays):
            f.store(self.address(view), f.at(IRValue(addresses, "ptr"), I64(i), "ptr"))
        callback = f.load(self.control("callback"), "ptr")
        f.do(f"call void {callback.name}(i64 {each.number}, ptr {addresses})")

    def kernel(self, each: Kernel) -> None:
        name, addresses, chunks, _ = self.kernel_parts(each)
        if chunks > 1:
            task = parallel.kernel_task(self.module, name, each, chunks)
            parallel.run(self.module, self.f, task, addresses, chunks)
        else:
            units = f"i64 {each.check}, i64 0, i64 {kernels.units(each)}"
            self.f.do(f"call void @{name}({', '.join(map(str, addresses))}, {units})")

    def kernel_parts(self, each: Kernel) -> tuple[str, list[IRValue], int, int]:
        """The function of a kernel, its arguments, the number of chunks, and the bytes of scratch memory of each."""
        name = self.module.function(
            (each.kind, each.spec, len(each.views)),
            each.kind,
            lambda name: kernels.kernel_function(self.module, name, each),
        )
        addresses = [*map(self.address, each.views), self.error_word]
        room = kernels.scratch_bytes(each)
        self.module.polls |= is_long(kernels.work(each))
        chunks = parallel.kernel_chunks(each, self.threads)
        if room:
            addresses.append(self.f.at(self.f.param("arena"), I64(self.arena.size + self.others_scratch), "uint8"))
            self.module.scratch = max(self.module.scratch, self.others_scratch + chunks * room)
        return name, addresses, chunks, room


def scratch_of(each: Instruction) -> int:
    """The scratch memory that one thread needs for an instruction."""
    if isinstance(each, Kernel):
        return kernels.scratch_bytes(each)
    if isinstance(each, Rows):
        return merged_scratch(each.kernel)
    if not isinstance(each, ScatterAdd):
        return 0
    if rounds(each):
        return rounded_scatter.list_bytes(each)
    return totals_bytes(each) if adds_in_blocks(each) else 0
