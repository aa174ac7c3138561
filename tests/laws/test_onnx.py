"""Every op, written as an ONNX model that onnxruntime runs, gives what the reference executor gives, or is refused.

So does its gradient.
"""

from __future__ import annotations

import pytest

from core.ir.errors import ProgramError
from core.onnx.writing.registry import REASONS, RULES
from tests.laws.examples import OPS
from tests.laws.onnx_ops import CASES, GRADIENTS, Case, check, check_gradient

NO_KERNEL = ("onnxruntime has no float64 kernel", *REASONS.values())
"""The only reasons to refuse an op with a rule, or one that expands into ops with rules."""


def first_of_each(cases: tuple[Case, ...]) -> list[Case]:
    return list({case.op: case for case in reversed(cases) if case.dtype == "float32"}.values())


def by_op(cases: list[Case] | tuple[Case, ...], parts: int = 20) -> list[list[Case]]:
    return [list(cases[i::parts]) for i in range(parts)]


def all_hold(cases: list[Case], law) -> None:
    refused = 0
    for case in cases:
        try:
            law(case)
        except ProgramError as error:
            refused += 1
            for problem in error.problems:
                assert problem.code == "onnx_unsupported"
                assert any(reason in problem.message for reason in NO_KERNEL), f"{case}: {problem.message}"
        except Exception as error:
            error.add_note(str(case))
            raise
    assert refused < max(len(cases), 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cases", by_op([c for c in CASES if c.dtype == "float32" or c.i == 0]))
def test_every_example_of_every_op_runs_in_onnxruntime(cases):
    all_hold(cases, check)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cases", by_op(first_of_each(GRADIENTS)))
def test_the_gradient_of_every_op_runs_in_onnxruntime(cases):
    all_hold(cases, check_gradient)


@pytest.mark.slow
@pytest.mark.parametrize("cases", by_op(CASES))
def test_every_example_of_every_op_runs_in_float64_too(cases):
    all_hold(cases, check)


@pytest.mark.slow
@pytest.mark.parametrize("cases", by_op(GRADIENTS, 40))
def test_the_gradient_of_every_example_runs_in_onnxruntime(cases):
    all_hold(cases, check_gradient)


def test_every_primitive_has_a_rule_or_a_reason():
    primitives = {name for name, spec in OPS.items() if spec.kind == "primitive"}

    assert primitives <= RULES.keys() | REASONS.keys()
    assert not RULES.keys() & REASONS.keys()
    assert all(len(reason) > 10 for reason in REASONS.values())
