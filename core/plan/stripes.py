"""Attention in stripes: the scores of some queries at a time, from their product to the products that read them.

Scores, probabilities and their gradients have a row for each query and a column for each key. A chain of products and
row kernels over them, as clients write attention and as differentiation writes its adjoint, needs all columns of a row,
but no other row. So the chain runs for a stripe of rows, which stays in the cache, then for the next one. An array that
nothing else reads has memory for one stripe only. Rows of softmax are whole, so the arithmetic is that of the program;
only sums over rows, as in the gradient of the keys, are added up stripe by stripe.

An array of an earlier chain that a later one reads, as the adjoint reads the probabilities, is computed again from the
queries and keys if it is large, and stored otherwise (Dao et al. 2022 recompute always).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from core.ir.stop import poll
from core.ops.common.types import as_dtype
from core.plan.column_windows import ColumnWindows
from core.plan.dependences import Edge, dependences, reordered
from core.plan.instructions import Gemm, Instruction, Rows
from core.plan.memory import Root, View, contiguous
from core.plan.row_kernels import Operand
from core.plan.stripe_members import (
    Member,
    cuts_pairs,
    instruction_of,
    is_own,
    looked_up,
    only,
    recut,
    reduces,
    renamed,
    sums_of,
    with_one_axis,
    with_wide_sums,
)
from core.plan.striped import Domain, Striped, StripedProduct, canonical_rows
from core.plan.target import StripeLimits

__all__ = ["in_stripes"]

REPEATABLE = frozenset({"constant", "load", "lookup", "iota", "apply", "reduce", "store"})
"""Instructions of row kernels that may run once more."""

STRIPES = 8
"""Stripes of a matrix under a mask, where they can be so low: of columns that a mask hides, nine of ten stay out."""

STRIPED = ("arena", "element", "carried")
"""Places of the arrays of a chain: elements of stacks and states of loops, too, which are stored in any case."""


def in_stripes(
    instructions: Sequence[Instruction], limits: StripeLimits, kept: Set[Root] = frozenset()
) -> tuple[Instruction, ...]:
    """`instructions` with chains over large batched matrices as `Striped` instructions, in an order that allows it.

    kept: roots that instructions around these touch.
    """
    found = tuple(instructions)
    seen: set[Root] = set()
    for each in instructions:
        if isinstance(each, Gemm) and each.c.root not in seen and _is_seed(each, limits):
            poll()
            chain = _Chain(found, each, limits, kept)
            seen |= chain.wide
            found = chain.striped()
    return _in_windows(found, limits)


def _in_windows(instructions: tuple[Instruction, ...], limits: StripeLimits) -> tuple[Instruction, ...]:
    """`instructions` whose stripes leave out the columns that masks hide. Low stripes have narrow windows."""
    windows = ColumnWindows(instructions, limits.block, limits.halves)
    found: list[Instruction] = []
    for each in instructions:
        window = windows.of(each) if isinstance(each, Striped) else None
        if isinstance(each, Striped) and window is not None:
            most = max(min(each.height, each.domain.rows // STRIPES), min(limits.least, each.domain.rows))
            each = replace(each, window=window, height=_height(each.domain.rows, most, 1))
        found.append(each)
    return tuple(found)


def _is_seed(each: Gemm, limits: StripeLimits) -> bool:
    """Whether a product may begin a chain: its result is a large array of its own."""
    shape = each.c.shape
    return (
        min(shape[-2:]) >= limits.least
        and each.c.root.nbytes >= (limits.matrix if len(shape) == 2 else limits.nbytes)
        and (len(shape) == 2 or math.prod(shape[:-2]) >= limits.batch)
        and not each.accumulate
        and each.then is None
        and _is_whole(each.c)
    )


def _is_whole(view: View) -> bool:
    """Whether a view is all of a root of the arena, in row-major order."""
    nbytes = math.prod(view.shape) * as_dtype(view.dtype).itemsize
    return (
        view.root.place == "arena"
        and view.offset == 0
        and view.strides == contiguous(view.shape)
        and view.root.nbytes == nbytes
    )


class _Chain:
    """The instructions over one domain that are connected by arrays of its shape.

    wide:    the arrays of the chain.
    members: position -> the instruction as a part of a stripe.
    left:    positions of instructions that are no members although they could be.
    read_again: stage -> the arrays from which it computes arrays of earlier stages again.
    kept:    arrays that instructions around these touch.
    """

    def __init__(
        self, instructions: tuple[Instruction, ...], seed: Gemm, limits: StripeLimits, kept: Set[Root]
    ) -> None:
        self.all, self.limits, self.kept = instructions, limits, kept
        *batch, rows, columns = seed.c.shape
        self.domain = Domain(math.prod(batch), rows, columns)
        self.shared = not batch
        self.touching: dict[Root, list[int]] = defaultdict(list)
        self.writers: dict[Root, list[int]] = defaultdict(list)
        for at, each in enumerate(instructions):
            for root in dict.fromkeys((*each.reads(), *each.writes())):
                self.touching[root].append(at)
            for root in dict.fromkeys(each.writes()):
                self.writers[root].append(at)
        self.recut: dict[int, Rows | None] = {}
        self.left: set[int] = set()
        self.read_again: dict[int, set[Root]] = {}
        self.wide = self._connected(seed.c.root)
        self.members: dict[int, Member] = {}
        self._settle()

    # --- which instructions and arrays belong to it --------------------------------------------------------------

    def _connected(self, first: Root) -> set[Root]:
        """All arrays of the domain's shape that products and row kernels connect with `first`."""
        found, queue = {first}, [first]
        while queue:
            for at in self.touching[queue.pop()]:
                for root in self._candidates(at):
                    if root not in found and self._may_be_wide(root):
                        found.add(root)
                        queue.append(root)
        return found

    def _may_be_wide(self, root: Root) -> bool:
        """Whether one instruction writes an array; an element of a stack may have been recorded before."""
        return len(self.writers[root]) == 1 or (root.place == "element" and not self.writers[root])

    def _candidates(self, at: int) -> Iterable[Root]:
        each = self.all[at]
        if isinstance(each, Gemm) and each.then is None and math.prod(each.c.shape[:-2]) == self.domain.batch:
            for view in (each.a, each.b, each.c):
                if self._row_axis(view) is not None:
                    yield view.root
        rows = self._rows(at)
        if rows is not None:
            for view, operand in zip(rows.views, rows.kernel.operands, strict=True):
                if self._runs_along(rows, view, operand):
                    yield view.root

    def _settle(self) -> None:
        """Find the members; the chain leaves out arrays that another instruction writes."""
        again = True
        while again:
            again = False
            self.members = {}
            for at in sorted({at for root in self.wide for at in self.touching[root]}):
                member = self._member(at) if at not in self.left else None
                if member is not None:
                    self.members[at] = member
            for root in list(self.wide):
                if any(at not in self.members for at in self.writers[root]):
                    self.wide.discard(root)
                    again = True

    def _member(self, at: int) -> Member | None:
        """The instruction as a part of a stripe; None if it cannot be one."""
        each = self.all[at]
        if isinstance(each, Gemm):
            axes = self._axes(each)
            return StripedProduct(each, *axes) if axes else None
        rows = self._rows(at)
        if rows is None or not self.wide.isdisjoint(looked_up(rows)):
            return None
        fits = all(
            v.root not in self.wide or self._runs_along(rows, v, o)
            for v, o in zip(rows.views, rows.kernel.operands, strict=True)
        )
        return rows if fits else None

    def _axes(self, each: Gemm) -> tuple[str, str] | None:
        """The axes of a product that the rows and the columns of the domain are.

        None if its operands differ in the rows; "" for the columns if they differ in these.
        """
        if each.accumulate or each.then is not None or math.prod(each.c.shape[:-2]) != self.domain.batch:
            return None
        if each.c.root in (each.a.root, each.b.root):
            return None
        if self.shared and (len(each.c.shape) > 2 or each.c.strides != contiguous(each.c.shape)):
            return None
        found, across = set(), set()
        for view, axes in each.matrices:
            if view.root in self.wide:
                at = self._row_axis(view)
                if at is None:
                    return None
                found.add(axes[at])
                across.add(axes[1 - at])
        return (found.pop(), across.pop() if len(across) == 1 else "") if len(found) == 1 else None

    def _row_axis(self, view: View) -> int | None:
        """0 if the matrices of `view` are those of an array of the domain, 1 if they are its transposes, else None."""
        rows, columns = self.domain.rows, self.domain.columns
        for at, shape, strides in ((0, (rows, columns), (columns, 1)), (1, (columns, rows), (1, columns))):
            batch = tuple(s * rows * columns for s in contiguous(view.shape[:-2]))
            if (
                view.shape[-2:] == shape
                and view.strides[-2:] == strides
                and all(n == 1 or s == b for n, s, b in zip(view.shape[:-2], view.strides[:-2], batch, strict=True))
                and math.prod(view.shape[:-2]) == self.domain.batch
                and self._has_size(view)
            ):
                return at
        return None

    def _has_size(self, view: View) -> bool:
        nbytes = self.domain.size * as_dtype(view.dtype).itemsize
        return view.root.place in STRIPED and view.offset == 0 and view.root.nbytes == nbytes

    def _rows(self, at: int) -> Rows | None:
        """The row kernel at a position, over rows of the domain; None for other kernels and other rows."""
        if at not in self.recut:
            each = self.all[at]
            rows = recut(each, self.domain.columns) if isinstance(each, Rows) else None
            if rows is not None and rows.kernel.rows != self.domain.batch * self.domain.rows:
                rows = None
            if rows is not None and self.shared:
                rows = with_one_axis(rows)
            elif rows is not None and any(not is_own(rows, n) for n in sums_of(rows)):
                rows = None
            self.recut[at] = rows
        return self.recut[at]

    def _runs_along(self, rows: Rows, view: View, operand: Operand) -> bool:
        return self._has_size(view) and canonical_rows(self.domain, rows.kernel.outer, operand)

    # --- stages --------------------------------------------------------------------------------------------------

    def striped(self) -> tuple[Instruction, ...]:
        """All instructions, the chain's as one `Striped` for each of its stages."""
        edges = dependences(self.all)
        while any(reduces(each) for each in self.members.values()):
            levels = self._levels(edges)
            stored = {root for root in self.wide if self._is_read_elsewhere(root)}
            stages: dict[int, list[int]] = defaultdict(list)
            for at in sorted(self.members):
                stages[levels[at]].append(at)
            bodies: dict[int, list[Member]] = {}
            for stage in sorted(stages, reverse=True):  # later stages decide which arrays of earlier ones are stored
                bodies[stage] = self._body(stage, stages[stage], levels, stored)
            found = {stage: self._needed(body, stored) for stage, body in bodies.items()}
            alone = [stage for stage, body in found.items() if body and not self._saves(body, stored)]
            if not alone:
                groups = [(stages[stage], self._group(body, stored)) for stage, body in found.items()]
                sources = [
                    {at for root in self.read_again[stage] for at in self.writers.get(root, ())} for stage in found
                ]
                return reordered(self.all, edges, groups, sources)
            self.left |= {at for stage in alone for at in stages[stage]}
            self._settle()
        return self.all

    def _is_read_elsewhere(self, root: Root) -> bool:
        """Whether an array of the chain is read outside of it, in this trip of a loop or later."""
        outside = root.place != "arena" or root in self.kept  # a hoisted product reads elements, too
        return outside or any(at not in self.members for at in self.touching[root])

    def _levels(self, edges: list[list[Edge]]) -> list[int]:
        """The stage of each member: members of a stage reach each other through arrays of the chain only."""
        levels: list[int] = []
        for at, before in enumerate(edges):
            level = 0
            for edge in before:
                member = edge.source in self.members
                own = member and at in self.members and all(self._by_rows(edge.source, at, r) for r in edge.through)
                level = max(level, levels[edge.source] + (member and not own))
            levels.append(level)
        return levels

    def _by_rows(self, first: int, second: int, root: Root) -> bool:
        """Whether two members that touch `root` touch the same part of it in each stripe."""
        if root in self.wide:
            return True
        places = set()
        for at in (first, second):
            member = self.members[at]
            if not isinstance(member, Rows) or root in looked_up(member):
                return False
            for view, operand in zip(member.views, member.kernel.operands, strict=True):
                if view.root is root:
                    places.add((view.offset, member.kernel.outer, operand.outer, operand.inner))
        if len(places) > 1:
            return False
        writer, reader = self.members[first], self.members[second]
        assert isinstance(writer, Rows) and isinstance(reader, Rows)
        if all(s for *_, strides, inner in places for s in strides):
            return True
        # several rows store to one element, as a mask for all heads: they store the same number
        stores = {i.kind for i in writer.kernel.code if i.operand >= 0 and writer.views[i.operand].root is root}
        return stores == {"store"} and root not in reader.writes()

    # --- one stage -----------------------------------------------------------------------------------------------

    def _body(self, stage: int, positions: list[int], levels: list[int], stored: set[Root]) -> list[Member]:
        """The instructions of a stage. Arrays of earlier stages are computed again, or stored."""
        again: dict[int, set[Root]] = defaultdict(set)
        for root in dict.fromkeys(root for at in positions for root in self.all[at].reads()):
            if root not in self.wide or root in stored or levels[self.writers[root][0]] >= stage:
                continue
            chain = self._again(root, stored) if root.nbytes >= self.limits.repeated else None
            if chain is None:
                stored.add(root)
                continue
            for at, roots in chain.items():
                again[at] |= roots
        parts = [only(self.members[at], again[at]) for at in sorted(again)]
        self.read_again[stage] = {root for part in parts for root in instruction_of(part).reads()}
        names = {root: Root(root.nbytes, "arena", root.name) for roots in again.values() for root in roots}
        return [renamed(each, names) for each in (*parts, *(self.members[at] for at in positions))]

    def _again(self, root: Root, stored: set[Root]) -> dict[int, set[Root]] | None:
        """The results of earlier members from which `root` is computed, by position; None if they cannot run again."""
        found: dict[int, set[Root]] = defaultdict(set)
        queue = [root]
        while queue:
            wanted = queue.pop()
            (writer,) = self.writers[wanted]
            found[writer].add(wanted)
            part = only(self.members[writer], {wanted})
            if isinstance(part, Rows) and any(i.kind not in REPEATABLE for i in part.kernel.code):
                return None
            for each in instruction_of(part).reads():
                if each is wanted:
                    continue
                if each in self.wide and each not in stored:
                    if not isinstance(part, Rows):
                        return None
                    queue.append(each)
                elif any(at >= writer for at in self.writers.get(each, ())):
                    return None  # its contents have changed
        return found

    def _needed(self, body: list[Member], stored: set[Root]) -> list[Member]:
        """`body` without results that nothing reads."""
        kept: list[Member] = []
        read: set[Root] = set()
        for member in reversed(body):
            writes = set(instruction_of(member).writes())
            needed = {root for root in writes if root in read or not self._is_inside(root, stored)}
            if needed:
                kept.insert(0, member if needed == writes else only(member, needed))
                read.update(instruction_of(kept[0]).reads())
        return kept

    def _saves(self, body: list[Member], stored: set[Root]) -> bool:
        """Whether stripes of `body` save the memory of the result of a product."""
        return any(isinstance(each, StripedProduct) and self._is_inside(each.product.c.root, stored) for each in body)

    def _group(self, body: list[Member], stored: set[Root]) -> tuple[Instruction, ...]:
        """The instruction of a stage, and those that round its sums; nothing if nothing is left of it."""
        if not body:
            return ()
        domain = self.domain
        written = {root for member in body for root in instruction_of(member).writes()}
        inside = frozenset(root for root in written if self._is_inside(root, stored))
        row = sum(root.nbytes for root in inside) // (domain.batch * domain.rows)
        stripe = self.limits.shared if self.shared else self.limits.stripe
        height = _height(domain.rows, max(stripe // row, self.limits.least), 2 if cuts_pairs(body) else 1)
        if self.shared:
            roots = {r: Root(r.nbytes // domain.rows * height, "arena", r.name) for r in inside}
            body, inside = [renamed(each, roots) for each in body], frozenset(roots.values())
        location = instruction_of(body[0]).location
        body, roundings = with_wide_sums(body)
        return (Striped(domain, tuple(body), inside, height, self.shared, location=location), *roundings)

    def _is_inside(self, root: Root, stored: set[Root]) -> bool:
        """Whether only one stage touches a root: an array of the chain that is not stored, or is computed again."""
        return (root in self.wide and root not in stored) or root not in self.touching


def _height(rows: int, most: int, unit: int) -> int:
    """Rows of a stripe, multiples of `unit`: at most `most`; a divisor of all rows if one has at least half as many."""
    if rows <= most:
        return rows
    step = 8 if most >= 16 else unit
    most = max(most - most % step, step)
    return next((n for n in range(most, most // 2 - 1, -step) if rows % n == 0), most)
