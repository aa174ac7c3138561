"""Distances between vectors: p-norms of differences. Where a distance is 0 its gradient is 0."""

from __future__ import annotations

import numpy as np

from core.ir.attr_values import Extended
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.reduction.statistics import norm
from core.ops.shape.agreeing import agreed
from core.ops.shape.reshape import unsqueeze

__all__: list[str] = []

A = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
SQUARE = np.sin(np.arange(9.0)).reshape(3, 3)
CUBE = np.cos(np.arange(12.0) * 3).reshape(2, 3, 2)


@composite
def dist(x, y, *, p: Extended = 2.0):
    """p-norm of the difference of two arrays over all elements: ``sum(|x - y| ** p) ** (1 / p)``, with p as in
    `norm`.

    Where x equals y everywhere, the gradient is 0.
    """
    return norm(x - y, p=p)


@composite
def pairwise_distance(x, y, *, p: Extended = 2.0, epsilon: float = 1e-6, keepdims: bool = False):
    """Distance of each pair of rows: the p-norm of ``x - y + epsilon`` along the last axis. Other axes broadcast.

    `epsilon` moves the difference of equal rows away from 0, where the norm has a kink and gradient 0.
    """
    if x.rank == 0 or y.rank == 0:
        raise ProgramError(f"pairwise_distance needs at least one axis, not {x.type} and {y.type}", "shape_mismatch")
    difference = x - y + epsilon
    return norm(difference, p=p, axes=(difference.rank - 1,), keepdims=keepdims)


pairwise_distance.example(
    lambda: [
        Example((A, A[::-1]), (np.sqrt(((A - A[::-1] + 1e-6) ** 2).sum(1)),)),
        Example(
            (CUBE, CUBE[0, 0] + 3),
            (np.abs(CUBE - CUBE[0, 0] - 3).sum(2, keepdims=True),),
            {"p": 1.0, "epsilon": 0.0, "keepdims": True},
        ),
        Example((A[:0], A[1]), (np.zeros(0),)),
    ]
)


@composite
def cdist(x, y, *, p: Extended = 2.0):
    """Distances between all rows of x and y: ``out[..., i, j]`` is the p-norm of ``x[..., i, :] - y[..., j, :]``.

    Where two rows are equal, the gradient is 0.
    """
    if min(x.rank, y.rank) < 2:
        raise ProgramError(f"cdist takes rows [..., n, size], not {x.type} and {y.type}", "shape_mismatch")
    x, y = agreed(x, y, (x.rank - 1, y.rank - 1))
    difference = unsqueeze(x, axes=(-2,)) - unsqueeze(y, axes=(-3,))
    return norm(difference, p=p, axes=(difference.rank - 1,))


def _cdist(x, y, p):
    return (np.abs(x[..., :, None, :] - y[..., None, :, :]) ** p).sum(-1) ** (1 / p)


dist.example(
    lambda: [
        Example((A, A[::-1]), (np.sqrt(((A - A[::-1]) ** 2).sum()),)),
        Example((A, A[0] + 1), (np.abs(A - A[0] - 1).sum(),), {"p": 1.0}),
        Example((CUBE, CUBE + 1), ((12.0) ** (1 / 3),), {"p": 3.0}),
    ]
)
cdist.example(
    lambda: [
        Example((A, SQUARE), (_cdist(A, SQUARE, 2),)),
        Example((CUBE, CUBE[:, :2] + 1), (_cdist(CUBE, CUBE[:, :2] + 1, 3),), {"p": 3.0}),
        Example((A[:0], SQUARE), (np.zeros((0, 3)),)),
    ]
)
