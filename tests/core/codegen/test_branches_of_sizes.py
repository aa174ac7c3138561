"""Branches whose results have sizes of their own, as machine code: the taken branch gives the gradient."""

from __future__ import annotations

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.wire import read
from tests.programs import Sketch

W = np.array([[1.5, -0.5, 2.0], [0.25, 3.0, -1.0]])

BRANCHES = {
    "the array and twice of it": (lambda s, w: s.op("assign", w, out="y"),
                                  lambda s, w: s.op("concat", [w, w], out="y", axis=0)),
    "a row and all rows": (lambda s, w: s.op("slice", w, out="y", axes=[0], starts=[1], ends=[2]),
                           lambda s, w: s.op("assign", w, out="y")),
    "both axes": (lambda s, w: s.op("slice", w, out="y", axes=[0, 1], starts=[0, 0], ends=[1, 2]),
                  lambda s, w: s.op("concat", [w, w], out="y", axis=1)),
    "nothing and something": (lambda s, w: s.op("slice", w, out="y", axes=[0], starts=[0], ends=[0]),
                              lambda s, w: s.op("scale", w, out="y", scale=3.0)),
}  # fmt: skip


def sketched(name: str) -> Sketch:
    s = Sketch()
    s.param("w", W)
    s.feed("c", True, "bool")
    sides = []
    for side in BRANCHES[name]:
        with s.block() as block:
            side(s, "w")
        sides.append(block)
    s.branch("c", *sides)
    s.total(s.op("square", "y"))
    return s


def wanted(name: str, taken: bool) -> np.ndarray:
    """The gradient of the sum of squares of the branch that is taken."""
    counts = {
        "the array and twice of it": (np.ones_like(W), np.full_like(W, 2)),
        "a row and all rows": (np.array([[0] * 3, [1] * 3]), np.ones_like(W)),
        "both axes": (np.array([[1, 1, 0], [0, 0, 0]]), np.full_like(W, 2)),
        "nothing and something": (np.zeros_like(W), np.full_like(W, 9)),
    }
    return 2 * W * counts[name][0 if taken else 1]


@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.parametrize("taken", [True, False])
def test_the_taken_branch_gives_the_gradient(name, taken):
    s = sketched(name)
    step = compile_gradient(read(s.document), GradientQuery(loss="loss")).compiled()

    found = step.step({"w": W, "c": np.array(taken)})

    np.testing.assert_allclose(found.gradients["w"], wanted(name, taken), atol=1e-12)
