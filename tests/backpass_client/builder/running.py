"""Built programs, run by the core: the client writes them, and no service is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import core
from backpass_client import BuiltProgram
from core.optim.initializers import initial_parameters
from core.optim.parameter_roles import parameter_roles

__all__ = ["assert_gradients_agree_with_differences", "first_values", "gradients", "run"]

Values = Mapping[str, Any]


def first_values(built: BuiltProgram, seed: int = 0) -> dict[str, np.ndarray]:
    """Values of all parameters and states, as a session draws them."""
    program = core.read(built.document())
    leaves = [v for v in program.variables if v.role in ("parameter", "state")]
    drawn = initial_parameters(leaves, built.initializers, seed, parameter_roles(program))
    return {**drawn, **built.values}


def _given(built: BuiltProgram, values: Values) -> dict[str, np.ndarray]:
    types = {**built.feeds, **built.parameters, **built.states}
    return {name: np.asarray(value, types[name].dtype) for name, value in {**built.values, **values}.items()}


def run(built: BuiltProgram, **values: Any) -> dict[str, np.ndarray]:
    """The outputs of `built` for feeds and parameters."""
    program = core.read(built.document())
    step = core.compile_forward(program, list(built.outputs))
    return dict(step.step(_given(built, values)).fetched)


def gradients(built: BuiltProgram, values: Values, **question: Any) -> tuple[float, dict[str, np.ndarray]]:
    """(loss, gradients of the parameters)."""
    step = core.compile_gradient(core.read(built.document()), core.GradientQuery(loss=built.loss, **question))
    found = step.step(_given(built, values))
    return float(np.asarray(found.loss).reshape(())), dict(found.gradients)


def assert_gradients_agree_with_differences(
    built: BuiltProgram, values: Values, h: float = 1e-6, rtol: float = 1e-6, atol: float = 1e-8
) -> None:
    """Along a random direction in all parameters together, and in each of them alone. Parameters are float64."""
    random = np.random.default_rng(0)
    step = core.compile_gradient(core.read(built.document()), core.GradientQuery(loss=built.loss))

    def loss(at: Values) -> float:
        return float(np.asarray(step.step(_given(built, at)).loss).reshape(()))

    found = dict(step.step(_given(built, values)).gradients)
    values = {**built.values, **values}
    assert found
    for names in ([*found], *([name] for name in found)):
        directions = {n: random.normal(size=np.shape(values[n])) for n in names}
        above = loss({**values, **{n: values[n] + h * directions[n] for n in names}})
        below = loss({**values, **{n: values[n] - h * directions[n] for n in names}})
        slope = sum(float((found[n] * directions[n]).sum()) for n in names)
        np.testing.assert_allclose(slope, (above - below) / (2 * h), rtol, atol, err_msg=str(names))
