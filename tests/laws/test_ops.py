"""Laws that hold for every op. A new op is covered as soon as it is declared."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import core.compiler.compile  # noqa: F401  (declares every op)
from core.autodiff.adjoint import Adjoint
from core.compiler.compile import optimize
from core.ir import Block, StackType, TensorType
from core.ir.builder import output_types
from core.ir.errors import CoreError, ProgramError
from core.ir.registry import REGISTRY, Example, OpSpec
from core.ops.common.types import matches
from core.runtime.reference import execute
from tests.bound import bound
from tests.laws.examples import (
    CASES,
    OPS,
    STOPPED,
    arrays,
    block_for,
    examples_of,
    flattened,
    floats,
    gradient,
    leaves,
    scalar,
    shortened,
    type_of,
    unstacked,
)


def differences(f: Callable[..., Any], args: list[Any], at: int, step: float = 1e-6) -> np.ndarray:
    """d f / d args[at] by central differences, element by element."""
    out = np.zeros(args[at].shape)
    for index in np.ndindex(args[at].shape):
        moved = [a.copy() for a in args]
        moved[at][index] += step
        up = f(*moved)
        moved[at][index] -= 2 * step
        out[index] = (up - f(*moved)) / (2 * step)
    return out


@pytest.mark.parametrize("spec", [s for s in REGISTRY.values() if s.no_gradient], ids=lambda s: s.name)
def test_the_gradient_of_a_result_goes_no_further_where_it_ends(spec):
    """Also if the gradients of an operand and of the result are both wanted."""
    for example in examples_of(spec):
        block = block_for(spec, example)
        outs = [n for n in block.results if isinstance(block.types[n], TensorType) and block.types[n].is_float]
        params = [n for n in block.params if isinstance(block.types[n], TensorType) and block.types[n].is_float]
        adjoint = Adjoint(block)

        found = adjoint.run([(name, adjoint.ones(name)) for name in outs], [*params, *outs])

        assert found.keys() == set(outs) - set(params)


def check_gradient(block: Block, args: list[Any], tolerance: float, inputs: list[int] | None = None) -> Block:
    """Compare the gradient of a scalar block with finite differences. Returns the gradient block."""
    at = floats(args) if inputs is None else inputs
    grad, found = gradient_of(block, args, at)
    call = bound(block)
    for i, value in zip(at, found, strict=True):
        wanted = differences(lambda *a: float(call(*a)[0]), args, i)
        np.testing.assert_allclose(value, wanted, rtol=tolerance, atol=tolerance, err_msg=block.params[i])
    return grad


def check_slopes(block: Block, args: list[Any], tolerance: float, inputs: list[int] | None = None) -> None:
    """Compare slopes of a scalar block by its gradient and by differences, in two random directions for each input."""
    at = floats(args) if inputs is None else inputs
    _, found = gradient_of(block, args, at)
    call = bound(block)
    r = np.random.default_rng(5)
    for i, value in zip(at, found, strict=True):
        for _ in range(2):
            way = r.uniform(0.5, 1.0, args[i].shape) * r.choice([-1.0, 1.0], args[i].shape)
            up, down = (float(call(*args[:i], args[i] + h * way, *args[i + 1 :])[0]) for h in (1e-6, -1e-6))
            slope = float(np.sum(value * way))
            np.testing.assert_allclose(
                slope, (up - down) / 2e-6, rtol=tolerance, atol=tolerance, err_msg=block.params[i]
            )


def gradient_of(block: Block, args: list[Any], inputs: list[int]) -> tuple[Block, Any]:
    """The gradient block of a scalar block, and its results."""
    grad = gradient(block, [block.params[i] for i in inputs])
    return grad, execute(optimize(grad), args)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_op_is_documented_and_declares_its_gradient(name):
    spec = REGISTRY[name]

    assert len(spec.doc) > 10
    assert spec.kind == "control" or len(examples_of(spec)) >= 1
    declared = [
        spec.vjp_rule is not None or spec.adjoint_rule is not None,
        bool(spec.no_gradient),
        bool(spec.unavailable),
    ]
    assert sum(declared) == 1 or (spec.kind == "composite" and sum(declared) == 0)


def same_values(value: Any, wanted: Any) -> None:
    if isinstance(value, list):
        for a, b in zip(value, wanted, strict=True):
            same_values(a, b)
        return
    np.testing.assert_allclose(value, wanted, rtol=1e-12, atol=1e-14)
    assert np.shape(value) == np.shape(wanted)


@pytest.mark.parametrize(("name", "i"), CASES)
def test_every_example_gives_the_expected_values_of_the_inferred_types(name, i):
    spec, example = OPS[name], examples_of(OPS[name])[i]
    block = block_for(spec, example)

    for each in (block, optimize(block)):
        results = execute(each, arrays(example))
        for value, type in zip(results, each.result_types, strict=True):
            assert isinstance(value, list) or matches(type_of(value), type)
        for value, wanted in zip(results, example.outputs, strict=False):
            same_values(value, wanted)


SMOOTH = [
    (name, i)
    for name, i in CASES
    if OPS[name].differentiable
    and examples_of(OPS[name])[i].smooth  # elsewhere finite differences do not give the gradient
    and floats(leaves(examples_of(OPS[name])[i].inputs))
]


def differentiable(name: str, i: int) -> tuple[Block, list[Any], list[int]]:
    """A scalar block of an example's results that have a gradient, its arguments, and the positions of the inputs."""
    spec, example = OPS[name], examples_of(OPS[name])[i]
    args = leaves(example.inputs)
    block = unstacked(spec, example)
    wrt = floats(args)
    if name in STOPPED:
        block = replace(block, results=block.results[: STOPPED[name]["outputs"]])
        wrt = list(STOPPED[name]["inputs"])

    found = execute(block, args)
    shapes = {
        n: [None if e is None else e.shape for e in flattened(v)] for n, v in zip(block.results, found, strict=True)
    }
    return scalar(block, shapes), args, wrt


@pytest.mark.sampled(3, each="name")
@pytest.mark.parametrize(("name", "i"), SMOOTH)
def test_first_and_second_gradients_agree_with_finite_differences(name, i):
    block, args, wrt = differentiable(name, i)

    first = check_gradient(block, args, 2e-6, wrt)
    check_slopes(scalar(first), args, 2e-5, wrt)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "i"), SMOOTH)
def test_each_element_of_a_second_gradient_agrees_with_finite_differences(name, i):
    block, args, wrt = differentiable(name, i)

    check_gradient(scalar(gradient(block, [block.params[k] for k in wrt])), args, 2e-5, wrt)


ELEMENTWISE = [
    name
    for name, spec in sorted(OPS.items())
    if spec.elementwise and spec.differentiable and floats(examples_of(spec)[0].inputs)
]
SHAPES = [((2, 3), (3,)), ((), (2,)), ((0, 3), (1, 3)), ((), ()), ((3, 1), (1, 4))]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_gradients_on_broadcast_empty_and_0d_shapes_equal_finite_differences(name, shapes):
    spec, example = OPS[name], examples_of(OPS[name])[0]
    if not example.smooth:
        pytest.skip("finite differences do not give the gradient here")
    r = np.random.default_rng(sum(map(ord, name)))
    args = []
    for i, x in enumerate(example.inputs):
        shape = shapes[i % 2]
        kind = np.asarray(x).dtype.kind
        value = r.uniform(
            *(np.min(x), np.max(x)) if kind == "f" else (-1.7, 1.9), shape
        )  # stay inside the domain of the example
        args.append(value if kind == "f" else (value > 0) if kind == "b" else value.astype("int64"))

    first = check_gradient(scalar(block_for(spec, replace(example, inputs=tuple(args)))), args, 2e-6)
    check_gradient(scalar(first), args, 2e-5)


def shape_of(x: Any) -> Any:
    return tuple(map(shape_of, x)) if isinstance(x, list) else np.shape(x)


@pytest.mark.parametrize("name", [name for name, spec in sorted(OPS.items()) if spec.differentiable])
def test_every_gradient_is_checked_on_at_least_three_shapes(name):
    """Examples whose gradient equals finite differences; for elementwise ops the shapes of the test above count too."""
    shapes = {shape_of(list(e.inputs)) for e in examples_of(OPS[name]) if e.smooth}
    if name in ELEMENTWISE and examples_of(OPS[name])[0].smooth:
        shapes.update(SHAPES)

    assert len(shapes) >= 3


@pytest.mark.sampled(4, each="name")
@pytest.mark.parametrize(("name", "i"), CASES)
def test_float32_is_kept_and_close_to_float64(name, i):
    spec, example = OPS[name], examples_of(OPS[name])[i]
    attrs = {k: "float32" if k == "dtype" and v == "float64" else v for k, v in example.attrs.items()}
    short = [shortened(x) for x in arrays(example)]
    block = block_for(spec, Example(tuple(short), (), attrs))

    for value, wanted, type in zip(
        execute(optimize(block), short),
        execute(block_for(spec, example), arrays(example)),
        block.result_types,
        strict=True,
    ):
        if isinstance(value, list):
            continue
        assert str(np.asarray(value).dtype) == type.dtype
        if np.asarray(value).dtype == np.float32 and np.asarray(wanted).dtype == np.float64:
            np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.sampled(4, each="name")
@pytest.mark.parametrize(("name", "i"), CASES)
def test_unknown_sizes_infer_a_true_type_and_give_the_same_gradient(name, i):
    spec, example = OPS[name], examples_of(OPS[name])[i]
    args = arrays(example)
    if any(isinstance(x, list) for x in args):
        pytest.skip("a stack has no sizes")
    real = block_for(spec, example)
    unknown = [replace(type_of(x), shape=(-1,) * np.ndim(x)) for x in args]
    wrt = [real.params[k] for k in floats(args)]
    try:
        block = block_for(spec, example, unknown)
        for found, known in zip(block.result_types, real.result_types, strict=True):
            assert matches(known, found)
        if not wrt or not spec.differentiable:
            return
        grad = gradient(scalar(block), wrt)
    except ProgramError as error:
        assert "known" in error.message or "sizes" in error.message
        return
    for value, wanted in zip(
        execute(grad, args),
        execute(gradient(scalar(real), [real.params[k] for k in floats(args)]), args),
        strict=True,
    ):
        np.testing.assert_allclose(value, wanted, rtol=1e-12, atol=1e-12)


def changed(type: Any, **how: Any) -> Any:
    """`type` with other sizes or another dtype; a stack stays a stack."""
    if isinstance(type, StackType):
        return StackType(changed(type.element, **how))
    return replace(type, **{k: v(type.shape) if callable(v) else v for k, v in how.items()})


WRONG: list[tuple[str, Callable[[list[Any]], list[Any]]]] = [
    ("a bool", lambda ts: [changed(t, dtype="bool") for t in ts]),
    ("an int8", lambda ts: [changed(t, dtype="int8") for t in ts]),
    ("mixed dtypes", lambda ts: [changed(t, dtype=d) for t, d in zip(ts, ("float32", "int64") * 9, strict=False)]),
    ("one axis more", lambda ts: [changed(t, shape=lambda s: (7, *s)) for t in ts]),
    ("one axis less", lambda ts: [changed(t, shape=lambda s: s[1:]) for t in ts]),
    (
        "primes",
        lambda ts: [
            changed(t, shape=lambda s, i=i: (5, 7, 11, 13)[: len(s)][:: 1 - 2 * (i % 2)]) for i, t in enumerate(ts)
        ],
    ),
    ("stacks", lambda ts: [StackType(t) for t in ts]),
    ("empty", lambda ts: [changed(t, shape=lambda s: (0,) * len(s)) for t in ts]),
    ("no input", lambda ts: []),
    ("one input too many", lambda ts: [*ts, *ts, *ts]),
]


@pytest.mark.parametrize("name", sorted(OPS))
def test_changed_types_are_refused_or_inferred_correctly(name):
    spec = OPS[name]
    for what, change in WRONG:
        for i, example in enumerate(examples_of(spec)[:2]):
            try:
                refused_or_right(spec, example, tuple(change([type_of(x) for x in example.inputs])))
            except Exception as error:
                error.add_note(f"of example {i} with {what}")
                raise


def refused_or_right(spec: OpSpec, example: Example, types: tuple[Any, ...]) -> None:
    missing = (None,) * (len([s for s in spec.inputs if not s.variadic]) - len(types))
    try:
        attrs = spec.complete(example.attrs)
        block = block_for(spec, example, types) if types else None
        output_types(spec, (*types, *missing), attrs)
    except ProgramError as error:
        assert error.code and error.message
        return
    if block is None or any(isinstance(t, StackType) for t in types):
        return
    try:
        results = execute(block, [np.ones(t.shape, dtype=t.dtype) for t in types])
    except CoreError:
        return
    for value, type in zip(results, block.result_types, strict=True):
        assert isinstance(value, list) or matches(type_of(value), type)


def plain_types(annotation: Any) -> set[Any]:
    """The types of the values of an attribute, without their ranges; of a list the type of the list."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return plain_types(args[0])
    return set().union(*map(plain_types, args)) if origin in (typing.Union, types.UnionType) else {annotation}


@pytest.mark.parametrize("name", sorted(OPS))
def test_wrong_attributes_are_refused(name):
    spec = OPS[name]
    given = examples_of(spec)[0].attrs
    with pytest.raises(ProgramError) as error:
        spec.complete({**given, "no_such_attribute": 1})
    assert error.value.code == "bad_attr"
    for attr in spec.attrs:
        plain = plain_types(attr.type)
        for wrong in ({"a": 1}, [[1]], "nonsense", 2**70, math.nan):
            if str in plain or (wrong == 2**70 and float in plain):
                continue
            with pytest.raises(ProgramError) as error:
                spec.complete({**given, attr.name: wrong})
            assert error.value.code == "bad_attr"
