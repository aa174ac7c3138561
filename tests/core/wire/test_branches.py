"""Constructs that choose what runs: `switch_case`, `case`, `conditional_block`, `if_else_rows`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core.wire.constructs import cases, rows
from tests.programs import Sketch, check, close, grads


@pytest.mark.parametrize(("index", "factor"), [(0, 2), (1, 3), (2, 10), (7, 7), (-1, 7)])
def test_43_switch_case_takes_the_default_for_any_other_index(index, factor):
    close(check(cases(index))["w"], 1 + 2 * factor * np.array([0.5, 0.7]))


@pytest.mark.parametrize(("values", "factor"), [((1, 1), 2), ((0, 1), 3), ((0, 0), 5)])
def test_case_takes_the_first_true_condition(values, factor):
    s = Sketch()
    s.param("w", [0.5, 0.7])
    conditions = [s.feed(f"c{i}", bool(v), "bool") for i, v in enumerate(values)]
    blocks = []
    for each in (2.0, 3.0, 5.0):
        with s.block() as block:
            s.op("scale", "w", out="y", scale=each)
        blocks.append(block)
    s.construct("case", {"conditions": conditions}, {"out": "y"}, branches=blocks[:2], default_block=blocks[2])
    s.total("y")

    close(check(s)["w"], [factor, factor])


@pytest.mark.parametrize("taken", [True, False])
def test_a_conditional_block_that_does_not_run_keeps_the_old_value(taken):
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.feed("c", taken, "bool")
    s.op("scale", "w", out="y", scale=3.0)
    with s.block() as block:
        s.op("square", "y", out="y")
    s.construct("conditional_block", {"condition": "c"}, {}, sub_block=block)
    s.total("y")

    close(check(s)["w"], 18 * np.array([0.5, 0.7]) if taken else [3, 3])


@pytest.mark.parametrize("mask", [[True, False, True], [True] * 3, [False] * 3])
def test_each_row_goes_through_the_branch_of_its_condition(mask):
    found = check(rows(mask))

    w, x, m = np.array([0.5, 0.7]), np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]), np.array(mask)[:, None]
    close(found["w"], np.where(m, x, 2 * x * x * w).sum(0))
    close(found["x"], np.where(m, w + 0 * x, 2 * x * w * w))


@pytest.mark.parametrize(
    ("mask", "dx"), [([True, False, True], [0.27454109, 0.22362207]), ([True, True, True], [0, 0])]
)
def test_45_the_parameter_of_a_branch_without_rows_has_gradient_0(mask, dx):
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("v", [1.0, 2.0])
    s.feed("X", [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    s.feed("mask", mask, "bool")
    with s.block() as yes:
        s.op("mul", "r", "w", out="y")
    with s.block() as no:
        s.op("tanh", s.op("mul", "r", "v"), out="y")
    s.construct(
        "if_else_rows", {"condition": "mask", "x": "X"}, {"out": "y"}, true_block=yes, false_block=no, rows=["r"]
    )
    s.total("y")

    found = grads(s)

    close(found["v"], dx)
    if mask == [True, False, True]:
        close(found["w"], [0.6, 0.8])
