"""The tests of the `onnx` package pass as programs or are refused with a reason, and their gradients are right.

docs/onnx-operators.md holds the results by operator. ``python -m tests.core.onnx.table`` writes it.
"""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import onnx
import pytest

from core.onnx.reading.model import OLDEST
from core.onnx.reading.registry import find
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


def test_each_operator_can_be_read_at_every_opset():
    """By a converter, or by the function that the standard gives for this version. The tests above take the newest."""
    schemas = [each for each in onnx.defs.get_all_schemas_with_history() if each.domain in ("", "ai.onnx.ml")]
    lost = []
    for each in schemas:
        opset = each.since_version if each.domain else max(each.since_version, OLDEST)
        latest = onnx.defs.get_schema(each.name, opset, each.domain)
        functions = [*latest.function_opset_versions, *latest.context_dependent_function_opset_versions]
        if find(each.domain, each.name, opset) is None and latest.since_version not in functions:
            lost.append((each.name, opset))

    assert lost == []


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
