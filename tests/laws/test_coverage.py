"""Every op that has a gradient compiles to machine code, with the exceptions listed here, each for a reason."""

from __future__ import annotations

from collections import defaultdict

import pytest

from bench.coverage import Left, left_of
from core.ir.registry import REGISTRY

SIZES = (
    "is known only when it runs",
    "sizes that only the run can compare",
    "tensor arrays that grow",
    "shares a stack with",
    "of empty and other arrays",
    "of a window",
)
"""Parts of the reasons that hold for any op: sizes that a plan does not know, or that no kernel has."""

RARE = (
    "sizes that only the run tells has no machine code",
    "whose size only the run tells",
    "sizes that are known only when it runs",
    "a known size that is declared open",
    "sizes that do not fit",
    "a check that always fails",
    "a constant position that is out of range",
    "empty arrays among ones whose sizes only the run tells",
)
"""The same for further examples, which have open sizes in unusual places, no elements, or wrong operands."""

EXPECTED: dict[str, set[str]] = {
    "only second gradients of determinants need it, and most of its time is a decomposition": {"cofactors_adjoint"},
    "tells the client something during the run": {"print"},
}  # fmt: skip
"""Reason -> the ops for which it holds."""


def reason_of(left: Left, every: bool) -> str | None:
    """The reason listed above for an op without machine code; "" for the general ones; None for an unlisted op."""
    if any(part in left.reason for part in (SIZES + RARE if every else SIZES)):
        return ""
    return next((reason for reason, types in EXPECTED.items() if left.type in types), None)


DIFFERENTIABLE = sorted(name for name, spec in REGISTRY.items() if spec.kind != "control" and spec.differentiable)


def found_in(every: bool, dtype: str = "float32") -> dict[str, set[str]]:
    """Reason -> ops without machine code in the steps of all differentiable ops that take `dtype`."""
    found = defaultdict(set)
    for name in DIFFERENTIABLE:
        for lefts in left_of(name, (dtype,), every).values():
            for left in lefts:
                reason = reason_of(left, every)
                if reason != "":
                    found[reason or f"unlisted: {left.reason}"].add(left.type)
    return dict(found)


def test_a_differentiable_op_without_machine_code_has_a_listed_reason():
    assert found_in(every=False) == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_no_op_lacks_machine_code_for_16_bit_floats_alone(dtype):
    found = found_in(every=False, dtype=dtype)

    assert found == {reason: types for reason, types in EXPECTED.items() if reason in found}


@pytest.mark.slow
def test_every_example_of_a_differentiable_op_without_machine_code_has_a_listed_reason():
    assert found_in(every=True) == EXPECTED
