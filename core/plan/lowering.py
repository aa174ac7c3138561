"""From a block to instructions: what every op's lowering shares.

A variable of the block is one of three things while its block is lowered: a `Uniform`, the same number everywhere; a
`Member` of a group that is still growing; or a `View` of memory. Lowerings ask for the form they need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.ir import HOLE, Block, Op, StackType, TensorType
from core.ir.errors import ExecutionError, Location
from core.ir.registry import lookup
from core.plan.data import Instruction, Interpreted, Root, Stack, View, bytes_of, contiguous
from core.plan.fusion import Axes, Group, Member
from core.plan.plan import Check
from core.plan.schedule import Schedule
from core.plan.target import Target
from core.plan.unsupported import Unsupported

__all__ = ["LOWERINGS", "Lowering", "Shared", "Uniform", "lowers"]


@dataclass(frozen=True, slots=True)
class Uniform:
    """The same number everywhere."""

    number: Any
    dtype: str
    shape: tuple[int, ...]


Entry = Uniform | Member | View
LOWERINGS: dict[str, Callable[[Lowering, Op], None]] = {}


def lowers(*names: str) -> Callable[[Callable[[Lowering, Op], None]], Callable[[Lowering, Op], None]]:
    """Decorator: how the ops `names` become instructions."""

    def register(function: Callable[[Lowering, Op], None]) -> Callable[[Lowering, Op], None]:
        LOWERINGS.update(dict.fromkeys(names, function))
        return function

    return register


@dataclass(slots=True)
class Shared:
    """What the blocks of one plan have in common. error: where generated code writes the number of a failed check."""

    target: Target
    checks: list[Check] = field(default_factory=lambda: [Check("", "", None)])
    stacks: list[Stack] = field(default_factory=list)
    interpreted: list[Interpreted] = field(default_factory=list)
    error: View = field(default_factory=lambda: View(Root(8, "given", "error"), "int64", (), ()))

    def check(self, code: str, message: str, location: Location | None) -> int:
        self.checks.append(Check(code, message, location))
        return len(self.checks) - 1


class Lowering:
    """Lowers one block, op by op.

    wanted: (variable, where its value must be left) pairs. What computes it writes it to the first of them at once;
            the others of the same variable are in `also`.
    placed: variables whose value is left where it is wanted, or will be.
    env:    variable -> what it is by now.
    own:    roots of the arena that the block itself asked for.
    outer:  of the block around a loop's body.
    added:  variable -> what it is added to where it is computed, instead of being stored.
    """

    def __init__(self, block: Block, shared: Shared, wanted: Sequence[tuple[str, View]] = ()) -> None:
        self.block = block
        self.types = block.types
        self.shared = shared
        self.wanted: dict[str, View] = {}
        self.also: list[tuple[str, View]] = []
        for name, view in wanted:
            self.want(name, view)
        self.placed: set[str] = set()
        self.own: set[Root] = set()
        self.outer: Lowering | None = None
        self.added: dict[str, View] = {}
        self._once: dict[View, View] = {}
        self.env: dict[str, Any] = {}
        self.schedule = Schedule(shared.target.rows)
        self.producers = {name: op for op in block.ops for name in op.outputs}
        self._saved: dict[tuple[Group, int, Axes, tuple[int, ...]], View] = {}
        self._homes: dict[tuple[Group, int, Axes], tuple[str, View]] = {}
        self._readers: dict[str, list[Op | None]] = {}
        self.op: Op | None = None

    def want(self, name: str, view: View) -> None:
        """The value of `name` must be left in `view`."""
        if name in self.wanted:
            self.also.append((name, view))
        else:
            self.wanted[name] = view

    def finish(self) -> tuple[Instruction, ...]:
        """Leave the wanted values where they are wanted, and close all groups."""
        for name, target in self.wanted.items():
            if name not in self.placed:
                self.leave(self.env[name], target)
        for name, target in self.also:
            self.leave(self.env[name], target)
        return self.schedule.finish()

    def readers(self, name: str) -> list[Op | None]:
        """The ops of the block that read `name`; None among them stands for the block's results."""
        if not self._readers:
            for op in self.block.ops:
                for each in op.inputs:
                    self._readers.setdefault(each, []).append(op)
            for each in self.block.results:
                self._readers.setdefault(each, []).append(None)
        return self._readers.get(name, [])

    def stand_alone(self, name: str) -> None:
        """What computes `name` cannot add it to anything: the op that reads it does."""
        if name in self.added:
            del self.added[name]
            (reader,) = self.readers(name)
            assert reader is not None
            self.placed.discard(reader.outputs[0])

    # --- types ---------------------------------------------------------------------------------------------------

    def type(self, name: str) -> TensorType:
        """The type of a variable, which must be an array of known size and native dtype, and not empty."""
        type = self.types[name]
        if isinstance(type, StackType):
            raise Unsupported("tensor arrays that grow")
        if not type.is_static:
            raise Unsupported(f"the size of {name} is known only when it runs")
        if type.dtype not in self.shared.target.dtypes:
            raise Unsupported(f"no machine code for {type.dtype}")
        if 0 in type.shape:
            raise Unsupported("empty arrays")
        return type

    def entry(self, name: str) -> Any:
        return self.env[name]

    def define(self, name: str, entry: Any) -> None:
        """`name` is this value from now on."""
        self.env[name] = entry
        if name in self.wanted and isinstance(entry, Member):
            self._homes.setdefault((entry.group, entry.number, entry.axes), (name, self.wanted[name]))

    # --- memory --------------------------------------------------------------------------------------------------

    def place(self, name: str) -> View:
        """Memory for the variable `name`: where it is wanted, or somewhere."""
        type = self.type(name)
        if name in self.wanted and name not in self.placed:
            self.placed.add(name)
            return self.wanted[name]
        return self.room(type.shape, type.dtype, name)

    def room(self, shape: tuple[int, ...], dtype: str, name: str = "") -> View:
        return View(self.root(bytes_of(shape, dtype), name), dtype, shape, contiguous(shape))

    def root(self, nbytes: int, name: str = "") -> Root:
        """New memory in the arena."""
        root = Root(nbytes, "arena", name)
        self.own.add(root)
        return root

    def add(self, instruction: Instruction) -> None:
        """Append an instruction."""
        self.schedule.add(instruction)

    def stored(self, entry: Entry) -> View:
        """`entry` in memory, in whatever layout it has there."""
        if isinstance(entry, View):
            return entry
        if isinstance(entry, Uniform):
            return self._filled(entry)
        key = (entry.group, entry.number, entry.axes, entry.shape)
        if key not in self._saved:
            self._saved[key] = self._save(entry)
        return self._saved[key]

    def _save(self, member: Member) -> View:
        group = member.group
        home = self._homes.get((group, member.number, member.axes))  # what is turned lies elsewhere
        if home and home[0] not in self.placed and self._fits(member, home[1]):
            self.placed.add(home[0])
            self._store(member, home[1])
            return home[1]
        varies = group.drafts[member.number].varies
        sizes = tuple(n if i in varies else 1 for i, n in enumerate(group.shape))
        steps = contiguous(sizes)
        strides = tuple(steps[axis] if axis is not None and axis in varies else 0 for axis in member.axes)
        view = View(self.root(bytes_of(sizes, member.dtype)), member.dtype, member.shape, strides)
        self._store(member, view)
        return view

    def _store(self, member: Member, view: View) -> None:
        member.group.store(member.number, view, member.axes)
        self.schedule.written(view.root, member.group.position)

    def _fits(self, member: Member, target: View) -> bool:
        """Whether `member` can be written to `target` by its own group."""
        varies = member.group.drafts[member.number].varies
        if any(
            n > 1 and (axis is None or axis not in varies) for n, axis in zip(member.shape, member.axes, strict=True)
        ):
            return False
        if member.shape != target.shape:
            return False
        return member.group.can_load(member.group.strides(target, member.axes))

    def _filled(self, uniform: Uniform) -> View:
        """One element that stands for all."""
        group = self.new_group(())
        view = View(self.root(bytes_of((), uniform.dtype)), uniform.dtype, (), ())
        group.store(group.constant(uniform.number, uniform.dtype), view, ())
        self.schedule.written(view.root, group.position)
        return View(view.root, uniform.dtype, uniform.shape, (0,) * len(uniform.shape))

    def dense(self, entry: Entry) -> View:
        """`entry` in memory, row-major and without gaps."""
        if not isinstance(entry, Uniform):
            view = self.stored(entry)
            if view.strides == contiguous(view.shape) or math.prod(view.shape) == 1:
                return View(view.root, view.dtype, view.shape, contiguous(view.shape), view.offset)
            entry = view
        target = self.room(entry.shape, entry.dtype)
        self.leave(entry, target)
        return target

    def once(self, view: View, make: Callable[[Lowering, View], View]) -> View:
        """What `make` makes of `view`, in front of all loops whose trips do not change it, and not again."""
        level = self
        while level.outer is not None and view.root not in level.own and view.root.place in ("arena", "given"):
            level = level.outer
        if view not in level._once:
            level._once[view] = make(level, view)
        return level._once[view]

    def leave(self, entry: Entry, target: View) -> None:
        """Write `entry` to `target`."""
        if isinstance(entry, Member) and entry.shape == target.shape and self._fits(entry, target):
            self._store(entry, target)
            return
        self.copy(entry, target)

    def copy(self, entry: Entry, target: View) -> None:
        """Write `entry` to `target` behind everything that came before."""
        source = entry if isinstance(entry, Uniform) else self.stored(entry)
        group = self.new_group(target.shape)
        axes = tuple(range(len(target.shape)))
        group.store(self.argument(group, source, target.shape, axes), target, axes)
        self.schedule.written(target.root, group.position)

    # --- groups --------------------------------------------------------------------------------------------------

    def new_group(self, shape: tuple[int, ...]) -> Group:
        return self.schedule.begin(shape, self.op.location if self.op else None)

    def join(self, shape: tuple[int, ...], entries: Sequence[Entry]) -> tuple[Group, Axes]:
        """A group that can compute a result of `shape` from `entries`, and the domain's axes of the result."""
        operands = [e for e in entries if not isinstance(e, Uniform)]
        found = self.schedule.taker(shape, operands, self.stored)
        return found or (self.new_group(shape), tuple(range(len(shape))))

    def argument(self, group: Group, entry: Entry, shape: tuple[int, ...], axes: Axes) -> int:
        """`entry` as a value of `group`, for a result of `shape` along `axes`."""
        if isinstance(entry, Uniform):
            return group.constant(entry.number, entry.dtype)
        if isinstance(entry, Member) and entry.group is group:
            return entry.number
        view = self.stored(entry)
        return group.load(view, axes[len(shape) - len(view.shape) :])

    def elementwise(self, op: Op) -> None:
        """Any elementwise op that can be traced."""
        (out,) = op.outputs
        type = self.type(out)
        names = [n for n in op.inputs if n != HOLE]
        dtypes = [self.type(n).dtype for n in names]
        self.define(out, self.apply(op.type, op.attrs, [self.entry(n) for n in names], dtypes, type))

    def apply(
        self, op: str, attrs: Mapping[str, Any], entries: Sequence[Entry], dtypes: Sequence[str], type: TensorType
    ) -> Entry:
        """The value of elementwise op `op` on `entries`."""
        uniforms = [e for e in entries if isinstance(e, Uniform)]
        if len(uniforms) == len(entries):
            try:
                with np.errstate(all="ignore"):
                    numbers = [np.asarray(e.number, e.dtype) for e in uniforms]
                    result = np.asarray(lookup(op).body(np, *numbers, **attrs))
            except ExecutionError as error:  # of the run, if it comes to that
                raise Unsupported(str(error)) from None
            return Uniform(result[()], type.dtype, type.shape)
        if not self.shared.target.computes(op, attrs, dtypes, type.dtype):
            raise Unsupported(f"{op} of {', '.join(dtypes)} has no machine code")
        group, axes = self.join(type.shape, entries)
        args = [self.argument(group, e, type.shape, axes) for e in entries]
        group.ops.append(op)
        number = group.apply(op, sorted(attrs.items()), args, type.dtype)
        return Member(group, number, type.dtype, type.shape, axes)
