"""Ops that return views."""

from __future__ import annotations

__all__ = ["VIEWS"]

VIEWS = frozenset(
    {
        "array_chunks",
        "array_flatten",
        "array_regroup",
        "array_unstack",
        "assign",
        "assert",
        "barrier",
        "check_finite",
        "check_shape",
        "diagonal",
        "expand",
        "expand_as",
        "reshape",
        "reshape_as",
        "slice",
        "split",
        "split_like",
        "squeeze",
        "stop_gradient",
        "transpose",
        "unsqueeze",
        "unstack",
    }
)
"""Ops whose outputs are views of their first input."""
