"""From the ops of a block to instructions: the functions that the lowering of every op uses.

The lowerings of single ops register themselves with `lowers`; `walk` calls them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from core.ir import HOLE, Block, Op, StackType, TensorType
from core.ir.errors import ExecutionError, Location
from core.ir.registry import lookup
from core.ops.common.types import as_dtype
from core.plan.derived_sizes import DerivedSizes
from core.plan.entries import Entry, Pattern, Uniform
from core.plan.flow import Recording, Source, Span
from core.plan.fusion import Axes, Fusion, Member
from core.plan.identities import chosen
from core.plan.instructions import Instruction, Interpreted, Kernel, Limited
from core.plan.memory import Root, Stack, View
from core.plan.plan import OUTGROWN, Check
from core.plan.powers import power
from core.plan.ranges import affine
from core.plan.registering import registering
from core.plan.rows_at import Lookup
from core.plan.sizes import Expected, Known, Size, bounded_outputs, expected_outputs, is_open
from core.plan.storage import Storage
from core.plan.target import Target
from core.plan.unsupported import Unsupported
from core.plan.uses import Uses

__all__ = ["LOWERINGS", "OVER_IMAGES", "Division", "Lowering", "Shared", "lowers"]

LOWERINGS: dict[str, Callable[[Lowering, Op], None]] = {}
"""Type of an op -> the function that lowers it."""


lowers = registering(LOWERINGS)
"""Decorator: the function lowers the ops of these types."""


@dataclass(frozen=True, slots=True)
class Division:
    """The runs that a loop runs over, which have a source. low: the block of the loop."""

    low: Lowering
    runs: Recording


BY_IMAGE = frozenset({
    "chosen_tiles", "cholesky", "correlate", "correlate_columns", "correlate_lanes", "eigenvalues", "eigenvectors",
    "eliminate", "exponential", "fill_room", "fourier", "input_adjoint", "input_adjoint_columns", "leave_room",
    "orthogonalize", "pick", "pool", "singular_values", "substitute", "substitute_identity", "substitute_ordered",
    "tiles", "unpool", "winograd",
})  # fmt: skip
"""Kernels that work on one image, one matrix, or the lines of one array, after the other."""

OVER_IMAGES = {
    "filter_adjoint": "counted_filter_adjoint",
    "filter_adjoint_columns": "counted_filter_adjoint_columns",
    "filter_sums": "counted_filter_sums",
    "winograd_sums": "counted_winograd_sums",
}
"""Kernels that sum over images -> the ones that read how many images there are, before the result."""


@dataclass(slots=True)
class Shared:
    """The parts of one plan that all its blocks add to. See `Plan`.

    expected: of sizes without a largest value; None if the target cannot expect any.
    outputs:  variables with such sizes -> their shapes in the plan.
    known:    largest sizes in inner blocks (`sizes.bounded_types`).
    divided:  a run that the body of a loop takes -> the runs of that loop.
    unsteady: ids of loops that change the open sizes of carried arrays; the blocks keep the loops alive.
    """

    target: Target
    expected: Expected | None = None
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    known: Known = field(default_factory=dict)
    checks: list[Check] = field(default_factory=lambda: [Check("", "", None)])
    stacks: list[Stack] = field(default_factory=list)
    interpreted: list[Interpreted] = field(default_factory=list)
    sliced: set[Root] = field(default_factory=set)
    divided: dict[Span, Division] = field(default_factory=dict)
    unsteady: set[int] = field(default_factory=set)
    error: View = field(default_factory=lambda: View(Root(8, "given", "error"), "int64", (), ()))

    def check(self, code: str, message: str, location: Location | None) -> int:
        """The number of a new check."""
        self.checks.append(Check(code, message, location))
        return len(self.checks) - 1


class Lowering(Storage):
    """One block while it is lowered.

    uses:          producers and readers of its variables.
    types:         of its variables; with the largest sizes where only the run knows the size.
    sizes:         variable -> its axes whose size only the run knows (`core.plan.sizes`).
    derived:       the open sizes that ops compute from others.
    limit:         the size of the first axis of the results of elementwise work, if nothing beyond it is needed.
    product_limit: the size of the rows of the product that is lowered, if only the run tells it.
    images:        the number of the images that the kernels of the op work on, if only the run tells it.
    sizes_taken:   array of sizes that a loop runs over -> the size of a trip in its body.
    sizes_kept:    size that a loop's body has, or recording of such -> (its recording, the element that a trip writes).
    ahead:         variables whose values an earlier op computed (see `moments`).
    unneeded:      variables that nothing reads any more because of that.
    factored:      variable -> its LU factors, as soon as an op has computed them (see `factors`).
    in_parts:      rows at positions that are data -> whether no reader needs them whole in memory (see `slicing`).
    row_orders:    ids of rows of a table -> the kernel results that sort them (see `merging`).
    first_stack:   position of the first stack of the plan that belongs to an op of this block.
    """

    def __init__(
        self,
        block: Block,
        shared: Shared,
        wanted: Sequence[tuple[str, View]] = (),
        outer: Lowering | None = None,
        loop: Op | None = None,
    ) -> None:
        """wanted: (variable, its destination) pairs. outer, loop: the block around a loop's body, and the loop."""
        super().__init__(shared.target.rows, wanted, outer)
        self.outer: Lowering | None = outer
        self.block = block
        self.loop = loop
        self.types = {**block.types}
        self.shared = shared
        self.first_stack = len(shared.stacks)
        self.target = shared.target
        self.uses = Uses(block)
        self.sizes: dict[str, dict[int, Size]] = {}
        self.derived = DerivedSizes()
        self.sizes_taken: dict[Source, Size] = {}
        self.sizes_kept: dict[Size | Recording, tuple[Recording, Root | Recording]] = {}
        self.limit: Size | None = None
        self.product_limit: Size | None = None
        self.images: Size | None = None
        self.in_parts: dict[str, bool] = {}
        self.row_orders: dict[Any, tuple[View, View, View, View]] = {}
        self.ahead: dict[str, Entry] = {}
        self.unneeded: set[str] = set()
        self._entries: dict[str, Any] = {}
        self.factored: dict[str, Any] = {}

    def add(self, instruction: Instruction) -> None:
        """Append an instruction. Raises Unsupported if the target has no code for it."""
        kind = instruction.kind if isinstance(instruction, Kernel) else type(instruction).__name__
        if kind in self.target.lacks:
            raise Unsupported(f"the target has no code for {kind}")
        if self.images is not None and isinstance(instruction, Kernel):
            size = self.images
            if instruction.kind in BY_IMAGE:
                instruction = Limited(instruction, size.bound, size.length, location=instruction.location)
            elif instruction.kind in OVER_IMAGES:
                *given, out = instruction.views
                instruction = replace(instruction, kind=OVER_IMAGES[instruction.kind], views=(*given, size.length, out))
        super().add(instruction)

    def finish(self) -> tuple[Instruction, ...]:
        """Copy values to the destinations that they have not reached yet, and close all fusions."""
        for name, target in self.destinations.left():
            self.write(self.entry(name), target)
        return self.instructions.finish()

    # --- variables -----------------------------------------------------------------------------------------------

    def type(self, name: str) -> TensorType:
        """The type of a variable. Raises Unsupported unless it is an array of known size and native dtype."""
        type = self.types[name]
        if isinstance(type, StackType):
            raise Unsupported("tensor arrays that grow")
        if not type.is_static:
            raise Unsupported(f"the size of {name} is known only when it runs")
        if type.dtype not in self.target.dtypes:
            raise Unsupported(f"no machine code for {type.dtype}")
        return type

    def length(self, name: str, axis: int) -> Entry:
        """The size of a variable along an axis, an int64 scalar."""
        size = self.sizes.get(name, {}).get(axis)
        return Uniform(self.type(name).shape[axis], "int64", ()) if size is None else size.length

    def largest(self, op: Op) -> tuple[TensorType, ...] | None:
        """The types of the results of `op` with their largest sizes, or with those that are expected; else None."""
        found = bounded_outputs(op, self.types, self.uses.producers)
        if found is None:
            found = expected_outputs(op, self.types, self.block.types, self.shared.expected)
            for name, type in zip(op.outputs, found or (), strict=False):
                if is_open(self.block.types[name]):
                    self.shared.outputs[name] = type.shape
        return found

    def outgrown(self, op: Op) -> int:
        """The number of a check that a result of `op` is no larger than expected; 0 if it cannot be larger."""
        if self.shared.outputs.keys().isdisjoint(op.outputs):
            return 0
        return self.shared.check(OUTGROWN, f"{op.type} gave more elements than expected", op.location)

    def no_halves(self, op: Op) -> None:
        """Raise Unsupported if an operand or result of `op` is a 16-bit float: the lowering would round too often."""
        for name in (*op.inputs, *op.outputs):
            type = self.types[name] if name != HOLE else None
            if isinstance(type, TensorType) and type.dtype in ("float16", "bfloat16"):
                raise Unsupported(f"{op.type} of {type.dtype}")

    def entry(self, name: str) -> Any:
        """The value of a variable: an `Entry`, or a stack (`flow.Recording`, `flow.Elements`)."""
        return self._entries[name]

    def is_defined(self, name: str) -> bool:
        """Whether the variable has a value: the lowering of its op may leave out a result that nothing reads."""
        return name in self._entries

    def define(self, name: str, entry: Any) -> None:
        """Set the value of a variable."""
        self._entries[name] = entry
        if isinstance(entry, Member):
            self.name_member(name, entry)

    def read_later(self, fusion: Fusion, numbers: Sequence[int]) -> bool:
        names = [name for n in numbers for name in self.names.get((fusion, n), ())]
        readers = [each for name in names for each in self.uses.readers(name) if each is not None]
        return any(lookup(each.type).elementwise and each.outputs[0] not in self._entries for each in readers)

    def destination(self, name: str) -> View:
        """Memory that the op of `name` writes its result to: the destination of `name`, or new memory."""
        type = self.type(name)
        return self.destinations.take(name) or self.allocate(type.shape, type.dtype, name)

    def product_destination(self, name: str) -> tuple[View, bool]:
        """Memory for a product, and whether the product is added to its contents."""
        if name in self.destinations.sums:
            return self.destinations.sums[name], True
        return self.destination(name), False

    def stand_alone(self, name: str) -> None:
        """The op of `name` cannot add its result to a state, so the op that reads `name` does."""
        if name in self.destinations.sums:
            (reader,) = self.uses.readers(name)
            assert reader is not None
            self.destinations.store(name, reader.outputs[0])

    # --- elementwise ops -----------------------------------------------------------------------------------------

    def elementwise(self, op: Op) -> None:
        """Lower an elementwise op."""
        (out,) = op.outputs
        type = self.type(out)
        names = [n for n in op.inputs if n != HOLE]
        dtypes = [self.type(n).dtype for n in names]
        self.define(out, self.apply(op.type, op.attrs, [self.entry(n) for n in names], dtypes, type))

    def apply(
        self, op: str, attrs: Mapping[str, Any], entries: Sequence[Entry], dtypes: Sequence[str], type: TensorType
    ) -> Entry:
        """The result of elementwise op `op` on `entries`. Raises Unsupported if the target has no code for it."""
        if 0 in type.shape:
            return Uniform(as_dtype(type.dtype).type(0), type.dtype, type.shape)
        uniforms = [e for e in entries if isinstance(e, Uniform)]
        if len(uniforms) == len(entries):
            try:
                with np.errstate(all="ignore"):
                    numbers = [np.asarray(e.number, as_dtype(e.dtype)) for e in uniforms]
                    result = np.asarray(lookup(op).body(np, *numbers, **attrs))
            except ExecutionError as error:  # the error belongs to the run, and only if the op is reached
                raise Unsupported(str(error)) from None
            return Uniform(result[()], type.dtype, type.shape)
        even = affine(op, entries, type.shape)
        if even is not None:
            return even
        known = chosen(op, entries, type)
        if known is None and op == "pow" and entries[0].shape == type.shape:
            known = power(self._of, *entries)
        if known is not None:
            return known
        refused = self.target.refusal(op, attrs, dtypes, type.dtype)
        if refused is not None:
            raise Unsupported(f"{op} of {', '.join(dtypes)} has no machine code: {refused}")
        fusion, axes = self.join(type.shape, entries)
        args = [self.argument(fusion, e, type.shape, axes) for e in entries]
        fusion.ops.append(op)
        number = fusion.apply(op, sorted(attrs.items()), args, type.dtype)
        return Member(fusion, number, type.dtype, type.shape, axes)

    def looked_up(self, found: Lookup, op: str = "gather") -> Member:
        """The value of a lookup inside a fusion, for the op `op`."""
        shape = found.source.shape
        fusion, axes = self.join(shape, [found.source, found.index])
        if fusion.is_across:
            fusion, axes = self.new_fusion(shape), tuple(range(len(shape)))
        fusion.ops.append(op)
        return Member(fusion, found.within(fusion, axes), found.source.dtype, shape, axes)

    def _of(self, op: str, *entries: Entry) -> Entry:
        """The result of an elementwise op without attributes on values of one shape."""
        dtypes = [each.dtype for each in entries]
        rule = lookup(op).infer_rule
        assert rule is not None
        return self.apply(op, {}, entries, dtypes, rule(*(TensorType(each.shape, each.dtype) for each in entries)))

    def join(self, shape: tuple[int, ...], entries: Sequence[Entry]) -> tuple[Fusion, Axes]:
        """A fusion that can compute a result of `shape` from `entries`, and the domain's axes of the result."""
        operands = [e.places if isinstance(e, Pattern) else e for e in entries if not isinstance(e, Uniform)]
        size = self.limit if self.limit is not None and shape[:1] == (self.limit.bound,) else None
        found = self.instructions.find_fusion(shape, operands, self.stored, self.repeats, size)
        if found is None:
            found = self.instructions.begin(shape, self.location, size), tuple(range(len(shape)))
        return found
