"""Every value of every run of a random program has its inferred type. All passes trust these types."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import core.runtime.reference as reference
from core.compiler.compile import key_of
from core.ir import StackType, Type
from core.ops.common.types import holds
from core.runtime.reference import Interpreter
from core.runtime.run import Run
from core.wire import read
from tests.laws.examples import type_of
from tests.laws.random_programs import EXAMPLES, INPUTS, PARTS, POLICIES, leaves, nth_order
from tests.strategies import programs


def has_type(value: Any, type: Type) -> bool:
    """Whether `value` is one of that type; None stands for an element that nobody reads."""
    if isinstance(type, StackType):
        return isinstance(value, list) and all(has_type(each, type.element) for each in value)
    return value is None or (not isinstance(value, list) and holds(type, type_of(value)))


class Checked:
    """An interpreter that checks every value it computes, also in inner blocks."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter, self.block, self.largest = interpreter, interpreter.block, interpreter.largest

    def __call__(self, run: Run, *args: Any) -> tuple[Any, ...]:
        def looked(name: str, type: Type) -> Any:
            def look(value: Any) -> None:
                assert has_type(value, type), f"{name} is no {type}"

            return look

        watch = {name: looked(name, type) for name, type in self.block.types.items()}
        return self.interpreter(run, *args, watch=watch)


@pytest.fixture(scope="module")
def checked():
    """`reference.interpreter_of`, whose interpreters check every value."""
    original = reference.interpreter_of
    reference.interpreter_of = lambda block: Checked(original(block))  # type: ignore[assignment, return-value]
    yield reference.interpreter_of
    reference.interpreter_of = original


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", range(PARTS))
@settings(max_examples=-(-EXAMPLES // (4 * PARTS)), deadline=None, suppress_health_check=list(HealthCheck))
@given(document=programs(), seed=st.integers(0, 2**16))
def test_every_value_of_a_random_program_has_its_inferred_type(checked, part, document, seed):
    values, draw = leaves(seed), random.Random(seed)
    memory = [draw.choice(POLICIES) for _ in range(draw.randint(1, 2))]
    shapes = {name: np.shape(value) for name, value in values.items()} if draw.random() < 0.5 else None
    executable = nth_order(read(document), "loss", INPUTS, memory, shapes=shapes)
    given = [key_of(0, 0) if v.role == "key" else values[v.name] for v in executable.inputs]

    with np.errstate(all="ignore"):
        checked(executable.interpreter.block)(Run(), *given)
