"""The table of lowerings of ops that take or return tensor arrays."""

from __future__ import annotations

from collections.abc import Callable

from core.ir import Op, StackType
from core.plan.array_elements import DIVIDING, KEEPING, common_sizes
from core.plan.lowering import Lowering
from core.plan.registering import registering
from core.plan.unsupported import Unsupported

__all__ = ["RULES", "rule", "takes_arrays"]

RULES: dict[str, Callable[[Lowering, Op], None]] = {}
"""Type of an op -> the function that lowers it if it takes or returns tensor arrays."""

COMMON = KEEPING | DIVIDING | {"array_join", "array_length", "array_read", "array_take"}
"""Ops whose rules take tensor arrays whose elements have common open sizes."""

rule = registering(RULES)
"""Decorator: the function lowers the ops of these types on tensor arrays."""


def takes_arrays(low: Lowering, op: Op) -> bool:
    """Whether `op` has a rule here and takes or returns tensor arrays.

    Raises Unsupported for an array whose elements have common open sizes, if the rule takes none.
    """
    if op.type not in RULES:
        return False
    if op.type not in COMMON and any(
        common_sizes(low, n) for n in op.inputs if isinstance(low.types.get(n), StackType)
    ):
        raise Unsupported("tensor arrays whose elements have unknown or no sizes")
    return any(isinstance(low.types.get(n), StackType) for n in (*op.inputs, *op.outputs))
