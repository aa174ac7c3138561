"""Gradients of random programs, of first to third order, agree with independent methods and do not depend on how the
program is written.

A program is compared with finite differences, with its unrolled form, under other names, with inlined blocks, and with
ops perturbed into blocks. Each test runs in parts, which may run in parallel, on programs of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from core.autodiff.hooks import Hook
from core.backward.append_backward import Options, gradients
from core.compiler.compile import GradientQuery, compile_gradient
from core.wire import read, write
from tests.adjoints import NoRule
from tests.laws.random_programs import (
    COUNTS,
    EVERY,
    EXAMPLES,
    INPUTS,
    PARTS,
    POLICIES,
    Document,
    Values,
    first_order,
    flat,
    leaves,
    nth_order,
    second_order,
)
from tests.oracle import NearKink, unrolled
from tests.programs import whole
from tests.rewriting import inlined, renamed, wrapped
from tests.strategies import programs, written

LONG, SHORT = 250, 40
"""The largest number of ops of an unrolled program whose gradient is differentiated again; SHORT: of any, twice."""


def random_programs(**more: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test on EXAMPLES random programs, in PARTS."""

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        drawn = given(document=programs(), seed=st.integers(0, 2**16), **more)(test)
        counted = settings(max_examples=-(-EXAMPLES // PARTS), deadline=None, suppress_health_check=list(HealthCheck))(
            drawn
        )
        return pytest.mark.parametrize("part", range(PARTS))(counted)

    return decorated


def perturbed(values: Values, direction: np.ndarray, by: float) -> Values:
    ends = np.cumsum([values[name].size for name in INPUTS])
    parts = zip(INPUTS, np.split(direction * by, ends[:-1]), strict=True)
    return values | {name: values[name] + part.reshape(values[name].shape) for name, part in parts}


@pytest.mark.sampled(3)
@random_programs()
def test_gradients_of_all_orders_agree_with_finite_differences_and_with_unrolling(part, document, seed):
    """Under any memory policy of the loops; each order has its own policy. Some programs contain derivatives."""
    values, draw = leaves(seed), random.Random(seed)
    if draw.random() < 0.25:
        document = written(seed, derivatives=True)
    straight_document, loss = unrolled_or_not(document, values)
    program, straight = read(document), read(straight_document)
    assert read(write(program)) == program
    memory = [draw.choice(POLICIES) for _ in range(3)]
    options = Options(unconnected="zeros", loop_memory=memory[0])
    backward = gradients(program, ["loss"], list(INPUTS), options=options)
    assert read(write(backward.program)) == backward.program  # what is sent out is read back in
    direction = np.random.default_rng(seed + 1).standard_normal(sum(values[name].size for name in INPUTS))

    first = first_order(program, memory=memory[0])
    out = first.step(values)
    found = flat(out.gradients)
    assert abs(float(out.fetched["loss"]) - loss) < 1e-12 * max(1.0, abs(loss))
    np.testing.assert_allclose(found, flat(first_order(straight).step(values).gradients), rtol=1e-9, atol=1e-11)
    up, down = (unrolled_or_not(document, perturbed(values, direction, by))[1] for by in (1e-5, -1e-5))
    np.testing.assert_allclose(found @ direction, (up - down) / 2e-5, rtol=2e-5, atol=2e-7)

    ops = len(straight_document["blocks"][0]["ops"])
    found = flat(second_order(program, memory=memory[:2]).step(values).gradients)
    if ops <= LONG:
        expected = flat(second_order(straight).step(values).gradients)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
    up, down = (flat(first.step(perturbed(values, direction, by)).gradients).sum() for by in (1e-5, -1e-5))
    np.testing.assert_allclose(found @ direction, (up - down) / 2e-5, rtol=2e-5, atol=2e-6)

    if max(ops, sum(len(block["ops"]) for block in document["blocks"])) <= SHORT:
        found, expected = (
            flat(nth_order(each, "loss", INPUTS, policies).step(values).gradients)
            for each, policies in ((program, memory), (straight, ["store"] * 3))
        )
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


def unrolled_or_not(document: Document, values: Values) -> tuple[Document, float]:
    try:
        return unrolled(document, values)
    except (NearKink, NoRule):
        assume(False)
        raise


def both_orders(document: Document, values: Values, name: Callable[[str], str] = str) -> list[np.ndarray]:
    """Loss, gradients and second gradients of a program whose variables are renamed by `name`."""
    program, inputs = read(document), tuple(name(n) for n in INPUTS)
    given = {name(n): value for n, value in values.items()}
    first = first_order(program, name("loss"), inputs).step(given)
    second = second_order(program, name("loss"), inputs).step(given)
    return [
        np.asarray(first.fetched[name("loss")]),
        *(np.asarray(whole(each.gradients)[n]) for each in (first, second) for n in inputs),
    ]


@pytest.mark.sampled(3)
@random_programs()
def test_renaming_inlining_and_outlining_change_no_value_and_no_gradient(part, document, seed):
    values, draw = leaves(seed), random.Random(seed)
    wanted = both_orders(document, values)

    if draw.random() < 0.25:
        other, name = renamed(document, draw)
        for found, before in zip(both_orders(other, values, name), wanted, strict=True):
            assert found.tobytes() == before.tobytes()
        return
    rewritten = inlined(document, draw, COUNTS) if draw.random() < 0.5 else wrapped(document, draw)
    if draw.random() < 0.25:
        rewritten = wrapped(inlined(rewritten, draw, COUNTS), draw)
    for found, before in zip(both_orders(rewritten, values), wanted, strict=True):
        np.testing.assert_allclose(found, before, rtol=1e-10, atol=1e-12)


@pytest.mark.sampled(2)
@random_programs()
def test_memory_policies_change_no_gradient(part, document, seed):
    """Covers programs whose dropouts draw a new mask on every trip. Chunked loops add up in another order."""
    values, draw = leaves(seed), random.Random(seed)
    if draw.random() < 0.5:
        document = written(seed, random_ops=True)
    program = read(document)

    shapes = {name: np.shape(value) for name, value in values.items()} if draw.random() < 0.5 else None

    def step(shapes: Any = shapes, **options: Any) -> Any:
        query = GradientQuery(targets=("loss",), **EVERY, **options)
        return whole(compile_gradient(program, query, shapes=shapes).step(values, seed=seed, step=3).gradients)

    wanted = step()
    names = [(i, n) for i, block in enumerate(document["blocks"]) for op in block["ops"] for n in floats(op)]
    records = [f"{i}:{n}" for i, n in draw.sample(names, min(3, len(names)))]
    hooks = tuple(Hook.read({"match": {"variable": name}, "do": "record"}) for name in dict.fromkeys(records))
    ways: list[dict[str, Any]] = [
        {"loop_memory": draw.choice(("recompute", "sqrt", "binomial"))},
        {"checkpoints": "auto"},
        {"hooks": hooks},
        {"loop_memory": "sqrt", "checkpoints": "auto", "hooks": hooks},
        {"shapes": None},
    ]
    for way in draw.sample(ways, 2):
        runs = way.get("loop_memory") in ("sqrt", "binomial")
        for name, found in step(**way).items():
            np.testing.assert_allclose(found, wanted[name], rtol=1e-13 if runs else 0, atol=1e-15 if runs else 0)
    doubled = step(hooks=(Hook.read({"match": {"role": "parameter"}, "do": "scale", "factor": 2.0}),))
    for name, found in doubled.items():
        assert found.tobytes() == (wanted[name] if name == "x" else 2 * wanted[name]).tobytes()


def floats(op: dict[str, Any]) -> list[str]:
    """The outputs of `op` that certainly have one shape on every trip and are not shadowed."""
    names: list[str] = op["outputs"]["out"] if op["type"] in ("add", "sub", "mul", "sin", "tanh") else []
    return [name for name in names if not name.startswith("long")]
