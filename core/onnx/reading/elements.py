"""The elements of a vector of sizes that are known although others are open."""

from __future__ import annotations

from core.onnx.reading.values import Tensor

__all__ = ["elements_of"]

DEEPEST = 20
"""The most ops that are followed back from a vector."""
_SAME = ("cast", "reshape", "unsqueeze", "squeeze", "assign")


def elements_of(x: Tensor, depth: int = DEEPEST) -> list[int | None] | None:
    """The elements of a scalar or vector of integers, None for each that is open; None if nothing is known of them.

    It follows the ops by which models put shapes together: parts of `shape`, and `concat`.
    """
    if x.known is not None:
        return [int(n) for n in x.known.reshape(-1)] if x.rank < 2 and not x.is_float else None
    made = x.origin
    if made is None or depth == 0 or x.rank > 1 or x.is_float:
        return None
    source = made.inputs[0]
    if not isinstance(source, Tensor):
        return None
    if made.op == "shape":
        return [None if n == -1 else n for n in source.shape]
    if made.op == "concat":
        parts = [_counted(each, depth - 1) for each in made.inputs]
        return None if None in parts else [n for part in parts for n in part or ()]
    found = elements_of(source, depth - 1)
    if found is None or made.op in _SAME:
        return found
    if made.op == "gather":
        index = made.inputs[1].value
        places = [] if index is None else [int(n) for n in index.reshape(-1)]
        fits = index is not None and all(-len(found) <= n < len(found) for n in places)
        return [found[n] for n in places] if fits else None
    if made.op == "slice":
        steps = made.attrs.get("steps") or [1]
        return found[slice(made.attrs["starts"][0], made.attrs["ends"][0], steps[0])]
    return None


def _counted(x: Tensor, depth: int) -> list[int | None] | None:
    """The elements of a part of a vector; a part of known length with open elements has None for each."""
    found = elements_of(x, depth)
    return [None] * x.shape[0] if found is None and x.rank == 1 and x.shape[0] != -1 else found
