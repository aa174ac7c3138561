"""Backpropagation on single numbers: an independent implementation without arrays and without code of the core."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["Number", "backward", "mean_squared_error", "network"]


class Number:
    """A value, the numbers it was computed from, and its partial derivative with respect to each."""

    __slots__ = ("gradient", "parents", "slopes", "value")

    def __init__(self, value: float, parents: tuple[Number, ...] = (), slopes: tuple[float, ...] = ()) -> None:
        self.value, self.parents, self.slopes, self.gradient = value, parents, slopes, 0.0

    def __add__(self, other: Number) -> Number:
        return Number(self.value + other.value, (self, other), (1.0, 1.0))

    def __sub__(self, other: Number) -> Number:
        return Number(self.value - other.value, (self, other), (1.0, -1.0))

    def __mul__(self, other: Number) -> Number:
        return Number(self.value * other.value, (self, other), (other.value, self.value))

    def tanh(self) -> Number:
        out = math.tanh(self.value)
        return Number(out, (self,), (1 - out * out,))


def backward(loss: Number) -> None:
    """Set the `gradient` of every number that `loss` was computed from."""
    loss.gradient = 1.0
    for node in reversed(_parents_first(loss)):
        for parent, slope in zip(node.parents, node.slopes, strict=True):
            parent.gradient += node.gradient * slope


def _parents_first(root: Number) -> list[Number]:
    """Depth-first search with an explicit stack, because the graph may be deeper than Python's recursion limit."""
    order: list[Number] = []
    seen: set[int] = set()
    stack = [(root, iter(root.parents))]
    while stack:
        node, parents = stack[-1]
        following = next((p for p in parents if id(p) not in seen), None)
        if following is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(id(following))
            stack.append((following, iter(following.parents)))
    return order


def network(parameters: dict[str, Number], sizes: tuple[int, ...], inputs: list[Number]) -> Number:
    """tanh neurons in layers, the last one linear; weights `n<layer>.<neuron>.w<i>`, bias `.b`."""
    values = inputs
    for layer, size in enumerate(sizes[1:], start=1):
        neurons = []
        for neuron in range(size):
            name = f"n{layer}.{neuron}"
            total = parameters[f"{name}.b"]
            for i, value in enumerate(values):
                total = total + parameters[f"{name}.w{i}"] * value
            neurons.append(total if layer == len(sizes) - 1 else total.tanh())
        values = neurons
    return values[0]


def mean_squared_error(predicted: Iterable[Number], wanted: Iterable[float]) -> Number:
    total, count = Number(0.0), 0
    for each, y in zip(predicted, wanted, strict=True):
        error = each - Number(y)
        total, count = total + error * error, count + 1
    return total * Number(1 / count)
