"""Sizes that only the run tells, on a GPU: one plan for the largest size computes what each length asks for."""

from __future__ import annotations

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.device.gpu import DEVICE_TARGET
from core.ir import TensorType
from core.ir.errors import ExecutionError
from core.plan.partition import plan_parts
from core.runtime.native import native_interpreter
from core.runtime.reference import NATIVE, interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.core.plan import test_nested_sizes as nested
from tests.core.plan import test_open_axes as axes
from tests.core.plan.test_sizes import PROGRAMS, block_of, masks, mined, sketch
from tests.device.driver import EmulatedDriver
from tests.device.emulator import EmulatedBackend, compiler
from tests.device.test_region import backend_of
from tests.laws.agreement import same

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

ROWS = (1, 40, 300)
"""The last one is more than a block of a product."""


def gradient(s):
    return compile_gradient(read(s.document), GradientQuery(loss="loss"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_step_on_chosen_rows_is_one_region_and_equals_the_reference_executor(program, rows):
    executable = gradient(sketch(program, rows, np.ones(rows, bool)))
    block = executable.interpreter.block
    assert not plan_parts(block, DEVICE_TARGET).refused
    native = native_interpreter(block, backend_of(EmulatedDriver()))
    assert [call.op.type for call in native.calls] == [NATIVE]
    for mask in masks(rows, np.random.default_rng(rows)):
        values = sketch(program, rows, mask).values
        args = [values[v.name] for v in executable.inputs]
        try:
            wanted = interpreter_of(block)(Run(), *args)
        except ExecutionError as refused:
            with pytest.raises(ExecutionError) as caught:
                native(Run(), *args)
            assert caught.value.code == refused.code
            continue
        for _ in range(2):
            for found, want in zip(native(Run(), *args), wanted, strict=True):
                same(found, want)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_threads_on_chosen_rows_never_race(program):
    executable = gradient(sketch(program, 40, np.arange(40) % 3 == 0))
    values = sketch(program, 40, np.arange(40) % 3 == 0).values
    native = native_interpreter(executable.interpreter.block, EmulatedBackend())

    native(Run(), *[values[v.name] for v in executable.inputs])


def test_code_does_not_depend_on_what_an_array_holds_beyond_its_length():
    """The second run finds the rows of the first one in its arena."""
    s = sketch(mined, 40, np.ones(40, bool))
    compiled = gradient(s).on(backend_of(EmulatedDriver())).compiled()
    compiled.step(s.values | {"x": np.full((40, 4), np.nan)})
    values = s.values | {"mask": np.arange(40) == 7}

    found = compiled.step(values)

    for name, wanted in gradient(s).step(values).gradients.items():
        np.testing.assert_allclose(found.gradients[name], wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(7,), (3, 5), (1,)])
def test_a_result_of_an_open_size_has_its_length(shape):
    block = block_of("nonzero", TensorType(shape, "float32"))
    native = native_interpreter(block, backend_of(EmulatedDriver()))
    for density in (0.5, 0.0, 1.0):
        x = (np.random.default_rng(0).random(shape) < density).astype("float32")

        (found,) = native(Run(), x)

        same(found, np.argwhere(x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "case", [axes.whole_numbers, axes.copies, axes.cuts, axes.transforms("float64")], ids=lambda case: case.__name__
)
def test_a_step_on_feeds_of_open_sizes_is_one_region_and_equals_the_reference_executor(case):
    parts = axes.assert_equal_for_sizes(case, backend_of(EmulatedDriver()))

    assert not parts.refused
    assert len(parts.regions) == 1


def test_linear_algebra_of_open_batches_equals_the_reference_executor():
    """Some of the ops have no code for this target."""
    axes.assert_equal_for_sizes(axes.matrices("float64"), backend_of(EmulatedDriver()))


@pytest.mark.parametrize("write", nested.PROGRAMS, ids=lambda each: each.__name__)
def test_loops_and_branches_with_open_sizes_equal_the_reference_executor(write):
    """The reference executor runs a loop in which two open sizes meet: this target cannot compare them."""
    executable, s = nested.compiled(write, 3, True, 1)
    block, given = executable.interpreter.block, [np.asarray(s.values[v.name]) for v in executable.inputs]

    assert write is not nested.recording or not plan_parts(block, DEVICE_TARGET).refused
    found = native_interpreter(block, backend_of(EmulatedDriver(watches=True)))(Run(), *given)
    for one, want in zip(found, interpreter_of(block)(Run(), *given), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-9, atol=1e-12)
