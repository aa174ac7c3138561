"""Stripes on a device: a block of threads computes some rows of a chain of products and row kernels at a time.

What exists for one stripe only, as the scores of attention, lies in shared memory if it fits, otherwise in scratch
memory of the block. Stripes of a matrix to whose sums each of them adds run one after another. If there are few
matrices, parts of a matrix have sums of their own, which are added up at the end. Sizes alone decide the number of
parts, so the bits depend on no launch.

A mask that all matrices have in common is computed before the stripes. Under a band of positions a stripe computes the
columns of its window only (`core.device.column_windows`).

A chain over one large matrix (`Striped.shared`) runs stripe by stripe too, each of them on all threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.stripe_parts import arrays_of, write_together
from core.codegen.vector_slices import move, unravel
from core.device.column_windows import find_moderate, hide, takes_window, window_columns, window_product
from core.device.device_writer import DeviceWriter
from core.device.product import product_kernel, product_plan
from core.device.row_teams import sums_room
from core.device.rows import form_of, row_kernel
from core.device.threads import block_number, one_block
from core.device.tiles import VECTOR_BYTES, vector_of
from core.plan.arena import fit
from core.plan.instructions import Rows
from core.plan.memory import Root, View, bytes_of, contiguous
from core.plan.striped import Striped, StripedProduct
from core.plan.unread import part_that_writes

__all__ = ["SHARED_BYTES", "stripe_units", "write_striped"]

SHARED_BYTES = 96 * 1024
"""Most bytes of the arrays of one stripe in shared memory; larger ones lie in scratch memory."""

UNITS = 256
"""Matrices, or parts of them, that occupy a device."""

MOST_PARTIAL_BYTES = 1 << 26
"""Bytes of the sums of all parts."""

ALIGNMENT = 16

FLAG_BYTES = 4
"""Bytes of the word that says whether the numbers of a matrix are moderate."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The memory of one stripe: the offset of each array, and bytes in all.

    addresses: the arrays outside, each once, by root and offset in elements.
    parts:     parts of a matrix, each with its own sums of the products that all stripes add to.
    """

    offsets: dict[Root, int]
    nbytes: int
    addresses: dict[tuple[Root, int], View]
    parts: int

    @property
    def is_shared(self) -> bool:
        return self.nbytes <= SHARED_BYTES


def write_striped(step: DeviceWriter, each: Striped) -> None:
    """Write a `Striped` instruction into the step. The caller has ordered it behind what it depends on."""
    if each.shared:
        meet = lambda: step.launch.barrier(step.f)
        write_together(step, each, lambda view, distance: _root_behind(view, (distance,)), meet)
        return
    each = _after_common(step, each)
    f, threads = step.f, step.launch
    layout = _layout(step, each)
    room = 0 if layout.is_shared else layout.nbytes
    end = room * threads.blocks
    addresses = {key: step.address(view) for key, view in layout.addresses.items()}
    sums: list[tuple[View, IRValue, IRValue]] = []
    needed = end + sum(_partial_bytes(product.c) * layout.parts for product in each.sums if layout.parts > 1)
    scratch = step.scratch(needed + (FLAG_BYTES * each.domain.batch if takes_window(each) else 0))
    flags = f.at(scratch, I64(needed), "uint8")
    if takes_window(each):
        find_moderate(step, each, flags)
    for product in each.sums if layout.parts > 1 else ():
        view = product.c
        partials = f.at(scratch, I64(end), "uint8")
        sums.append((view, addresses[view.root, view.offset], partials))
        addresses[view.root, view.offset] = partials
        end += layout.parts * _partial_bytes(view)
    name = f"stripes{len(step.module.functions)}"
    step.module.functions.append(_function(step, name, each, layout))
    f.do(f"call void @{name}({', '.join(map(str, [*addresses.values(), scratch, flags]))})")
    if sums:
        threads.barrier(f)
    for view, target, partials in sums:
        _add_up(step, view, target, partials, layout.parts)


def _after_common(step: DeviceWriter, each: Striped) -> Striped:
    """Write what computes arrays that several stripes have in common, as a mask for all matrices; return the rest.

    A row kernel stores such numbers for the first of the rows only, which other blocks would not wait for.
    """
    body: list[Rows | StripedProduct] = []
    own = set(each.inside)
    for part in each.body:
        common = _common(part) if isinstance(part, Rows) else set()
        if isinstance(part, Rows) and common:
            first = part_that_writes(part, common)
            assert own.isdisjoint(first.reads()), "what stripes have in common depends on none of them"
            step.rows(first)
            step.launch.barrier(step.f)
            rest = set(part.writes()) - common
            if not rest:
                continue
            part = part_that_writes(part, rest)
        own |= set((part if isinstance(part, Rows) else part.product).writes())
        body.append(part)
    return replace(each, body=tuple(body))


def _common(rows: Rows) -> set[Root]:
    """The arrays that a row kernel stores and that have the same numbers for several rows."""
    kernel = rows.kernel
    stored = {i.operand for i in kernel.code if i.kind == "store"}
    return {
        rows.views[n].root
        for n in stored
        if any(size > 1 and not step for size, step in zip(kernel.outer, kernel.operands[n].outer, strict=True))
    }


def _layout(step: DeviceWriter, each: Striped) -> _Layout:
    arrays = arrays_of(each)
    stripes = {root: Root(each.height * each.domain.columns * size) for root, size in arrays.sizes.items()}
    placed: dict[Root, int] = {}
    target = replace(step.plan.target, alignment=ALIGNMENT)
    end = fit({stripes[root]: life for root, life in arrays.lives.items()}, 0, placed, target)
    return _Layout({root: placed[stripe] for root, stripe in stripes.items()}, end, arrays.outside, _parts(each))


def stripe_units(each: Striped) -> int:
    """How many blocks can work at a time, if the stripes are not `shared`: on a stripe, or a part of a matrix, each."""
    return each.domain.batch * (_parts(each) if each.sums else -(-each.domain.rows // each.height))


def _parts(each: Striped) -> int:
    """Parts of a matrix with sums of their own."""
    if not all(product.c.strides == contiguous(product.c.shape) for product in each.sums):
        return 1
    nbytes = sum(_partial_bytes(product.c) for product in each.sums)
    stripes = -(-each.domain.rows // each.height)
    return max(1, min(stripes, UNITS // each.domain.batch, MOST_PARTIAL_BYTES // max(nbytes, 1)))


def _partial_bytes(view: View) -> int:
    return -(-bytes_of(view.shape, view.dtype) // ALIGNMENT) * ALIGNMENT


def _add_up(step: DeviceWriter, view: View, target: IRValue, partials: IRValue, parts: int) -> None:
    """Add up the sums of all parts, in their order: a thread for each element."""
    f, dtype, pitch = step.f, view.dtype, _partial_bytes(view) // itemsize(view.dtype)
    with f.loop(step.launch.number(f), I64(math.prod(view.shape)), step.launch.total) as i:
        total = f.slot(dtype)
        f.write(f.load(f.at(partials, i, dtype), dtype), total)
        with f.loop(I64(1), I64(parts)) as part:
            more = f.load(move(f, partials, dtype, (part, pitch), (i, 1)), dtype)
            f.write(f.binary("fadd" if more.is_float else "add", f.read(total, dtype), more), total)
        f.store(f.read(total, dtype), f.at(target, i, dtype))


def _function(step: DeviceWriter, name: str, each: Striped, layout: _Layout) -> Function:
    """``name(arrays..., scratch, flags)`` for all threads: a block takes stripes, or parts of a matrix, in turn."""
    pointers = [f"p{i}" for i in range(len(layout.addresses))] + ["scratch", "flags"]
    f = Function(name, [(p, "ptr") for p in pointers], noalias=False)
    writer = _Writer(step, f, each, layout)
    domain, height, blocks = each.domain, each.height, step.launch.blocks
    whole, rest = domain.rows // height * height, domain.rows % height
    count = -(-domain.rows // height)
    block = block_number(f, step.launch)
    if not each.sums:
        with f.loop(block, I64(domain.batch * count), blocks) as unit:
            batch, number = unravel(f, unit, (domain.batch, count))
            row = f.op(f"mul nsw {number}, {height}", "int64")
            if rest:
                f.either(
                    f.compare("icmp slt", row, I64(whole)),
                    partial(writer.stripe, batch, row, height),
                    partial(writer.stripe, batch, row, rest),
                )
            else:
                writer.stripe(batch, row, height)
        return f
    with f.loop(block, I64(domain.batch * layout.parts), blocks) as unit:
        batch, part = unravel(f, unit, (domain.batch, layout.parts))
        writer.part = part if layout.parts > 1 else None
        writer.clear(batch)
        ends = [
            f.op(f"udiv {f.op(f'mul nuw {p}, {count}', 'int64')}, {layout.parts}", "int64")
            for p in (part, f.binary("add", part, I64(1)))
        ]
        start, end = (f.op(f"mul nsw {at}, {height}", "int64") for at in ends)
        with f.loop(start, f.intrinsic("smin", end, I64(whole)), height) as row:
            writer.stripe(batch, row, height)
        if rest:
            with f.when(f.compare("icmp sgt", end, I64(whole))):
                writer.stripe(batch, I64(whole), rest)
    return f


class _Writer:
    """Writes the instructions for one stripe.

    part:    of the matrix, if its parts have sums of their own.
    columns: the range of columns of the stripe, if it does not compute all of them.
    """

    def __init__(self, step: DeviceWriter, f: Function, each: Striped, layout: _Layout) -> None:
        self.step, self.f, self.each, self.layout = step, f, each, layout
        self.part: IRValue | None = None
        self.columns: tuple[IRValue, IRValue] | None = None
        self.before = layout.nbytes if layout.is_shared else 0
        self.team = one_block(step.launch, self.before)
        self.bases = {key: f.param(f"p{i}") for i, key in enumerate(layout.addresses)}
        if layout.is_shared:
            self.inside = step.launch.shared(f, layout.nbytes)
        else:
            self.inside = move(f, f.param("scratch"), "uint8", (block_number(f, step.launch), layout.nbytes))

    @property
    def adds(self) -> bool:
        """Whether products over rows add to their results: one of several stripes, or only some columns."""
        return self.each.height < self.each.domain.rows or takes_window(self.each)

    def clear(self, batch: IRValue) -> None:
        """Set the results that stripes add to to zero, for one matrix of the batch."""
        if not self.adds:
            return
        f = self.f
        for product in self.each.sums:
            at, c = self._matrix(product.c, batch), product.c
            (rows, columns), strides = c.shape[-2:], c.strides[-2:]
            with f.loop(self.team.number(f), I64(rows * columns), self.team.total) as i:
                row, column = unravel(f, i, (rows, columns))
                f.store(literal(0, c.dtype), move(f, at, c.dtype, (row, strides[0]), (column, strides[1])))
        self.team.barrier(f)

    def stripe(self, batch: IRValue, row: IRValue, height: int) -> None:
        """Write all instructions for `height` rows of matrix `batch` from `row`."""
        f = self.f
        first = f.binary("add", f.op(f"mul nsw {batch}, {self.each.domain.rows}", "int64"), row)
        if takes_window(self.each):
            flag = move(f, f.param("flags"), "uint8", (batch, FLAG_BYTES))
            self.columns = window_columns(self.step, f, self.each, flag, row, height)
        for part in self.each.body:
            if isinstance(part, Rows):
                self._rows(part, first, height)
            else:
                self._product(part, batch, row, height)
            self.team.barrier(f)

    def _rows(self, rows: Rows, first: IRValue, height: int) -> None:
        """Run a row kernel for `height` rows of the domain from `first`."""
        f = self.f
        assert not sums_room(rows, self.team, part=True), "blocks would share the scratch memory for sums over rows"
        inside = [i for i, view in enumerate(rows.views) if view.root in self.each.inside]
        window = self.columns is not None
        key = ("stripe", inside, self.before, window, *form_of(rows))
        make = lambda name: row_kernel(name, rows, self.team, part=True, inside=inside, window=window)
        name = self.step.function(key, "rows", make)
        given = [self._inside(v) if i in inside else self.bases[v.root, v.offset] for i, v in enumerate(rows.views)]
        end = f.binary("add", first, I64(height))
        ends = [first, end, *(self.columns or ())]
        f.do(f"call void @{name}({', '.join(map(str, [*given, f.param('scratch'), *ends]))})")
        if self.columns is not None:
            hide(f, self.team, rows, inside, given, first, height, self.columns)

    def _product(self, part: StripedProduct, batch: IRValue, row: IRValue, height: int) -> None:
        """Run a product for `height` rows of matrix `batch` from `row`."""
        f, axis = self.f, part.axis
        views: list[View] = []
        addresses: list[IRValue] = []
        for view, axes in part.product.matrices:
            shape, strides = list(view.shape[-2:]), view.strides[-2:]
            at = axes.find(axis)
            if at >= 0:
                shape[at] = height
            root = view.root
            if root in self.each.inside:
                addresses.append(self._inside(view))
            else:
                address = self._matrix(view, batch)
                addresses.append(move(f, address, view.dtype, (row, strides[at])) if at >= 0 else address)
                root = _root_behind(view, (*view.strides[:-2], self.each.height * strides[at] if at >= 0 else 0))
            views.append(replace(view, root=root, shape=tuple(shape), strides=strides))
        adds = axis == "k" and self.adds
        a, b, c = views
        product = replace(part.product, a=a, b=b, c=c, accumulate=adds)
        plan = product_plan(product, self.team, self.step.rules.tf32)
        assert plan.parts == 1, "a single block splits no sums"
        vectors = [vector_of(v, axis) for v in views for axis in (-2, -1)]
        across = part.across if self.columns is not None else ""
        key = ("stripe", [(v.shape, v.strides, v.dtype) for v in views], adds, self.before, vectors, across)
        if across:
            name = self.step.function(key, "part", lambda name: window_product(name, product, self.team, plan, across))
        else:
            name = self.step.function(key, "product", lambda name: product_kernel(name, product, self.team, plan))
        ends = list(self.columns or ()) if across else []
        f.do(f"call void @{name}({', '.join(map(str, [*addresses, f.param('scratch'), *ends]))})")

    def _inside(self, view: View) -> IRValue:
        return self.f.at(self.inside, I64(self.layout.offsets[view.root]), "uint8")

    def _matrix(self, view: View, batch: IRValue) -> IRValue:
        """The address of matrix `batch` of a view outside."""
        index, base = unravel(self.f, batch, view.shape[:-2]), self.bases[view.root, view.offset]
        if self.part is not None and any(view.root is product.c.root for product in self.each.sums):
            base = move(self.f, base, "uint8", (self.part, _partial_bytes(view)))
        return move(self.f, base, view.dtype, *zip(index, view.strides, strict=False))


def _root_behind(view: View, steps: tuple[int, ...]) -> Root:
    """A root of memory any number of `steps` elements behind `view`: "element" if it may begin between two vectors."""
    lanes = VECTOR_BYTES // itemsize(view.dtype)
    aligned = all(n % lanes == 0 for n in (view.offset, *steps))
    return Root(view.root.nbytes, view.root.place if aligned else "element", view.root.name)
