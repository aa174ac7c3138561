"""The node tests of the `onnx` package: read as programs and written as ONNX again, they give the expected outputs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx import parser

import core
from core.ir.errors import ProgramError
from core.onnx import read_model, write_model
from tests.core.onnx.backend import RANDOM, Case, cases, outcome
from tests.core.onnx.exported import run
from tests.core.onnx.models import run as executed
from tests.core.onnx.test_control_flow import UNTIL

STEP, PARTS = 80, 40
REFUSED = ("draw other numbers", "no operator for", "no float64 kernel", "depends on the data", "traced back")


def returns(case: Case) -> bool:
    """Check one test; False if it is not read, or its program is not written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = outcome(case)
    model = found.imported
    if found.status != "pass" or model is None or found.feeds is None:
        return False
    try:
        data = write_model(core.read(model.program), values=model.values, outputs=model.outputs)
    except ProgramError as error:
        assert all(any(reason in each.message for reason in REFUSED) for each in error.problems), case.name
        return False
    results = run(data, {model.names.get(name, name): value for name, value in found.feeds.items()})
    expected = [each for out in case.outputs for each in (out if isinstance(out, list) else [out])]
    for name, wanted in zip(model.outputs, expected, strict=True):
        name = model.names.get(name, name)
        result = results.get(name, results.get(f"{name}.float32"))
        agree(result, np.asarray(wanted), case)
    return True


def agree(result, wanted: np.ndarray, case: Case) -> None:
    assert result is not None
    assert result.shape == wanted.shape, case.name
    if case.op in RANDOM:
        return
    if wanted.dtype.kind not in "fV":
        np.testing.assert_array_equal(result, wanted, err_msg=case.name)
        return
    rounding = {"float16": 2e-3, "bfloat16": 2e-2}.get(wanted.dtype.name, 1e-5)
    a, b = result.astype("float64"), wanted.astype("float64")
    atol = max(case.atol, rounding * 0.1)
    if case.op in ("DFT", "STFT"):  # sums whose terms cancel have the rounding of the terms
        atol = max(atol, 1e-6 * np.abs(b).max(initial=0.0))
    np.testing.assert_allclose(a, b, max(case.rtol, rounding), atol, err_msg=case.name)


def test_a_loop_that_records_until_a_condition_returns_as_onnx_and_is_read_again():
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{UNTIL}')
    first = read_model(model.SerializeToString())
    data = write_model(core.read(first.program), values=first.values, outputs=first.outputs)
    second = read_model(data)
    feeds = {"x": np.array([1.0, 0.5]), "w": np.array([1.5, 0.3])}

    for result, wanted in zip(executed(second, feeds), executed(first, feeds), strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_a_loop_that_carries_nothing_returns_as_onnx():
    (case,) = [each for each in cases() if each.name == "test_scan_sum"]

    assert returns(case)


def test_a_sample_of_node_tests_returns_as_onnx():
    sample = cases()[::STEP]

    assert sum(map(returns, sample)) > len(sample) / 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_node_tests_return_as_onnx(part):
    mistakes = []
    for case in cases()[part::PARTS]:
        try:
            returns(case)
        except Exception as error:
            mistakes.append(f"{case.name}: {str(error)[:300]}")

    assert not mistakes, "\n".join(mistakes)
