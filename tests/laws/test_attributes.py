"""Every attribute at its extremes gives a result, or a problem with a place: never another exception.

A case starts from the examples of an op and replaces one attribute by 0, -0.0, the smallest and the largest number, an
empty list, a list of 9, and so on. The fast law reads and infers; the slow ones differentiate, run and compile.
"""

from __future__ import annotations

import copy
import math
import signal
import tracemalloc
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.autodiff.hooks import ACTIONS, Hook
from core.codegen.backend import CPU
from core.compiler.compile import Clip, GradientQuery, Optimizer, compile_gradient, compile_training, optimize
from core.ir import Block, StackType, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import CoreError, ExecutionError, Location
from core.ir.members import members_of
from core.ir.registry import CONSTRUCTS, REGISTRY, Example, OpSpec, as_tuple
from core.ops.common.types import byte_size, element_of, matches
from core.optim.clipping import CLIPPINGS
from core.optim.initializers import INITIALIZERS, initial_parameters
from core.passes.expand import expand_composites
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run, RunLimits
from core.wire import read
from core.wire.samples import SAMPLES
from tests.laws.agreement import in_dtype
from tests.laws.examples import OPS, arrays, examples_of, floats, type_of

HERE = Location(0, 0, "the op")
INTS = (0, 1, -1, 2, 3, 7, 64, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63), 2**63)
FLOATS = (0.0, -0.0, 5e-324, -5e-324, -1.0, 0.5, 1.0, 2.0**31, 2.0**63, 1e308, -1e308, math.inf, -math.inf, math.nan)
TEXTS = ("", "a" * 5000, "...", "\x00", "->", "ii->", "ij,jk->ik", "\u00e9")
LISTS = ((), (1,) * 9, (0,) * 9, (1,) * 65)
LARGE = 2**26
"""Largest bytes of an array that a case runs with: the service refuses larger ones by its settings."""


def extremes(annotation: Any, given: Any) -> Iterator[Any]:
    """Values at and outside of the edges of an attribute. given: the value in the example, or the default."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from extremes(args[0], given)
    elif origin in (typing.Union, types.UnionType):
        yield None
        for each in args:
            if each is not type(None):
                yield from extremes(each, given)
    elif origin is typing.Literal:
        yield from args
    elif origin is tuple:
        yield from LISTS
        length = len(given) if isinstance(given, tuple | list) else 1
        for value in extremes(args[0], None):
            yield (value,) * max(length, 1)
            yield (value, *given[1:]) if length > 1 else (value, value)
    else:
        yield from {int: INTS, float: FLOATS, bool: (True, False), str: TEXTS}.get(annotation, ())


def cases(spec: OpSpec, example: Example) -> Iterator[tuple[str, Example]]:
    """The example with one attribute at an extreme, and its words."""
    for attr in spec.attrs:
        given = example.attrs.get(attr.name, None if attr.required else attr.default)
        for value in extremes(attr.type, given):
            words = f"{spec.name}: {attr.name} = {str(value)[:60]}"
            yield words, replace(example, attrs={**example.attrs, attr.name: value})


def placed(spec: OpSpec, example: Example) -> Block | None:
    """The block of this one op; None if it is refused, at its place and in a few words."""
    b = BlockBuilder()
    values = [None if x is None else b.param(type_of(x)) for x in example.inputs]
    try:
        with b.at(HERE):
            return b.build(as_tuple(b.emit(spec.name, *values, **example.attrs)))
    except CoreError as error:
        check(error)
        return None


def check(error: CoreError) -> None:
    for problem in error.problems:
        assert problem.pointer and problem.code
        assert 0 < len(problem.message) < 1500, problem.message[:200]


@contextmanager
def named(words: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(words)
        raise


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_extreme_of_an_attribute_gives_types_or_a_problem_with_a_place(name):
    spec = OPS[name]
    for words, example in cases(spec, examples_of(spec)[0]):
        with named(words):
            placed(spec, example)


WIRE = {name: spec for name, spec in (REGISTRY | CONSTRUCTS).items() if name in SAMPLES}


@pytest.mark.parametrize("name", sorted(WIRE))
def test_every_extreme_of_a_construct_is_read_or_reported_with_a_place(name):
    for attr in WIRE[name].attrs:
        plain = [*INTS, *FLOATS, *TEXTS, *LISTS, None, True, [["x"]], ["x", "x"], [-1], [2**63], {}, [None]]
        for value in plain:
            document = copy.deepcopy(SAMPLES[name].document)
            (op,) = (op for block in document["blocks"] for op in block["ops"] if op["type"] == name)
            op.setdefault("attrs", {})[attr.name] = value
            with named(f"{name}: {attr.name} = {str(value)[:60]}"):
                try:
                    program = read(document)
                    compile_gradient(program, GradientQuery(loss="loss"))
                except CoreError as error:
                    check(error)


# --- settings that are no attributes of ops --------------------------------------------------------------------


def settings(kinds: Any, examples: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each kind with one of its members at an extreme."""
    for name, kind in kinds.items():
        for member in members_of(kind):
            for value in extremes(member.type, None):
                yield name, {**examples.get(name, {}), member.name: value}


SQUARES = {
    "blocks": [
        {
            "idx": 0,
            "parent_idx": -1,
            "vars": [{"name": "w", "dtype": "float32", "shape": [3], "role": "parameter"}],
            "ops": [
                {"type": "square", "inputs": {"x": ["w"]}, "outputs": {"out": ["s"]}},
                {"type": "reduce_sum", "inputs": {"x": ["s"]}, "outputs": {"out": ["loss"]}},
            ],
        }
    ]
}
W = {"w": np.array([1.0, -2.0, 3.0], "float32")}


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_every_extreme_of_a_hook_gives_a_gradient_or_a_problem(action):
    program, own = read(SQUARES), {"clip_norm": {"max_norm": 1.0}, "scale": {"factor": 1.0}, "clip_value": {"max": 1.0}}
    for name, members in settings({action: ACTIONS[action]}, own):
        with named(f"{name}: {members}"):
            try:
                hook = Hook.read({"match": {"variable": "s"}, "do": name, **members})
                step = compile_gradient(program, GradientQuery(loss="loss", hooks=(hook,))).step(W)
            except CoreError as error:
                assert error.code and len(error.message) < 500
                continue
            assert step.gradients["w"].shape == (3,)


@pytest.mark.parametrize("by", sorted(CLIPPINGS))
def test_every_extreme_of_a_clip_gives_an_update_or_a_problem(by):
    program, own = read(SQUARES), {"value": {"max": 1.0}, "norm": {"max_norm": 1.0}, "global_norm": {"max_norm": 1.0}}
    for name, members in settings({by: CLIPPINGS[by]}, own):
        with named(f"{name}: {members}"):
            try:
                clip = Clip.read({"by": name, **members})
                step = compile_training(program, GradientQuery(loss="loss"), Optimizer("sgd"), clip=clip).step(W)
            except CoreError as error:
                assert error.code and len(error.message) < 500
                continue
            assert step.parameters["w"].shape == (3,)


@pytest.mark.parametrize("kind", sorted(INITIALIZERS))
def test_every_extreme_of_an_initializer_gives_values_or_a_problem(kind):
    variables = read(SQUARES).parameters
    for attr in INITIALIZERS[kind]:
        for value in (*FLOATS, *INTS, "x", None, [], True):
            with named(f"{kind}: {attr} = {value}"):
                try:
                    found = initial_parameters(variables, {"w": {"type": kind, attr: value}})
                except CoreError as error:
                    assert error.code and len(error.message) < 500
                    continue
                assert found["w"].shape == (3,) and np.isfinite(found["w"]).all()


# --- gradients, runs and machine code --------------------------------------------------------------------------


def fits(block: Block) -> bool:
    """Whether all sizes that types state stay within LARGE, also where a size of 0 makes an array empty."""

    def bytes_of(type: Any) -> int:
        each = element_of(type)
        return byte_size(TensorType(tuple(n or 1 for n in each.shape), each.dtype))

    return all(bytes_of(type) <= LARGE for type in block.types.values())


def with_gradient(spec: OpSpec, block: Block, values: list[Any]) -> Iterator[tuple[Block, list[Any]]]:
    """The block with its arguments, and its pullback with cotangents of ones."""
    yield block, values
    wrt = [block.params[i] for i in floats(values)]
    results = block.result_types
    if not spec.differentiable or not wrt or any(isinstance(t, StackType) for t in results):
        return
    if not any(t.is_float for t in results):
        return
    try:
        pulled = vjp(block, wrt)
    except CoreError as error:
        assert error.code
        return
    if fits(block):
        sizes = [(tuple(1 if n == -1 else n for n in t.shape), t.dtype) for t in results if t.is_float]
        yield pulled, [*values, *(np.ones(shape, dtype) for shape, dtype in sizes)]


def run(block: Block, values: list[Any]) -> None:
    for each in (expand_composites(block), optimize(block)):
        if not fits(each):
            continue
        interpreter = interpreter_of(each)
        with np.errstate(all="ignore"):
            try:
                found = interpreter(Run(np, RunLimits(max_bytes=LARGE)), *values)
            except ExecutionError as error:
                assert error.code != "out_of_memory" and len(error.message) < 1500
                continue
        for value, type in zip(found, each.result_types, strict=True):
            assert isinstance(value, list) or matches(type_of(value), type), (type_of(value), type)


@contextmanager
def within(seconds: int, bytes: int) -> Iterator[None]:
    """Fail if the `with` statement takes more time or memory."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= bytes
    finally:
        tracemalloc.stop()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "i"), [(name, i) for name in sorted(OPS) for i in range(len(examples_of(OPS[name])[:2]))]
)
def test_every_extreme_of_an_attribute_gives_results_of_the_inferred_types_or_an_error(name, i):
    spec = OPS[name]
    for words, example in cases(spec, examples_of(spec)[i]):
        with named(words), within(60, 12 * LARGE):
            block = placed(spec, example)
            if block is not None:
                for each, values in with_gradient(spec, block, arrays(example)):
                    run(each, values)


def compiled(name: str) -> None:
    """Compile the pullback of each case, else the op, in float32 where it has floats, and run it."""
    spec = OPS[name]
    for words, example in cases(spec, in_dtype(name, 0, "float32") or examples_of(spec)[0]):
        with named(words):
            block = placed(spec, example)
            if block is None:
                continue
            *_, (last, values) = with_gradient(spec, block, arrays(example))
            last = optimize(last)
            if not fits(last):
                continue
            try:
                with np.errstate(all="ignore"):
                    found = native_interpreter(last, CPU)(Run(np, RunLimits(max_bytes=LARGE)), *values)
            except ExecutionError as error:
                assert error.code != "out_of_memory"
                continue
            for value, type in zip(found, last.result_types, strict=True):
                assert isinstance(value, list) or matches(type_of(value), type)


SAMPLED = ("leaky_relu", "scale", "sgd")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SAMPLED else [pytest.mark.slow]) for name in sorted(OPS)]
)
def test_machine_code_of_every_extreme_gives_results_of_the_inferred_types_or_an_error(name):
    compiled(name)
