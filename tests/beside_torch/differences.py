"""Ops that are not compared with PyTorch, and intended differences, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DIFFERENCES", "NOT_IN_TORCH", "REFUSED", "Difference"]

COTANGENT = "gives the cotangent of a tensor array with missing elements; array_read and array_write run it"
MEMORY = "arrays of arrays from the memory policy of a loop; see tests/core/passes/test_memory_policies.py"

NOT_IN_TORCH = {
    "array_chunks": MEMORY,
    "array_erase": COTANGENT,
    "array_fill": COTANGENT,
    "array_flatten": MEMORY,
    "array_place": COTANGENT,
    "array_regroup": MEMORY,
    "array_take": COTANGENT,
    "call": "has a block of ops as an attribute; test_programs.py compares programs of ops",
    "if_else": "has blocks as attributes; test_programs.py compares programs with branches",
    "loop": "has a block as an attribute; test_programs.py compares programs with loops",
}
"""Differentiable ops that are absent from the table."""

EMPTY = "PyTorch refuses an empty batch here; Backpass gives an empty result"

REFUSED = {
    ("affine_grid", "example4f45"): EMPTY,
    ("dft", "exampleeb31"): EMPTY,
    ("fft", "exampleeb31"): EMPTY,
    ("irfft", "exampleeb31"): EMPTY,
    ("nanquantile", "example8a76"): EMPTY,
    ("pixel_shuffle", "example97ed"): EMPTY,
    ("pixel_unshuffle", "example0a78"): EMPTY,
    ("quantile", "example8a76"): EMPTY,
    ("real_dft", "example005b"): EMPTY,
    ("real_from_dft", "examplea41f"): EMPTY,
    ("rfft", "example005b"): EMPTY,
}
"""Samples at which PyTorch raises an error."""


@dataclass(frozen=True)
class Difference:
    """A convention that differs. `section` of docs/semantics.md states ours; F are its notes on formulas.

    order:   the lowest order of answers that differ: 0 for results, 1 for gradients, 2 for their gradients.
    samples: op -> the samples at which the two answers must differ.
    """

    why: str
    section: str
    order: int
    samples: dict[str, tuple[str, ...]]


DIFFERENCES = [
    Difference(
        "The mean of no elements is 0; PyTorch gives NaN.",
        "F13",
        0,
        {
            "dice_loss": ("exampleec3a",),
            "mean": ("example6cfd",),
            "mse_loss": ("exampleec3a",),
            "reduce_mean": ("exampleed62",),
            "sigmoid_cross_entropy_with_logits": ("example7d3d",),
        },
    ),
    Difference(
        "A norm has the gradient 0 at 0, as in PyTorch, and so the second gradient is 0 as well; PyTorch gives NaN.",
        "F8",
        2,
        {
            "cdist": ("kink1", "kink2"),
            "dist": ("kink1", "kink2"),
            "frobenius_norm": ("kink0",),
            "l2_normalize": ("kink0",),
            "lp_pool": ("example1113", "kink1", "kink2"),
            "norm": ("example1414", "example130c", "kink1", "kink3", "kink4", "kink7"),
            "pairwise_distance": ("kink1", "kink2"),
            "triplet_margin_loss": ("kink0", "kink1"),
        },
    ),
    Difference(
        "A hypotenuse of 0 is a norm with the gradient 0 too; PyTorch's first gradient is NaN.",
        "F8",
        1,
        {"hypot": ("examplec8c7", "kink0")},
    ),
    Difference(
        "A vector of zeros stays zeros when it is divided by its norm, without gradient; PyTorch divides by a bound.",
        "F8",
        1,
        {"lp_normalize": ("example2985",)},
    ),
    Difference(
        "The deviation of equal numbers has first and second gradient 0; PyTorch's second is NaN.",
        "F13",
        2,
        {"std": ("example3982", "kink0", "kink1")},
    ),
    Difference(
        "A vector of zeros has the similarity 0 with any other and no gradient; PyTorch divides by 1e-8.",
        "F31",
        1,
        {"cos_sim": ("example87b5",)},
    ),
    Difference(
        "For two vectors of zeros the second gradient is 0 as well; PyTorch gives NaN.",
        "F31",
        2,
        {"cos_sim": ("kink0",)},
    ),
    Difference(
        "At the origin no direction is preferred: the gradient is NaN; PyTorch gives 0.",
        "F31",
        1,
        {"atan2": ("kink0",)},
    ),
    Difference(
        "-inf has weight 0 in a sum of exponentials, even if all are -inf: the gradient is 0; PyTorch gives NaN.",
        "F10",
        1,
        {"logsumexp": ("example435c", "kink0"), "logcumsumexp": ("example1fe3",)},
    ),
    Difference(
        "For two -inf each has half of the gradient; PyTorch gives NaN.",
        "F10",
        1,
        {"logaddexp": ("exampleee46",)},
    ),
    Difference(
        "0 log(y) is the constant 0 for y at most 0; PyTorch divides 0 by 0.",
        "F11",
        1,
        {"xlogy": ("exampleb5f1",)},
    ),
    Difference(
        "Where x is 0, the gradient of a power by its exponent is the constant 0, and its gradient is 0; "
        "PyTorch multiplies 0 by log(0) in its second order.",
        "F3",
        2,
        {"pow": ("examplecb80", "kink0", "kink2")},
    ),
    Difference(
        "Next to a pole the first gradients agree; the second are infinite by one formula and NaN by the other.",
        "F7",
        2,
        {"div": ("kink0",)},
    ),
    Difference(
        "The second gradient at the pole of lgamma at -1 is infinite; PyTorch's sum ends at 3e32.",
        "F7",
        2,
        {"lgamma": ("kink0",)},
    ),
    Difference(
        "A division by the norm of a row of zeros is infinite by our formula and NaN by PyTorch's.",
        "F7",
        1,
        {"weight_norm": ("kink0",)},
    ),
    Difference(
        "Neither a NaN nor the other element is larger: both have no gradient; PyTorch gives it to both.",
        "F4",
        1,
        {"maximum": ("kink1",), "minimum": ("kink1",)},
    ),
    Difference(
        "The slope at a NaN is NaN, as the value; PyTorch uses 1, the slope for large x.",
        "F6",
        1,
        {"hard_swish": ("kink1",)},
    ),
    Difference(
        "The first of equal elements has the position and the gradient; PyTorch takes the last, or any.",
        "F19",
        0,
        {"cummax": ("kink0",), "cummin": ("kink0",), "kthvalue": ("kink0",), "topk": ("kink0", "kink1")},
    ),
    Difference(
        "The gradient of equal middle elements goes to the one that argsort puts there; PyTorch takes another.",
        "F19",
        1,
        {"median": ("kink0",)},
    ),
    Difference(
        "The first of the most frequent elements has the gradient; PyTorch takes the last.",
        "F19",
        1,
        {"mode": ("example8631", "kink0")},
    ),
    Difference(
        "At the kink, second and first gradient come from the same side; PyTorch's second is 0.",
        "F6",
        2,
        {
            "celu": ("kink0",),
            "elu": ("kink0",),
            "huber_loss": ("kink0",),
            "prelu": ("kink0",),
            "selu": ("kink0",),
            "smooth_l1_loss": ("kink0",),
            "softplus": ("kink1",),
        },
    ),
    Difference(
        "On the margin the gradient is 0, as for relu; PyTorch's clamp passes it on.",
        "F6",
        1,
        {"margin_rank_loss": ("kink0",)},
    ),
    Difference(
        "A position on the border has a gradient, as clip on its bounds; PyTorch's is 0.",
        "F6",
        1,
        {"grid_sample": ("kink1", "kink2")},
    ),
    Difference(
        "mish is precise for large x; PyTorch's second gradient overflows to NaN.",
        "F30",
        2,
        {"mish": ("kink0",)},
    ),
    Difference(
        "log(0) counts as -100, without gradient; PyTorch divides by 1e-12 instead.",
        "F7",
        1,
        {"bce_loss": ("kink0",)},
    ),
    Difference(
        "A class with label 0 adds 0 and has no gradient; PyTorch's 0 log(0) has the gradient 0/0.",
        "F11",
        1,
        {"cross_entropy": ("kink1",), "kldiv_loss": ("kink0",)},
    ),
    Difference(
        "The second gradient at equal eigenvalues is refused (degenerate_spectrum); PyTorch divides by 0.",
        "F34",
        2,
        {"eigvalsh": ("kink0",)},
    ),
]
