"""The examples of all ops, as blocks and arrays, and checks of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

import core.compiler.compile  # noqa: F401  (declares every op)
from core.autodiff.adjoint import vjp
from core.ir import Block, StackType, TensorType
from core.ir.builder import BlockBuilder
from core.ir.registry import REGISTRY, Example, OpSpec, as_tuple

OPS = {name: spec for name, spec in REGISTRY.items() if spec.kind != "control"}

STOPPED = {"batch_norm": {"inputs": (0, 1, 2), "outputs": 1}, "spectral_norm": {"inputs": (0,), "outputs": 1}}
"""Outputs to compare, for ops whose other outputs (running statistics, estimates) have no gradient by definition."""


def leaves(x: Any) -> list[np.ndarray]:
    """The arrays in `x`, including those in nested lists."""
    return [leaf for each in x for leaf in leaves(each)] if isinstance(x, list | tuple) else [np.asarray(x)]


@cache
def examples_of(spec: OpSpec) -> tuple[Example, ...]:
    """The examples of an op. All tests share the arrays, which are read-only."""
    assert spec.example_rule is not None
    examples = tuple(spec.example_rule())
    for array in leaves([(each.inputs, each.outputs) for each in examples]):
        array.setflags(write=False)
    return examples


CASES = [(name, i) for name, spec in sorted(OPS.items()) for i in range(len(examples_of(spec)))]


def type_of(value: Any) -> Any:
    if isinstance(value, list):
        return StackType(type_of(value[0]))
    array = np.asarray(value)
    return TensorType(array.shape, str(array.dtype))


def block_for(spec: OpSpec, example: Example, types: Sequence[Any] | None = None) -> Block:
    """A block of this one op. Its parameters are the inputs of the example."""
    b = BlockBuilder()
    values = [b.param(t) for t in (types or [type_of(x) for x in example.inputs])]
    return b.build(as_tuple(b.emit(spec.name, *values, **example.attrs)))


def unstacked(spec: OpSpec, example: Example) -> Block:
    """A block of this one op whose parameters are the arrays in the inputs of the example; ops build the lists."""
    b = BlockBuilder()

    def value(x: Any) -> Any:
        if not isinstance(x, list):
            return b.param(type_of(x))
        found = leaves(x)
        sizes = zip(*map(np.shape, found), strict=True)
        shape = tuple(each[0] if len(set(each)) == 1 else -1 for each in sizes)
        array = b.emit("create_array", shape=shape, dtype=str(found[0].dtype))
        for i, leaf in enumerate(found):
            array = b.emit("array_write", b.param(type_of(leaf)), b.constant(i, "int64"), array)
        if not isinstance(x[0], list):
            return array
        assert [len(each) for each in x] == [1, 2]
        return b.emit("array_chunks", array)

    return b.build(as_tuple(b.emit(spec.name, *map(value, example.inputs), **example.attrs)))


def arrays(example: Example) -> list[Any]:
    return [x if isinstance(x, list) else np.asarray(x) for x in example.inputs]


def floats(values: Sequence[Any]) -> list[int]:
    return [i for i, x in enumerate(values) if not isinstance(x, list) and np.asarray(x).dtype.kind == "f"]


def scalar(block: Block, sizes: dict[str, Any] | None = None) -> Block:
    """A block that returns one number: the sum of its floating-point results, weighted by fixed random numbers.

    sizes: result -> shapes of its elements, if it is a stack. Without it only the first element counts.
    """
    b = BlockBuilder.like(block)
    total = b.constant(0.0, "float64")
    for i, name in enumerate(dict.fromkeys(block.results)):
        value = b.value(name)
        if value.type.is_float:
            for k, each in enumerate(_elements(value, sizes[name] if sizes else 1)):
                weights = b.emit("uniform_random_like", each, seed=17 + i + 100 * k) + 0.5
                total = total + b.emit("reduce_sum", b.emit("cast", each * weights, dtype="float64"))
    return b.build([total])


def _elements(value: Any, sizes: Any) -> list[Any]:
    """The arrays in a result. For a stack, one per entry of `sizes`, and None for a missing element."""
    b = value.builder
    if not isinstance(value.type, StackType):
        return [value]
    while isinstance(value.type.element, StackType):
        value = b.emit("array_flatten", value)
    if isinstance(sizes, int):
        return [b.emit("array_read", value, b.constant(i, "int64")) for i in range(sizes)]
    return [
        b.emit("array_take", value, b.constant(i, "int64"), b.constant(0.0, value.type.element.dtype, shape))
        for i, shape in enumerate(sizes)
        if shape is not None
    ]


def gradient(block: Block, wrt: Sequence[str]) -> Block:
    """The block that returns the gradients of a scalar block."""
    pulled = vjp(block, wrt)
    b = BlockBuilder()
    params = [b.param(block.types[p], p) for p in block.params]
    outs = b.inline(pulled, [*params, b.constant(1.0, "float64")])
    return b.build(outs[1:])


def flattened(value: Any) -> list[Any]:
    return [each for inner in value for each in flattened(inner)] if isinstance(value, list) else [value]


def shortened(x: Any) -> Any:
    if isinstance(x, list):
        return [shortened(each) for each in x]
    return x.astype("float32") if x.dtype == "float64" else x
