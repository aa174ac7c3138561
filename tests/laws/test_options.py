"""Options of a query on random programs: stops, hooks and records inside loops, branches, functions and nets.

Expected values come from the unrolled program (`tests.oracle`), in which each run of a block has variables of its own,
or from a program with ops that say the same.
"""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from core.autodiff.hooks import Hook
from core.compiler.compile import GradientQuery, compile_gradient
from core.wire import read
from tests.laws.random_programs import INPUTS, POLICIES, Document, Values, first_order, flat, leaves, second_order
from tests.oracle import NearKink, unrolled
from tests.programs import whole
from tests.strategies import LEAVES, written

FLOATS = ("add", "sub", "mul", "tanh", "sin", "cos", "sigmoid", "square", "maximum")
"""Ops whose results the programs write to names of vectors."""

PARTS = 4


def seeds(part: int, count: int) -> Iterator[int]:
    return iter(range(part * count, (part + 1) * count))


def gradients_of(document: Document, values: Values, **options: Any) -> dict[str, np.ndarray]:
    query = GradientQuery(targets=("loss",), inputs=INPUTS, unconnected="zeros", **options)
    return whole(compile_gradient(read(document), query).step(values).gradients)


def stopped(document: Document, chosen: Any) -> Document:
    """The document with a `stop_gradient` after each op output for which `chosen` (block, op type, name) is true.

    A function with a gradient of its own stays as it is: a stop in its ops has no effect.
    """
    document = copy.deepcopy(document)
    functions = document.get("functions", {})
    rules = {each.get("gradient") for each in functions.values()}
    programs = [f["program"] for name, f in functions.items() if "gradient" not in f and name not in rules]
    for block in (block for program in (document, *programs) for block in program["blocks"]):
        ops = []
        for op in block["ops"]:
            names = [name for slot in op.get("outputs", {}).values() for name in slot]
            stops = [name for name in names if chosen(block["idx"], op["type"], name)]
            ops += [op, *({"type": "stop_gradient", "inputs": {"x": [n]}, "outputs": {"out": [n]}} for n in stops)]
        block["ops"] = ops
    return document


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_stop_in_a_block_stops_gradients_of_both_orders(part):
    for seed in seeds(part, 5):
        draw, values = random.Random(seed), leaves(seed)
        share = draw.choice((0.05, 0.15, 0.3))
        choose = lambda index, type, name, draw=draw, share=share: (
            type in FLOATS and name != "loss" and draw.random() < share
        )
        document = stopped(written(seed, derivatives=draw.random() < 0.3), choose)
        try:
            straight = read(unrolled(document, values)[0])
        except NearKink:
            continue
        program, memory = read(document), [draw.choice(POLICIES) for _ in range(2)]

        for found, wanted in (
            (first_order(program, memory=memory[0]), first_order(straight)),
            (second_order(program, memory=memory), second_order(straight)),
        ):
            one, other = (flat(each.step(values).gradients) for each in (found, wanted))
            np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9, err_msg=str(seed))


def writers(document: Document) -> Mapping[tuple[int, str], set[str]]:
    """(block, name) -> the types of the ops of that block that write it, with "inner" for ops of blocks inside."""
    found: defaultdict[tuple[int, str], set[str]] = defaultdict(set)
    blocks = document["blocks"]
    for block in blocks:
        for op in block["ops"]:
            for name in (name for slot in op.get("outputs", {}).values() for name in slot):
                found[block["idx"], name].add(op["type"])
                outer = block["parent_idx"]
                while outer >= 0:
                    found[outer, name].add("inner")
                    outer = blocks[outer]["parent_idx"]
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_name_in_no_grad_set_stops_as_an_op_after_each_write_does(part):
    for seed in seeds(part, 12):
        draw, values, document = random.Random(seed), leaves(seed), written(seed)
        names = [  # a name in the set stops the entry value of a parameter too
            key for key, types in writers(document).items() if types <= set(FLOATS) and key[1] not in LEAVES
        ]
        chosen = draw.sample(names, min(len(names), draw.choice((1, 1, 2, 3))))
        given = tuple(f"{index}:{name}" for index, name in chosen)

        found = gradients_of(document, values, no_grad_set=given, loop_memory=draw.choice(POLICIES))
        wanted = gradients_of(
            stopped(document, lambda index, type, name, chosen=tuple(chosen): (index, name) in chosen), values
        )

        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-11, err_msg=str(seed))


ACTIONS = (
    {"do": "scale", "factor": -1.5}, {"do": "clip_value", "min": -0.3, "max": 0.2}, {"do": "clip_value", "max": 0.1},
    {"do": "scale", "factor": 0.5, "when": "each_contribution"},
)  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_hook_on_ops_acts_in_every_run_of_a_block_or_function(part):
    for seed in seeds(part, 12):
        draw, values, document = random.Random(seed), leaves(seed), written(seed)
        if any("gradient" in each for each in document.get("functions", {}).values()):
            continue  # unrolled, it has the gradient of its ops
        try:
            straight, _ = unrolled(document, values)
        except NearKink:
            continue
        types = draw.sample(("tanh", "sin", "add", "square", "cos", "sigmoid"), draw.choice((1, 1, 2)))
        hooks = tuple(Hook.read({"match": {"op": type}, **draw.choice(ACTIONS)}) for type in types)
        checkpoints = draw.choice(((), (), "auto"))

        found = gradients_of(document, values, hooks=hooks, loop_memory=draw.choice(POLICIES), checkpoints=checkpoints)
        wanted = gradients_of(straight, values, hooks=hooks)

        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-8, atol=1e-10, err_msg=str(seed))
