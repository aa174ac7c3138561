"""Random programs with control flow: their gradients equal PyTorch's for the unrolled programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.registry import REGISTRY
from core.wire import read
from tests.beside_torch.compare import attributes
from tests.beside_torch.installed import MISSING, torch
from tests.beside_torch.table import TABLE
from tests.laws.random_programs import ALL, leaves, second_order
from tests.oracle import NearKink, unrolled
from tests.strategies import LEAVES, written

PROGRAMS = int(os.environ.get("BACKPASS_TEST_PROGRAMS", "500")) // 4
RUNS = 10


WITHOUT_GRADIENT: dict[str, Callable[..., Any]] = {
    "assign_value": lambda values, shape, dtype: torch.tensor(values, dtype=getattr(torch, dtype)).reshape(shape),
    "fill_constant": lambda shape, value, dtype: torch.full(shape, value, dtype=getattr(torch, dtype)),
    "less_than": lambda x, y: torch.lt(x, y),
    "logical_and": lambda x, y: torch.logical_and(x, y),
    "logical_not": lambda x: torch.logical_not(x),
}


def straight_line(document: dict[str, Any], values: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """First gradients, and those of their sum, of a program without control flow."""
    env = {name: torch.from_numpy(np.array(x)) for name, x in values.items()}
    inputs = [env[name].requires_grad_() for name in LEAVES]
    for op in document["blocks"][0]["ops"]:
        args = [env[name] for slot in REGISTRY[op["type"]].inputs for name in op.get("inputs", {}).get(slot.name, ())]
        env[op["outputs"]["out"][0]] = expression(op["type"], args, op.get("attrs", {}))
    first = pulled(env["loss"], inputs)
    return first, pulled(sum(g.sum() for g in first), inputs)


def expression(type: str, args: list[Any], attrs: dict[str, Any]) -> Any:
    if type in WITHOUT_GRADIENT:
        return WITHOUT_GRADIENT[type](*args, **attrs)
    return TABLE[type](*args, **attributes(TABLE[type], type, attrs))


def pulled(y: Any, inputs: list[Any]) -> list[Any]:
    if not y.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    return list(torch.autograd.grad(y, inputs, create_graph=True, allow_unused=True, materialize_grads=True))


@pytest.mark.slow
@pytest.mark.skipif(torch is None, reason=MISSING)
@pytest.mark.parametrize("run", range(RUNS))
def test_gradients_of_random_programs_equal_pytorchs(run):
    torch.set_num_threads(1)
    compared = 0
    for seed in range(run, PROGRAMS, RUNS):
        document, values = written(seed), leaves(seed)
        try:
            straight, _ = unrolled(document, values)
        except NearKink:
            continue
        first, second = straight_line(straight, values)
        program = read(document)
        found = compile_gradient(program, GradientQuery(targets=("loss",), **ALL)).step(values).gradients
        again = second_order(program, inputs=LEAVES).step(values).gradients
        for name, one, two in zip(LEAVES, first, second, strict=True):
            np.testing.assert_allclose(found[name], one.detach(), rtol=1e-9, atol=1e-11, err_msg=f"{seed} {name}")
            np.testing.assert_allclose(again[name], two.detach(), rtol=1e-8, atol=1e-10, err_msg=f"{seed} {name}")
        compared += 1

    assert compared > PROGRAMS / RUNS / 2
