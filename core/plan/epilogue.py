"""Epilogues: elementwise work on the result of a product moves into the product.

Examples are a bias, a relu and its mask, the cotangent of a relu, or an optimiser's update. Done on each tile while it
is in registers or in cache, the work needs no pass over memory. A result that nothing else reads is not stored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby

from core.ir.stop import poll
from core.plan.instructions import Gemm, Instruction, Rows
from core.plan.memory import Root, View
from core.plan.row_kernels import Operand, RowInstruction
from core.plan.shapes import reshaped_view
from core.plan.target import ProductRules

__all__ = ["fuse_epilogues", "picked", "roots_of"]

TOGETHER = frozenset({"constant", "load", "apply", "store", "accumulate"})
"""Kinds of row-kernel instructions that need only their own element, and rows in no particular order."""


@dataclass(slots=True)
class _Component:
    """An instruction; or a connected component of a row kernel: instructions that share no value with its others.

    whole:   position of the instruction or row kernel.
    numbers: of the row kernel's instructions in this component, without loads and constants; None for all.
    """

    instruction: Instruction | None
    whole: int
    numbers: list[int] | None = None


def fuse_epilogues(
    instructions: Sequence[Instruction], rules: ProductRules, kept: Set[Root] = frozenset()
) -> tuple[Instruction, ...]:
    """`instructions` with row kernels moved into the products whose result they read.

    rules: of the target; it is asked about products, and about batches of them.
    kept:  roots that instructions around these touch.
    """
    results = {
        each.c.root
        for each in instructions
        if isinstance(each, Gemm) and not each.accumulate and rules.takes_epilogue(each)
    }
    if not results:
        return tuple(instructions)
    components = [component for at, each in enumerate(instructions) for component in _components(each, at, results)]
    touching: dict[Root, set[int]] = {}  # the positions of the components that touch a root
    for at, component in enumerate(components):
        for root in roots_of(component.instruction):
            touching.setdefault(root, set()).add(at)
    for at, component in enumerate(components):
        poll()
        product = component.instruction
        if not isinstance(product, Gemm) or product.c.root not in results:
            continue
        reader = min((i for i in touching[product.c.root] if i > at), default=at)
        rows = components[reader].instruction
        if not isinstance(rows, Rows) or any(i.kind not in TOGETHER for i in rows.kernel.code):
            continue
        same = components[reader].whole
        near = {i for root in roots_of(rows) for i in touching[root] if at < i < reader or components[i].whole == same}
        then = _along(rows, product.c)
        if then is None or not _may_move(rows, product, [components[i].instruction for i in near - {reader}]):
            continue
        for root in roots_of(rows):
            touching[root] = touching[root] - {reader} | {at}
        components[reader].instruction = None
        needed = product.c.root.place != "arena" or product.c.root in kept or touching[product.c.root] != {at}
        made = replace(product, then=then, kept=needed)
        component.instruction = made if needed or rules.stores_result(product) else _without_memory(made, then)
    return tuple(_joined(components, instructions))


def _without_memory(product: Gemm, then: Rows) -> Gemm:
    """`product`, whose result is never stored."""
    own, none = product.c.root, Root(0, "none", product.c.root.name)
    views = tuple(replace(v, root=none) if v.root is own else v for v in then.views)
    return replace(product, c=replace(product.c, root=none), then=replace(then, views=views))


def roots_of(each: Instruction | None) -> set[Root]:
    return set() if each is None else {*each.reads(), *each.writes()}


def _components(each: Instruction, at: int, results: set[Root]) -> list[_Component]:
    """A row kernel that reads some of `results` as its components; any other instruction as a single one."""
    if not isinstance(each, Rows) or results.isdisjoint(each.reads()):
        return [_Component(each, at)]
    code = each.kernel.code
    of = list(range(len(code)))  # union-find: the root of an instruction's tree is its component

    def component(n: int) -> int:
        while of[n] != n:
            of[n] = n = of[of[n]]
        return n

    first: dict[Root, int] = {}
    leaves = set()
    for n, instr in enumerate(code):
        if instr.kind == "load" and (root := each.views[instr.operand].root) in results:
            of[component(n)] = component(first.setdefault(root, n))  # one component reads all of one result
        elif instr.kind in ("load", "constant"):
            leaves.add(n)
        for arg in instr.args:
            if arg not in leaves:
                of[component(arg)] = component(n)
    found: dict[int, list[int]] = {}
    for n in range(len(code)):
        if n not in leaves:
            found.setdefault(component(n), []).append(n)
    if len(found) == 1:
        return [_Component(each, at)]
    return [_Component(picked(each, numbers), at, numbers) for numbers in found.values()]


def _joined(components: Iterable[_Component], instructions: Sequence[Instruction]) -> Iterator[Instruction]:
    """The remaining components of each row kernel, joined again."""
    for at, group in groupby(components, lambda component: component.whole):
        left = [component for component in group if component.instruction is not None]
        if len(left) < 2:
            yield from (component.instruction for component in left if component.instruction is not None)
        else:
            rows = instructions[at]
            assert isinstance(rows, Rows)
            yield picked(rows, sorted(n for component in left for n in component.numbers or ()))


def _may_move(then: Rows, product: Gemm, between: Iterable[Instruction | None]) -> bool:
    """Whether `then` may run with the product, before the instructions `between` the two."""
    writes = set(then.writes())
    reads = {v.root for v, o in zip(then.views, then.kernel.operands, strict=True) if not o.written}
    if writes & (reads | {product.a.root, product.b.root}):
        return False
    reads.discard(product.c.root)
    for each in between:
        if each is None:
            continue
        written = set(each.writes())
        if reads & written or writes & (written | set(each.reads())):
            return False
    return True


def picked(rows: Rows, numbers: Sequence[int]) -> Rows:
    """The row kernel of the instructions with these numbers and of the loads and constants that they read."""
    code = rows.kernel.code
    wanted = sorted({*numbers, *(a for n in numbers for a in code[n].args)})
    place = {n: i for i, n in enumerate(wanted)}
    operands: list[Operand] = []
    views: list[View] = []
    picked: list[RowInstruction] = []
    for n in wanted:
        instr = code[n]
        if instr.operand >= 0:
            operands.append(rows.kernel.operands[instr.operand])
            views.append(rows.views[instr.operand])
        at = len(operands) - 1 if instr.operand >= 0 else -1
        picked.append(replace(instr, args=tuple(place[a] for a in instr.args), operand=at))
    left = Counter(i.op if i.kind == "apply" else f"reduce_{i.op}" for i in picked)
    ops = tuple(op for op in rows.ops if left[op] > 0 and not left.subtract([op]))
    kernel = replace(rows.kernel, operands=tuple(operands), code=tuple(picked))
    return replace(rows, kernel=kernel, views=tuple(views), ops=ops)


def _along(rows: Rows, c: View) -> Rows | None:
    """`rows` as the epilogue of products into c [batch..., m, n]; None unless its domain is the elements of c."""
    kernel, sizes = rows.kernel, (*rows.kernel.outer, rows.kernel.inner)
    if math.prod(sizes) != math.prod(c.shape):
        return None
    views: list[View] = []
    for view, operand in zip(rows.views, kernel.operands, strict=True):
        cut = reshaped_view(replace(view, shape=sizes, strides=(*operand.outer, operand.inner)), c.shape)
        if cut is None:
            return None
        views.append(replace(cut, dtype=operand.dtype))
    for instr in kernel.code:
        if instr.operand < 0:
            continue
        view = views[instr.operand]
        if view.root is c.root and (_steps(view), view.offset, view.dtype) != (_steps(c), c.offset, c.dtype):
            return None
        if instr.kind == "accumulate" and (view.strides != (0, 1) or not instr.full):
            return None  # any other sum spans more than one tile, or more than one product
        if instr.kind == "store" and 0 in _steps(view):
            return None
    operands = (
        replace(operand, outer=view.strides[-2:-1], inner=view.strides[-1])
        for operand, view in zip(kernel.operands, views, strict=True)
    )
    made = replace(kernel, outer=c.shape[-2:-1], inner=c.shape[-1], operands=tuple(operands))
    sums = {instr.operand for instr in kernel.code if instr.kind == "accumulate"}
    return replace(rows, kernel=made, views=tuple(rows.views[i] if i in sums else v for i, v in enumerate(views)))


def _steps(view: View) -> tuple[int, ...]:
    """The strides of an array, without those of axes of a single element."""
    return tuple(step for n, step in zip(view.shape, view.strides, strict=True) if n > 1)
