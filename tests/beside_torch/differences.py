"""Where the two are not compared, and where they are meant to differ, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DIFFERENCES", "NOT_IN_TORCH", "REFUSED", "Difference"]

COTANGENT = "makes the cotangent of a tensor array, in which elements are missing; array_read and array_write run it"
MEMORY = "arrays of arrays, which a loop's memory policy makes; see tests/core/passes/test_memory_policies.py"

NOT_IN_TORCH = {
    "array_chunks": MEMORY,
    "array_erase": COTANGENT,
    "array_fill": COTANGENT,
    "array_flatten": MEMORY,
    "array_place": COTANGENT,
    "array_regroup": MEMORY,
    "array_take": COTANGENT,
    "call": "has a block of ops as an attribute; test_programs.py compares programs that are made of ops",
    "if_else": "has blocks as attributes; test_programs.py compares programs with branches",
    "loop": "has a block as an attribute; test_programs.py compares programs with loops",
}
"""Differentiable ops that are not in the table."""

EMPTY = "PyTorch refuses a batch of nothing here; Backpass gives nothing"

REFUSED = {
    ("affine_grid", "example4f45"): EMPTY,
    ("pixel_shuffle", "example97ed"): EMPTY,
    ("pixel_unshuffle", "example0a78"): EMPTY,
}
"""Samples at which PyTorch raises an error."""


@dataclass(frozen=True)
class Difference:
    """A convention that differs. `section` is where the semantics of gradients says ours: F are its notes on formulas.

    order:   that of the first answers to differ: 0 the results, 1 the gradients, 2 theirs. Lower ones agree.
    samples: op -> the samples at which the two answers differ, and must.
    """

    why: str
    section: str
    order: int
    samples: dict[str, tuple[str, ...]]


DIFFERENCES = [
    Difference(
        "The mean of nothing is 0; PyTorch says NaN.",
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
        "A norm has the gradient 0 at 0, as in PyTorch, and so the second gradient is 0 as well; PyTorch says NaN.",
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
        "So has the hypotenuse of nothing, which is a norm; PyTorch's first gradient is NaN.",
        "F8",
        1,
        {"hypot": ("examplec8c7", "kink0")},
    ),
    Difference(
        "The deviation of equal numbers has the gradient 0, and so has that gradient; PyTorch's second is NaN.",
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
        "Of two vectors of zeros the second gradient is 0 as well; PyTorch says NaN.",
        "F31",
        2,
        {"cos_sim": ("kink0",)},
    ),
    Difference(
        "At the origin no direction is preferred: the gradient is NaN; PyTorch says 0.",
        "F31",
        1,
        {"atan2": ("kink0",)},
    ),
    Difference(
        "-inf weighs nothing in a sum of exponentials, even where all are -inf: the gradient is 0; PyTorch says NaN.",
        "F10",
        1,
        {"logsumexp": ("example435c", "kink0"), "logcumsumexp": ("example1fe3",)},
    ),
    Difference(
        "Beside inf the second gradient of a finite element is 0, as the first; PyTorch's is NaN.",
        "F10",
        2,
        {"logsumexp": ("kink2",)},
    ),
    Difference(
        "Where x is 0 the gradient of a power by its exponent is the constant 0, and so is what comes of that; "
        "PyTorch multiplies 0 by log(0) in its second order.",
        "F3",
        2,
        {"pow": ("examplecb80", "kink0", "kink2")},
    ),
    Difference(
        "Beside a pole the first gradients agree; the second are infinite by one way to write them, NaN by the other.",
        "F7",
        2,
        {"acos": ("kink0",), "asin": ("kink0",), "atanh": ("kink0",), "div": ("kink0",)},
    ),
    Difference(
        "The second gradient at the pole of lgamma at -1 is infinite; PyTorch's sum ends at 3e32.",
        "F7",
        2,
        {"lgamma": ("kink0",)},
    ),
    Difference(
        "The norm of a row of zeros is divided by: infinite by our way to write it, NaN by PyTorch's.",
        "F7",
        1,
        {"weight_norm": ("kink0",)},
    ),
    Difference(
        "Neither a NaN nor its neighbour is the larger one: none has a gradient; PyTorch gives it to both.",
        "F4",
        1,
        {"maximum": ("kink1",), "minimum": ("kink1",)},
    ),
    Difference(
        "The slope at a NaN is NaN, as the value; PyTorch takes it to be 1, as far to the right.",
        "F6",
        1,
        {"hard_swish": ("kink1",)},
    ),
    Difference(
        "Of equal elements the first has the place and the gradient; PyTorch takes the last, or any.",
        "F19",
        0,
        {"cummax": ("kink0",), "cummin": ("kink0",), "kthvalue": ("kink0",), "topk": ("kink0", "kink1")},
    ),
    Difference(
        "Of equal elements in the middle the one that argsort puts there has the gradient; PyTorch takes another.",
        "F19",
        1,
        {"median": ("kink0",)},
    ),
    Difference(
        "Of the most frequent element the first has the gradient; PyTorch takes the last.",
        "F19",
        1,
        {"mode": ("example8631", "kink0")},
    ),
    Difference(
        "At the kink the second gradient is that of the side whose first gradient is taken; PyTorch says 0.",
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
        "On the margin the gradient is 0, as relu's; PyTorch's clamp passes it on.",
        "F6",
        1,
        {"margin_rank_loss": ("kink0",)},
    ),
    Difference(
        "A position on the border itself moves with the grid, as clip does on its bounds; PyTorch holds it.",
        "F6",
        1,
        {"grid_sample": ("kink1", "kink2")},
    ),
    Difference(
        "mish keeps its digits for large x; PyTorch's second gradient overflows to NaN.",
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
        "What no label asks for gives nothing, and has no gradient; PyTorch's 0 log(0) has one of 0/0.",
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
