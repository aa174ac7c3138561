"""The tests of the `onnx` package pass as programs or are refused with a reason, and their gradients are right.

docs/onnx-operators.md holds the results by operator. ``python -m tests.core.onnx.table`` writes it.
"""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest

from tests.core.onnx.backend import Case, cases, gradient_outcome, outcome
from tests.core.onnx.table import PAGE, page, results

RIGHT_GRADIENTS = 650
PASSED = 0.95


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@cache
def one_of_each() -> tuple[Case, ...]:
    """The first test of each operator that can be said."""
    found: dict[str, Case] = {}
    for each in cases():
        found.setdefault(each.op, each)
    return tuple(found.values())


def test_one_case_of_each_operator_is_right_or_refused():
    wrong = []
    for case in one_of_each():
        found = outcome(case)
        if found.status == "wrong":
            wrong.append((case.name, found.reason))
        if found.status == "pass":
            status, reason = gradient_outcome(case, found)
            wrong += [(case.name, reason)] if status == "wrong" else []

    assert wrong == []


@pytest.mark.slow
def test_no_case_is_wrong_and_most_pass():
    found = results()

    assert [each for each in found if each.status == "wrong"] == []
    assert [each for each in found if each.gradient == "wrong"] == []
    sayable = [each for each in found if each.status != "untyped"]
    assert sum(each.status == "pass" for each in sayable) / len(sayable) >= PASSED
    assert sum(each.gradient == "right" for each in found) >= RIGHT_GRADIENTS


@pytest.mark.slow
def test_the_page_of_operators_holds_the_results():
    assert PAGE.read_text() == page(results())
