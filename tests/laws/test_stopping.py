"""A deadline stops every op within a second, as machine code and in the reference executor."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_forward, compile_gradient
from core.ir.errors import ExecutionError
from core.runtime.run import RunLimits
from core.wire import read
from examples.models import block, feed, op

DEADLINE, WITHIN = 0.3, 1.0


def noise(name: str, *shape: int) -> dict[str, Any]:
    return op("uniform_random", name, attrs={"shape": list(shape)})


def sum_of_noise(count: int, size: int) -> list[dict[str, Any]]:
    """The sum `y` of `count` arrays of random numbers."""
    ops = [noise("sum0", size)]
    for i in range(1, count):
        ops += [noise(f"x{i}", size), op("add", "y" if i == count - 1 else f"sum{i}", x=f"sum{i - 1}", y=f"x{i}")]
    return ops


def random_ints(name: str, count: int, most: int) -> dict[str, Any]:
    return op("randint", name, attrs={"shape": [count], "low": 0, "high": most})


def chain(types: str | list[str], count: int, **others: str) -> list[dict[str, Any]]:
    """`count` ops of these types in turn, each of the result of the one before; from `a` to `y`."""
    names = ["a", *(f"h{i}" for i in range(count - 1)), "y"]
    types = [types] if isinstance(types, str) else types
    return [op(types[i % len(types)], names[i + 1], x=names[i], **others) for i in range(count)]


PRIME = 30_000_001
"""Elements of an axis that cannot be split into equal rows."""

OPS: dict[str, tuple[dict[str, list[int]], list[dict[str, Any]]]] = {
    "matmul": ({"a": [5000, 5000]}, [op("matmul", "b", x="a", y="a"), op("matmul", "y", x="b", y="a")]),
    "matmul of a batch": ({"a": [1500, 200, 200]}, chain("matmul", 4, y="a")),
    "matmul of few rows": (
        {"a": [63, 8000], "b": [8000, 8000]},
        [op("matmul", f"y{i}", x="a", y="b", attrs={"transpose_y": i % 2 == 0}) for i in range(40)]
        + [op("sum", "y", x=[f"y{i}" for i in range(40)])],
    ),
    "elementary functions of one long row": ({"a": [PRIME]}, chain(["tanh", "sin"], 80)),
    "softmax of long rows": ({"a": [3, PRIME // 3]}, chain("softmax", 40)),
    "conv2d of one image": ({"x": [1, 64, 512, 512], "f": [64, 64, 9, 9]}, [op("conv2d", "y", x="x", filter="f")]),
    "max_pool2d of large windows": (
        {"x": [1, 1, 2000, 2000]},
        [op("max_pool2d", "y", x="x", attrs={"kernel_size": [99, 99], "strides": [1, 1]})],
    ),
    "argsort": ({}, [noise("a", 20_000_000), op("argsort", "y", x="a")]),
    "gather": ({"a": [PRIME]}, [random_ints("i", 100_000_000, PRIME), op("gather", "y", x="a", index="i")]),
    "uniform_random": ({}, sum_of_noise(60, 40_000_000)),
    "cumsum": (
        {"a": [30_000, 3000]},
        [op("cumsum", "b", x="a", attrs={"axis": 0}), op("logcumsumexp", "y", x="b", attrs={"axis": 0})],
    ),
    "einsum": (
        {"a": [600, 700]},
        [
            op("einsum", "e", x=["a", "a"], attrs={"equation": "ij,kj->ikj"}),
            *(op(("tanh", "sin")[i % 2], f"e{i}", x=f"e{i - 1}" if i else "e") for i in range(19)),
            op("tanh", "y", x="e18"),
        ],
    ),
    "svd": ({}, [noise("a", 2500, 2500), op("svd", "y", slot="u", x="a")]),
    "inverse": ({}, [noise("a", 4000, 4000), op("inverse", "b", x="a"), op("inverse", "y", x="b")]),
}
"""Feeds, and ops whose result `y` takes seconds to compute."""

FAST = ("matmul", "elementary functions of one long row")


def seconds_to_stop(executable: Any, machine_code: bool) -> float:
    """Run with a deadline; returns the seconds between the deadline and the error, on a busy machine of a later try."""
    executable = executable.compiled() if machine_code else executable
    values = {v.name: np.ones(v.type.shape, "float32") for v in executable.inputs if v.role != "key"}
    for _ in range(10):
        end = time.monotonic() + DEADLINE
        with pytest.raises(ExecutionError) as caught:
            executable.step(values, limits=RunLimits(deadline=end, most_inside=0.5))
        assert caught.value.code == "deadline_exceeded"
        if (taken := time.monotonic() - end) < WITHIN:
            break
    return taken


def cases() -> list[Any]:
    return [
        pytest.param(name, machine_code, marks=[] if name in FAST and machine_code else [pytest.mark.slow])
        for name in OPS
        for machine_code in (True, False)
    ]


@pytest.mark.parametrize(("name", "machine_code"), cases())
def test_a_long_op_stops_at_its_deadline(name: str, machine_code: bool):
    feeds, ops = OPS[name]
    variables = [feed(each, shape) for each, shape in feeds.items()]
    program = read({"blocks": [block([*ops, op("reduce_sum", "loss", x="y")], variables)]})

    assert seconds_to_stop(compile_forward(program, ["loss"]), machine_code) < WITHIN


@pytest.mark.slow
@pytest.mark.parametrize("machine_code", [True, False])
@pytest.mark.parametrize("name", ["matmul", "conv2d", "gather"])
def test_a_long_adjoint_stops_at_its_deadline(name: str, machine_code: bool):
    forward = {
        "matmul": ([feed("x", [4000, 4000])], [op("matmul", "y", x="x", y="x")]),
        "conv2d": ([feed("x", [1, 64, 400, 400]), feed("f", [64, 64, 9, 9])], [op("conv2d", "y", x="x", filter="f")]),
        "gather": ([feed("x", [PRIME])], [random_ints("i", 60_000_000, PRIME), op("gather", "y", x="x", index="i")]),
    }
    feeds, ops = forward[name]
    program = read({"blocks": [block([*ops, op("square", "z", x="y"), op("reduce_sum", "loss", x="z")], feeds)]})
    query = GradientQuery(targets=("loss",), inputs=tuple(each["name"] for each in feeds))

    assert seconds_to_stop(compile_gradient(program, query), machine_code) < WITHIN
