"""Every op that has a gradient compiles to machine code, with the exceptions listed here, each for a reason."""

from __future__ import annotations

from collections import defaultdict

import pytest

from bench.coverage import Left, left_of
from core.ir.registry import REGISTRY

FACTORS = "factors matrices or solves systems: calls LAPACK"
TRANSFORMS = "transforms to frequencies: calls an FFT"
RAGGED = "moves rows of sequences of different lengths"
LATTICES = "walks over a lattice"
LIBRARIES = "uses a function of a library that has no translation"
SEVERAL = "an einsum of several arrays at once, or with a repeated letter"
REGIONS = "chooses elements of regions that are data"
TREES = "walks over a tree of classes"
PRINTS = "tells the client something"
COUNTS = "counts equal elements"
BITS = "reads bits, not numbers"
TABLES = "rows of tables whose number only the run tells"
DRAWS = "draws with probabilities that are data, or from a truncated distribution"

SIZES = ("is known only when it runs", "tensor arrays that grow", "shares a stack with")
"""Parts of the reasons that name no op: a size or a length that a plan does not know."""

EXPECTED: dict[str, set[str]] = {}


def reason_of(left: Left) -> str | None:
    """The reason listed above for an op without machine code; "" for the general ones; None for an unlisted op."""
    if any(part in left.reason for part in SIZES):
        return ""
    return next((reason for reason, types in EXPECTED.items() if left.type in types), None)


DIFFERENTIABLE = sorted(name for name, spec in REGISTRY.items() if spec.kind != "control" and spec.differentiable)


def found_in(names: list[str], every: bool) -> dict[str, set[str]]:
    found = defaultdict(set)
    for name in names:
        for lefts in left_of(name, ("float32",), every).values():
            for left in lefts:
                if reason_of(left) != "":
                    found[reason_of(left) or f"unlisted: {left.reason}"].add(left.type)
    return dict(found)


def test_a_differentiable_op_without_machine_code_has_a_listed_reason():
    assert found_in(DIFFERENTIABLE, every=False) == EXPECTED


@pytest.mark.slow
def test_every_example_of_a_differentiable_op_without_machine_code_has_a_listed_reason():
    found = found_in(DIFFERENTIABLE, every=True)

    assert not [reason for reason in found if reason.startswith("unlisted") and "empty" not in reason]
