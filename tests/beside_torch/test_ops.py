"""Every op agrees with its equivalent in PyTorch: results, and gradients of first and second order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.ir.errors import CoreError
from core.ir.registry import REGISTRY
from tests.beside_torch.compare import both_answers
from tests.beside_torch.differences import DIFFERENCES, NOT_IN_TORCH, REFUSED
from tests.beside_torch.installed import MISSING, torch
from tests.beside_torch.kinks import KINKS
from tests.beside_torch.sample import Sample
from tests.beside_torch.table import MORE, TABLE, samples

DIFFERS = {
    (name, label): each.order for each in DIFFERENCES for name, labels in each.samples.items() for label in labels
}

if torch is None:
    missing = pytest.mark.skip(reason=MISSING)
    SAMPLES: list[Any] = [pytest.param(None, id="every op", marks=missing)]
else:
    SAMPLES = [pytest.param(s, id=f"{name}-{s.label}") for name in sorted(TABLE) for s in samples(name)]


# --- the table -------------------------------------------------------------------------------------------------


def test_every_differentiable_op_is_in_the_table_or_has_a_reason_for_its_absence():
    differentiable = {name for name, spec in REGISTRY.items() if spec.differentiable}

    assert differentiable == TABLE.keys() | NOT_IN_TORCH.keys()
    assert not TABLE.keys() & NOT_IN_TORCH.keys()
    assert MORE.keys() | KINKS.keys() <= TABLE.keys()


def test_every_difference_names_an_existing_sample():
    assert len(DIFFERS) == sum(len(labels) for each in DIFFERENCES for labels in each.samples.values())
    for name, label in DIFFERS.keys() | REFUSED.keys():
        assert label in {s.label for s in samples(name)}, (name, label)


# --- the comparison --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("sample", SAMPLES)
def test_an_op_and_its_gradients_equal_pytorchs(sample):
    torch.set_num_threads(1)
    expression = TABLE[sample.name]

    differs = DIFFERS.get((sample.name, sample.label), 3)
    if (sample.name, sample.label) in REFUSED:
        with pytest.raises((RuntimeError, ValueError)):
            both_answers(expression, sample, 2)
        return
    if differs > 0:
        compare(expression, sample, min(differs - 1, 2))
    if differs <= 2:
        with pytest.raises((AssertionError, CoreError)):
            compare(expression, sample, differs)


def compare(expression: Any, sample: Sample, order: int) -> None:
    ours, theirs = both_answers(expression, sample, order)

    for what in ("results", "first", "second"):
        pairs = zip(getattr(ours, what), getattr(theirs, what), strict=True)
        for i, (found, wanted) in enumerate(pairs):
            if wanted is not None:
                close(found, wanted, f"{what} {i}")


def close(found: Any, wanted: Any, what: str) -> None:
    """Equal up to rounding, relative to the largest number in the array; NaN and infinities must coincide."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape, f"{what}: {found.shape} instead of {wanted.shape}"
    tolerance = 1e-5 if "float32" in (str(found.dtype), str(wanted.dtype)) else 1e-9
    largest = np.max(np.abs(wanted[np.isfinite(wanted)]), initial=1.0) if wanted.dtype.kind == "f" else 1.0
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * largest, err_msg=what)
