"""The step on a GPU while it is written: the threads of its launch, its barriers, and its scratch memory.

`flow`, `arrays` and `stripes` write instructions through this interface, and `device_step` implements it with the
kernels and writes the launches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.module import Module
from core.codegen.step import Step
from core.device.extents import ANYWHERE, Extent, Extents, overlap
from core.device.launches import PARAMETERS
from core.device.rules import Rules
from core.device.threads import Threads
from core.ir.stop import poll
from core.plan.arena import ArenaMap
from core.plan.flow import Branch, Loop
from core.plan.instructions import Instruction, Instructions
from core.plan.memory import Root, Stack
from core.plan.plan import Plan

__all__ = ["DeviceWriter"]


@dataclass(slots=True)
class _Waiting:
    """The memory that the instructions since the last barrier read and wrote."""

    read: Extents = field(default_factory=Extents)
    written: Extents = field(default_factory=Extents)


class DeviceWriter(Step):
    """Appends code for all threads of a launch to the function `f`.

    launch:     the threads of the present launch.
    counts_ops: whether a loop of the present launch counts ops.
    """

    def __init__(self, plan: Plan, arena: ArenaMap, processors: int, block: int, rules: Rules) -> None:
        super().__init__(Module(), Function("none", [(name, "ptr") for name in PARAMETERS]), plan, arena, 1, None)
        self.processors, self.block, self.rules = processors, block, rules
        self.launch = Threads(1, block)
        self.counts_ops = False
        self._waiting = _Waiting()
        self._placed: dict[Root, set[Extent]] = {}
        self._needs: dict[str, tuple[int, bool]] = {}

    @abstractmethod
    def needs_scratch(self, each: Instruction) -> bool:
        """Whether an instruction writes to scratch memory, which all of them share."""

    def sequence(self, body: Instructions) -> None:
        """Write all instructions of `body`, and a barrier behind them: the caller may run them often, or not at all."""
        self.instructions(body)
        self.meet()

    def instructions(self, body: Instructions) -> None:
        for each in body.instructions:
            poll()
            self.instruction(each)

    def fail(self, check: IRValue) -> None:
        """Report a failed check, unless an earlier op failed as well."""
        fail(self.f, self.control("error"), check)

    def stack_entry(self, stack: Stack) -> IRValue:
        """The address of a stack's (address, bytes, bytes that a run wanted) in the table."""
        return self.f.at(self.f.param("stacks"), I64(24 * self.plan.stacks.index(stack)), "uint8")

    def base(self, root: Root) -> IRValue:
        if root not in self.roots and root.place != "constant" and root in self.given:
            return self.f.load(self.f.at(self.f.param("given"), I64(self.given[root]), "ptr"), "ptr")
        return super().base(root)

    def function(self, key: tuple[object, ...], hint: str, make: Callable[[str], Function]) -> str:
        """The function for `key` on the threads of this launch, which has the shared memory and barriers it needs."""
        launch = self.launch
        before, launch.shared_bytes, launch.meets = (launch.shared_bytes, launch.meets), 0, False
        name = self.module.function((*key, launch.blocks, launch.block, launch.first), hint, make)
        shared, meets = self._needs.setdefault(name, (launch.shared_bytes, launch.meets))
        launch.shared_bytes, launch.meets = max(before[0], shared), before[1] or meets
        return name

    def scratch(self, nbytes: int, before: int = 0) -> IRValue:
        """The address of scratch memory. before: bytes that others use."""
        self.module.scratch = max(self.module.scratch, before + nbytes)
        return self.f.at(self.f.param("arena"), I64(self.arena.size + before), "uint8")

    # --- barriers ------------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """A barrier, if anything was read or written since the last one."""
        if self._waiting.read or self._waiting.written:
            self.launch.barrier(self.f)
        self._waiting = _Waiting()

    def forget(self) -> None:
        """All threads have just met."""
        self._waiting = _Waiting()

    @contextmanager
    def sometimes(self) -> Iterator[None]:
        """The code that is written inside runs in some trips only, so that threads may not have met behind it."""
        before = self._waiting
        self._waiting = _Waiting(Extents(before.read), Extents(before.written))
        yield
        self._waiting.read.update(before.read)
        self._waiting.written.update(before.written)

    def reads(self, roots: Iterable[Root]) -> None:
        """The code has just read memory of these roots: a later write to it waits."""
        self._waiting.read.update(self.places(roots))

    def put_place(self, root: Root, place: set[Extent]) -> None:
        """Note where the memory of a root is, whose address only the run tells."""
        self._placed[root] = place

    def reads_anything(self) -> None:
        """The code has just read memory of any place: a later write waits for it."""
        self._waiting.read.add(ANYWHERE)

    def touches_anything(self) -> None:
        """The code has just read and written memory of any place."""
        self._waiting.read.add(ANYWHERE)
        self._waiting.written.add(ANYWHERE)

    def _order(self, each: Instruction) -> None:
        """A barrier before `each` if it depends on an instruction since the last one."""
        scratch = ("arena", self.arena.size, 1 << 62)
        read, written = self.places(each.reads()), self.places(each.writes())
        if self.needs_scratch(each):
            written.add(scratch)
        before = self._waiting
        if before.read.meets(written) or before.written.meets(written) or before.written.meets(read):
            self.meet()
        self._waiting.read.update(read)
        self._waiting.written.update(written)

    def depend(self, one: Instruction, other: Instruction) -> bool:
        """Whether `other`, which stands behind `one`, must wait for it. Neither of them shares its scratch memory."""
        if isinstance(one, Loop | Branch) or isinstance(other, Loop | Branch):
            return True
        read, written = self.places(one.reads()), self.places(one.writes())
        return overlap(self.places(other.writes()), read | written) or overlap(self.places(other.reads()), written)

    def places(self, roots: Iterable[Root]) -> set[Extent]:
        """(space, start, end) of memory. Arrays of the caller never overlap; an address that only the run tells may,
        unless a loop has noted where it is.
        """
        found = set()
        for root in roots:
            if root.place == "constant" or root is self.plan.error.root:
                continue
            if root in self.arena.offsets and root not in self.roots:
                start = self.arena.offsets[root]
                found.add(("arena", start, start + root.nbytes))
            elif root in self.given and root not in self.roots:
                found.add(("given", self.given[root], self.given[root] + 1))
            else:
                found |= self._placed.get(root, {ANYWHERE})
        return found
