"""Operators of torch in other operators of torch, where the exported form would have no gradient at some points.

A rewrite takes all arguments of its operator in the order of the schema. torch is imported where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from backpass_client.torch_graphs import Body

__all__ = ["sinc", "std", "std_by_axis", "std_of_all"]


def sinc(make: Body, x: Any) -> Any:
    """``sin(pi x) / (pi x)``, and at zero the start of its series, which has the same derivatives of two orders."""
    import torch

    aten = torch.ops.aten
    zero = make(aten.eq.Scalar, x, 0)
    angle = make(aten.mul.Tensor, make(aten.where.ScalarSelf, zero, 1.0, x), math.pi)
    quotient = make(aten.div.Tensor, make(aten.sin.default, angle), angle)
    square = make(aten.mul.Tensor, make(aten.mul.Tensor, x, x), -(math.pi**2) / 6)
    return make(aten.where.self, zero, make(aten.add.Tensor, square, 1.0), quotient)


def std_of_all(make: Body, x: Any, unbiased: bool) -> Any | None:
    return std(make, x, None, int(unbiased), False)


def std_by_axis(make: Body, x: Any, axes: Sequence[int] | None, unbiased: bool, keepdim: bool) -> Any | None:
    return std(make, x, axes, int(unbiased), keepdim)


def std(make: Body, x: Any, axes: Sequence[int] | None, correction: float | None, keepdim: bool) -> Any | None:
    """The norm of the differences from the mean, because the norm of zeros has gradient 0, as a deviation in torch."""
    import torch

    aten = torch.ops.aten
    rank, correction = len(x.meta["val"].shape), 1 if correction is None else correction
    along = list(axes or range(rank))
    if not rank:
        return None
    mean = make(aten.mean.dim, x, along, True)
    length = make(aten.linalg_vector_norm.default, make(aten.sub.Tensor, x, mean), 2, along, keepdim)
    sizes = [x.meta["val"].shape[axis] for axis in along]
    if all(isinstance(n, int) for n in sizes):
        count = max(math.prod(sizes) - correction, 0)
        return make(aten.mul.Tensor, length, 1 / math.sqrt(count) if count else math.inf)
    numbers = make(aten.sum.dim_IntList, make(aten.ones_like.default, x), along, keepdim)
    left = make(aten.clamp_min.default, make(aten.sub.Tensor, numbers, correction), 0)
    return make(aten.div.Tensor, length, make(aten.sqrt.default, left))
