"""Elementwise ops with an operand that is one known bool: the result is another operand, or a bool.

Adjoints mask places where a derivative has no value. Where an operand is a number, they often have nothing to mask.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.ir import TensorType
from core.plan.entries import Entry, Uniform

__all__ = ["chosen"]

DECIDES = {"logical_and": False, "logical_or": True}
"""The value of one operand that decides the result of an op."""


def chosen(op: str, entries: Sequence[Entry], type: TensorType) -> Entry | None:
    """The result of `op`, of this type, if it is that of an operand or known; else None."""
    if op == "where":
        condition, yes, no = entries
        if not isinstance(condition, Uniform):
            return None
        return _as_result(yes if condition.number else no, type)
    if op not in DECIDES or any(each.dtype != "bool" for each in entries):
        return None
    for known, other in (entries, entries[::-1]):
        if isinstance(known, Uniform):
            if bool(known.number) == DECIDES[op]:
                return Uniform(known.number, "bool", type.shape)
            return _as_result(other, type)
    return None


def _as_result(entry: Entry, type: TensorType) -> Entry | None:
    if entry.dtype != type.dtype:
        return None
    if isinstance(entry, Uniform):
        return Uniform(entry.number, type.dtype, type.shape)
    return entry if entry.shape == type.shape else None
