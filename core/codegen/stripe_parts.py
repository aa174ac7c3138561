"""Parts of stripes that do not depend on who runs them, one thread or all threads of a GPU: the arrays that they touch,
and the stripes of a single matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from core.codegen.llvm import I64, IRValue, itemsize, literal
from core.codegen.step_writer import StepWriter
from core.codegen.vector_slices import move
from core.plan.instructions import Gemm, Rows
from core.plan.memory import Root, View
from core.plan.striped import Striped, StripedProduct

__all__ = ["StripeArrays", "arrays_of", "start_sums", "write_together"]


@dataclass(frozen=True, slots=True)
class StripeArrays:
    """The arrays of a `Striped` instruction.

    lives:   of each array that exists for one stripe only, the first and the last part of the body that touch it.
    sizes:   of each of them, the bytes of an element.
    outside: the other arrays, each once, by root and offset in elements.
    """

    lives: dict[Root, list[int]] = field(default_factory=dict)
    sizes: dict[Root, int] = field(default_factory=dict)
    outside: dict[tuple[Root, int], View] = field(default_factory=dict)


def arrays_of(each: Striped) -> StripeArrays:
    found = StripeArrays()
    for at, part in enumerate(each.body):
        for view in part.views if isinstance(part, Rows) else [view for view, _ in part.product.matrices]:
            if view.root in each.inside:
                found.lives.setdefault(view.root, [at, at])[1] = at
                found.sizes[view.root] = itemsize(view.dtype)
            else:
                found.outside.setdefault((view.root, view.offset), view)
    return found


def start_sums(step: StepWriter, each: Striped) -> None:
    """Write the start values of the arrays outside that row kernels reduce rows to."""
    for part in each.body:
        if isinstance(part, Rows):
            step.start_sums(part)


def write_together(
    step: StepWriter, each: Striped, root_behind: Callable[[View, int], Root], meet: Callable[[], None]
) -> None:
    """Write the stripes of a single matrix one after another; all threads work on each instruction.

    root_behind: a root of memory any multiple of so many elements behind a view.
    meet: called between instructions that depend on each other.
    """
    f, rows, height = step.f, each.domain.rows, each.height
    start_sums(step, each)
    for product in each.sums if height < rows else ():
        step.fill(product.c, literal(0, product.c.dtype))
    meet()

    def stripe(row: IRValue, height: int) -> None:
        for part in each.body:
            cut = _cut(step, each, part, row, height, root_behind)
            if isinstance(cut, Rows):
                step.rows(cut, fresh=False)
            else:
                step.gemm(cut)
            meet()

    whole, rest = rows // height * height, rows % height
    with f.loop(I64(0), I64(whole), height, polls=True) as row:
        stripe(row, height)
    if rest:
        stripe(I64(whole), rest)


def _cut(
    step: StepWriter,
    each: Striped,
    part: Rows | StripedProduct,
    row: IRValue,
    height: int,
    root_behind: Callable[[View, int], Root],
) -> Rows | Gemm:
    """A part of the body for `height` rows from `row`."""

    def from_row(view: View, distance: int) -> View:
        """`view` from `row` on, whose rows are `distance` elements apart."""
        if view.root in each.inside or distance == 0:
            return view
        root = root_behind(view, distance * each.height)
        step.roots[root] = move(step.f, step.address(view), view.dtype, (row, distance))
        return replace(view, root=root, offset=0)

    if isinstance(part, Rows):
        kernel = part.kernel
        views = [from_row(v, o.outer[0]) for v, o in zip(part.views, kernel.operands, strict=True)]
        for instr in kernel.code:
            if instr.kind == "accumulate" and kernel.operands[instr.operand].outer[0]:  # one result for each row
                views[instr.operand] = replace(views[instr.operand], shape=(height,), strides=(1,))
        return replace(part, kernel=replace(kernel, outer=(height,)), views=tuple(views))
    operands = []
    for view, axes in part.product.matrices:
        at = axes.find(part.axis)
        if at >= 0:
            shape = tuple(height if i == at else n for i, n in enumerate(view.shape))
            view = replace(from_row(view, view.strides[at]), shape=shape)
        operands.append(view)
    a, b, c = operands
    return replace(part.product, a=a, b=b, c=c, accumulate=part.axis == "k" and height < each.domain.rows)
