"""A decorator for tables of functions by the types of ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["registering"]

Rule = TypeVar("Rule")


def registering(table: dict[str, Rule]) -> Callable[..., Callable[[Rule], Rule]]:
    """A decorator that takes types of ops and puts the decorated function into `table` under each of them."""

    def of(*names: str) -> Callable[[Rule], Rule]:
        def register(rule: Rule) -> Rule:
            table.update(dict.fromkeys(names, rule))
            return rule

        return register

    return of
