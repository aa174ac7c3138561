"""Warnings about gradients that are exactly zero: a model that learns nothing looks like one that trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.compiler.compile import Outputs
from core.runtime.sparse_rows import RowArray

__all__ = ["zero_warnings"]

LISTED = 100  # names in a warning


def zero_warnings(out: Outputs, norms: Mapping[str, float | None], is_first: bool) -> list[dict[str, Any]]:
    """The member `warnings` of an answer.

    In the first step of a session each gradient is checked. Later it costs nothing only where norms are known: then
    a warning says that all of them are zero.
    """
    if not out.gradients:
        return []
    if is_first:
        zeros = [name for name, gradient in out.gradients.items() if not _any(gradient)]
    else:
        zeros = list(out.gradients) if norms and all(norm == 0 for norm in norms.values()) else []
    if not zeros:
        return []
    count, total = len(zeros), len(out.gradients)
    share = "every gradient is" if count == total else f"{count} of {total} gradients are"
    detail = f"{share} exactly zero: a zero initial value, a dead unit or a constant in between may stop learning"
    return [{"code": "zero-gradients", "detail": detail, "parameters": sorted(zeros)[:LISTED]}]


def _any(gradient: Any) -> bool:
    values = gradient.values if isinstance(gradient, RowArray) else gradient
    return bool(values.any())
