"""Arrays that may lie in the memory of others: the code reads each element before it writes it, and not afterwards.

So a result of a plan may be the array of a parameter, and an intermediate array one that its first instruction is the
last to read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from core.ir.stop import poll
from core.plan.instructions import Gemm, Instruction, Rows
from core.plan.memory import Root, View
from core.plan.plan import Plan
from core.plan.row_kernels import RowKernel, is_total, stages_of

__all__ = ["by_elements", "in_place", "replaced"]

ENDS = frozenset({"store", "accumulate", "check"})
"""Instructions of row kernels that have an effect on memory. With reductions they decide which sweeps read an array."""


def in_place(plan: Plan, pairs: Iterable[tuple[int, int]]) -> list[bool]:
    """For each pair of a parameter and a result: whether the code of `plan` is right if both are one array.

    Its instructions must run one after another (`Plan.in_order`).
    """
    instructions = plan.body.instructions
    writers: defaultdict[Root, list[int]] = defaultdict(list)
    readers: defaultdict[Root, list[int]] = defaultdict(list)
    for i, each in enumerate(instructions):
        for found, roots in ((writers, each.writes()), (readers, each.reads())):
            for root in dict.fromkeys(roots):
                found[root].append(i)

    def fits(old: View, new: View) -> bool:
        written, read = writers[new.root], readers[old.root]
        if (old.dtype, old.shape) != (new.dtype, new.shape) or len(written) != 1 or max(read, default=-1) > written[0]:
            return False
        return written[0] not in read or by_elements(instructions[written[0]], old.root, new.root)

    return [fits(plan.params[param], plan.results[result]) for param, result in pairs]


def replaced(each: Instruction, ended: Iterable[Root], new: Iterable[Root]) -> dict[Root, Root]:
    """For roots of `new`, those of `ended` whose memory they may take, because `each` works element by element.

    ended: roots that nothing reads after `each`. new: roots that nothing has written before. Both have an order: the
    first fitting root is taken, once.
    """
    found: dict[Root, Root] = {}
    if not isinstance(each, Gemm | Rows):  # a loop may have thousands of roots
        return found
    of_size: dict[int, list[Root]] = defaultdict(list)
    for root in ended:
        of_size[root.nbytes].append(root)
    for root in new:
        poll()
        old = next((old for old in of_size[root.nbytes] if by_elements(each, old, root)), None)
        if old is not None:
            of_size[root.nbytes].remove(old)
            found[root] = old
    return found


def by_elements(each: Instruction, old: Root, new: Root) -> bool:
    """Whether an instruction reads each element of `old` right before it writes the one of `new` at the same place, and
    not afterwards.
    """
    if isinstance(each, Gemm):  # its epilogue runs once for each element of the product
        if each.then is None or old in (each.a.root, each.b.root, each.c.root) or each.c.root is new:
            return False
        layouts = {(v.shape, v.strides) for v in each.then.views if v.root in (old, new)}  # of a batch of products
        return len(layouts) == 1 and by_elements(each.then, old, new)
    if not isinstance(each, Rows) or each.kernel.merged:
        return False
    kernel, roots = each.kernel, [v.root for v in each.views]
    both = [i for i, root in enumerate(roots) if root in (old, new)]
    paths = {(each.views[i].offset, replace(kernel.operands[i], written=False)) for i in both}
    uses = {(kernel.code[at].kind, roots[kernel.code[at].operand]) for at in _at(kernel, both)}
    if len(paths) != 1 or uses != {("load", old), ("store", new)}:
        return False
    ((_, path),) = paths
    sizes = zip((*kernel.outer, kernel.inner), (*path.outer, path.inner), strict=True)
    return all(stride for n, stride in sizes if n > 1) and _reads_first(kernel, both)


def _at(kernel: RowKernel, operands: Collection[int]) -> list[int]:
    """The positions of the instructions that use one of these operands."""
    return [at for at, instr in enumerate(kernel.code) if instr.operand in operands]


def _reads_first(kernel: RowKernel, operands: Collection[int]) -> bool:
    """Whether every load from these operands comes before every store to them, in each sweep over a row.

    A later sweep computes values again that an earlier one has loaded, so no sweep may load after one that stores.
    """
    code, used = kernel.code, _at(kernel, operands)
    loads = [at for at in used if code[at].kind == "load"]
    stores = [at for at in used if code[at].kind == "store"]
    if max(loads) > min(stores):
        return False
    stages, loaded, last = stages_of(code), set(loads), 0
    for at, instr in enumerate(code):
        if loaded.isdisjoint(instr.args):
            continue
        if is_total(code, instr):  # later sweeps have its value
            last = max(last, stages[at] - 1)
            continue
        loaded.add(at)
        if instr.kind in ENDS:
            last = max(last, stages[at])
    return last <= min(stages[at] for at in stores)
