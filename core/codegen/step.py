"""The function `step` that runs a plan: it calls one kernel after another.

``step(given, arena, control, stacks[, times])``: the addresses of the caller's numpy arrays, the arena, the words that
the step shares with its caller (`CONTROL`), the table of the stacks, and the table of the profile clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

from core.codegen import parallel
from core.codegen.apart import CROWDED, NESTED, write_apart
from core.codegen.flow import write_branch, write_loop
from core.codegen.kernel_calls import KernelCalls, scratch_of
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.module import Module
from core.codegen.polling import is_long
from core.codegen.stack_memory import grow_function, slot_function
from core.codegen.stripes import write_striped
from core.codegen.tensor_arrays import write_array
from core.codegen.timer import Timer
from core.ir.stop import poll
from core.plan.arena import ArenaMap
from core.plan.flow import Branch, Loop
from core.plan.growing import ArrayWork
from core.plan.instructions import (
    Gather,
    Gemm,
    Instruction,
    Instructions,
    Interpreted,
    Kernel,
    Limited,
    Rows,
    ScatterAdd,
)
from core.plan.memory import Root
from core.plan.plan import Plan
from core.plan.side_by_side import Stretch
from core.plan.striped import Striped
from core.plan.work import work_of
from core.runtime.control_words import CONTROL

__all__ = ["Step", "write_step"]

CONTROL_FLOW = (Loop, Branch, ArrayWork)

OUTLINED_KERNELS = 64
"""Kernels in one function of long straight code: LLVM's time for a function grows with the square of its length."""


def write_step(
    plan: Plan, arena: ArenaMap, threads: int = 1, timer: Timer | None = None, side_by_side: Iterable[Stretch] = ()
) -> Module:
    """The module with the function `step` of `plan`, whose long kernels run on `threads` threads.

    timer:        writes a clock around each kernel; `step` then has one more parameter, the table of times.
    side_by_side: stretches of the body whose branches run side by side; `arena` must be arranged for them.

    The module also has ``enter(arguments)``: it takes the address of all arguments of `step` in a row, runs `step`,
    returns the error word and resets it to 0. One argument makes the call from Python cheaper.
    """
    module = Module()
    params = ["given", "arena", "control", "stacks", *(["times"] if timer is not None else [])]
    f = Function("step", [(name, "ptr") for name in params], noalias=False)
    writer = Step(module, f, plan, arena, threads, timer)
    writer.body(side_by_side)
    writer.finish()
    module.functions += [f, _enter(params)]
    if plan.stacks:
        module.functions += [grow_function(plan.target.min_stack_bytes), slot_function()]
    return module


def _enter(params: list[str]) -> Function:
    f = Function("enter", [("arguments", "ptr")], "i64")
    given = [f.load(f.at(f.param("arguments"), I64(i), "ptr"), "ptr") for i in range(len(params))]
    f.do(f"call void @step({', '.join(map(str, given))})")
    error = f.at(given[params.index("control")], I64(CONTROL.index("error")), "int64")
    failed = f.load(error, "int64")
    f.store(I64(0), error)
    f.do(f"ret {failed}")
    return f


class Step(KernelCalls):
    """Writes every kind of instruction into the step."""

    _nesting = 0

    def body(self, side_by_side: Iterable[Stretch]) -> None:
        """Write the body of the plan, with the branches of some stretches side by side."""
        instructions, at = self.plan.body.instructions, 0
        for stretch in side_by_side:
            self.sequence(Instructions(instructions[at : stretch.first]))
            self.straight([instructions[i] for i in stretch.ahead])
            self.beside([[instructions[i] for i in share] for share in stretch.shares])
            self.straight([instructions[i] for i in stretch.after])
            at = stretch.end
        self.sequence(Instructions(instructions[at:]))

    def sequence(self, body: Instructions) -> None:
        """Write all instructions of `body`."""
        outer, self.spent = self.spent, 0
        waiting: list[Instruction] = []
        many = len(body.instructions) > 2 * OUTLINED_KERNELS
        crowded = sum(isinstance(each, Loop | Branch) for each in body.instructions) > CROWDED
        for each in body.instructions:
            if isinstance(each, CONTROL_FLOW):
                self.straight(waiting)
                # an array op does nothing once the run stops, so that its results stay what they were
                with nullcontext() if isinstance(each, ArrayWork) else self.checked():
                    if crowded and isinstance(each, Loop | Branch):
                        self.nested(each, apart=True)
                    else:
                        self.instruction(each)
                continue
            waiting.append(each)
            if many and len(waiting) == OUTLINED_KERNELS:
                self.outlined(waiting)
        self.straight(waiting)
        self.spent += outer

    def straight(self, waiting: list[Instruction]) -> None:
        """Write the waiting instructions, which have no control flow. The code reads the stop word after every stretch
        of long work.
        """
        for each in waiting:
            poll()
            if is_long(self.spent):
                self.poll()
            around = nullcontext() if self.timer is None else self.timer.around(self.f, each)
            work = work_of(each)
            self.spent += work.flops + work.nbytes
            with self.checked(), around:
                if is_long(work.flops + work.nbytes):
                    self.f.stop = self.stop_word()  # loops of the step itself poll
                self.instruction(each)
                self.f.stop = None
        waiting.clear()

    def outlined(self, waiting: list[Instruction]) -> None:
        """Write the waiting instructions to a separate function, and a call of it."""
        with self.checked():
            name, arguments = self._apart(waiting, self._addresses(waiting))
            self.f.do(f"call void @{name}({', '.join(map(str, arguments))})")

    def beside(self, shares: list[list[Instruction]]) -> None:
        """Write a task whose chunks are the instructions of one thread each, and a call that runs all of them."""
        roots = self._addresses([each for share in shares for each in share])
        threads, self.threads = self.threads, 1
        parts = []
        with self.checked():
            for share in shares:
                parts.append(self._apart(list(share), roots))
                self.others_scratch += max((scratch_of(each) for each in share), default=0)
            self.threads, self.others_scratch = threads, 0
            task = parallel.choice_task(self.module, [name for name, _ in parts], len(parts[0][1]))
            parallel.run(self.module, self.f, task, parts[0][1], len(parts))

    def _addresses(self, instructions: list[Instruction]) -> dict[Root, IRValue]:
        """The roots of some instructions whose addresses are known only in this function."""
        touched = dict.fromkeys(root for each in instructions for root in (*each.reads(), *each.writes()))
        return {root: self.roots[root] for root in touched if root in self.roots and root != self.plan.error.root}

    def _apart(self, waiting: list[Instruction], known: dict[Root, IRValue]) -> tuple[str, list[IRValue]]:
        """Write the waiting instructions to a separate function; its name and the arguments of a call.

        Its parameters are those of `step`, and the addresses of `known`.
        """
        outer, roots, left = self.f, self.roots, self.exit
        own = outer.params[: len(self.arguments)]
        names = [p.name.removeprefix("%") for p in own] + [f"root{i}" for i in range(len(known))]
        name = f"group{len(self.module.functions)}"
        self.f = f = Function(name, [(each, "ptr") for each in names], noalias=False)
        self.roots = dict(zip(known, f.params[len(own) :], strict=True)) | {self.plan.error.root: f.param("control")}
        self.exit = None
        self.straight(waiting)
        self.finish()
        self.module.functions.append(f)
        self.f, self.roots, self.exit = outer, roots, left
        return name, [*own, *known.values()]

    def instruction(self, each: Instruction) -> None:
        poll()
        if isinstance(each, Rows):
            self.rows(each)
        elif isinstance(each, Gemm):
            self.gemm(each)
        elif isinstance(each, Limited):
            self.limited(each)
        elif isinstance(each, Gather):
            self.gather(each)
        elif isinstance(each, ScatterAdd):
            self.scatter(each)
        elif isinstance(each, Kernel):
            self.kernel(each)
        elif isinstance(each, Striped):
            write_striped(self, each)
        elif isinstance(each, Interpreted):
            self.interpreted(each)
        elif isinstance(each, Loop | Branch):
            self.nested(each)
        elif isinstance(each, ArrayWork):
            write_array(self, each)
        else:
            raise TypeError(each)

    def nested(self, each: Loop | Branch, apart: bool = False) -> None:
        """Write a loop or a branch, deep inside of others as a separate function. apart: anyway."""
        outer = self._nesting, self.exit
        self._nesting += 1
        if self._nesting <= NESTED and not apart:
            self._nest(each)
        else:
            self._nesting, self.exit = 1, None
            write_apart(self, each, lambda: self._nest(each), self.finish)
            self.exit = outer[1]
        self._nesting = outer[0]

    def _nest(self, each: Loop | Branch) -> None:
        if isinstance(each, Loop):
            self.loops += 1
            write_loop(self, each)
            self.loops -= 1
        else:
            write_branch(self, each)
