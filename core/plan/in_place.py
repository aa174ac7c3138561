"""Results of a plan that may lie in the memory of a parameter: each element is read before it is written, and then not
again.
"""

from __future__ import annotations

from dataclasses import replace

from core.plan.data import Gemm, Instruction, Root, Rows
from core.plan.plan import Plan

__all__ = ["takes_in_place"]

ELEMENTWISE = frozenset({"constant", "iota", "load", "apply", "store"})
"""Instructions of row kernels that run once for each element, so that an element is not read after it was written."""


def takes_in_place(plan: Plan, param: int, result: int) -> bool:
    """Whether the code of `plan` is right if result `result` is the array of parameter `param`.

    Its instructions must run one after another (`Plan.in_order`).
    """
    old, new = plan.params[param], plan.results[result]
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return False
    instructions = plan.body.instructions
    writers = [i for i, each in enumerate(instructions) if new.root in each.writes()]
    readers = [i for i, each in enumerate(instructions) if old.root in each.reads()]
    if len(writers) != 1 or any(i > writers[0] for i in readers):
        return False
    return writers[0] not in readers or _by_elements(instructions[writers[0]], old.root, new.root)


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
