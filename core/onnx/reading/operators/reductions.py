"""Reductions over axes, positions of extremes, and cumulative operators."""

from __future__ import annotations

from collections.abc import Callable

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor

Rule = Callable[[Node, Tensor, dict[str, object]], Tensor]


def _emit(op: str) -> Rule:
    return lambda node, x, how: node.emit(op, x, **how)


def _log(node: Node, x: Tensor, how: dict[str, object]) -> Tensor:
    result: Tensor = node.emit("log", _sum(node, x, how))
    return result


def _sum(node: Node, x: Tensor, how: dict[str, object]) -> Tensor:
    result: Tensor = node.emit("reduce_sum", x, **how)
    return result


def _of_squares(node: Node, x: Tensor, how: dict[str, object]) -> Tensor:
    return _sum(node, node.emit("mul", x, x), how)


def _norm(node: Node, x: Tensor, how: dict[str, object]) -> Tensor:
    if x.is_float:
        result: Tensor = node.emit("norm", x, p=2.0, **how)
        return result
    total = node.cast(_of_squares(node, x, how), "float64")
    return node.cast(node.emit("sqrt", total), x.dtype)


def _mean(node: Node, x: Tensor, how: dict[str, object]) -> Tensor:
    if x.is_float:
        result: Tensor = node.emit("reduce_mean", x, **how)
        return result
    mean = node.emit("reduce_mean", node.cast(x, "float64"), **how)
    return node.cast(mean, x.dtype)


def _logsumexp(node: Node, x: Tensor, how: dict[str, object]) -> Tensor:
    if x.is_float:
        result: Tensor = node.emit("logsumexp", x, **how)
        return result
    return node.cast(node.emit("logsumexp", node.cast(x, "float64"), **how), x.dtype)


def _extreme(op: str, of_bools: str) -> Rule:
    def rule(node: Node, x: Tensor, how: dict[str, object]) -> Tensor:
        if x.dtype == "bool":
            result: Tensor = node.emit(of_bools, x, **how)
            return result
        return node.emit(op, x, empty="identity", **how)

    return rule


_RULES: dict[str, Rule] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceProd": _emit("reduce_prod"),
    "ReduceMax": _extreme("reduce_max", "reduce_any"),
    "ReduceMin": _extreme("reduce_min", "reduce_all"),
    "ReduceL1": lambda node, x, how: _sum(node, node.emit("abs", x), how),
    "ReduceL2": _norm,
    "ReduceLogSum": _log,
    "ReduceLogSumExp": _logsumexp,
    "ReduceSumSquare": _of_squares,
}


@converter(*_RULES)
def reduction(node: Node) -> Tensor:
    x = node[0]
    by_input = node.opset >= (13 if node.op == "ReduceSum" else 18)
    axes = (node.ints(1) if node.given(1) else []) if by_input else list(node.attr("axes", []))
    for axis in axes:
        if not -x.rank <= axis < x.rank:
            raise node.refuse(f"axis {axis} is out of range for rank {x.rank}")
    keepdims = bool(node.attr("keepdims", 1))
    rule = _RULES[node.op]
    if not axes and node.attr("noop_with_empty_axes", 0):
        if node.op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSumExp"):
            return x
        return rule(node, node.emit("unsqueeze", x, axes=[x.rank]), {"axes": [x.rank], "keepdims": False})
    return rule(node, x, {"axes": sorted(a % x.rank for a in axes) if axes else None, "keepdims": keepdims})


@converter("ArgMax", "ArgMin")
def position(node: Node) -> Tensor:
    op = {"ArgMax": "argmax", "ArgMin": "argmin"}[node.op]
    x, axis, keepdims = node[0], node.axis(0), bool(node.attr("keepdims", 1))
    if not node.attr("select_last_index", 0):
        result: Tensor = node.emit(op, x, axis=axis, keepdims=keepdims)
        return result
    from_end = node.emit(op, node.emit("flip", x, axes=[axis]), axis=axis, keepdims=keepdims)
    size = node.size(x, axis)
    last: Tensor = node.emit("sub", node.emit("sub", size, node.const(1, "int64")), from_end)
    return last


@converter("CumSum", "CumProd")
def cumulative(node: Node) -> Tensor:
    op = {"CumSum": "cumsum", "CumProd": "cumprod"}[node.op]
    x, axis = node[0], int(node.number(1))
    if not -x.rank <= axis < x.rank:
        raise node.refuse(f"axis {axis} is out of range for rank {x.rank}")
    result: Tensor = node.emit(
        op, x, axis=axis, exclusive=bool(node.attr("exclusive", 0)), reverse=bool(node.attr("reverse", 0))
    )
    return result
