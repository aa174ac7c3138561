"""``x[...]`` in terms of ops: slices first, then single positions, then new axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass_client.expression import Expression

__all__ = ["indexed"]

LAST = 2**31 - 1


def indexed(x: Expression, index: Any) -> Expression:
    """`x` at an index as numpy has it: whole numbers, slices, `...`, None; or one array of positions on axis 0.

    A position is looked up as a value, so that another position is not another structure.
    """
    if isinstance(index, Expression | np.ndarray | list):
        positions = index if isinstance(index, Expression) else np.asarray(index)
        if isinstance(positions, np.ndarray) and positions.dtype.kind not in "iu":
            raise TypeError("an index is made of whole numbers; for a mask use masked_select or where")
        return x._op("gather", positions)
    items = list(index) if isinstance(index, tuple) else [index]
    used = sum(each is not None and each is not Ellipsis for each in items)
    if Ellipsis in items:
        at = items.index(Ellipsis)
        items[at : at + 1] = [slice(None)] * (x.ndim - used)
    sliced: list[tuple[int, slice]] = []
    single: list[tuple[int, int]] = []
    new: list[int] = []
    axis, out = 0, 0
    for each in items:
        if each is None:
            new.append(out)
            out += 1
            continue
        if isinstance(each, slice):
            if each != slice(None):
                sliced.append((axis, each))
            out += 1
        elif isinstance(each, int | np.integer) and not isinstance(each, bool):
            single.append((axis, int(each)))
        else:
            raise TypeError(f"{type(each).__name__} is no index")
        axis += 1
    if sliced:
        x = x._op(
            "slice",
            axes=[axis for axis, _ in sliced],
            starts=[_start(s) for _, s in sliced],
            ends=[_end(s) for _, s in sliced],
            steps=[1 if s.step is None else int(s.step) for _, s in sliced],
        )
    for axis, position in reversed(single):
        if position < 0:
            position += x.shape[axis]
        x = x._op("gather", np.array(position, np.int64), axis=axis)
    return x._op("unsqueeze", axes=new) if new else x


def _start(s: slice) -> int:
    backwards = s.step is not None and s.step < 0
    return (LAST if backwards else 0) if s.start is None else int(s.start)


def _end(s: slice) -> int:
    backwards = s.step is not None and s.step < 0
    return (-LAST - 1 if backwards else LAST) if s.stop is None else int(s.stop)
