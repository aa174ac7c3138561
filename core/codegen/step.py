"""The function that runs a plan: it calls one kernel after another.

``step(given, arena, control, stacks)``: the addresses of the numpy arrays the caller passes, the arena, words for what
must be known on both sides while it runs, and the table of the stacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from core.codegen import blas
from core.codegen.flow import grow_function, write_branch, write_loop
from core.codegen.llvm import I64, Function, Value, literal
from core.codegen.machine import cpu
from core.codegen.moves import gather_function, scatter_function
from core.codegen.rows import identity, row_function
from core.plan.arena import Arena
from core.plan.data import (
    Branch,
    Gather,
    Gemm,
    Instruction,
    Loop,
    Plan,
    Recording,
    Root,
    RowKernel,
    Rows,
    ScatterAdd,
    Sequence,
    Stack,
    View,
)

__all__ = ["ARRAY_DATA", "CONTROL", "Module", "write_step"]

ARRAY_DATA = 16
"""Where a numpy array's header holds the address of its data: behind the two words that every Python object has."""

CONTROL = ("error", "stop", "max_trips", "ops_left", "max_bytes")
"""The words of `control`, int64 each.

error: number of the check that failed, or below 0 see `flow`. stop: not 0 asks the step to end. max_trips: of each
loop. ops_left: how many ops of loops may still run. max_bytes: of what one loop records of one value.
"""


@dataclass(slots=True)
class Module:
    """The functions of one plan. symbols: the functions it needs from elsewhere, by name."""

    functions: list[Function] = field(default_factory=list)
    names: dict[object, str] = field(default_factory=dict)
    globals: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)

    def text(self) -> str:
        width = cpu().vector_bytes * 8
        declared = set().union(*(f.declarations for f in self.functions))
        wide = f'"prefer-vector-width"="{width}" "min-legal-vector-width"="{width}"'
        attributes = f"attributes #0 = {{ nounwind noinline {wide} }}"
        return "\n".join([*self.globals.values(), *(f.text() for f in self.functions), *sorted(declared), attributes])


def write_step(plan: Plan, arena: Arena) -> Module:
    """The module with the function `step` of `plan`."""
    module = Module()
    f = Function("step", [("given", "ptr"), ("arena", "ptr"), ("control", "ptr"), ("stacks", "ptr")], noalias=False)
    writer = _Step(module, f, plan, arena)
    writer.sequence(plan.body)
    module.functions.append(f)
    if plan.stacks:
        module.functions.append(grow_function(CONTROL))
    return module


class _Step:
    def __init__(self, module: Module, f: Function, plan: Plan, arena: Arena) -> None:
        self.module, self.f, self.plan, self.arena = module, f, plan, arena
        self.roots: dict[Root, Value] = {plan.error.root: f.param("control")}
        self.recordings: dict[Recording, tuple[Value, Value]] = {}
        self.cursors: dict[Stack, Value] = {}
        for i, view in enumerate((*plan.params, *plan.results)):
            slot = f.at(f.param("given"), I64(i), "ptr")
            header = f.load(slot, "ptr")  # of a numpy array, which holds the address of its data
            self.roots[view.root] = f.load(f.at(header, I64(ARRAY_DATA), "uint8"), "ptr")

    def sequence(self, body: Sequence) -> None:
        for each in body.instructions:
            self.instruction(each)

    def instruction(self, each: Instruction) -> None:
        if isinstance(each, Rows):
            self.rows(each)
        elif isinstance(each, Gemm):
            self.gemm(each)
        elif isinstance(each, Gather):
            self.gather(each)
        elif isinstance(each, ScatterAdd):
            self.scatter(each)
        elif isinstance(each, Loop):
            write_loop(self, each)
        elif isinstance(each, Branch):
            write_branch(self, each)
        else:
            raise TypeError(each)

    # --- addresses -----------------------------------------------------------------------------------------------

    def base(self, root: Root) -> Value:
        if root.place == "arena":
            return self.f.at(self.f.param("arena"), I64(self.arena.offsets[root]), "uint8")
        return self.roots[root]

    def address(self, view: View) -> Value:
        base = self.base(view.root)
        return self.f.at(base, I64(view.offset), view.dtype) if view.offset else base

    def control(self, word: str) -> Value:
        """The address of a word of `control`."""
        return self.f.at(self.f.param("control"), I64(CONTROL.index(word)), "int64")

    def stack_entry(self, stack: Stack) -> Value:
        """The address of a stack's (address, bytes) in the table."""
        return self.f.at(self.f.param("stacks"), I64(16 * self.plan.stacks.index(stack)), "uint8")

    def cursor(self, stack: Stack) -> Value:
        """Where the number of the first free slot of a stack is kept."""
        if stack not in self.cursors:
            self.cursors[stack] = slot = self.f.slot("int64")
            self.f.top.append(f"  store i64 0, {slot}")
        return self.cursors[stack]

    # --- kernels -------------------------------------------------------------------------------------------------

    def rows(self, each: Rows) -> None:
        for instr in each.kernel.code:
            if instr.kind == "accumulate":
                self.fill(each.views[instr.operand], identity(instr.op, instr.dtype))
        name = self.row_function(each.kernel)
        addresses = ", ".join(str(self.address(v)) for v in each.views)
        comma = ", " if addresses else ""
        self.f.do(f"call void @{name}({addresses}{comma}i64 0, i64 {each.kernel.rows})")

    def row_function(self, kernel: RowKernel) -> str:
        names = self.module.names
        if kernel not in names:
            names[kernel] = f"rows{len(names)}"
            self.module.functions.append(row_function(names[kernel], kernel))
        return names[kernel]

    def fill(self, view: View, number: Value) -> None:
        """Set a dense array to one number."""
        f = self.f
        size = int(np.prod(view.shape, dtype=np.int64))
        address = self.address(view)
        if size == 1:
            f.store(number, address)
        elif number.name in ("0", "false", literal(0, number.dtype).name):
            f.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
            nbytes = size * np.dtype(view.dtype).itemsize
            f.do(f"call void @llvm.memset.p0.i64({address}, i8 0, i64 {nbytes}, i1 false)")
        else:
            with f.loop(I64(0), I64(size)) as i:
                f.store(number, f.at(address, i, view.dtype))

    def gemm(self, each: Gemm) -> None:
        batch = each.c.shape[:-2]
        total = int(np.prod(batch, dtype=np.int64))
        addresses = [self.address(v) for v in (each.a, each.b, each.c)]
        if total == 1:
            blas.call(self.module, self.f, each, *addresses)
            return
        f = self.f
        with f.loop(I64(0), I64(total)) as i:
            index: list[Value] = []
            left = i
            for size in reversed(batch):
                index.insert(0, f.op(f"urem {left}, {size}", "int64"))
                left = f.op(f"udiv {left}, {size}", "int64")
            moved = []
            for view, base in zip((each.a, each.b, each.c), addresses, strict=True):
                at = base
                for one, stride in zip(index, view.strides, strict=False):
                    if stride:
                        at = f.at(at, f.op(f"mul nsw {one}, {stride}", "int64"), view.dtype)
                moved.append(at)
            blas.call(self.module, f, each, *moved)

    def gather(self, each: Gather) -> None:
        key = ("gather", each.x.shape, each.out.shape, each.x.dtype, each.index.dtype)
        names = self.module.names
        if key not in names:
            names[key] = f"gather{len(names)}"
            self.module.functions.append(gather_function(names[key], each))
        views = ", ".join(str(self.address(v)) for v in (each.x, each.index, each.out))
        self.f.do(f"call void @{names[key]}({views}, {self.base(self.plan.error.root)}, i64 {each.check})")

    def scatter(self, each: ScatterAdd) -> None:
        self.fill(each.out, literal(0, each.out.dtype))
        key = ("scatter", each.x.shape, each.out.shape, each.x.dtype, each.index.dtype)
        names = self.module.names
        if key not in names:
            names[key] = f"scatter{len(names)}"
            self.module.functions.append(scatter_function(names[key], each))
        views = ", ".join(str(self.address(v)) for v in (each.x, each.index, each.out))
        self.f.do(f"call void @{names[key]}({views}, {self.base(self.plan.error.root)}, i64 {each.check})")
