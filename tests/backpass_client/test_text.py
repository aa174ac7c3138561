"""The `repr` of a result is one short line, however large its arrays are."""

from __future__ import annotations

import numpy as np
import pytest

from backpass_client import Gradients, Playback, Rows, Step, Variable
from backpass_client.results import gradients_of, group
from backpass_client.text import NamedArrays, shown

LARGE = np.zeros((1000, 1000), "float32")
MANY = {f"w{i}": LARGE for i in range(5000)}
LONGEST = 800

RESULTS = [
    Gradients(LARGE[0, 0], MANY, MANY, dict.fromkeys(map(str, range(5000)), "no path to the loss"), {"timing_ms": {}}),
    Step(np.array(0.5), MANY, MANY, {"step": 3, "messages": ["x" * 1000] * 100}),
    Rows(np.arange(100_000), LARGE, (100_000, 1000)),
    Variable(LARGE),
    Playback(list(range(100_000)), [(Variable(LARGE), 1)] * 1000, [], [(Variable(LARGE), "reason")] * 1000, True),
    NamedArrays(MANY),
    group({f"fetch/{name}": value for name, value in MANY.items()}, "fetch"),
    gradients_of({"sparse": {"E": [100, 2]}}, {"grad/E": LARGE, "rows/E": LARGE[0], **MANY}).gradients,
]


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_the_repr_of_a_large_result_is_short(result):
    text = repr(result)

    assert len(text) < LONGEST
    assert "\n" not in text


def test_the_repr_shows_shapes_dtypes_and_small_values():
    found = Gradients(np.array(0.625), {"w": np.array([0.5, 0.0]), "b": LARGE}, {}, {"c": "no path"})

    assert repr(found) == (
        "Gradients(loss=float64 0.625, gradients={w: array([0.5, 0. ]), b: float32[1000, 1000]}, missing={c: no path})"
    )
    assert repr(Step(np.array(1.5), {}, {}, {"step": 7})) == "Step 7(loss=float64 1.5)"
    assert repr(Rows(np.array([1]), np.ones((1, 2)), (4, 2))) == "Rows(1 rows of float64[4, 2])"
    assert repr(Variable([1.0])) == "Variable(array([1.]))"
    assert shown(np.ones((2, 2), "int64")) == "int64[2, 2] [[1, 1], [1, 1]]"


def test_arrays_by_name_are_a_dictionary():
    arrays = NamedArrays({"w": np.ones(2)})

    assert dict(arrays) == {"w": arrays["w"]} and isinstance(arrays, dict)
    assert {**arrays, "b": 1}.keys() == {"w", "b"}
