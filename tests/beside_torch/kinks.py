"""Samples of each op at ties, bounds, poles and zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.beside_torch.sample import Inputs, case

__all__ = ["KINKS"]

inf, nan = float("inf"), float("nan")


def at(*values: Any) -> np.ndarray:
    return np.array(values, dtype="float64")


ZERO = at(-1, -0.0, 0, 1)
TIES = at([2, 1, 2, 0], [3, 3, 3, 3], [-1, 0, 5, 5])
HOLES = at([0, 2, 3], [0, 0, 3], [1, 2, 3])
SAME = at([0, 0, 0], [1, 2, 2])
FAR = at(-1000, -40, 40, 1000)
HIDDEN = at([-inf, -inf], [-inf, 1], [0, 2])
PLANE = at(1, 1, 0, 1, 1, 1, 0, 0, 2, 0, 2, 2, 2, 2, 2, 2).reshape(1, 1, 4, 4)

WAVES = np.sin(np.arange(16.0)).reshape(1, 1, 4, 4)

KINKS: dict[str, list[Inputs]] = {
    "abs": [case(ZERO)],
    "acos": [case(at(-1, 1))],
    "acosh": [case(at(1, 2))],
    "asin": [case(at(-1, 1))],
    "atan2": [case(at(0, 0, 0, 1, -1), at(0, 1, -1, 0, 0))],
    "atanh": [case(at(-1, 1))],
    "bce_loss": [case(at(0, 1, 0, 1), at(0, 1, 1, 0), reduction="none")],
    "cdist": [case(SAME, SAME, p=p) for p in (1.0, 2.0, 3.0)],
    "ceil": [case(ZERO)],
    "celu": [case(ZERO, alpha=2.0), case(FAR)],
    "clip": [case(at(-1, -0.5, 0, 0.5, 1), min=-0.5, max=0.5), case(at(nan, inf, -inf), min=-1.0, max=1.0)],
    "clip_by_norm": [case(at(0, 0), max_norm=1.0), case(at(3, 4), max_norm=5.0)],
    "clip_by_global_norm": [case(at(0, 0), at(0), max_norm=1.0)],
    "cos_sim": [case(SAME, SAME)],
    "cross_entropy": [
        case(at([0, 1], [0.5, 0.5]), np.array([1, 0])),
        case(at([0, 1], [0.5, 0.5]), at([0, 1], [0, 1]), soft_label=True),
    ],
    "cummax": [case(TIES)],
    "cummin": [case(TIES)],
    "cumprod": [case(HOLES)],
    "dist": [case(SAME, SAME, p=p) for p in (1.0, 2.0, 3.0)],
    "div": [case(at(1, 0, -1), at(0, 0, 2))],
    "eigvalsh": [case(np.eye(2))],
    "elu": [case(ZERO), case(FAR)],
    "erfinv": [case(at(-1, 1))],
    "floor": [case(ZERO)],
    "floor_div": [case(at(4, -4, 5), at(2, 2, 0))],
    "fmod": [case(at(4, -4, 5), at(2, 2, -2.5))],
    "frobenius_norm": [case(SAME * 0)],
    "gelu": [case(FAR), case(FAR, approximate=True)],
    "global_max_pool": [case(PLANE)],
    "gaussian_nll_loss": [case(at(1, 1), at(1, 2), at(1e-6, 1e-9))],
    "grid_sample": [
        case(WAVES, at(-1, -1, 1, 1, -1 / 3, 1 / 3, 0.5, -2).reshape(1, 2, 2, 2), mode=m, padding_mode=p)
        for m in ("bilinear", "nearest", "bicubic")
        for p in ("zeros", "border", "reflection")
    ],
    "hard_shrink": [case(at(-0.5, 0, 0.5, nan))],
    "hard_sigmoid": [case(at(-3, 0, 3, nan)), case(at(-2, 2), slope=0.25)],
    "hard_swish": [case(at(-3, 0, 3)), case(at(nan))],
    "hard_tanh": [case(at(-1, 0, 1, nan))],
    "hinge_loss": [case(at(1, -1, 0), at(1, 0, 1))],
    "huber_loss": [case(at(1, -1, 0), at(0, 0, 0), delta=1.0)],
    "hypot": [case(at(0, 0, 3), at(0, 2, 0)), case(at(1e200, 1e-200), at(1e200, 1e-200))],
    "kldiv_loss": [case(at(-1, -2), at(0, 1), reduction="none")],
    "kthvalue": [case(TIES, k=2)],
    "l1_loss": [case(at(1, 2), at(1, 3))],
    "l1_norm": [case(ZERO)],
    "l2_normalize": [case(SAME)],
    "leaky_relu": [case(ZERO)],
    "lgamma": [case(at(0, -1))],
    "log": [case(at(0, 1))],
    "log10": [case(at(0, 1))],
    "log1p": [case(at(-1, 0))],
    "log2": [case(at(0, 1))],
    "log_softmax": [case(HIDDEN[1:]), case(FAR)],
    "logcumsumexp": [case(at(0, -inf, 1)), case(FAR)],
    "logsigmoid": [case(FAR)],
    "logsumexp": [case(HIDDEN, axes=(1,)), case(FAR), case(at(inf, 0))],
    "lp_pool": [case(PLANE * 0, kernel_size=(2,), p=p) for p in (1.0, 2.0, 3.0)],
    "margin_rank_loss": [case(at(1, -1), at(2, 1), at(1, 2), margin=1.0)],
    "max_pool": [case(PLANE, kernel_size=(2,))],
    "max_pool1d": [case(TIES[None], kernel_size=(2,), strides=(1,))],
    "max_pool2d": [case(PLANE, kernel_size=(3,), strides=(1,), paddings=(1,))],
    "adaptive_max_pool1d": [case(TIES[None], output_size=(3,))],
    "adaptive_max_pool2d": [case(PLANE, output_size=(3, 2))],
    "maximum": [case(at(1, 0, 2), at(1, -0.0, 3)), case(at(nan, 1), at(1, nan))],
    "maxout": [case(TIES, groups=2)],
    "median": [case(TIES), case(TIES[:, :3])],
    "minimum": [case(at(1, 0, 2), at(1, -0.0, 3)), case(at(nan, 1), at(1, nan))],
    "mish": [case(FAR)],
    "mod": [case(at(4, -4, 5), at(2, 2, -2.5))],
    "mode": [case(TIES)],
    "norm": [case(SAME, p=p, axes=(1,)) for p in (0.0, 0.5, 1.0, 2.0, 3.0, inf, -inf, -1.0)]
    + [case(TIES, p=inf, axes=(1,))],
    "pairwise_distance": [case(SAME, SAME, epsilon=0.0, p=p) for p in (1.0, 2.0, 3.0)],
    "pow": [
        case(at(0, 0, 0, 2, -2, -2), at(0, 1, 2, 0, 2, 3)),
        case(at(0, 0), at(0.5, -1)),
        case(at(0, 1), at(3, 0)),
    ],
    "prelu": [case(ZERO, at(0.25))],
    "product_of_others": [case(HOLES, axes=(1,))],
    "put_along_axis": [case(at([1, 2, 3]), np.array([[1, 1]]), at([5, 6]))],
    "reciprocal": [case(at(0, 2))],
    "reduce_max": [case(TIES, axes=(1,), tie=t) for t in ("even", "first", "all")] + [case(TIES)],
    "reduce_min": [case(TIES, axes=(1,), tie=t) for t in ("even", "first", "all")] + [case(TIES)],
    "reduce_prod": [case(HOLES, axes=(1,)), case(HOLES)],
    "relu": [case(ZERO)],
    "relu6": [case(at(-1, 0, 6, 7, nan))],
    "round": [case(at(-0.5, 0.5, 1.5, 2))],
    "rms_norm": [case(SAME)],
    "rsqrt": [case(at(0, 4))],
    "scaled_dot_product_attention": [
        case(SAME, SAME, SAME, np.array([[False, False], [True, False]])),
        case(SAME, SAME, SAME, at([-inf, -inf], [0, -inf])),
    ],
    "segment_max": [case(at(1, 1, 2, 2), np.array([0, 0, 0, 2]), num_segments=3)],
    "segment_min": [case(at(1, 1, 2, 2), np.array([0, 0, 0, 2]), num_segments=3)],
    "selu": [case(ZERO), case(FAR)],
    "sigmoid": [case(FAR)],
    "sigmoid_cross_entropy_with_logits": [case(FAR, at(0, 1, 0, 1))],
    "sigmoid_focal_loss": [case(at(-40, 40), at(0, 1)), case(at(-2, 2), at(0, 1), gamma=0.0)],
    "sign": [case(ZERO)],
    "silu": [case(FAR)],
    "smooth_l1_loss": [case(at(1, -1, 0), at(0, 0, 0), delta=1.0)],
    "softmax": [case(HIDDEN[1:]), case(FAR)],
    "softplus": [case(FAR), case(at(2, 3.5), threshold=2.0), case(FAR, beta=3.0)],
    "softshrink": [case(at(-0.5, 0, 0.5, nan))],
    "softsign": [case(ZERO)],
    "sort": [case(TIES), case(TIES, descending=True)],
    "sqrt": [case(at(0, 4))],
    "std": [case(SAME, axes=(1,)), case(SAME, axes=(1,), ddof=0)],
    "segment_mean": [case(at(1, 2), np.array([0, 0]), num_segments=2)],
    "svd": [case(np.diag([2.0, 1.0]))],
    "take_along_axis": [case(at([1, 2]), np.array([[1, 1]]))],
    "tanh": [case(FAR)],
    "thresholded_relu": [case(at(0, 1, 2, nan))],
    "topk": [case(TIES, k=2), case(TIES, k=2, largest=False)],
    "triplet_margin_loss": [case(SAME, SAME, SAME + 1.0), case(SAME, SAME, SAME)],
    "trunc": [case(ZERO)],
    "unique": [case(TIES)],
    "var": [case(SAME, axes=(1,))],
    "viterbi_decode": [case(np.zeros((1, 2, 2)), np.zeros((4, 2)))],
    "weight_norm": [case(SAME, at(1, 1))],
    "where": [case(np.array([True, False]), at(inf, 1), at(1, nan))],
}
