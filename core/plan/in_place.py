"""Results of a plan that may lie in the memory of a parameter: the code reads each element before it writes it, and not
afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from core.plan.instructions import Gemm, Instruction, Rows
from core.plan.memory import Root, View
from core.plan.plan import Plan

__all__ = ["in_place"]

ELEMENTWISE = frozenset({"constant", "iota", "load", "apply", "store"})
"""Instructions of row kernels that run once for each element, so that an element is not read after it was written."""


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
        return written[0] not in read or _by_elements(instructions[written[0]], old.root, new.root)

    return [fits(plan.params[param], plan.results[result]) for param, result in pairs]


def _by_elements(each: Instruction, old: Root, new: Root) -> bool:
    """Whether an instruction reads each element of `old` right before it writes the one of `new` at the same place."""
    if isinstance(each, Gemm):  # its epilogue runs once for each element of the product
        if each.then is None or old in (each.a.root, each.b.root, each.c.root) or each.c.root is new:
            return False
        each = each.then
    if not isinstance(each, Rows) or any(instr.kind not in ELEMENTWISE for instr in each.kernel.code):
        return False
    kernel, roots = each.kernel, [v.root for v in each.views]
    both = [i for i, root in enumerate(roots) if root in (old, new)]
    paths = {(each.views[i].offset, replace(kernel.operands[i], written=False)) for i in both}
    loads = [at for at, instr in enumerate(kernel.code) if instr.kind == "load" and roots[instr.operand] is old]
    stores = [at for at, instr in enumerate(kernel.code) if instr.kind == "store" and roots[instr.operand] is new]
    ((_, path), *others) = paths
    sizes = zip((*kernel.outer, kernel.inner), (*path.outer, path.inner), strict=True)
    return not others and max(loads) < min(stores) and all(stride for n, stride in sizes if n > 1)
