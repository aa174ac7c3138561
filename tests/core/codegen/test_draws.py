"""Random numbers of machine code have the bits of the reference executor, wherever an element lies."""

from __future__ import annotations

import re

import numpy as np
import pytest

from core.codegen import backend, parallel
from core.codegen.backend import write_plan
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.errors import ExecutionError
from core.ir.registry import lookup
from core.plan import plan_block
from core.wire import read
from tests.core.codegen.stepwise import compiled
from tests.programs import Sketch

SHAPES = [(), (1,), (2,), (3, 5), (16,), (7, 33), (2, 1, 8), (9, 256)]
KEYS = [7, -1]


def reference(name, *values, **attrs):
    spec = lookup(name)
    return spec.body(np, *values, **spec.complete(attrs))


@pytest.mark.sampled(2, each="name")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        ("uniform_random", {"min": 0.0, "dtype": "float32"}),
        ("uniform_random", {"min": -2.0, "max": 1.5, "dtype": "float64"}),
        ("randint", {"low": -3, "high": 10, "dtype": "int32"}),
    ],
)
def test_drawn_numbers_equal_those_of_the_reference_to_the_bit(shape, name, attrs):
    for key in KEYS:
        given = {"shape": shape, "seed": -(2**40) - 5, "stream": 9, **attrs}
        found = compiled(name, np.array(key), **given)

        assert found.dtype == attrs["dtype"]
        np.testing.assert_array_equal(found, reference(name, np.array(key), **given))


@pytest.mark.parametrize("name", ["gaussian_random", "truncated_gaussian", "exponential"])
@pytest.mark.parametrize("shape", [(3,), (7, 33)])
def test_functions_of_drawn_numbers_differ_by_rounding_only(name, shape):
    given = {"shape": shape, "dtype": "float64", "stream": 3}

    found = compiled(name, np.array(5), **given)

    np.testing.assert_allclose(found, reference(name, np.array(5), **given), rtol=1e-13, atol=1e-14)


def test_one_key_advances_as_in_the_reference():
    for key in (0, 7, -1, 2**63 - 1):
        assert compiled("next_key", np.array(key)) == reference("next_key", np.array(key))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n", [1, 2, 17, 300])
def test_a_random_order_equals_that_of_the_reference(n):
    found = compiled("randperm", np.array(3), n=n, dtype="int32")

    np.testing.assert_array_equal(found, reference("randperm", np.array(3), n=n, dtype="int32"))


def test_probabilities_decide_each_element():
    p = np.linspace(0, 1, 70).reshape(7, 10)

    np.testing.assert_array_equal(compiled("bernoulli", p, np.array(7)), reference("bernoulli", p, np.array(7)))


def test_a_probability_above_1_is_an_error():
    with pytest.raises(ExecutionError, match="from 0 to 1"):
        compiled("bernoulli", np.array([0.5, 1.5]), np.array(7))


def test_the_numbers_do_not_depend_on_the_threads(monkeypatch):
    monkeypatch.setattr(parallel, "LONG", 1)
    for threads in (1, 2, 3):
        monkeypatch.setattr(backend, "thread_count", lambda n=threads: n)
        found = compiled("uniform_random", np.array(11), shape=(13, 37), min=0.0)
        np.testing.assert_array_equal(found, reference("uniform_random", np.array(11), shape=(13, 37), min=0.0))


def test_many_draws_of_different_streams_call_one_function():
    s = Sketch()
    s.param("w", np.ones((8, 32)), "float32")
    s.op("assign", "w", out="h")
    for _ in range(8):
        s.op("tanh", s.op("dropout", "h"), out="h")
    s.total("h")
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))

    module, _ = write_plan(plan_block(executable.interpreter.block, CPU_TARGET))
    found, wanted = executable.compiled().step(s.values, seed=3), executable.step(s.values, seed=3)

    assert len(re.findall(r"^define internal .*@draw_", module.text(), re.MULTILINE)) == 1
    np.testing.assert_allclose(found.gradients["w"], wanted.gradients["w"], rtol=1e-4, atol=1e-6)
    assert np.count_nonzero(wanted.gradients["w"])
