"""Nested tuples, lists and dictionaries of values, as lists and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backpass_client.op_results import Results

__all__ = ["flattened", "labels", "like"]


def flattened(tree: Any) -> list[Any]:
    """The values of `tree`, in order. None has no values."""
    if tree is None:
        return []
    if isinstance(tree, dict):
        return [x for key in tree for x in flattened(tree[key])]
    if isinstance(tree, tuple | list):
        return [x for each in tree for x in flattened(each)]
    return [tree]


def labels(tree: Any, at: str = "") -> list[str]:
    """A name for each value of `tree`: the keys and positions on the way to it, or `at` itself for a single value."""
    if tree is None:
        return []
    if isinstance(tree, dict):
        return [x for key, each in tree.items() for x in labels(each, f"{at}_{key}" if at else str(key))]
    if isinstance(tree, tuple | list):
        return [x for i, each in enumerate(tree) for x in labels(each, f"{at or 'value'}_{i}")]
    return [at or "value"]


def like(tree: Any, values: list[Any]) -> Any:
    """A tree with the structure of `tree` and these values."""
    rest = iter(values)
    return _rebuilt(tree, rest)


def _rebuilt(tree: Any, rest: Iterator[Any]) -> Any:
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: _rebuilt(each, rest) for key, each in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_rebuilt(each, rest) for each in tree))
    if isinstance(tree, Results):
        return tree.like(_rebuilt(each, rest) for each in tree)
    if isinstance(tree, tuple | list):
        return type(tree)(_rebuilt(each, rest) for each in tree)
    return next(rest)
