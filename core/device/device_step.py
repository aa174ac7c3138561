"""The writer of a step on a GPU: one function for each launch, in which all threads run every instruction together.

``step0(given, arena, control, stacks, numbers...)``: the table of the addresses of the caller's arrays, the arena, the
control words, the table of stacks (see `core.codegen.step`), and the numbers of the launch (see `sharing`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate

from core.codegen.llvm import I64, Function
from core.device.arrays import write_array
from core.device.extents import overlap
from core.device.flow import write_loop
from core.device.kernel_calls import DeviceKernels, Group
from core.device.launches import PARAMETERS, Launch
from core.device.multiplication import Biased, Multiplication, Place, biased, multiplication_of, place_in
from core.device.product import Stage
from core.device.segments import Segment
from core.device.sharing import share_kernel
from core.device.spread import SPREAD, blocks_of, resident_blocks, sums_of
from core.device.stripes import write_striped
from core.device.threads import BLOCK, MOST_THREADS
from core.device.tiled import tiled
from core.ir.errors import InternalError
from core.ir.stop import poll
from core.plan.flow import Branch, Loop
from core.plan.growing import ArrayWork
from core.plan.instructions import Gemm, Instruction, Instructions, Interpreted
from core.plan.memory import View
from core.plan.striped import Striped
from core.runtime.control_words import OPS_LEFT

__all__ = ["DeviceStep"]


class DeviceStep(DeviceKernels):
    """Writes a plan for all threads of its launches."""

    def segment(
        self, number: int, each: Segment, behind: tuple[Instruction, ...] = ()
    ) -> list[tuple[Launch | Multiplication, tuple[Instruction, ...]]]:
        """Write launches, or make calls of the library instead, each with the instructions that it computes.

        behind: runs in the last launch, if that is one of sums on one block.
        """
        product, *after = each.instructions or (None,)
        if each.kind != "product" or not self.rules.library or not isinstance(product, Gemm):
            return self._launches(number, each, behind)
        whole = self._library_call(product, biased(product, after[0])) if after else None
        if whole is not None:
            return [(whole, each.instructions)]
        alone = self._library_call(product)
        if alone is None:
            return self._launches(number, each)
        rest = replace(each, kind="wide", instructions=tuple(after))
        return [(alone, (product,)), *(self._launches(number, rest) if after else ())]

    def _launches(
        self, number: int, each: Segment, behind: tuple[Instruction, ...] = ()
    ) -> list[tuple[Launch | Multiplication, tuple[Instruction, ...]]]:
        """Write one launch, or two: the second one adds up what the teams of a row kernel have."""
        if each.kind == "group":
            return [(launch, each.instructions) for launch in self._group_launches(f"step{number}", each)]
        name, sums = f"step{number}", sums_of(each, self._threads(1))
        if sums is None:
            loops = any(isinstance(one, Loop | Branch) for one in each.instructions)
            blocks = blocks_of(each, self._threads(1))
            block = MOST_THREADS // BLOCK * self.block if each.kind == "sort" else self.block
            write = lambda: self.instructions(Instructions(each.instructions))
            whole = self._launch(name, blocks, write, loops, block)
            return [(replace(whole, resident=resident_blocks(each, blocks)), each.instructions)]
        rows, first, last = sums

        def add_up() -> None:
            self._add_up(rows, first)  # at its end all threads of the block meet
            self.instructions(Instructions(behind))

        apart = self._launch(name, first.blocks, lambda: self.rows(rows, apart=True))
        apart = replace(apart, resident=resident_blocks(each, first.blocks))
        return [(apart, each.instructions), (self._launch(f"{name}_sums", last, add_up), (*each.instructions, *behind))]

    def _group_launches(self, name: str, each: Segment) -> Iterator[Launch]:
        """Write the launch of instructions that do not wait for each other, and one that adds up the parts of sums."""
        launch = self._launch(name, each.blocks, lambda: self._side_by_side(each.instructions, each.firsts, "parts"))
        assert not launch.cooperative and launch.cluster == 1, "no thread of a group waits for another block"
        alone = self._threads(self.processors)
        found = [(one, tiled(one, alone, self.rules)) for one in each.instructions]
        multiplies = any(of is not None for _, of in found)  # see `core.device.early_launch.starts_early`
        yield replace(launch, early=not multiplies)
        split = {one: math.prod(of[0].c.shape) for one, of in found if of is not None and of[1].parts > 1}
        if split:
            wanted = [-(-size // self.block) for size in split.values()]
            blocks = min(sum(wanted), self.processors * SPREAD)
            firsts = [first % blocks for first in accumulate(wanted[:-1], initial=0)]
            yield self._launch(f"{name}_sums", blocks, lambda: self._side_by_side(split, firsts, "sums"))

    def _side_by_side(self, instructions: Iterable[Instruction], firsts: Iterable[int], stage: Stage) -> None:
        """Write the instructions of a group. firsts: the block that has the first threads of each instruction."""
        self.group = Group(stage)
        for one, first in zip(instructions, firsts, strict=True):
            poll()
            self.launch.first = first
            self.instruction(one)
        self.launch.first, self.group = 0, None

    def _launch(
        self, name: str, blocks: int, write: Callable[[], None], loops: bool = False, block: int | None = None
    ) -> Launch:
        """Write one launch. Its function is `name`, unless an earlier one is the same. block: threads of a block."""
        self.launch = self.launch.on(blocks, block or self.block)
        names = (*PARAMETERS, "ops_left") if loops else PARAMETERS
        self.f = f = Function(f"{name}_body" if loops else name, [(n, "ptr") for n in names], noalias=False)
        self.arguments = f.params
        self.roots = {self.plan.error.root: f.param("control")}
        self.cursors, self.counts_ops = {}, False
        self.forget()
        write()
        numbers: tuple[int, ...] = ()
        if loops:
            self.module.functions += [f, _entry(self, name)]
        else:
            name, numbers = share_kernel(self.module, f)
        meets = self.launch.meets and blocks > 1
        cluster = blocks if meets and blocks <= self.rules.cluster else 1
        return Launch(
            name, blocks, self.launch.block, self.launch.shared_bytes, meets and cluster == 1, numbers, cluster
        )

    def _library_call(self, product: Gemm, then: Biased | None = None) -> Multiplication | None:
        """A product as a call of the library; None if that does not take it."""
        if then is not None:
            operands = self.places((product.a.root, product.b.root, then.bias.root))
            if overlap(operands, self.places((then.out.root,))):  # the operands are dead when the bias is added
                return None
        return multiplication_of(product, self._host_place, self.rules.tf32, then)

    def _host_place(self, view: View) -> Place | None:
        """Where the host finds the first element of `view`; None if only the code knows."""
        root = view.root
        if root.place == "arena" and root in self.arena.offsets:
            return place_in(view, None, self.arena.offsets[root])
        return place_in(view, self.given[root], 0) if root in self.given else None

    def instruction(self, each: Instruction) -> None:
        if isinstance(each, Interpreted):
            raise InternalError("a step on a GPU cannot call back")
        if isinstance(each, Loop | Branch):
            self.meet()
            super().instruction(each)
            self.meet()
            return
        self._order(each)
        if isinstance(each, ArrayWork):
            write_array(self, each)
        elif isinstance(each, Striped):
            write_striped(self, each)
        else:
            super().instruction(each)

    def _nest(self, each: Loop | Branch) -> None:
        if isinstance(each, Loop):
            write_loop(self, each)
        else:
            super()._nest(each)


def _entry(step: DeviceStep, name: str) -> Function:
    """The function of a launch with loops: each thread has a count of its own of the ops in loops that are left."""
    f = Function(name, [(name, "ptr") for name in PARAMETERS], noalias=False)
    left = f.slot("int64")
    word = f.at(f.param("control"), I64(OPS_LEFT), "int64")
    if step.counts_ops:
        f.write(f.load(word, "int64"), left)
    f.do(f"call void @{step.f.name}({', '.join(map(str, f.params))}, {left})")
    if step.counts_ops:
        step.launch.barrier(f)  # all threads have read the word
        with step.launch.alone(f):
            f.store(f.read(left, "int64"), word)
    return f
