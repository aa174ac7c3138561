"""Layers that are neither a product, a convolution nor a normalisation."""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.errors import ProgramError
from core.ops.index import check_index
from core.registry import Example, composite, lookup

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
TABLE = np.array([[0.1, 0.2], [0.3, -0.4], [0.5, 0.6], [-0.7, 0.8]])


@composite
def dropout(
    x,
    key=None,
    *,
    p: float = 0.5,
    is_test: bool = False,
    mode: Literal["upscale_in_train", "downscale_in_infer"] = "upscale_in_train",
    seed: int = 0,
    stream: int = 0,
):
    """Set each element to 0 with probability `p`.

    With `upscale_in_train` the others are divided by ``1 - p`` in training, and a test changes nothing; with
    `downscale_in_infer` they stay in training, and a test multiplies by ``1 - p``. ``p = 1`` gives zeros. The gradient
    uses the same mask.
    """
    if not 0 <= p <= 1:
        raise ProgramError(f"p must be within 0 and 1, not {p}", "bad_attr")
    upscale = mode == "upscale_in_train"
    if is_test:
        return lookup("assign")(x) if upscale else x * (1.0 - p)
    if p == 1:
        return x * 0.0
    chance = lookup("uniform_random_like")(lookup("stop_gradient")(x), key, seed=seed, stream=stream)
    keep = lookup("cast")(lookup("greater_equal")(chance, lookup("full_like")(chance, value=p)), dtype=x.dtype)
    return x * (keep / (1.0 - p) if upscale else keep)


dropout.example(
    lambda: [
        Example((X, np.array(3)), (), {"p": 0.4}),
        Example((X, np.array(3)), (0 * X,), {"p": 1.0}),
        Example((X,), (X,), {"is_test": True}),
        Example((X,), (X * 0.75,), {"is_test": True, "p": 0.25, "mode": "downscale_in_infer"}),
    ]
)


@composite
def embedding(weight, ids, *, padding_idx: int | None = None):
    """``out[..., :] = weight[ids[...], :]``: rows of a table, looked up.

    An id outside the table is an error. Rows of `padding_idx` come out as zeros and get no gradient.
    """
    check_index(ids.type, "ids")
    if weight.rank != 2:
        raise ProgramError(f"the table must have two axes, not {weight.type}", "shape_mismatch")
    rows = lookup("gather")(weight, ids, axis=0)
    if padding_idx is None:
        return rows
    size = weight.shape[0]
    if size >= 0 and not -size <= padding_idx < size:
        raise ProgramError(f"padding_idx {padding_idx} is outside the table {weight.type}", "bad_attr")
    at = padding_idx + size if padding_idx < 0 <= size else padding_idx
    padded = lookup("equal")(ids, lookup("full_like")(ids, value=at))
    return lookup("where")(lookup("unsqueeze")(padded, axes=(-1,)), lookup("fill_zeros_like")(rows), rows)


embedding.example(
    lambda: [
        Example((TABLE, np.array([0, 1, 0])), (TABLE[[0, 1, 0]],)),
        Example((TABLE, np.array([[0, 1], [2, 0]])), (TABLE[[[0, 1], [2, 0]]] * [[[0], [1]], [[1], [0]]],),
                {"padding_idx": 0}),
    ]
)  # fmt: skip
