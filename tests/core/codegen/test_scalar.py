"""Tracing an elementwise kernel: untranslated functions fall back with their name, defects of the kernel raise."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.codegen.functions import NotTraceable
from core.codegen.llvm import Function
from core.codegen.scalar import _refusal, apply, refusal
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import InternalError, ProgramError
from core.ir.registry import REGISTRY, Family, op
from core.runtime.native import native_interpreter
from core.runtime.run import Run

FAMILY = Family("tests", "Ops of tests")


@pytest.fixture
def declare():
    """Declares an elementwise op `traced` with the given kernel, for one test."""

    def declared(kernel):
        def traced(xp, x):
            return kernel(xp, x)

        traced.__doc__ = "A kernel of this test."
        declaration = op(elementwise=True)(traced)
        declaration.infer(lambda x: x)
        _refusal.cache_clear()
        return declaration

    yield declared
    REGISTRY.pop("traced", None)
    _refusal.cache_clear()


def traced(dtype="float64"):
    f = Function("f", [("x", dtype)])
    return apply(f, "traced", {}, [f.param("x")])


def step():
    b = BlockBuilder()
    x = b.param(TensorType((3,), "float64"), "x")
    return optimize(b.build([b.emit("traced", x)]))


DEFECTS = {
    "a function that numpy lacks": lambda xp, x: xp.sinus(x),
    "an attribute that arrays lack": lambda xp, x: x.shepe,
    "too many arguments": lambda xp, x: xp.add(x, x, x),
    "a number that is missing": lambda xp, x: xp.add(x, None),
    "a key that is missing": lambda xp, x: {}["x"],
}


@pytest.mark.parametrize("name", list(DEFECTS))
def test_a_defect_of_a_kernel_is_an_error_and_not_a_slow_step(declare, name):
    declare(DEFECTS[name])

    with pytest.raises(InternalError, match="the kernel of traced fails when it is traced on float64: "):
        native_interpreter(step(), CPU)


UNTRANSLATED = {
    "numpy.nextafter": lambda xp, x: xp.nextafter(x, x),
    "numpy.pi": lambda xp, x: x * xp.pi,
    "the operator //": lambda xp, x: x // 2,
    "the operator **": lambda xp, x: 2**x,
    "the operator []": lambda xp, x: x[0],
    "the ufunc cbrt": lambda xp, x: np.cbrt(x),
    "numpy.clip": lambda xp, x: np.clip(x, 0, 1),
    "a conversion to an array": lambda xp, x: np.asarray(x),
    "the array attribute 'reshape'": lambda xp, x: x.reshape(-1),
    "a decision by the value of an element": lambda xp, x: x if x > 0 else -x,
    "numpy.add with out": lambda xp, x: xp.add(x, x, out=None),
    "a result of type float": lambda xp, x: 1.0,
}


@pytest.mark.parametrize("name", list(UNTRANSLATED))
def test_an_untranslated_function_is_refused_by_its_name(declare, name):
    declare(UNTRANSLATED[name])

    with pytest.raises(NotTraceable) as caught:
        traced()
    assert str(caught.value).startswith(name)


def test_an_op_with_an_untranslated_function_is_interpreted_and_the_plan_names_the_function(declare):
    declare(lambda xp, x: xp.nextafter(x, x))

    plan = native_interpreter(step(), CPU)

    (interpreted,) = plan.region.plan.interpreted
    assert interpreted.reason == "traced of float64 has no machine code: no translation of numpy.nextafter"
    np.testing.assert_allclose(plan(Run(), np.array([3.0, -1.0, 0.0]))[0], [3.0, -1.0, 0.0])


def test_a_numpy_scalar_times_an_element_is_a_product(declare):
    declare(lambda xp, x: np.float64(2.5) * x)

    plan = native_interpreter(step(), CPU)

    assert not plan.region.plan.interpreted
    np.testing.assert_array_equal(plan(Run(), np.array([1.0, -2.0, 0.5]))[0], [2.5, -5.0, 1.25])


@pytest.mark.parametrize(
    ("dtype", "kernel"),
    [
        ("int64", lambda xp, x: x * 0.5 > 0.2),
        ("int8", lambda xp, x: x > 200),
        ("bool", lambda xp, x: xp.where(x, 2.0, 0.5) > 1),
    ],
)
def test_a_number_that_the_dtype_of_the_elements_cannot_hold_is_refused(declare, dtype, kernel):
    """0.5 in int64 is 0, and the comparison would be wrong without an error."""
    declare(kernel)

    with pytest.raises(NotTraceable, match=dtype):
        traced(dtype)


def test_a_dtype_without_machine_code_is_named():
    assert refusal("add", {}, ["complex64", "complex64"], "complex64") == "no machine code for complex64"


def test_every_kernel_in_the_catalogue_is_traced_or_refused_by_name():
    """No declared kernel fails when it is traced on a dtype that the op takes."""
    tried = 0
    for name, spec in REGISTRY.items():
        if not spec.elementwise or spec.kind != "primitive":
            continue
        defaults = {a.name: a.default for a in spec.attrs if a.default is not inspect.Parameter.empty}
        if len(defaults) < len(spec.attrs):
            continue
        for dtype in ("bool", "int32", "int64", "float32", "float64"):
            try:
                out = spec.infer_rule(*[TensorType((2,), dtype)] * len(spec.inputs), **defaults)
            except ProgramError:
                continue
            refusal(name, defaults, [dtype] * len(spec.inputs), out.dtype)
            tried += 1
    assert tried > 200
