"""One sample in Backpass and PyTorch: results, cotangents of the inputs, and cotangents of second order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.ir import Block, StackType, TensorType
from core.ir.builder import BlockBuilder
from core.ir.registry import REGISTRY, OpSpec, as_tuple
from core.runtime.reference import execute
from tests.beside_torch.installed import torch
from tests.beside_torch.sample import Sample

__all__ = ["Answer", "attributes", "both_answers"]


@dataclass
class Answer:
    """Results, None for an absent one; cotangents of the inputs; cotangents of inputs and cotangents."""

    results: list[Any]
    first: list[np.ndarray]
    second: list[np.ndarray]


def leaves(x: Any) -> list[Any]:
    """The arrays in an input: a tensor array has one for each element, an omitted optional input has no array."""
    if x is None:
        return []
    return [leaf for each in x for leaf in leaves(each)] if isinstance(x, list | tuple) else [x]


def regrouped(like: Any, flat: list[Any]) -> Any:
    """The inverse of `leaves`: removes the arrays of `like` from the front of `flat`."""
    if like is None:
        return None
    return [regrouped(each, flat) for each in like] if isinstance(like, list | tuple) else flat.pop(0)


def is_float(x: Any) -> bool:
    return bool(np.asarray(x).dtype.kind == "f")


# --- backpass --------------------------------------------------------------------------------------------------


def forward_block(spec: OpSpec, sample: Sample, lengths: list[int]) -> Block:
    """A block of this one op. Its parameters and results are the elements of tensor arrays."""
    b = BlockBuilder()

    def entered(x: Any) -> Any:
        if x is None:
            return None
        if not isinstance(x, list):
            array = np.asarray(x)
            return b.param(TensorType(array.shape, str(array.dtype)))
        shapes = {np.asarray(each).shape for each in x}
        shape = tuple(n if len({s[i] for s in shapes}) == 1 else -1 for i, n in enumerate(min(shapes)))
        array = b.emit("create_array", shape=shape, dtype="float64")
        for i, each in enumerate(x):
            array = b.emit("array_write", entered(each), b.constant(i, "int64"), array)
        return array

    results = []
    for value in as_tuple(b.emit(spec.name, *[entered(x) for x in sample.inputs], **sample.attrs)):
        if isinstance(value.type, StackType):
            results += [b.emit("array_read", value, b.constant(i, "int64")) for i in range(lengths.pop(0))]
        else:
            results.append(value)
    return b.build(results)


def backpass(sample: Sample, lengths: list[int], seeds: Seeds, order: int) -> Answer:
    spec = REGISTRY[sample.name]
    args = [np.asarray(x) for x in leaves(list(sample.inputs))]
    forward = forward_block(spec, sample, list(lengths))
    wrt = [name for name, x in zip(forward.params, args, strict=True) if is_float(x)]
    results = execute(optimize(forward), args)
    answer = Answer(list(results), [], [])
    if not wrt or order == 0:
        return answer

    pulled = vjp(forward, wrt)
    first = replace(pulled, results=pulled.results[len(forward.results) :])
    given = [*args, *seeds.first(results)]
    answer.first = list(execute(optimize(first), given))
    if order == 1:
        return answer

    pulled = vjp(first, [*wrt, *first.params[len(args) :]])
    second = replace(pulled, results=pulled.results[len(first.results) :])
    answer.second = list(execute(optimize(second), [*given, *seeds.second(answer.first)]))
    return answer


# --- pytorch ---------------------------------------------------------------------------------------------------


def attributes(f: Callable[..., Any], op: str, given: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an op, defaults included, that the expression `f` takes as parameters."""
    wanted = inspect.signature(f).parameters
    return {k: v for k, v in REGISTRY[op].complete(given).items() if k in wanted}


def pytorch(f: Callable[..., Any], sample: Sample) -> tuple[list[Any], list[Any], list[int]]:
    """The leaves and the results of the expression `f`, and the lengths of its tensor arrays."""
    args = [torch.from_numpy(np.array(x)) for x in leaves(list(sample.inputs))]
    args = [x.requires_grad_() if x.is_floating_point() else x for x in args]
    slots = REGISTRY[sample.name].inputs
    absent = [] if any(slot.variadic for slot in slots) else [None] * (len(slots) - len(sample.inputs))
    found = f(*regrouped(list(sample.inputs), list(args)), *absent, **attributes(f, sample.name, sample.attrs))
    found = found if isinstance(found, tuple) else (found,)
    results = [leaf for x in found for leaf in (leaves(x) if isinstance(x, list) else [x])]
    return args, results, [len(x) for x in found if isinstance(x, list)]


def numbers(x: Any) -> Any:
    """A result as an array; None for a result that the expression does not compute."""
    return None if x is None else x.detach().numpy(force=True)


def pulled_back(outputs: Sequence[Any], inputs: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
    """The cotangents of the inputs, zeros for absent ones, in a graph that can be differentiated."""
    pairs = [(y, ct) for y, ct in zip(outputs, cts, strict=True) if y.requires_grad]
    if not pairs:
        return [torch.zeros_like(x) for x in inputs]
    return list(
        torch.autograd.grad(
            [y for y, _ in pairs],
            inputs,
            [ct for _, ct in pairs],
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
    )


def torch_gradients(args: list[Any], results: list[Any], seeds: Seeds, order: int) -> Answer:
    """The gradients of the results of `pytorch`."""
    inputs = [x for x in args if x.is_floating_point()]
    outputs = [y for y in results if y is not None and y.is_floating_point()]
    first, second = [], []
    if inputs and order > 0:
        cts = [torch.from_numpy(ct).requires_grad_() for ct in seeds.first(results)]
        first = pulled_back(outputs, inputs, cts)
        if order > 1:
            second = pulled_back(first, [*inputs, *cts], [torch.from_numpy(ct) for ct in seeds.second(first)])
    return Answer(*([numbers(x) for x in found] for found in (results, first, second)))


# --- both ------------------------------------------------------------------------------------------------------


class Seeds:
    """Random cotangents, the same for both sides."""

    def __init__(self, sample: Sample) -> None:
        self.label = [*sample.name.encode(), *sample.label.encode()]

    def first(self, results: Sequence[Any]) -> list[np.ndarray]:
        return self._draw(1, [y for y in map(as_array, results) if y.dtype.kind == "f"])

    def second(self, gradients: Sequence[Any]) -> list[np.ndarray]:
        return self._draw(2, [as_array(g) for g in gradients])

    def _draw(self, order: int, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        r = np.random.default_rng([*self.label, order])
        return [
            np.asarray(r.uniform(0.5, 1.5, y.shape) * r.choice([-1.0, 1.0], y.shape)).astype(y.dtype) for y in values
        ]


def as_array(x: Any) -> np.ndarray:
    return np.asarray(numbers(x) if torch.is_tensor(x) else x)


def both_answers(f: Callable[..., Any], sample: Sample, order: int) -> tuple[Answer, Answer]:
    """The answers of Backpass and of PyTorch for one sample, with gradients up to `order`: 0, 1 or 2."""
    seeds = Seeds(sample)
    args, results, lengths = pytorch(f, sample)
    return backpass(sample, lengths, seeds, order), torch_gradients(args, results, seeds, order)
