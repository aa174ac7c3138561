"""The step function while it is written: its addresses, its control words, and its stacks.

`flow` writes loops and branches through this interface, and `step` implements it with the kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.module import Module
from core.codegen.reductions import identity
from core.codegen.timer import Timer
from core.plan.arena import ArenaMap
from core.plan.data import Gemm, Root, Rows, Sequence, Stack, View
from core.plan.flow import Recording, Span
from core.plan.plan import Plan
from core.runtime.array_header import DATA_OFFSET
from core.runtime.control_words import CONTROL

__all__ = ["StepWriter"]


class StepWriter(ABC):
    """Appends code to the function `f`.

    arguments:  the parameters of the step, which are the first ones of each function.
    roots:      addresses of roots that are known at this place in the code.
    recordings: of each recording, its first slot and its length.
    cursors:    of each stack, the variable with the number of its first free slot.
    """

    def __init__(
        self, module: Module, f: Function, plan: Plan, arena: ArenaMap, threads: int, timer: Timer | None
    ) -> None:
        self.arguments = f.params
        self.module, self.f, self.plan, self.arena, self.threads = module, f, plan, arena, threads
        self.timer = timer
        self.roots: dict[Root, IRValue] = {plan.error.root: f.param("control")}
        self.recordings: dict[Recording | Span, tuple[IRValue, IRValue]] = {}
        self.cursors: dict[Stack, IRValue] = {}
        self.given = {view.root: i for i, view in enumerate((*plan.params, *plan.results))}

    @abstractmethod
    def sequence(self, body: Sequence) -> None:
        """Append all instructions of `body`."""

    @abstractmethod
    def fill(self, view: View, number: IRValue) -> None:
        """Append code that sets all elements of a dense array to one number."""

    def start_sums(self, each: Rows) -> bool:
        """Append the start values of the arrays that a row kernel reduces into; returns whether there are any."""
        sums = {i.operand: i for i in each.kernel.code if i.kind == "accumulate"}
        for operand, instr in sums.items():
            self.fill(each.views[operand], identity(instr.op, instr.dtype))
        return bool(sums)

    @abstractmethod
    def rows(self, each: Rows, fresh: bool = True) -> None:
        """Append a row kernel. fresh: whether the arrays that it reduces into get their start values."""

    @abstractmethod
    def gemm(self, each: Gemm) -> None:
        """Append a product."""

    def base(self, root: Root) -> IRValue:
        """The address of a root."""
        f = self.f
        if root in self.roots:
            return self.roots[root]
        if root.place == "none":
            return f.param("arena")
        if root.place == "constant":
            return self.module.data(root.data)
        if root in self.given:
            header = f.load(f.at(f.param("given"), I64(self.given[root]), "ptr"), "ptr")
            return f.load(f.at(header, I64(DATA_OFFSET), "uint8"), "ptr")
        return f.at(f.param("arena"), I64(self.arena.offsets[root]), "uint8")

    def address(self, view: View) -> IRValue:
        """The address of the first element of a view."""
        base = self.base(view.root)
        return self.f.at(base, I64(view.offset), view.dtype) if view.offset else base

    def control(self, word: str) -> IRValue:
        """The address of a word of `control`."""
        return self.f.at(self.f.param("control"), I64(CONTROL.index(word)), "int64")

    def stack_entry(self, stack: Stack) -> IRValue:
        """The address of a stack's (address, bytes) in the table."""
        return self.f.at(self.f.param("stacks"), I64(16 * self.plan.stacks.index(stack)), "uint8")

    def cursor(self, stack: Stack) -> IRValue:
        """The variable with the number of the first free slot of a stack."""
        if stack not in self.cursors:
            self.cursors[stack] = slot = self.f.slot("int64")
            self.f.top.append(f"  store i64 0, {slot}")
        return self.cursors[stack]
