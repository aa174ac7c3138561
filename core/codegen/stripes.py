"""Stripes: a chain of products and row kernels for some rows of a matrix after another (see `core.plan.stripes`).

The matrices of a batch are shared among the threads. Arrays that exist for one stripe lie in scratch memory, which each
chunk has for itself. A product that sums over rows adds the sums of one stripe after another, in the order of the rows.
If the batch is too small for the threads, parts of a matrix have sums of their own, which are added at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from core.codegen import parallel
from core.codegen.column_windows import columns_of, is_moderate
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.module import Module
from core.codegen.polling import is_long, stop_of
from core.codegen.product import product_function
from core.codegen.rows import row_function, rows_poll, window_function
from core.codegen.step_writer import StepWriter
from core.codegen.stripe_parts import arrays_of, start_sums, write_together
from core.codegen.vector_slices import fill_zeros, move, unravel
from core.plan.arena import fit
from core.plan.instructions import Gemm, Rows
from core.plan.memory import Root, View, contiguous
from core.plan.row_kernels import RowKernel
from core.plan.striped import Striped, StripedProduct
from core.plan.work import work_of

__all__ = ["write_striped"]

LONG = 1_000_000
"""Fewest operations of stripes that run in parallel."""

PERIOD, GAP = 2048, 64
"""Rows of a stripe whose distance is a multiple of `PERIOD` bytes would share few sets of a cache: they get a gap."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Scratch memory: the offset of each array of a stripe, elements from row to row, bytes in all.

    addresses: the arrays outside, each once, by root and offset in elements.
    parts:     parts of a matrix, each with its own sums of the products that all stripes add to.
    whole:     whether a unit of work is a matrix, or a part of one; else it is a stripe.
    """

    offsets: dict[Root, int]
    pitch: dict[Root, int]
    nbytes: int
    addresses: dict[tuple[Root, int], View]
    parts: int
    whole: bool


def write_striped(step: StepWriter, each: Striped) -> None:
    """Write the call of a `Striped` instruction into the step."""
    if each.shared:
        write_together(step, each, lambda view, _: replace(view.root), meet=lambda: None)
        return
    start_sums(step, each)
    module, f = step.module, step.f
    layout = _layout(step, each)
    units = each.domain.batch * (layout.parts if layout.whole else _stripes(each))
    chunks = 1 if step.threads == 1 or work_of(each).flops < LONG else min(units, 2 * step.threads)
    name = f"stripes{len(module.functions)}"
    module.functions.append(_function(module, name, each, layout))
    module.polls |= is_long(work_of(each).flops)
    scratch = f.at(f.param("arena"), I64(step.arena.size), "uint8")
    addresses = {key: step.address(view) for key, view in layout.addresses.items()}
    end = chunks * layout.nbytes
    partials: list[tuple[View, IRValue, IRValue]] = []
    for product in each.sums if layout.parts > 1 else ():
        view = product.c
        step.fill(view, literal(0, view.dtype))
        partial_sums = f.at(f.param("arena"), I64(step.arena.size + end), "uint8")
        partials.append((view, addresses[view.root, view.offset], partial_sums))
        addresses[view.root, view.offset] = partial_sums
        end += layout.parts * parallel.partial_bytes(view)
    module.scratch = max(module.scratch, end)
    given = [*addresses.values(), f.param("control"), scratch]
    if chunks == 1:
        f.do(f"call void @{name}({', '.join(map(str, given))}, i64 0, i64 {units})")
    else:
        parallel.run(module, f, _task(module, name, len(given), layout.nbytes, units, chunks), given, chunks)
    for view, target, partial_sums in partials:
        parallel.combine_partials(module, f, view, "sum", target, partial_sums, layout.parts)


def _stripes(each: Striped) -> int:
    """Stripes of one matrix."""
    return -(-each.domain.rows // each.height)


def _parts(each: Striped, threads: int) -> int:
    """Parts of a matrix with sums of their own, so that a small batch occupies all threads."""
    batch = each.domain.batch
    dense = all(product.c.strides == contiguous(product.c.shape) for product in each.sums)
    if not each.sums or threads == 1 or batch % threads == 0 or batch >= 4 * threads or not dense:
        return 1
    return min(_stripes(each), -(-4 * threads // batch))


def _layout(step: StepWriter, each: Striped) -> _Layout:
    arrays = arrays_of(each)
    if each.window is not None:
        for rows in (*each.window.guards, *([each.window.mask] if each.window.mask else [])):
            arrays.outside.setdefault((rows.views[0].root, rows.views[0].offset), rows.views[0])
    pitch = {}
    for root, size in arrays.sizes.items():
        columns = each.domain.columns
        pitch[root] = columns + (GAP // size if columns * size % PERIOD == 0 and each.height > 1 else 0)
    stripes = {root: Root(each.height * pitch[root] * size) for root, size in arrays.sizes.items()}
    placed: dict[Root, int] = {}
    end = fit({stripes[root]: life for root, life in arrays.lives.items()}, 0, placed, step.plan.target)
    offsets = {root: placed[stripe] for root, stripe in stripes.items()}
    many = step.threads == 1 or each.domain.batch >= 4 * step.threads
    whole = bool(each.sums) or (each.window is not None and many)  # the numbers of a matrix are checked once then
    return _Layout(offsets, pitch, -(-end // 64) * 64, arrays.outside, _parts(each, step.threads), whole)


def _task(module: Module, name: str, addresses: int, room: int, units: int, chunks: int) -> str:
    """A task that runs a chunk of the units, with its own scratch memory."""

    def make(task: str) -> Function:
        f = Function(task, [("context", "ptr"), ("chunk", "int64")], noalias=False)
        given = [f.load(f.at(f.param("context"), I64(i), "ptr"), "ptr") for i in range(addresses)]
        chunk = f.param("chunk")
        given[-1] = f.at(given[-1], f.op(f"mul nsw {chunk}, {room}", "int64"), "uint8")
        ends = [f.op(f"udiv {f.op(f'mul nuw {c}, {units}', 'int64')}, {chunks}", "int64")
                for c in (chunk, f.binary("add", chunk, I64(1)))]  # fmt: skip
        f.do(f"call void @{name}({', '.join(map(str, [*given, *ends]))})")
        return f

    return module.function(("stripes", name, chunks), "task", make)


def _function(module: Module, name: str, each: Striped, layout: _Layout) -> Function:
    """``name(arrays..., control, scratch, first, end)`` for the units from `first` to `end`."""
    pointers = [f"p{i}" for i in range(len(layout.addresses))] + ["control", "scratch"]
    f = Function(name, [*((p, "ptr") for p in pointers), ("first", "int64"), ("end", "int64")], noalias=False)
    if is_long(work_of(each).flops):
        f.stop = stop_of(f, f.param("control"))
    writer = _Writer(module, f, each, layout)
    domain, height = each.domain, each.height
    whole, rest = domain.rows // height * height, domain.rows % height
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        if layout.whole:
            parts, count = layout.parts, _stripes(each)
            batch, writer.part = unravel(f, unit, (domain.batch, parts)) if parts > 1 else (unit, None)
            writer.check(batch)
            writer.clear(batch)
            start, end = I64(0), I64(whole)
            if writer.part is not None:
                following = f.binary("add", writer.part, I64(1))
                ends = [f.op(f"udiv {f.op(f'mul nuw {p}, {count}', 'int64')}, {parts}", "int64")
                        for p in (writer.part, following)]  # fmt: skip
                start, end = (f.op(f"mul nsw {at}, {height}", "int64") for at in ends)
                end = f.intrinsic("smin", end, I64(whole))
            with f.loop(start, end, height, polls=True) as row:
                writer.stripe(batch, row, height)
            if rest and writer.part is not None:
                with f.when(f.compare("icmp eq", writer.part, I64(parts - 1))):
                    writer.stripe(batch, I64(whole), rest)
            elif rest:
                writer.stripe(batch, I64(whole), rest)
        else:
            batch, number = unravel(f, unit, (domain.batch, -(-domain.rows // height)))
            row = f.op(f"mul nsw {number}, {height}", "int64")
            writer.check(batch)
            if rest:
                f.either(
                    f.compare("icmp slt", row, I64(whole)),
                    partial(writer.stripe, batch, row, height),
                    partial(writer.stripe, batch, row, rest),
                )
            else:
                writer.stripe(batch, row, height)
    return f


class _Writer:
    """Writes the instructions for one stripe.

    part:     of the matrix, if its parts have sums of their own.
    moderate: whether the window of the instruction holds for the matrix.
    columns:  the range of columns of the stripe, if the instruction has a window.
    """

    part: IRValue | None = None
    moderate: IRValue | None = None
    columns: tuple[IRValue, IRValue] | None = None

    def __init__(self, module: Module, f: Function, each: Striped, layout: _Layout) -> None:
        self.module, self.f, self.each, self.layout = module, f, each, layout
        self.bases = {key: f.param(f"p{i}") for i, key in enumerate(layout.addresses)}

    @property
    def adds(self) -> bool:
        """Whether products over rows add to their results: one of several stripes, or only some columns."""
        return self.each.height < self.each.domain.rows or self.each.window is not None

    def check(self, batch: IRValue) -> None:
        """Find out whether the window of the instruction holds for a matrix."""
        window = self.each.window
        if window is not None:
            bases = {i: self._base(guard) for i, guard in enumerate(window.guards)}
            self.moderate = is_moderate(self.module, self.f, window, self.each.domain, batch, bases)

    def _base(self, rows: Rows) -> IRValue:
        return self.bases[rows.views[0].root, rows.views[0].offset]

    def clear(self, batch: IRValue) -> None:
        """Set the results that stripes add to to zero, for one matrix of the batch."""
        if not self.adds:
            return
        for product in self.each.sums:
            self._fill(self._matrix(product.c, batch), product.c)

    def _fill(self, address: IRValue, c: View) -> None:
        """Write zeros to a matrix."""
        f = self.f
        (rows, columns), (down, along) = c.shape[-2:], c.strides[-2:]
        if along != 1 and columns > 1:
            rows, columns, down = columns, rows, along
        if down == columns or rows == 1:
            fill_zeros(f, address, rows * columns, c.dtype)
            return
        with f.loop(I64(0), I64(rows)) as row:
            fill_zeros(f, move(f, address, c.dtype, (row, down)), columns, c.dtype)

    def stripe(self, batch: IRValue, row: IRValue, height: int) -> None:
        """Write all instructions for `height` rows of matrix `batch` from `row`."""
        f = self.f
        first = f.binary("add", f.op(f"mul nsw {batch}, {self.each.domain.rows}", "int64"), row)
        window = self.each.window
        if window is not None and self.moderate is not None:
            mask = self._base(window.mask) if window.mask is not None else None
            domain = self.each.domain
            self.columns = columns_of(self.module, f, window, domain, self.moderate, mask, first, row, height)
        for part in self.each.body:
            if isinstance(part, Rows):
                self._rows(part, first, height)
            else:
                self._product(part, batch, row, height)

    def _rows(self, rows: Rows, first: IRValue, height: int) -> None:
        """Run a row kernel for `height` rows of the domain from `first`."""
        f, kernel = self.f, rows.kernel
        operands = list(kernel.operands)
        given: list[IRValue] = []
        for i, view in enumerate(rows.views):
            if view.root not in self.each.inside:
                given.append(self.bases[view.root, view.offset])
                continue
            pitch, columns = self.layout.pitch[view.root], self.each.domain.columns
            operands[i] = replace(operands[i], outer=tuple(s // columns * pitch for s in operands[i].outer))
            scratch = self._scratch(view.root)
            back = f.op(f"mul nsw {first}, {-pitch * itemsize(view.dtype)}", "int64")  # the kernel adds rows from 0 on
            given.append(f.op(f"getelementptr i8, {scratch}, {back}", "ptr"))
        made: RowKernel = replace(kernel, operands=tuple(operands))
        window = self.each.window
        if window is None:
            name = self.module.function(made, "rows", lambda name: row_function(name, made))
        else:
            key = ("window", made, window.block)
            name = self.module.function(key, "window", lambda name: window_function(name, made, window.block))
        arrays = list(given)
        if rows_poll(made):
            given.append(stop_of(f, f.param("control")))
            self.module.polls = True
        end = f.binary("add", first, I64(height))
        ends = [first, end, *(self.columns or ())]
        f.do(f"call void @{name}({', '.join(map(str, [*given, *ends]))})")
        if window is not None:
            self._hide(rows, arrays, first, height)

    def _hide(self, rows: Rows, arrays: list[IRValue], first: IRValue, height: int) -> None:
        """Write zeros to the columns outside of the window, in arrays that others read."""
        assert self.columns is not None
        f, columns = self.f, I64(self.each.domain.columns)
        for instr in rows.kernel.code:
            if instr.kind != "store" or rows.views[instr.operand].root in self.each.inside:
                continue
            operand = rows.kernel.operands[instr.operand]
            if operand.inner == 0:
                continue
            size = itemsize(operand.dtype)
            with f.loop(first, f.binary("add", first, I64(height))) as row:
                steps = zip(unravel(f, row, rows.kernel.outer), operand.outer, strict=True)
                line = move(f, arrays[instr.operand], operand.dtype, *steps)
                for start, end in ((I64(0), self.columns[0]), (self.columns[1], columns)):
                    nbytes = f.op(f"mul nsw {f.binary('sub', end, start)}, {size}", "int64")
                    f.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
                    at = move(f, line, operand.dtype, (start, 1))
                    f.do(f"call void @llvm.memset.p0.i64({at}, i8 0, {nbytes}, i1 false)")

    def _product(self, part: StripedProduct, batch: IRValue, row: IRValue, height: int) -> None:
        """Run a product for `height` rows of matrix `batch` from `row`."""
        f, axis = self.f, part.axis
        views: list[View] = []
        addresses: list[IRValue] = []
        for view, axes in part.product.matrices:
            shape, strides = list(view.shape[-2:]), list(view.strides[-2:])
            at = axes.find(axis)
            if at >= 0:
                shape[at] = height
            if view.root in self.each.inside:
                strides[at] = self.layout.pitch[view.root]
                addresses.append(self._scratch(view.root))
            else:
                address = self._matrix(view, batch)
                addresses.append(move(f, address, view.dtype, (row, strides[at])) if at >= 0 else address)
            views.append(View(view.root, view.dtype, tuple(shape), tuple(strides)))
        a, b, c = views
        product = replace(part.product, a=a, b=b, c=c, accumulate=axis == "k" and self.adds)
        if self.columns is None:
            self._call(product, addresses)
        else:
            self._by_blocks(product, part.across, addresses)

    def _by_blocks(self, product: Gemm, axis: str, addresses: list[IRValue]) -> None:
        """Run a product for the columns of the window, which are an axis of it, block by block."""
        assert self.each.window is not None and self.columns is not None
        f, block, columns = self.f, self.each.window.block, self.each.domain.columns
        if axis == "k":
            self._fill(addresses[2], product.c)

        def run(start: IRValue, count: int) -> None:
            cut, moved = [], []
            for (view, axes), address in zip(product.matrices, addresses, strict=True):
                at = axes.find(axis)
                shape = tuple(count if i == at else n for i, n in enumerate(view.shape))
                cut.append(replace(view, shape=shape))
                moved.append(move(f, address, view.dtype, (start, view.strides[at])) if at >= 0 else address)
            a, b, c = cut
            self._call(replace(product, a=a, b=b, c=c, accumulate=product.accumulate or axis == "k"), moved)

        start, end = self.columns
        whole = columns // block * block
        with f.loop(start, f.intrinsic("smin", end, I64(whole)), block, polls=True) as at:
            run(at, block)
        if whole < columns:
            with f.when(f.compare("icmp sgt", end, I64(whole))):
                run(I64(whole), columns - whole)

    def _call(self, product: Gemm, addresses: list[IRValue]) -> None:
        f, given = self.f, list(addresses)
        function = product_function(self.module, product)
        if function.polls:
            given.append(stop_of(f, f.param("control")))
            self.module.polls = True
        f.do(f"call void @{function.name}({', '.join(map(str, given))}, i64 0, i64 {function.parts})")

    def _scratch(self, root: Root) -> IRValue:
        return self.f.at(self.f.param("scratch"), I64(self.layout.offsets[root]), "uint8")

    def _matrix(self, view: View, batch: IRValue) -> IRValue:
        """The address of matrix `batch` of a view outside."""
        index, base = unravel(self.f, batch, view.shape[:-2]), self.bases[view.root, view.offset]
        if self.part is not None and any(view.root is product.c.root for product in self.each.sums):
            base = move(self.f, base, "uint8", (self.part, parallel.partial_bytes(view)))
        return move(self.f, base, view.dtype, *zip(index, view.strides, strict=False))
