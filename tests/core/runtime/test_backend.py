"""The runtime works with any backend, and the planner reads all facts about a machine from the backend's target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, Optimizer, compile_training, optimize
from core.compiler.trainer import Trainer
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan import Plan, arrange, plan_block
from core.plan.partition import plan_parts
from core.plan.target import Target
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.programs import Sketch


@dataclass
class NumpyRegion:
    """A region that the reference executor runs. arrays of `run`: arguments, then results."""

    plan: Plan
    arena_bytes: int = 0
    stack_bytes: int = 0
    runs: int = 0

    def __call__(self, run: Run, *args: Any) -> tuple[Any, ...]:
        self.runs += 1
        return interpreter_of(self.plan.block)(run, *args)

    def readable(self, array: Any) -> Any:
        return array

    def results(self) -> list[Any]:
        return [np.empty(v.shape, v.dtype) for v in self.plan.results]

    def bind(self, arrays: Sequence[Any]) -> Any:
        return Bound(list(arrays))

    def run(self, arrays: Any, run: Run) -> None:
        given = len(self.plan.params)
        for target, value in zip(arrays.arrays[given:], self(run, *arrays.arrays[:given]), strict=True):
            target[...] = value


@dataclass
class Bound:
    arrays: list[Any]

    def put(self, i: int, array: Any) -> None:
        self.arrays[i] = array

    def drop(self, i: int) -> None:
        self.arrays[i] = None


@dataclass
class NumpyBackend:
    """A second backend: it shares no code with the CPU's."""

    target: Target = CPU_TARGET
    compiled: list[NumpyRegion] = field(default_factory=list)

    def runs_on(self, xp) -> bool:
        return xp is np

    def arena_bytes(self, plan: Plan) -> int:
        return 0

    def compile(self, plan: Plan, timed: bool = False) -> NumpyRegion:
        self.compiled.append(NumpyRegion(plan))
        return self.compiled[-1]


def with_a_cholesky_factor() -> Block:
    b = BlockBuilder()
    x = b.param(TensorType((3, 3), "float64"))
    return optimize(b.build([b.emit("tanh", b.emit("cholesky", b.emit("exp", x)))]))


@pytest.mark.parametrize(("interprets", "regions"), [(True, 1), (False, 2)])
def test_an_op_without_code_ends_a_region_unless_the_target_can_call_back(interprets, regions):
    target = replace(CPU_TARGET, interprets=interprets, lacks=frozenset({"cholesky"}))
    block, backend = with_a_cholesky_factor(), NumpyBackend(target)

    native = native_interpreter(block, backend)

    assert len(backend.compiled) == regions
    refused = {} if interprets else {4: "the target has no code for cholesky"}
    assert plan_parts(block, backend.target).refused == refused
    x = np.log([[4.0, 1.0, 1.0], [1.0, 4.0, 1.0], [1.0, 1.0, 4.0]])
    np.testing.assert_allclose(native(Run(), x)[0], np.tanh(np.linalg.cholesky(np.exp(x))))


def test_dtypes_that_the_target_lacks_stay_in_the_reference_executor():
    b = BlockBuilder()
    x, y = (b.param(TensorType((2,), dtype)) for dtype in ("float64", "float32"))
    block = b.build([b.emit("tanh", x), b.emit("tanh", y)])
    without = replace(CPU_TARGET, dtypes=CPU_TARGET.dtypes - {"float64"})

    assert plan_parts(block, CPU_TARGET).refused == {}
    assert plan_parts(block, without).refused == {0: "no machine code for float64"}


@pytest.mark.parametrize("alignment", [64, 256])
def test_the_arena_has_the_alignment_of_the_target(alignment):
    b = BlockBuilder()
    x = b.param(TensorType((3, 5), "float32"))
    product = b.emit("matmul", x, b.emit("matmul", b.param(TensorType((5, 3), "float32")), x))
    plan = plan_block(b.build([b.emit("reduce_sum", product)]), replace(CPU_TARGET, alignment=alignment))

    arena = arrange(plan)

    assert len(arena.offsets) > 1
    assert all(offset % alignment == 0 for offset in arena.offsets.values())
    assert arena.size % alignment == 0


@pytest.mark.parametrize(("least", "needed", "room"), [(4096, 1, 4096), (4096, 4097, 8192), (256, 300, 512)])
def test_the_capacity_of_a_stack_is_a_power_of_two(least, needed, room):
    assert replace(CPU_TARGET, min_stack_bytes=least).stack_bytes(needed) == room


def test_a_training_step_runs_on_another_backend_with_its_arrays_bound():
    s = Sketch()
    s.param("w", np.array([0.5, -0.25]))
    s.feed("x", np.array([1.0, 2.0]))
    s.total(s.op("square", s.op("mul", "w", "x")))
    step = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer("sgd", {"learning_rate": 0.1}))
    backend = NumpyBackend()
    executable = replace(step, backend=backend).compiled()
    trainer = Trainer(executable, {"w": np.array([0.5, -0.25])})

    losses = [trainer.step({"x": np.array([1.0, 2.0])}) for _ in range(2)]

    (region,) = backend.compiled
    assert region.runs == 2
    assert losses == pytest.approx([0.5, 0.4**2 + (2 * -0.05) ** 2])  # w - 0.1 * 2 w x^2
    np.testing.assert_allclose(trainer.values()["w"], [0.4 * 0.8, -0.05 * 0.2])
