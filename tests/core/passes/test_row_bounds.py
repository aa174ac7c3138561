"""Blocks with room for the rows that they merge have the results of the original blocks, interpreted and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.compiler.compile import Clip, GradientQuery, LossScale, Optimizer, compile_gradient, compile_training
from core.ir.errors import ExecutionError
from core.passes.row_bounds import bound_rows
from core.runtime.executable import Executable
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.core.autodiff.test_sparse import CASES, Lookups, Random, once, padded, twice
from tests.laws.agreement import both, same
from tests.programs import Sketch


def arguments(executable: Executable, values: dict[str, Any]) -> list[Any]:
    held = {**executable.initial_state(), **values}
    return [held[v.name] for v in executable.inputs]


def agree(executable: Executable, values: dict[str, Any]) -> None:
    """The bounded block of a step has its results, to the bit where it merges and to rounding where it adds zeros."""
    block, args = executable.interpreter.block, arguments(executable, values)
    wanted = interpreter_of(block)(Run(), *args)
    bounded = bound_rows(block)
    assert bounded is not None
    results = interpreter_of(bounded.block)(Run(), *args)
    for (i, end), want in zip(bounded.picks, wanted, strict=True):
        same(results[i] if end is None else results[i][: int(results[end])], want)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_machine_code_of_lookups_agrees_with_the_reference_executor(name):
    s = CASES[name].make(True)
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=["loss"])
    both(executable.interpreter.block, arguments(executable, s.values))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [pytest.param(s, marks=[pytest.mark.slow] if s >= 4 else []) for s in range(40)])
def test_machine_code_of_random_lookups_agrees_with_the_reference_executor(seed):
    s = Random(True, seed)
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=["loss"])
    both(executable.interpreter.block, arguments(executable, s.values))


def several(ids: Any = None) -> Lookups:
    """Two lookups of one table, one with padding, and another table at the same ids."""
    s = twice(True)
    s.param("F", np.linspace(-1, 1, 24).reshape(6, 4))
    s.op("mean", s.op("square", s.look(table="F")), out="more")
    s.op("add", "loss", "more", out="loss")
    return s


MAKE = {"once": lambda: once(True), "padded": lambda: padded(True, -2), "several": several}
HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm": {"clip": Clip.read({"by": "norm", "max_norm": 0.3})},
    "global norm": {"clip": Clip.read({"by": "global_norm", "max_norm": 0.3})},
    "value": {"clip": Clip.read({"by": "value", "max": 0.1})},
    "scaled": {"loss_scale": LossScale.read("dynamic")},
}


STEPS: list[Any] = [("several", optimizer, how) for optimizer in ("sgd", "adagrad") for how in HOW]
STEPS += [pytest.param("several", "adam", how, marks=pytest.mark.slow) for how in HOW]
STEPS += [("once", "sgd", "plain"), ("padded", "adagrad", "plain"), ("padded", "adam", "global norm")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("make", "optimizer", "how"), STEPS)
def test_training_steps_with_room_for_rows_are_whole_regions_and_agree(make, optimizer, how):
    s = MAKE[make]()
    program = read(s.document)
    chosen = Optimizer(optimizer, {"learning_rate": 0.1})
    executable = compile_training(program, GradientQuery(loss="loss"), chosen, **HOW[how])
    agree(executable, s.values)

    native = native_interpreter(executable.interpreter.block, CPU)

    assert native.region is not None and not native.region.plan.interpreted
    both(executable.interpreter.block, arguments(executable, s.values))


def test_tables_at_the_same_ids_share_the_order_of_their_rows():
    s = several()
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    native = native_interpreter(executable.interpreter.block, CPU)
    assert native.region is not None

    kinds = [getattr(each, "kind", "") for each in native.region.plan.body.instructions]

    assert [kinds.count(kind) for kind in ("row_order", "kept_row_order", "merge_rows")] == [2, 1, 4]


def test_an_id_outside_a_table_fails_with_the_code_of_the_reference_executor():
    s = once(True, ids=[1, 6])
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    args = arguments(executable, s.values)

    for run in (executable.interpreter, native_interpreter(executable.interpreter.block, CPU)):
        with pytest.raises(ExecutionError) as caught:
            run(Run(), *args)
        assert caught.value.code == "index_out_of_range"


def test_rows_that_reach_an_op_without_a_rule_stay_as_they_are():
    s = once(True)
    first = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    assert bound_rows(first.interpreter.block) is not None
    sorted_rows = Sketch()
    sorted_rows.feed("ids", [3, 1, 3], "int64")
    sorted_rows.param("E", np.ones((5, 2)))
    sorted_rows.op("merge_rows", sorted_rows.op("gather", "E", "ids"), "ids", "E", out=["rows", "values"])
    sorted_rows.total(sorted_rows.op("flip", "values", axes=[0]))
    block = compile_gradient(read(sorted_rows.document), GradientQuery(loss="loss"), fetch=["loss"]).interpreter.block

    assert bound_rows(block) is None
