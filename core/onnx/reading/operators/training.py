"""Optimizers of the domain ai.onnx.preview.training: each is a function from old to new arrays."""

from __future__ import annotations

from collections.abc import Callable

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor

DOMAIN = "ai.onnx.preview.training"
Update = Callable[[Tensor, Tensor, list[Tensor]], list[Tensor]]


def _each(node: Node, states: int, update: Update) -> tuple[Tensor, ...]:
    """`update(parameter, gradient, states)` for every parameter; results are grouped as the inputs are."""
    arrays = node.tensors(2)
    count = len(arrays) // (2 + states)
    if not count or len(arrays) != count * (2 + states):
        raise node.refuse(f"{len(arrays)} arrays cannot be parameters, gradients and {states} states each")
    groups = [arrays[i * count : (i + 1) * count] for i in range(2 + states)]
    results = [update(x, g, list(rest)) for x, g, *rest in zip(*groups, strict=True)]
    return tuple(each for group in zip(*results, strict=True) for each in group)


def _rate(node: Node, like: Tensor) -> Tensor:
    return node.cast(node.reshape(node[0], []), like.dtype)


def _scaled(node: Node, x: Tensor, factor: float) -> Tensor:
    result: Tensor = node.emit("scale", x, scale=factor)
    return result


def _decayed(node: Node, x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the loss plus the squared norm of the parameter."""
    result: Tensor = node.emit("add", gradient, _scaled(node, x, node.attr("norm_coefficient", 0.0)))
    return result


@converter("Adagrad", domain=DOMAIN)
def adagrad(node: Node) -> tuple[Tensor, ...]:
    def update(x: Tensor, gradient: Tensor, states: list[Tensor]) -> list[Tensor]:
        gradient = _decayed(node, x, gradient)
        squares = node.emit("add", states[0], node.emit("square", gradient))
        count = node.cast(node.reshape(node[1], []), x.dtype)
        decay = node.emit("scale", count, scale=node.attr("decay_factor", 0.0), bias=1.0)
        rate = node.emit("div", _rate(node, x), decay)
        size = node.emit("scale", node.emit("sqrt", squares), bias=node.attr("epsilon", 1e-6))
        step = node.emit("div", node.emit("mul", rate, gradient), size)
        return [node.emit("sub", x, step), squares]

    return _each(node, 1, update)


@converter("Adam", domain=DOMAIN)
def adam(node: Node) -> tuple[Tensor, ...]:
    alpha, beta = node.attr("alpha", 0.9), node.attr("beta", 0.999)

    def update(x: Tensor, gradient: Tensor, states: list[Tensor]) -> list[Tensor]:
        gradient = _decayed(node, x, gradient)
        mean = node.emit("add", _scaled(node, states[0], alpha), _scaled(node, gradient, 1 - alpha))
        squares = node.emit("square", gradient)
        spread = node.emit("add", _scaled(node, states[1], beta), _scaled(node, squares, 1 - beta))
        count = node.cast(node.reshape(node[1], []), x.dtype)
        corrected = _rate(node, x)
        root = node.emit("sqrt", _lost(node, beta, count))
        corrected = node.emit("div", node.emit("mul", corrected, root), _lost(node, alpha, count))
        started = node.emit("greater_than", count, node.const(0, x.dtype))
        rate = node.emit("where", started, corrected, _rate(node, x))
        size = node.emit("scale", node.emit("sqrt", spread), bias=node.attr("epsilon", 1e-6))
        moved = node.emit("sub", x, node.emit("div", node.emit("mul", rate, mean), size))
        return [_scaled(node, moved, 1 - node.attr("norm_coefficient_post", 0.0)), mean, spread]

    return _each(node, 2, update)


def _lost(node: Node, base: float, count: Tensor) -> Tensor:
    """`1 - base ** count`, and 1 for a count of 0, where nothing is corrected."""
    started = node.emit("greater_than", count, node.const(0, count.dtype))
    exponent = node.emit("where", started, count, node.const(1, count.dtype))
    result: Tensor = node.emit(
        "sub", node.const(1, count.dtype), node.emit("pow", node.const(base, count.dtype), exponent)
    )
    return result


@converter("Momentum", domain=DOMAIN)
def momentum(node: Node) -> tuple[Tensor, ...]:
    mode = node.attr("mode")
    if mode not in ("standard", "nesterov"):
        raise node.refuse(f"mode must be standard or nesterov, not {mode!r}")
    kept, share = node.attr("alpha"), node.attr("beta")

    def update(x: Tensor, gradient: Tensor, states: list[Tensor]) -> list[Tensor]:
        gradient = _decayed(node, x, gradient)
        count = node.reshape(node[1], [])
        first = node.emit("less_equal", node.cast(count, "int64"), node.const(0, "int64"))
        factor = node.emit("where", first, node.const(1, x.dtype), node.const(share, x.dtype))
        moving = node.emit("add", _scaled(node, states[0], kept), node.emit("mul", factor, gradient))
        step = moving if mode == "standard" else node.emit("add", gradient, _scaled(node, moving, kept))
        return [node.emit("sub", x, node.emit("mul", _rate(node, x), step)), moving]

    return _each(node, 1, update)


@converter("Gradient", domain=DOMAIN)
def gradient(node: Node) -> Tensor:
    raise node.refuse("a program holds no gradients: ask for them in the request")
