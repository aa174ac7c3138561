"""The step function while it is written: its addresses, its control words, its stacks, and how it stops.

`flow` writes loops and branches through this interface. `kernel_calls` and `step` implement it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.module import Module
from core.codegen.polling import stop_of
from core.codegen.reductions import identity
from core.codegen.timer import Timer
from core.plan.arena import ArenaMap
from core.plan.flow import Recording, Span
from core.plan.instructions import Gemm, Instructions, Rows
from core.plan.memory import Root, Stack, View
from core.plan.plan import Plan
from core.runtime.array_header import DATA_OFFSET
from core.runtime.control_words import CONTROL, STOPPED

__all__ = ["StepWriter"]


class StepWriter(ABC):
    """Appends code to the function `f`.

    arguments:  the parameters of the step, which are the first ones of each function.
    roots:      addresses of roots that are known at this place in the code.
    recordings: of each recording, its first slot and its length.
    cursors:    of each stack, the variable with the number of its first free slot.
    exit:       the label at the end of the function, once the code jumps to it.
    spent:      the work of the instructions after the last read of the stop word.
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
        self.exit: str | None = None
        self.spent = 0
        self.given = {view.root: i for i, view in enumerate((*plan.params, *plan.results))}

    @property
    def error_word(self) -> IRValue:
        """The address of the error word, for kernels that may fail."""
        return self.base(self.plan.error.root)

    # --- stopping ------------------------------------------------------------------------------------------------

    @contextmanager
    def checked(self) -> Iterator[None]:
        """If the code of the context reads the stop word, leave the step after it if the word is set.

        Code that polls leaves results unwritten when it stops, and the next instruction may use them as positions.
        """
        before, self.module.polls = self.module.polls, False
        yield
        if self.module.polls:
            self.poll()
        self.module.polls |= before

    def poll(self) -> None:
        """Leave the step if the stop word is set."""
        f = self.f
        self.module.polls = True
        self.spent = 0
        if self.exit is None:
            self.exit = f.label("exit")
        asked, go = f.label("asked"), f.label("go")
        word = f.op(f"load volatile i64, {self.control('stop')}, align 8", "int64")
        f.branch(f.compare("icmp ne", word, I64(0)), asked, go)
        f.begin(asked)
        f.store(I64(STOPPED), self.control("error"))
        f.jump(self.exit)
        f.begin(go)

    def stop_word(self) -> IRValue:
        """The address of the stop word, for a function that polls."""
        self.module.polls = True
        return stop_of(self.f, self.f.param("control"))

    def finish(self) -> None:
        """Write the end of the function, to which code that stops jumps."""
        if self.exit is not None:
            self.f.jump(self.exit)
            self.f.begin(self.exit)

    # --- kernels -------------------------------------------------------------------------------------------------

    @abstractmethod
    def sequence(self, body: Instructions) -> None:
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

    # --- addresses -----------------------------------------------------------------------------------------------

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
