"""Random programs on batches of sequences: a step with room for many sizes equals one for each of them, whatever lies
beyond the feeds in the arrays that there is room in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from core.autodiff.hooks import Hook
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import (
    Clip,
    Executable,
    GradientQuery,
    LossScale,
    Optimizer,
    Outputs,
    compile_forward,
    compile_gradient,
    compile_training,
)
from core.compiler.room import Room, room_for
from core.cost.budget import Budget
from core.ir.errors import ExecutionError, ProgramError
from core.optim.optimizers import OPTIMIZERS
from core.plan import instructions, linear, moments, sized_products, sizes
from tests.behind import MESSAGE, check_integers_behind_sizes
from tests.open_programs import OpenProgram
from tests.programs import whole

SIZES = ((3, 5, False), (16, 11, False), (1, 1, False), (7, 13, True), (5, 0, False), (0, 4, False))
"""(sequences, their length, whether a feed has a single step)"""

BEYOND = {"f": np.nan, "V": np.nan, "i": 2**40, "u": 2**40, "b": True}
PRECISION = {"float64": 1e-7, "float32": 2e-3}


def poisoned(room: Room, packed: dict[str, Any], feeds: dict[str, np.ndarray]) -> dict[str, Any]:
    """The inputs of a step with values that it must not read beyond the feeds."""
    for name in room.shapes:
        dtype, number = feeds[name].dtype, BEYOND[feeds[name].dtype.kind]
        larger = np.full(room.shapes[name], min(number, np.iinfo(dtype).max) if dtype.kind in "iu" else number, dtype)
        larger[tuple(map(slice, feeds[name].shape))] = feeds[name]
        packed[f"{name}@ROOM"] = larger
    return packed


def ran(executable: Executable, values: dict[str, Any]) -> Outputs | str:
    """The outputs of a step, or the code of its error."""
    try:
        return executable.step({n: v for n, v in values.items() if n in executable.input_names}, seed=3, step=5)
    except ExecutionError as error:
        assert MESSAGE not in str(error), error
        return error.code


def assert_close(found: Any, wanted: Any, message: str) -> None:
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), message
    unit = PRECISION.get(wanted.dtype.name, 0.0)
    scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-3) if unit else 0.0
    np.testing.assert_allclose(found, wanted, unit, unit * scale, err_msg=message)


def assert_equal_for_all_sizes(made: OpenProgram, compile: Callable[..., Executable]) -> None:
    """compile(shapes=...) and compile(room=...) give the step for known sizes, and the one with room."""
    codes: dict[Any, Executable] = {}
    for batch, time, spreads in SIZES:
        feeds = made.feeds(batch, time, spreads)
        shapes = {name: value.shape for name, value in feeds.items()}
        room = room_for(made.program, shapes)
        try:
            exact = compile(shapes=shapes)
        except ProgramError:  # a maximum of no elements
            continue
        if room.key not in codes:
            codes[room.key] = compile(room=room).compiled()
        code, values = codes[room.key], {**feeds, **made.values, **exact.initial_state()}
        assert code.packs is not None

        wanted, found = ran(exact, values), ran(code, poisoned(room, dict(code.packs(values)), feeds))

        if isinstance(wanted, str) or isinstance(found, str):
            assert found == wanted
            continue
        assert found.missing == wanted.missing
        if wanted.loss is not None:
            assert_close(found.loss, wanted.loss, "loss")
        for place in ("fetched", "gradients", "recorded", "parameters", "states", "optimizer_state", "scaling"):
            others = whole(getattr(found, place))
            for name, value in whole(getattr(wanted, place)).items():
                assert_close(others[name], value, f"{place} {name} of {shapes}")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(10))
def test_a_step_with_room_equals_that_of_known_sizes(seed):
    made = OpenProgram(seed, ("float64", "float32")[seed % 2], 4)
    optimizer = Optimizer("momentum", {"learning_rate": 0.1, "momentum": 0.9})
    scale = LossScale(initial=8.0) if seed % 3 == 0 else None
    query = GradientQuery(loss=made.loss)

    assert_equal_for_all_sizes(
        made,
        lambda **sized: compile_training(made.program, query, optimizer, None, made.fetched, loss_scale=scale, **sized),
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(10, 14))
def test_gradients_with_room_of_feeds_and_parameters_equal_those_of_known_sizes(seed):
    made = OpenProgram(seed, ("float64", "float32")[seed % 2], 4)
    parameters = [v.name for v in made.program.parameters]
    query = GradientQuery(targets=(made.loss,), inputs=("x", "other", *parameters))

    assert_equal_for_all_sizes(made, lambda **sized: compile_gradient(made.program, query, made.fetched, **sized))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(14, 18))
def test_an_evaluation_with_room_equals_that_of_known_sizes_and_integers_behind_them_are_0(seed, monkeypatch):
    check_integers_behind_sizes(monkeypatch)
    made = OpenProgram(seed, ("float64", "float32")[seed % 2], 4)

    assert_equal_for_all_sizes(
        made, lambda **sized: compile_forward(made.program, (*made.fetched, made.loss, "x"), **sized)
    )


ACTIONS: tuple[dict[str, Any], ...] = (
    {"do": "clip_value", "min": -0.01, "max": 0.02},
    {"do": "clip_value", "min": 0.001},
    {"do": "clip_norm", "max_norm": 0.05},
    {"do": "scale", "factor": -1.5},
    {"do": "check_finite"},
    {"do": "record"},
)


def options_of(made: OpenProgram, draw: random.Random) -> dict[str, Any]:
    """Random hooks, checkpoints, memory policies and variables without gradients for a program."""
    types = made.program.block.types
    floats = [n for op in made.program.block.ops for n in op.outputs if getattr(types[n], "is_float", False)]
    floats += ["x", "other"] * (len(floats) // 8)

    def hook() -> Hook:
        op = draw.choice(sorted({op.type for op in made.program.block.ops}))
        match = draw.choice(
            ({"variable": draw.choice(floats)}, {"op": op}, {"role": draw.choice(("parameter", "feed"))})
        )
        action = draw.choice(ACTIONS)
        when = "each_contribution" if action["do"] != "record" and draw.random() < 0.4 else "after_accumulation"
        return Hook.read({"match": match, "when": when, **action})

    return {
        "hooks": tuple(hook() for _ in range(draw.randrange(4))),
        "checkpoints": draw.choice(((), "auto", tuple(draw.sample(floats, min(2, len(floats)))))),
        "loop_memory": draw.choice(("store", "recompute", "sqrt", "binomial", Budget(20_000))),
        "no_grad_set": tuple(draw.sample(floats, int(draw.random() < 0.3))),
    }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(30, 40))
def test_gradients_with_room_under_hooks_and_memory_policies_equal_those_of_known_sizes(seed):
    made, draw = OpenProgram(seed, ("float64", "float32")[seed % 2], 4), random.Random(seed)
    options = options_of(made, draw)
    if draw.random() < 0.5:
        parameters = [v.name for v in made.program.parameters]
        query = GradientQuery(targets=(made.loss,), inputs=("x", "other", *parameters), **options)
    else:
        query = GradientQuery(loss=made.loss, **options)

    assert_equal_for_all_sizes(made, lambda **sized: compile_gradient(made.program, query, made.fetched, **sized))


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Passes take parts of few rows and elements, as otherwise of arrays that are too large for random programs."""
    for module in (instructions, linear, sized_products, sizes):
        monkeypatch.setattr(module, "PRODUCT_BLOCK", 16)
    monkeypatch.setattr(moments, "SHORTEST", 4)
    monkeypatch.setattr(moments, "LONGEST", 24)
    rows, longest = CPU_TARGET.rows, CPU_TARGET.rows.longest_row
    object.__setattr__(rows, "longest_row", 48)
    yield
    object.__setattr__(rows, "longest_row", longest)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(18, 28))
def test_a_step_with_room_in_many_parts_equals_that_of_known_sizes(seed):
    made = OpenProgram(seed, ("float64", "float32")[seed % 2], 4)
    optimizer = Optimizer(list(OPTIMIZERS)[seed % len(OPTIMIZERS)], {"learning_rate": 0.1})
    clip = Clip.read({"by": "global_norm", "max_norm": 0.5}) if seed % 3 == 0 else None
    query = GradientQuery(loss=made.loss)

    assert_equal_for_all_sizes(
        made, lambda **sized: compile_training(made.program, query, optimizer, clip, made.fetched, **sized)
    )
