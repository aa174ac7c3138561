"""Calls of kernels in a launch on a GPU: all threads of the launch run a kernel together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from core.codegen import kernels, parallel
from core.codegen.llvm import I64, IRValue, literal
from core.codegen.reductions import identity
from core.device.convolution import convolution_kernel
from core.device.device_writer import DeviceWriter
from core.device.index_orders import NO_ROWS
from core.device.indexed import gather_kernel
from core.device.kernels import device_kernel, device_scratch, has_kernel
from core.device.product import ProductPlan, Stage, product_kernel, product_plan
from core.device.row_teams import sums_room
from core.device.rows import form_of, row_kernel, sums_kernel
from core.device.rules import Rules
from core.device.scatter import scatter_kernel, scatter_scratch, scatter_views
from core.device.systems import SYSTEMS, system_kernel
from core.device.threads import Threads
from core.device.tiled import tiled
from core.device.tiles import VECTOR_BYTES, vector_of
from core.plan.arena import ArenaMap
from core.plan.instructions import Gather, Gemm, Instruction, Kernel, Limited, Rows, ScatterAdd
from core.plan.memory import View
from core.plan.plan import Plan
from core.plan.striped import Striped

__all__ = ["DeviceKernels", "Group"]

MOST_SCRATCH = 1 << 26
"""Bytes of scratch memory for all threads of one kernel; fewer threads run a kernel that would need more."""

ALIGNMENT = 256
"""Bytes between the scratch memories of two products of a launch."""


@dataclass(slots=True)
class Group:
    """The state of writing a group. stage: of its products with split sums. room: bytes of scratch memory in use."""

    stage: Stage
    room: int = 0

    def take(self, nbytes: int) -> int:
        """Take `nbytes` bytes of scratch memory; return their offset."""
        start = self.room
        self.room += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return start


class DeviceKernels(DeviceWriter):
    """Appends calls of kernels. group: that of the present instruction, if its launch has several side by side."""

    def __init__(self, plan: Plan, arena: ArenaMap, processors: int, block: int, rules: Rules) -> None:
        super().__init__(plan, arena, processors, block, rules)
        self.group: Group | None = None

    def needs_scratch(self, each: Instruction) -> bool:
        if self.group is not None:
            return False  # each has its own
        if isinstance(each, Limited):
            return True
        if isinstance(each, Rows):
            return sums_room(each, self.launch) > 0
        if isinstance(each, Gemm):
            return self._product_plan(each).scratch(each) > 0
        if isinstance(each, ScatterAdd):
            return scatter_scratch(each, self.launch) > 0
        if isinstance(each, Kernel) and has_kernel(each):
            return device_scratch(each, self.launch, self.rules) > 0
        if isinstance(each, Kernel):
            return each.kind not in SYSTEMS and kernels.scratch_bytes(each) > 0
        return isinstance(each, Striped)

    def _staged(self, product: Gemm, plan: ProductPlan) -> tuple[Stage, IRValue]:
        """The stage of a tiled product that the present launch computes, and the address of its scratch memory."""
        nbytes = plan.scratch(product)
        if self.group is None or plan.parts == 1:
            return "whole", self.scratch(nbytes)
        return self.group.stage, self.scratch(nbytes, self.group.take(nbytes))

    def _threads(self, blocks: int) -> Threads:
        """A launch of so many blocks with the usual number of threads."""
        return self.launch.on(blocks, self.block)

    def rows(self, each: Rows, fresh: bool = True, apart: bool = False) -> None:
        """apart: as in `row_kernel`."""
        key = ("rows", fresh, apart, *form_of(each))
        name = self.function(key, "rows", lambda name: row_kernel(name, each, self.launch, fresh, apart=apart))
        self._call(name, each.views, [self.scratch(sums_room(each, self.launch))])

    def _add_up(self, each: Rows, first: Threads) -> None:
        """Add up what the teams of a row kernel have, which ran on the threads of the launch `first`."""
        key = ("sums", first.blocks, *form_of(each))
        name = self.function(key, "sums", lambda name: sums_kernel(name, each, self.launch, first))
        self._call(name, each.views, [self.scratch(sums_room(each, first))])

    def fill(self, view: View, number: IRValue) -> None:
        """Set all elements of a dense array to one number, all threads together."""
        f, address = self.f, self.address(view)
        with f.loop(self.launch.number(f), I64(math.prod(view.shape)), self.launch.total) as i:
            f.store(number, f.at(address, i, view.dtype))

    def gemm(self, each: Gemm, addresses: list[IRValue] | None = None) -> None:
        assert each.then is None, "the target has no epilogues"
        views = (each.a, each.b, each.c)
        plan = self._product_plan(each)
        vectors = tuple(vector_of(v, axis) for v in views for axis in (-2, -1))
        stage, scratch = self._staged(each, plan)
        form = (each.accumulate, vectors, stage, self.group is not None)
        key = ("product", *((v.shape, v.strides, v.dtype) for v in views), *form)
        name = self.function(key, "product", lambda name: product_kernel(name, each, self.launch, plan, stage))
        more = [scratch]
        if addresses is None:
            self._call(name, views, more)
        else:
            self.f.do(f"call void @{name}({', '.join(map(str, [*addresses, *more]))})")

    def _product_plan(self, each: Gemm) -> ProductPlan:
        """A product that shares its launch has the form that it would have alone."""
        threads = self.launch if self.group is None else self._threads(self.processors)
        return product_plan(each, threads, self.rules.tf32)

    def _grouped_convolution(self, each: Kernel, product: Gemm, plan: ProductPlan) -> None:
        stage, scratch = self._staged(product, plan)
        key = (
            "convolution",
            each.kind,
            each.spec,
            stage,
            *((v.root.place, v.offset % VECTOR_BYTES) for v in each.views),
        )
        make = lambda name: convolution_kernel(name, each, self.launch, self.rules, plan, stage)
        name = self.function(key, each.kind, make)
        self._call(name, each.views, [scratch, *self._failing(each.check)])

    def limited(self, each: Limited) -> None:
        """Write the part of an instruction that the length of its arrays asks for. All threads read one length."""
        f, inner = self.f, each.instruction
        length = f.load(self.address(each.length), "int64")
        if isinstance(inner, Rows):
            self._some_rows(inner, f.op(f"mul nsw {length}, {_elements(inner) // each.bound}", "int64"))
        elif isinstance(inner, Gather):
            self.gather(inner, f.op(f"mul nsw {length}, {math.prod(inner.out.shape) // each.bound}", "int64"))
        elif isinstance(inner, Kernel):
            self.kernel(inner)  # units do not depend on each other
        elif each.along == "rows":
            self.gemm(inner)  # rows of a result do not depend on each other
        else:
            self._blocks_of_terms(each, inner, length)

    def _some_rows(self, each: Rows, elements: IRValue) -> None:
        """The rows of a row kernel with its first `elements` elements. Sums that no row adds to are empty."""
        f, kernel = self.f, each.kernel
        if self.start_sums(each):
            self.launch.barrier(f)
        end = f.op(f"udiv {f.binary('add', elements, I64(kernel.inner - 1))}, {kernel.inner}", "int64")
        key = ("some rows", *form_of(each))
        name = self.function(key, "rows", lambda name: row_kernel(name, each, self.launch, part=True))
        self._call(name, each.views, [self.scratch(sums_room(each, self.launch, part=True)), I64(0), end])

    def _blocks_of_terms(self, each: Limited, whole: Gemm, length: IRValue) -> None:
        """A product with as many blocks of the terms of its sums as the length asks for."""
        f, terms = self.f, each.block
        if not whole.accumulate:
            self.fill(whole.c, literal(0, whole.c.dtype))
        shapes = ((*whole.a.shape[:-1], terms), (terms, whole.b.shape[-1]))
        a, b = (replace(v, shape=shape) for v, shape in zip((whole.a, whole.b), shapes, strict=True))
        block = Gemm(a, b, whole.c, accumulate=True, location=whole.location)
        starts = [self.address(v) for v in (whole.a, whole.b, whole.c)]
        steps = (whole.a.strides[-1], whole.b.strides[-2])
        count = f.op(f"udiv {f.binary('add', length, I64(terms - 1))}, {terms}", "int64")
        with f.loop(I64(0), count) as i:
            self.launch.barrier(f)  # the sums of the block before, and scratch memory
            parted = f.compare("icmp eq", i, f.op(f"udiv {length}, {terms}", "int64"))
            moved = []
            for at, step, view, last in zip(starts, steps, (a, b), each.last, strict=False):
                at = f.at(at, f.op(f"mul nsw {i}, {step * terms}", "int64"), view.dtype)
                moved.append(at if last is None else f.select(parted, self.address(last), at))
            self.gemm(block, [*moved, starts[2]])

    def gather(self, each: Gather, end: IRValue | None = None) -> None:
        """end: after the last element of the result to write; by default all."""
        views = (each.x, each.index, each.out)
        key = ("gather", *((v.shape, v.dtype) for v in views))
        name = self.function(key, "gather", lambda name: gather_kernel(name, each, self.launch))
        end = I64(math.prod(each.out.shape)) if end is None else end
        self._call(name, views, [*self._failing(each.check), end])

    def scatter(self, each: ScatterAdd) -> None:
        views = scatter_views(each)
        key = (
            "scatter",
            each.op,
            each.order is None,
            each.pattern,
            each.rows_check,
            *((v.shape, v.dtype, v.root.place, v.offset) for v in views),
        )
        name = self.function(key, "scatter", lambda name: scatter_kernel(name, each, self.launch))
        scratch = self.scratch(scatter_scratch(each, self.launch))
        self._call(name, views, [scratch, *self._failing(each.check)])

    def kernel(self, each: Kernel) -> None:
        if each.kind == NO_ROWS:
            (out,) = each.views
            self.fill(out, identity(each.spec, out.dtype))
        elif each.kind in SYSTEMS:
            key = ("block", each.kind, each.spec)
            name = self.function(key, each.kind, lambda name: system_kernel(name, each, self.launch))
            self._call(name, each.views, self._failing(each.check))
        elif self.group is not None and (found := tiled(each, self._threads(self.processors), self.rules)) is not None:
            self._grouped_convolution(each, *found)
        elif has_kernel(each):
            starts = tuple((v.root.place, v.offset % VECTOR_BYTES) for v in each.views)
            own = ("device", each.kind, each.spec, starts)
            make = lambda name: device_kernel(self.module, name, each, self.launch, self.rules)
            name = self.function(own, each.kind, make)
            scratch = self.scratch(device_scratch(each, self.launch, self.rules))
            self._call(name, each.views, [scratch, *self._failing(each.check)])
        else:
            self._shared_units(each)

    def _shared_units(self, each: Kernel) -> None:
        """A kernel of `core.codegen`: its units are shared by as many threads as it has units and scratch memory."""
        f = self.f
        name = self.module.function(
            (each.kind, each.spec, len(each.views)), each.kind,
            lambda name: kernels.kernel_function(self.module, name, each),
        )  # fmt: skip
        room, total = kernels.scratch_bytes(each), kernels.units(each)
        chunks = min(total, self.launch.total, MOST_SCRATCH // room if room else total)
        task = parallel.kernel_task(self.module, name, each, max(chunks, 1))
        addresses = [*map(self.address, each.views), self.error_word]
        if room:
            addresses.append(self.scratch(chunks * room))
        context = f.fresh("context")
        f.top.append(f"  {context} = alloca [{len(addresses)} x ptr], align 16")
        for i, address in enumerate(addresses):
            f.store(address, f.at(IRValue(context, "ptr"), I64(i), "ptr"))
        number = self.launch.number(f)
        with f.when(f.compare("icmp slt", number, I64(max(chunks, 1)))):
            f.do(f"call void @{task}(ptr {context}, {number})")

    def _failing(self, check: int) -> tuple[IRValue, IRValue]:
        """The arguments of a kernel that may fail: the address of the error word, and the number of its check."""
        return self.error_word, I64(check)

    def _call(self, name: str, views: Iterable[View], more: Iterable[IRValue]) -> None:
        self.f.do(f"call void @{name}({', '.join(map(str, [*map(self.address, views), *more]))})")


def _elements(each: Rows) -> int:
    """The elements of the domain of a row kernel."""
    return each.kernel.rows * each.kernel.inner
