"""Memory for the values of one block: allocation, and the instructions that store, copy and fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.ir.errors import InternalError, Location
from core.ops.common.types import fits
from core.plan.destinations import Destinations
from core.plan.entries import Entry, Pattern, Uniform
from core.plan.fusion import Axes, Fusion, Member
from core.plan.instruction_list import InstructionList
from core.plan.instructions import Instruction
from core.plan.memory import Root, View, bytes_of, contiguous
from core.plan.repeated import Repeated, repeated_of
from core.plan.rows_at import lookup_of
from core.plan.target import RowLimits

__all__ = ["Storage"]

HELD = 2**24
"""Most bytes of the copies of a block that live on for later readers."""


class Storage:
    """The instructions of a block, and the memory that they use.

    own:      roots of the arena that this block allocated.
    outer:    the storage of the block around a loop's body; None for other blocks.
    location: the client's op that new instructions belong to.
    names:    (fusion, number) of a value -> the variables with that value.
    """

    def __init__(
        self, limits: RowLimits, wanted: Sequence[tuple[str, View]] = (), outer: Storage | None = None
    ) -> None:
        """wanted: (variable, its destination) pairs; see `Destinations`."""
        self.destinations = Destinations(wanted)
        self.instructions = InstructionList(limits)
        self.own: set[Root] = set()
        self.outer = outer
        self.location: Location | None = None
        self.names: dict[tuple[Fusion, int], list[str]] = {}
        self._stored: dict[tuple[Fusion, int, Axes, tuple[int, ...]], View] = {}
        self._homes: dict[tuple[Fusion, int, Axes], str] = {}  # members that are variables with a destination
        self._invariants: dict[View, View] = {}
        self._copies: dict[View, View] = {}
        self._held: set[Root] = set()  # the copies among these that live on for later readers
        self._room = HELD
        self._patterns: dict[Pattern, View] = {}

    def add(self, instruction: Instruction) -> None:
        """Append an instruction."""
        self.instructions.add(instruction)

    def add_early(self, instruction: Instruction) -> None:
        """Insert an instruction that writes only to new memory as early as its operands allow."""
        self.instructions.add_early(instruction)

    # --- allocation ----------------------------------------------------------------------------------------------

    def root(self, nbytes: int, name: str = "") -> Root:
        """New memory in the arena."""
        root = Root(nbytes, "arena", name)
        self.own.add(root)
        return root

    def allocate(self, shape: tuple[int, ...], dtype: str, name: str = "") -> View:
        """A new array in the arena."""
        return View(self.root(bytes_of(shape, dtype), name), dtype, shape, contiguous(shape))

    def name_member(self, name: str, member: Member) -> None:
        """`member` is the variable `name`: if it is stored, then at the destination of `name`, if there is one."""
        self.names.setdefault((member.fusion, member.number), []).append(name)
        if self.destinations.first(name) is not None:
            self._homes.setdefault((member.fusion, member.number, member.axes), name)

    def hoist_invariant(self, view: View, make: Callable[[Storage, View], View]) -> View:
        """The result of `make` for `view`, computed once, before all loops whose trips do not change `view`."""
        level = self
        while (
            level.outer is not None and view.root not in level.own and view.root.place in ("arena", "given", "constant")
        ):
            level = level.outer
        if view not in level._invariants:
            level._invariants[view] = make(level, view)
        return level._invariants[view]

    def copied_once(self, view: View, make: Callable[[Storage, View], View]) -> View:
        """The copy of `view` that `make` writes, the same one for all readers until another instruction writes `view`.

        Copies of some size in all live on for later readers; further ones are made again for each.
        """
        made = self._copies.get(view)
        if made is not None and self.instructions.is_newer(made.root, view.root) and self._holds(made.root):
            return made
        self._copies[view] = make(self, view)
        return self._copies[view]

    def _holds(self, copy: Root) -> bool:
        """Whether a copy lives on for later readers, from now on if there is room."""
        if copy not in self._held and self._room >= copy.nbytes:
            self._held.add(copy)
            self._room -= copy.nbytes
        return copy in self._held

    # --- from entries to memory ----------------------------------------------------------------------------------

    def stored(self, entry: Entry) -> View:
        """`entry` in memory, in any layout."""
        if isinstance(entry, View):
            return entry
        if isinstance(entry, Uniform):
            return self._filled(entry)
        if isinstance(entry, Pattern):
            if entry not in self._patterns:
                self._patterns[entry] = self.allocate(entry.shape, entry.dtype)
                self.copy(entry, self._patterns[entry])
            return self._patterns[entry]
        key = (entry.fusion, entry.number, entry.axes, entry.shape)
        if key not in self._stored:
            self._stored[key] = self._store_somewhere(entry)
        return self._stored[key]

    def is_stored(self, entry: Entry) -> bool:
        """Whether `entry` is in memory already."""
        if isinstance(entry, Member):
            return (entry.fusion, entry.number, entry.axes, entry.shape) in self._stored
        return isinstance(entry, View)

    def dense(self, entry: Entry) -> View:
        """`entry` in memory, row-major and without gaps."""
        if not isinstance(entry, Uniform):
            view = self.stored(entry)
            steps = zip(view.shape, view.strides, contiguous(view.shape), strict=True)
            if all(n == 1 or step == wanted for n, step, wanted in steps):
                return View(view.root, view.dtype, view.shape, contiguous(view.shape), view.offset)
            entry = view
        target = self.allocate(entry.shape, entry.dtype)
        self.write(entry, target)
        return target

    def write(self, entry: Entry, target: View) -> None:
        """Write `entry` to `target`: from inside its fusion if that is possible, else with a copy."""
        if isinstance(entry, Member) and entry.shape == target.shape and self._fits(entry, target):
            self._store(entry, target)
        else:
            self.copy(entry, target)

    def copy(self, entry: Entry, target: View) -> None:
        """Write `entry` to `target` after all instructions so far.

        Raises InternalError if an array does not broadcast to it: the code would access memory outside of it.
        """
        if not fits(entry.shape, target.shape):
            raise InternalError(f"cannot copy an array of shape {list(entry.shape)} to one of {list(target.shape)}")
        if 0 in target.shape:
            return
        source = entry if isinstance(entry, Uniform | Pattern) else self.stored(entry)
        fusion = self.new_fusion(target.shape)
        axes = tuple(range(len(target.shape)))
        fusion.store(self.argument(fusion, source, target.shape, axes), target, axes)
        self.instructions.written(target.root, fusion.position)

    def _store_somewhere(self, member: Member) -> View:
        """Memory that holds `member`: the destination of its variable, or new memory."""
        name = self._homes.get((member.fusion, member.number, member.axes))  # a transposed member is no variable
        home = self.destinations.open(name) if name is not None else None
        if name is not None and home is not None and self._fits(member, home):
            self.destinations.mark_taken(name)
            self._store(member, home)
            return home
        sizes, strides = member.layout()
        view = View(self.root(bytes_of(sizes, member.dtype)), member.dtype, member.shape, strides)
        self._store(member, view)
        return view

    def _store(self, member: Member, view: View) -> None:
        member.fusion.store(member.number, view, member.axes)
        self.instructions.written(view.root, member.fusion.position)

    def _fits(self, member: Member, target: View) -> bool:
        """Whether the fusion of `member` can write it to `target`."""
        varies = member.fusion.drafts[member.number].varies
        if any(
            n > 1 and (axis is None or axis not in varies) for n, axis in zip(member.shape, member.axes, strict=True)
        ):
            return False
        if member.shape != target.shape:
            return False
        return member.fusion.can_load(member.fusion.strides(target, member.axes))

    def _filled(self, uniform: Uniform) -> View:
        """A single element in memory, which all elements of `uniform` share."""
        fusion = self.new_fusion(())
        view = View(self.root(bytes_of((), uniform.dtype)), uniform.dtype, (), ())
        fusion.store(fusion.constant(uniform.number, uniform.dtype), view, ())
        self.instructions.written(view.root, fusion.position)
        return View(view.root, uniform.dtype, uniform.shape, (0,) * len(uniform.shape))

    # --- fusions -------------------------------------------------------------------------------------------------

    def new_fusion(self, shape: tuple[int, ...]) -> Fusion:
        """A new fusion over `shape`, after all instructions so far."""
        return self.instructions.begin(shape, self.location)

    def argument(self, fusion: Fusion, entry: Entry, shape: tuple[int, ...], axes: Axes) -> int:
        """`entry` as a value of `fusion`, for a result of `shape` along `axes`: its number there."""
        if isinstance(entry, Uniform):
            return fusion.constant(entry.number, entry.dtype)
        if isinstance(entry, Pattern):
            return entry.within(fusion, fusion.strides(entry.places, axes[len(shape) - len(entry.shape) :]))
        if isinstance(entry, Member) and entry.fusion is fusion:
            return entry.number
        own = axes[len(shape) - len(entry.shape) :]
        found = lookup_of(entry)
        if found is not None and all(fusion.can_load(fusion.strides(v, own)) for v in (found.source, found.index)):
            return found.within(fusion, own)
        again = self._repeated(entry, fusion, own)
        if again is not None:
            return again.within(fusion, own)
        view = self.stored(entry)
        return fusion.load(view, axes[len(shape) - len(view.shape) :])

    def repeats(self, member: Member, fusion: Fusion, axes: Axes) -> bool:
        """Whether `fusion` computes `member`, a value of another fusion, again and does not load it."""
        return self._repeated(member, fusion, axes) is not None

    def _repeated(self, entry: Entry, fusion: Fusion, axes: Axes) -> Repeated | None:
        """`entry` as work that `fusion` does again; None if it loads the value from memory."""
        if not isinstance(entry, Member) or (entry.fusion, entry.number, entry.axes, entry.shape) in self._stored:
            return None
        if (entry.fusion, entry.number, entry.axes) in self._homes:
            return None
        return repeated_of(
            entry,
            fusion,
            axes,
            lambda view: self.instructions.keeps(view, fusion),
            lambda member: self._stored.get((member.fusion, member.number, member.axes, member.shape)),
            self.stored,
            self.read_later,
        )

    def read_later(self, fusion: Fusion, numbers: Sequence[int]) -> bool:
        """Whether elementwise work that is still to come reads one of these values of `fusion`."""
        return False
