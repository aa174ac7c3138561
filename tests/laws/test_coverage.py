"""Every op that has a gradient compiles to machine code, with the exceptions listed here, each for a reason."""

from __future__ import annotations

from collections import defaultdict

import pytest

from bench.coverage import Left, left_of
from core.ir.registry import REGISTRY

SIZES = ("is known only when it runs", "tensor arrays that grow", "shares a stack with", "empty arrays", "of a window")
"""Parts of the reasons that hold for any op: sizes that a plan does not know, or that no kernel has."""

EXPECTED: dict[str, set[str]] = {
    "factors matrices or solves systems, in LAPACK": {
        "cholesky_factor", "det", "eigh_factor", "eigvalsh_factor", "gap_quotient", "inverse", "lu", "matrix_exp",
        "pinv", "qr_factor", "slogdet", "solve", "svd", "triangular_solve",
    },
    "transforms to frequencies, by an FFT": {"dft"},
    "moves rows of sequences of different lengths": {
        "context_rows", "interleaved_rows", "padded_like", "rank_table", "sequence_ids", "sequence_reset_lengths",
        "sequence_rows", "sequence_slots",
    },
    "walks over a lattice or a tree of classes": {
        "crf_decoding", "crf_moves", "ctc_lattice", "tree_path",
    },
    "uses a function of numpy or scipy without a translation": {
        "erfinv", "floor_div", "fmod", "hypot", "lgamma", "mod", "polygamma",
    },
    "sums over several arrays at once, or along a repeated letter": {"einsum"},
    "slices or chooses by data: the positions of a part, or which array or rows": {
        "dynamic_slice", "dynamic_slice_into", "merge_by_mask", "mode_position", "read_rows", "roi_positions",
        "searchsorted", "select_input", "select_output",
    },
    "tells the client something during the run": {"assert", "print"},
}  # fmt: skip
"""Reason -> the ops for which it holds."""

ONLY_LATER = {"padded_like", "searchsorted"}
"""Ops that occur in other examples than the first one of an op."""


def reason_of(left: Left) -> str | None:
    """The reason listed above for an op without machine code; "" for the general ones; None for an unlisted op."""
    if any(part in left.reason for part in SIZES):
        return ""
    return next((reason for reason, types in EXPECTED.items() if left.type in types), None)


DIFFERENTIABLE = sorted(name for name, spec in REGISTRY.items() if spec.kind != "control" and spec.differentiable)


def found_in(every: bool) -> dict[str, set[str]]:
    """Reason -> ops without machine code in the steps of all differentiable ops."""
    found = defaultdict(set)
    for name in DIFFERENTIABLE:
        for lefts in left_of(name, ("float32",), every).values():
            for left in lefts:
                reason = reason_of(left)
                if reason != "":
                    found[reason or f"unlisted: {left.reason}"].add(left.type)
    return dict(found)


def test_a_differentiable_op_without_machine_code_has_a_listed_reason():
    assert found_in(every=False) == {reason: types - ONLY_LATER for reason, types in EXPECTED.items()}


@pytest.mark.slow
def test_every_example_of_a_differentiable_op_without_machine_code_has_a_listed_reason():
    assert found_in(every=True) == EXPECTED
