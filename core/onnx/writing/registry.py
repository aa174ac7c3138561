"""The table of rules: op of the catalogue -> function that writes its nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["REASONS", "RULES", "Refused", "Rule", "cannot", "writes"]

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}
"""Op -> its rule."""

REASONS: dict[str, str] = {}
"""Op without a rule -> the reason."""


class Refused(Exception):
    """ONNX, or onnxruntime, cannot express an op. The message is the reason, a clause without a period."""


def writes(*ops: str) -> Callable[[Rule], Rule]:
    """Decorator: the rule of `ops`."""

    def declare(rule: Rule) -> Rule:
        for op in ops:
            if op in RULES or op in REASONS:
                raise ValueError(f"op {op!r} has two rules")
            RULES[op] = rule
        return rule

    return declare


def cannot(reason: str, *ops: str) -> None:
    """Declare the reason why `ops` have no rule."""
    for op in ops:
        if op in RULES or op in REASONS:
            raise ValueError(f"op {op!r} has two rules")
        REASONS[op] = reason
