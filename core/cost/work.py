"""The work of a block in floating-point operations, computed from types."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from core.cost.memory import Nests, runs_of
from core.ir import Block, Op, StackType, TensorType, Type, inner_blocks
from core.ir.registry import lookup, roles_of
from core.ir.stop import poll
from core.ops.common.types import REMEMBERED

__all__ = ["RULES", "count_work", "elements_of"]


@lru_cache(REMEMBERED)
def elements_of(type: Type | None) -> int:
    """The number of elements; an unknown size counts as 1, and a stack as one element."""
    if isinstance(type, StackType):
        type = type.array
    return 0 if type is None else math.prod(n if n >= 0 else 1 for n in type.shape)


def _matmul(op: Op, ins: list[Any], outs: list[Any]) -> int:
    x = ins[0].shape
    inner = x[-2] if op.attrs["transpose_x"] and len(x) > 1 else x[-1]
    return 2 * elements_of(outs[0]) * max(inner, 1)


def _correlate(op: Op, ins: list[Any], outs: list[Any]) -> int:
    return 2 * elements_of(outs[0]) * math.prod(ins[1].shape[1:])


def _input_adjoint(op: Op, ins: list[Any], outs: list[Any]) -> int:
    return 2 * elements_of(ins[0]) * math.prod(ins[1].shape[1:])


def _filter_adjoint(op: Op, ins: list[Any], outs: list[Any]) -> int:
    return 2 * elements_of(ins[0]) * math.prod(outs[0].shape[1:])


def _einsum(op: Op, ins: list[Any], outs: list[Any]) -> int:
    """2 for every combination of all letters, times the number of elements under the ellipsis in the result."""
    left, _, right = op.attrs["equation"].replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for term, type in zip(left.split(","), ins, strict=True):
        head, _, tail = term.partition("...")
        named = (*type.shape[: len(head)], *type.shape[type.rank - len(tail) :]) if "." in term else type.shape
        sizes |= {letter: max(n, 1) for letter, n in zip(head + tail, named, strict=True)}
    kept = math.prod(n for letter, n in sizes.items() if letter in right)
    under_dots = elements_of(outs[0]) // max(kept, 1) if "." in left else 1
    return 2 * math.prod(sizes.values()) * max(under_dots, 1)


def _cubic(op: Op, ins: list[Any], outs: list[Any]) -> int:
    n = max(ins[0].shape[-1], 1)
    return 2 * elements_of(ins[0]) * n


def _exponential(op: Op, ins: list[Any], outs: list[Any]) -> int:
    """About 20 products: of the rational approximation and of the squarings."""
    return 20 * _cubic(op, ins, outs)


CUBIC = (
    "cholesky_factor",
    "cofactors",
    "cofactors_adjoint",
    "det",
    "eigh_factor",
    "eigvalsh_factor",
    "inverse",
    "lu",
    "pinv",
    "qr_factor",
    "slogdet",
    "solve",
    "svd",
    "triangular_solve",
)
RULES: dict[str, Callable[[Op, list[Any], list[Any]], int]] = {
    "matmul": _matmul,
    "correlate": _correlate,
    "correlate_input_adjoint": _input_adjoint,
    "correlate_filter_adjoint": _filter_adjoint,
    "einsum": _einsum,
    **dict.fromkeys(CUBIC, _cubic),
    "matrix_exp": _exponential,
}
"""Rules for ops whose work is more than one operation for each element."""

FREE = frozenset({"fill_constant", "fill_zeros_like", "full_like", "cast", "where", "gather", "barrier"})


def count_work(block: Block, trips: int, outer: Nests = MappingProxyType({})) -> dict[str, int]:
    """Floating-point operations of one run of `block` by op type, for loops of `trips` trips each.

    An elementwise op counts 1 for each element of its result, a reduction 1 for each element of its input, a matrix
    product 2 m n k, and an op that only moves elements 0. A branch counts its more expensive side.
    """
    total: Counter[str] = Counter()
    for op in block.ops:
        poll()
        roles = roles_of(op)
        if roles is not None:
            runs, below = runs_of(op, trips, outer) if roles.repeats else (1, outer)
            inside = [count_work(inner, trips, below) for _, inner in inner_blocks(op)]
            most = max(inside, key=lambda side: sum(side.values()))
            total.update({type: n * runs for type, n in most.items()})
        elif cost := _cost(op, block):
            total[op.type] += cost
    return dict(total)


def _cost(op: Op, block: Block) -> int:
    if op.type in FREE:
        return 0
    types = block.types
    if op.type in RULES:
        return RULES[op.type](op, [types.get(name) for name in op.inputs], [types[name] for name in op.outputs])
    if not any(types[name].is_float and isinstance(types[name], TensorType) for name in op.outputs):
        return 0
    if lookup(op.type).elementwise:
        return elements_of(types[op.outputs[0]]) * max(len(op.inputs) - 1, 1)
    if op.type.startswith(("reduce_", "sum_to", "cumsum", "window_sum", "max_pool", "segment_")):
        return max((elements_of(types.get(name)) for name in op.inputs), default=0)
    return 0
