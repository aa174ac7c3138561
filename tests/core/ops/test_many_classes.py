"""Losses over many classes: the sampling distribution, and refused labels."""

from __future__ import annotations

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.errors import CoreError
from core.wire import read
from tests.programs import Sketch, close, grads

EVEN = np.full(5, 0.2)
STEEP = np.log(np.arange(2, 7) / np.arange(1, 6)) / np.log(6)


@pytest.mark.parametrize(("sampler", "chance"), [("uniform", EVEN), ("log_uniform", STEEP)])
def test_noise_classes_are_drawn_from_the_assumed_distribution_and_anew_on_each_step(sampler, chance):
    many = 20000
    s = Sketch()
    s.feed("x", np.zeros((1, 2)))
    s.feed("label", [0], "int64")
    s.param("w", np.zeros((5, 2)))
    s.param("b", np.zeros(5))
    s.construct(
        "nce",
        {"x": ["x"], "label": ["label"], "weight": ["w"], "bias": ["b"]},
        {"loss": ["each"]},
        num_neg_samples=many,
        sampler=sampler,
    )
    s.total("each")
    exe = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    first, again, later = (exe.step(s.values, seed=1, step=n).gradients["b"] for n in (0, 0, 1))

    # a drawn class adds the sigmoid of its score, -log(samples * probability)
    counts = first * (1 + many * chance)
    close(counts[1:] / many, chance[1:], 0.02)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, later)


@pytest.mark.parametrize("type", ["nce", "hierarchical_sigmoid"])
@pytest.mark.parametrize("label", [-1, 5])
def test_labels_outside_the_classes_are_refused(type, label):
    s = Sketch()
    s.param("x", np.zeros((1, 2)))
    s.feed("label", [label], "int64")
    s.param("w", np.zeros((5 if type == "nce" else 4, 2)))
    s.total(s.op(type, "x", "label", "w", **({} if type == "nce" else {"num_classes": 5})))

    with pytest.raises(CoreError) as error:
        grads(s)
    assert error.value.code == "index_out_of_range"
