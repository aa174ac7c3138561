"""Agreement of steps on an emulated GPU with the reference executor."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from core.autodiff.adjoint import vjp
from core.compiler.compile import GradientQuery, compile_gradient, key_of, optimize
from core.device.rules import Rules
from core.ir import Block
from core.ir.errors import ExecutionError
from core.runtime.native import native_interpreter
from core.runtime.reference import execute, interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.device.emulator import EmulatedBackend
from tests.laws.agreement import WIDTHS, cotangent, in_dtype, like, same, values_like
from tests.laws.examples import OPS, arrays, block_for, floats
from tests.laws.random_programs import EVERY, POLICIES, second_order
from tests.programs import Sketch
from tests.strategies import programs

SCOPES = (
    Rules(),
    Rules(launch=0.0, block_bandwidth=1.0, block_flops=1.0, sorted_apart=1),
    Rules(launch=1e30, grid_barrier=0.0, block_bandwidth=1.0, block_flops=1.0, sorted_apart=1 << 31),
    Rules(launch=1e30, grid_barrier=1e30, block_bandwidth=1.0, block_flops=1.0, cluster=2, sorted_apart=1 << 31),
)
"""Small work on one block; each instruction outside of loops in a launch of its own; one launch of all blocks; one of
two blocks.
"""


def agree(block: Block, values: list[Any], backend: EmulatedBackend) -> None:
    """The emulated step has the results, or the error, of the reference executor."""
    with np.errstate(all="ignore"):
        try:
            wanted = interpreter_of(block)(Run(), *values)
        except ExecutionError as refused:
            with pytest.raises(ExecutionError) as caught:
                native_interpreter(block, backend)(Run(), *values)
            assert (caught.value.code, caught.value.location) == (refused.code, refused.location)
            return
        found = native_interpreter(block, backend)(Run(), *values)
    for f, w in zip(found, wanted, strict=True):
        same(f, w)


def orders(name: str, i: int, dtype: str) -> Iterator[tuple[Block, list[Any]]]:
    """An op on an example, its gradient and the gradient of that, as far as it has them, and values of the operands."""
    example, spec = in_dtype(name, i, dtype), OPS[name]
    assert example is not None
    values = arrays(example)
    block = block_for(spec, example)
    wrt = [block.params[k] for k in floats(values)]
    yield optimize(block), values
    rng = np.random.default_rng(0)
    for _ in range(2 if spec.differentiable and wrt else 0):
        results = [n for n in block.results if block.types[n].is_float]
        with np.errstate(all="ignore"):
            found = dict(zip(block.results, execute(block, values), strict=True))
        values = values + [cotangent(rng, found[n]) for n in results]
        block = optimize(vjp(block, wrt))
        yield block, values


def random_steps(document: Any, seed: int, width: int, dtype: str) -> Iterator[tuple[Block, list[Any], Rules]]:
    """The first and second gradient of a program, their operands, and a scope for each."""
    values = values_like(seed, dtype, width)
    program = read(like(document, dtype, width))
    draw = random.Random(seed)
    query = GradientQuery(targets=("loss",), loop_memory=draw.choice(POLICIES), **EVERY)
    memory = (draw.choice(POLICIES), draw.choice(POLICIES))
    for executable in (compile_gradient(program, query, fetch=["loss"]), second_order(program, memory=memory)):
        args = [key_of(0, 0) if v.role == "key" else values[v.name] for v in executable.inputs]
        yield executable.interpreter.block, args, draw.choice(SCOPES)


DRAWN = {
    "document": programs(),
    "seed": st.integers(0, 2**16),
    "width": st.sampled_from(WIDTHS),
    "dtype": st.sampled_from(["float32", "float64"]),
}


def training_step() -> tuple[Block, list[np.ndarray]]:
    """The gradient of a small network with a loop; rows fill several warps, and all sizes leave a rest."""
    rng = np.random.default_rng(0)
    s = Sketch()
    x = s.feed("x", rng.standard_normal((40, 9)))
    w = s.param("w", rng.standard_normal((9, 40)) / 3)
    v = s.param("v", rng.standard_normal((40, 5)) / 8)
    s.total(s.op("square", s.op("softmax", s.op("matmul", s.op("tanh", s.op("matmul", x, w)), v))))
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    return executable.interpreter.block, [s.values[each.name] for each in executable.inputs]


def looping(trips: int) -> tuple[Block, list[np.ndarray]]:
    """The gradient of a while loop whose number of trips is a feed, and which records its states."""
    s = Sketch()
    s.param("h", [0.5, -0.25])
    s.feed("n", trips, dtype="int64")
    with s.repeat("n"):
        s.op("sin", "h", out="h")
    s.total("h")
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    return executable.interpreter.block, [s.values[each.name] for each in executable.inputs]
