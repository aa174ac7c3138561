"""A recursive network over a binary tree, written once for every framework with Python's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["Tree", "tree_loss", "tree_of"]

Tree = Any
"""The number of a leaf, or a pair of trees."""


def tree_of(leaves: int, seed: int) -> Tree:
    """A random binary tree whose leaves are numbered from the left."""
    rng = np.random.default_rng(seed)

    def between(first: int, end: int) -> Tree:
        if end - first == 1:
            return first
        cut = int(rng.integers(first + 1, end))
        return between(first, cut), between(cut, end)

    return between(0, leaves)


def tree_loss(
    tree: Tree,
    parameters: Mapping[str, Any],
    words: Sequence[Any],
    lookup: Callable[[Any, Any], Any],
    tanh: Callable[[Any], Any],
    mean_square: Callable[[Any], Any],
) -> Any:
    """The mean square of the state at the root; a node's state is ``tanh(left l + right r + b)``, [1, hidden].

    words: for each leaf, an int64 array [1] with its row of the table ``e`` [vocabulary, hidden].
    """
    left, right, bias = parameters["l"], parameters["r"], parameters["b"]

    def state(node: Tree) -> Any:
        if isinstance(node, tuple):
            return tanh(state(node[0]) @ left + state(node[1]) @ right + bias)
        return lookup(parameters["e"], words[node])

    return mean_square(state(tree))
