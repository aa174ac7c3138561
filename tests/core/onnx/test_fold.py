"""Operators on constants have the results that onnxruntime computes."""

from __future__ import annotations

import numpy as np
import pytest

from core.onnx.writing.fold import OPERATORS, folded
from tests.core.onnx.beside_runtime import by_runtime, one_node

X = np.array([[3, -1, 4], [1, 5, -9]])
Y = np.array([2, -1, 4])
P, Q = X > 0, Y > 0
CASES = [
    *((name, (X, Y), {}) for name in ("Add", "Sub", "Mul", "Max", "Min")),
    *((name, (X, Y), {}) for name in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")),
    ("And", (P, Q), {}),
    ("Or", (P, Q), {}),
    ("Not", (P,), {}),
    ("Where", (P, X, Y), {}),
    ("Unsqueeze", (X, np.array([0, -1])), {}),
    ("Squeeze", (X[:, None, :1], np.array([1, -1])), {}),
    ("Concat", (X, Y[None]), {"axis": -2}),
    ("Gather", (X, np.array([[0, -1]])), {"axis": 1}),
    *(("CumSum", (X, np.array(a)), {"exclusive": e, "reverse": r}) for a in (0, -1) for e in (0, 1) for r in (0, 1)),
    ("CumSum", (Y, np.array(0)), {}),
    *((name, (X, np.array([-1])), {"keepdims": k}) for name in ("ReduceSum", "ReduceProd") for k in (0, 1)),
    ("Reshape", (X, np.array([3, -1])), {}),
    ("Slice", (X, np.array([-1, 0]), np.array([-9, 2]), np.array([1, 0]), np.array([-2, 1])), {}),
]


@pytest.mark.parametrize(("operator", "inputs", "attrs"), CASES)
def test_constants_are_folded_as_onnxruntime_computes_them(operator, inputs, attrs):
    named = {f"x{i}": x for i, x in enumerate(inputs)}

    found = folded(operator, inputs, attrs)

    [expected] = by_runtime(one_node(operator, named, outputs=[found.dtype], **attrs), named)
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()


def test_every_folded_operator_has_a_case():
    assert {name for name, *_ in CASES} == set(OPERATORS)
