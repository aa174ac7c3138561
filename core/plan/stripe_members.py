"""The members of a chain that runs stripe by stripe (`core.plan.stripes`): row kernels, and products with the axis that
the stripes cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from core.ir.errors import Location
from core.ir.precision import HALVES
from core.plan.instructions import Gemm, Rows
from core.plan.memory import Root, View, bytes_of, contiguous
from core.plan.row_kernels import Operand, RowInstruction, RowKernel
from core.plan.striped import StripedProduct
from core.plan.unread import part_that_writes

__all__ = [
    "Member",
    "cuts_pairs",
    "instruction_of",
    "is_own",
    "looked_up",
    "only",
    "recut",
    "reduces",
    "renamed",
    "sums_of",
    "with_one_axis",
    "with_wide_sums",
]

Member = Rows | StripedProduct

SUMS = (((0,), 0), ((0,), 1), ((1,), 0))
"""Strides of the results of a row kernel that reduces all elements, columns, or rows."""


def with_wide_sums(body: list[Member]) -> tuple[list[Member], list[Rows]]:
    """`body` with sums in float32 where its stripes add to a 16-bit result, and the kernels that round these sums."""
    made: list[Member] = []
    roundings: list[Rows] = []
    for each in body:
        if isinstance(each, StripedProduct) and each.axis == "k" and each.product.c.dtype in HALVES:
            c = each.product.c
            root = Root(bytes_of(c.shape, "float32"), "arena", c.root.name)
            sums = View(root, "float32", c.shape, contiguous(c.shape))
            roundings.append(_rounding(sums, c, each.product.location))
            each = replace(each, product=replace(each.product, c=sums))
        made.append(each)
    return made, roundings


def _rounding(sums: View, out: View, location: Location | None) -> Rows:
    """The kernel that writes `sums`, rounded, to `out`."""
    *outer, inner = sorted(range(len(out.shape)), key=lambda i: -out.strides[i])
    operands = tuple(
        Operand(v.dtype, tuple(v.strides[i] for i in outer), v.strides[inner], written=v is out) for v in (sums, out)
    )
    code = (
        RowInstruction("load", sums.dtype, True, operand=0),
        RowInstruction("apply", out.dtype, True, (0,), "cast", (("dtype", out.dtype),)),
        RowInstruction("store", out.dtype, True, (1,), operand=1),
    )
    kernel = RowKernel(tuple(out.shape[i] for i in outer), out.shape[inner], operands, code)
    return Rows(kernel, (sums, out), ("cast",), location=location)


def instruction_of(member: Member) -> Rows | Gemm:
    return member if isinstance(member, Rows) else member.product


def reduces(member: Member) -> bool:
    return isinstance(member, Rows) and any(i.kind in ("reduce", "accumulate") for i in member.kernel.code)


def cuts_pairs(body: Iterable[Member]) -> bool:
    """Whether the stripes cut the terms of a product that reads pairs of 16-bit numbers."""
    products = (each for each in body if isinstance(each, StripedProduct))
    return any(each.axis == "k" and each.product.a.dtype in HALVES for each in products)


def looked_up(rows: Rows) -> set[Root]:
    """The arrays that a row kernel reads at positions that are data: they may lie in any row."""
    return {rows.views[i.operand].root for i in rows.kernel.code if i.kind == "lookup"}


def sums_of(rows: Rows) -> list[int]:
    """The operands into which a row kernel reduces."""
    return [i.operand for i in rows.kernel.code if i.kind == "accumulate"]


def with_one_axis(rows: Rows) -> Rows | None:
    """`rows` with a single axis of rows; None if its arrays have no single stride along it, or if it counts rows."""
    kernel = rows.kernel
    if any(any(dict(i.attrs)["outer"]) for i in kernel.code if i.kind == "iota"):
        return None
    sizes = [(n, at) for at, n in enumerate(kernel.outer) if n > 1]
    operands = []
    for operand in kernel.operands:
        steps = [operand.outer[at] for _, at in sizes]
        if any(a != b * n for a, b, (n, _) in zip(steps, steps[1:], sizes[1:], strict=False)):
            return None
        operands.append(replace(operand, outer=(steps[-1] if steps else 0,)))
    if any((operands[n].outer, operands[n].inner) not in SUMS for n in sums_of(rows)):
        return None
    code = tuple(
        replace(i, attrs=(("outer", (0,)), ("inner", dict(i.attrs)["inner"]))) if i.kind == "iota" else i
        for i in kernel.code
    )
    made = replace(kernel, outer=(kernel.rows,), operands=tuple(operands), code=code)
    return replace(rows, kernel=made)


def is_own(rows: Rows, number: int) -> bool:
    """Whether a row kernel reduces each of its rows to an element of its own."""
    operand = rows.kernel.operands[number]
    return operand.inner == 0 and all(s or n == 1 for n, s in zip(rows.kernel.outer, operand.outer, strict=True))


def recut(rows: Rows, columns: int) -> Rows | None:
    """`rows` with rows of `columns` elements; None if its arrays or sums do not allow it."""
    kernel = rows.kernel
    if kernel.inner == columns:
        return rows
    if any(i.kind in ("reduce", "accumulate") for i in kernel.code):
        return None
    walks = [(o.outer, o.inner) for o in kernel.operands]
    counts = [dict(i.attrs) for i in kernel.code if i.kind == "iota"]
    walks += [(c["outer"], c["inner"]) for c in counts]
    outer, size = list(kernel.outer), kernel.inner
    while size % columns and outer:
        if any(steps[len(outer) - 1] != along * size for steps, along in walks):
            return None
        size *= outer.pop()
    if size % columns or columns == 1:
        return None
    cut = iter([((*steps[: len(outer)], along * columns), along) for steps, along in walks])
    operands = tuple(replace(o, outer=steps) for o, (steps, _) in zip(kernel.operands, cut, strict=False))
    code = tuple(
        replace(i, attrs=(("outer", next(cut)[0]), ("inner", dict(i.attrs)["inner"]))) if i.kind == "iota" else i
        for i in kernel.code
    )
    outer.append(size // columns)
    return replace(rows, kernel=replace(kernel, outer=tuple(outer), inner=columns, operands=operands, code=code))


def only(member: Member, wanted: set[Root]) -> Member:
    """The part of a member that writes `wanted`."""
    if isinstance(member, StripedProduct):
        return member
    return part_that_writes(member, wanted)


def renamed(member: Member, names: dict[Root, Root]) -> Member:
    """`member` with other roots."""

    def view(each: View) -> View:
        return replace(each, root=names[each.root]) if each.root in names else each

    if isinstance(member, Rows):
        return replace(member, views=tuple(map(view, member.views)))
    product = member.product
    return replace(member, product=replace(product, a=view(product.a), b=view(product.b), c=view(product.c)))
