"""Edge cases of shape and index ops: gradients of overwritten elements, wrong positions, and sizes beyond the
limits.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError, ProgramError
from core.passes.expand import expand_composites
from core.runtime.reference import execute, interpreter_of
from tests.programs import Sketch, close, step


def run(op: str, *inputs: Any, unknown: bool = False, **attrs: Any) -> np.ndarray:
    """The first result of an op. With `unknown` the sizes of its inputs are known only in the run."""
    arrays = [np.asarray(x) for x in inputs]
    b = BlockBuilder()
    types = [TensorType((-1,) * a.ndim if unknown else a.shape, str(a.dtype)) for a in arrays]
    outs = b.emit(op, *map(b.param, types), **attrs)
    return execute(b.build([outs[0] if isinstance(outs, tuple) else outs]), arrays)[0]


def refused(op: str, *inputs: Any, unknown: bool = False, **attrs: Any) -> str:
    """The code of the error that the op raises."""
    with pytest.raises((ProgramError, ExecutionError)) as error:
        run(op, *inputs, unknown=unknown, **attrs)
    return error.value.code


def largest(op: str, *types: TensorType, **attrs: Any) -> int:
    """Bytes of the largest array inside an op, as planned before a run."""
    b = BlockBuilder()
    return interpreter_of(expand_composites(b.build([b.emit(op, *map(b.param, types), **attrs)]))).largest


# --- overwriting -----------------------------------------------------------------------------------------------

WRITES = [
    ("scatter", ("x", "index", "values")),
    ("put_along_axis", ("x", "index", "values")),
    ("index_put", ("x", "values", ["index"])),
]


@pytest.mark.parametrize(("op", "slots"), WRITES)
def test_the_last_of_several_values_written_to_one_position_wins_and_gets_the_gradient(op, slots):
    s = Sketch()
    s.param("x", np.array([0.1, 0.2, 0.3]))
    s.param("values", np.array([10.0, np.nan, 30.0]))
    s.feed("index", [1, 2, -1], "int64")
    s.feed("weights", [1.0, 2.0, 4.0])
    s.total(s.op("mul", s.op(op, *slots, out="out"), "weights"))

    found = step(s, fetch=["out"])

    close(found.fetched["out"], [0.1, 10, 30])
    close(found.gradients["x"], [1, 0, 0])
    close(found.gradients["values"], [2, 0, 4])


def test_scatter_without_overwrite_adds_to_zeros():
    s = Sketch()
    s.param("x", np.array([0.1, 0.2, 0.3]))
    s.param("values", np.array([10.0, 20, 30]))
    s.feed("index", [1, 2, 2], "int64")
    s.feed("weights", [1.0, 2.0, 4.0])
    s.total(s.op("mul", s.op("scatter", "x", "index", "values", out="out", overwrite=False), "weights"))

    found = step(s, fetch=["out"])

    close(found.fetched["out"], [0.1, 10, 50])
    close(found.gradients["x"], [1, 0, 0])
    close(found.gradients["values"], [2, 4, 4])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_position_written_256_times_counts_as_written(dtype, overwrite):
    values = np.zeros(256, dtype)

    found = run("scatter", np.ones(2, dtype), np.zeros(256, int), values, overwrite=overwrite)

    assert found.tolist() == [0, 1]


def test_repeated_positions_sum_their_gradients():
    s = Sketch()
    s.param("x", np.arange(3.0))
    s.feed("counts", [2, 0, 3], "int64")
    s.feed("weights", [1.0, 2, 4, 8, 16])
    s.total(s.op("mul", s.op("repeat", "x", "counts"), "weights"))

    close(step(s).gradients["x"], [3, 0, 28])


@pytest.mark.parametrize(
    ("mode", "paddings", "weights", "wanted"),
    [
        ("reflect", (0, 2), [1, 2, 4, 8, 16], [1 + 16, 2 + 8, 4]),
        ("replicate", (2, 1), [1, 2, 4, 8, 16, 32], [1 + 2 + 4, 8, 16 + 32]),
        ("circular", (2, 1), [1, 2, 4, 8, 16, 32], [4 + 32, 1 + 8, 2 + 16]),
    ],
)
def test_the_gradient_of_a_border_is_added_to_the_element_it_copies(mode, paddings, weights, wanted):
    s = Sketch()
    s.param("x", np.arange(3.0))
    s.feed("weights", weights)
    s.total(s.op("mul", s.op("pad", "x", paddings=list(paddings), mode=mode), "weights"))

    close(step(s).gradients["x"], wanted)


# --- positions that do not exist ---------------------------------------------------------------------------------

X = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("at", [-3, 2, 2**40, -(2**63)])
def test_a_position_outside_the_axis_is_an_error_of_the_run(at, unknown):
    index = np.array([0, at])
    for op, inputs in [
        ("gather", (X, index)),
        ("index_select", (X, index)),
        ("scatter", (X, index, X)),
        ("index_add", (X, index, X)),
        ("scatter_add_like", (X, index, X)),
        ("gather_nd", (X[0, :2], index[:, None])),
        ("scatter_nd_add", (X[0, :2], index[:, None], X[0, :2])),
        ("take_along_axis", (X[:, :2], index[:, None])),
        ("put_along_axis", (X[:, :2], index[:, None], X[:, :1])),
    ]:
        assert refused(op, *inputs, unknown=unknown and not op.endswith(("_nd", "_nd_add"))) == "index_out_of_range"
    assert refused("index_put", X, X, index) == "index_out_of_range"


def test_invalid_counts_are_errors_of_the_run():
    assert refused("repeat", X, np.array([1, -1])) == "index_out_of_range"
    assert refused("repeat", X, np.array([1, 1, 1]), unknown=True) == "shape_mismatch"
    assert refused("pad", np.zeros(1), unknown=True, paddings=(1, 1), mode="reflect") == "shape_mismatch"
    assert refused("pad", np.zeros(0), unknown=True, paddings=(1, 1), mode="circular") == "shape_mismatch"


# --- sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "counts"),
    [
        (np.zeros(1), [2**62]),
        (np.zeros(4), [2**62] * 4),  # the sum overflows to 0 in 64 bits
        (np.zeros(2), [2**30 + 1, 2**30]),
        (np.zeros((1, 1000)), [2**22]),
    ],
)
def test_repeats_known_only_in_the_run_are_bounded(x, counts):
    started = time.perf_counter()

    assert refused("repeat", x, np.array(counts)) == "too_large"
    assert time.perf_counter() - started < 10


def test_a_batch_size_known_only_in_the_run_is_bounded():
    b = BlockBuilder()
    x = b.param(TensorType((-1, 0), "float32"))
    block = b.build([b.emit("fill_constant_batch_size_like", x, shape=(-1, 2**20))])

    with pytest.raises(ExecutionError) as error:
        execute(block, [np.zeros((2**20, 0), "float32")])
    assert error.value.code == "too_large"


@pytest.mark.parametrize(
    ("op", "shape", "attrs", "size"),
    [
        ("tile", (1,), {"repeats": (10**12,)}, 8 * 10**12),
        ("repeat", (1,), {"repeats": 10**12}, 8 * 10**12),
        ("expand", (1,), {"shape": (10**12,)}, 8 * 10**12),
        ("pad", (3,), {"paddings": (10**12, 0), "mode": "reflect"}, 8 * (10**12 + 3)),
        ("pad", (3, 0), {"paddings": (10**12, 0, 0, 0), "mode": "circular"}, 8 * (10**12 + 3)),
        ("diag", (1,), {"offset": 10**6}, 8 * (10**6 + 1) ** 2),
        ("unfold", (0, 1, 2 * 10**6, 2 * 10**6), {"kernel": (1, 1), "strides": (2, 2)}, 8 * 10**12),
    ],
)
def test_the_memory_of_an_op_is_known_from_its_types_before_it_runs(op, shape, attrs, size):
    started = time.perf_counter()

    assert largest(op, TensorType(shape, "float64"), **attrs) == size
    assert time.perf_counter() - started < 10


def test_an_empty_array_needs_no_memory_for_its_other_axes():
    long = 10**6

    assert run("tril", np.zeros((0, long, long))).shape == (0, long, long)
    assert run("one_hot", np.zeros(0, int), depth=10**12).shape == (0, 10**12)
    assert run("tile", np.zeros((0, 1)), repeats=(1, 10**12)).shape == (0, 10**12)
    assert run("flip", np.zeros((0, long)), axes=(0, 1)).shape == (0, long)


def test_the_number_of_parts_of_a_split_is_limited():
    with pytest.raises(ProgramError) as error:
        largest("unstack", TensorType((10**12, 0), "float32"))
    assert error.value.code == "bad_attr"
    assert refused("split", np.zeros(0), num=10**12) == "bad_attr"


# --- attributes ------------------------------------------------------------------------------------------------------


def test_a_size_of_minus_one_keeps_the_size_of_the_input_known_or_not():
    column = np.arange(3.0)[:, None]

    for unknown in (False, True):
        np.testing.assert_array_equal(run("expand", column, unknown=unknown, shape=(-1, 2)), column + np.zeros((3, 2)))
    assert refused("expand", column, shape=(-1, 3, 2)) == "bad_attr"
    assert refused("expand", column, shape=(3,)) == "shape_mismatch"


@pytest.mark.parametrize(
    ("op", "attrs", "code"),
    [
        ("tile", {"repeats": (-1,)}, "bad_attr"),
        ("crop", {"offsets": (0, 0), "shape": (-2, 1)}, "bad_attr"),
        ("crop", {"offsets": (1, 0), "shape": (2, 1)}, "shape_mismatch"),
        ("flatten_contiguous_range", {"start_axis": 1, "stop_axis": 0}, "bad_attr"),
        ("roll", {"shifts": (1,), "axes": (0, 1)}, "bad_attr"),
        ("flip", {"axes": (0, 0)}, "bad_attr"),
        ("diagonal", {"axis1": 1, "axis2": -1}, "bad_attr"),
    ],
)
def test_invalid_attributes_are_refused(op, attrs, code):
    assert refused(op, X, **attrs) == code


def test_an_integer_range_needs_integer_bounds():
    assert run("numel", X) == 6
    for attrs in ({"start": 0.5, "end": 3.0}, {"start": 0.0, "end": 2.5, "step": 0.5}):
        b = BlockBuilder()
        with pytest.raises(ProgramError):
            b.emit("range", **attrs, dtype="int64")


def test_unfold_and_fold_are_each_others_transpose():
    r = np.random.default_rng(3)
    window = {"kernel": (2, 3), "strides": (2, 1), "paddings": (1, 2), "dilations": (2, 1)}
    image = r.normal(size=(2, 2, 5, 4))
    columns = run("unfold", image, **window)
    other = r.normal(size=columns.shape)

    folded = run("fold", other, output_size=(5, 4), **window)

    close((columns * other).sum(), (image * folded).sum(), 1e-12)
