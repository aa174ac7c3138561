"""Matrix products, Einstein summation and determinants."""

from __future__ import annotations

import numpy as np

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor


@converter("MatMul")
def matmul(node: Node) -> Tensor:
    result: Tensor = node.emit("matmul", node[0], node[1])
    return result


@converter("Gemm")
def gemm(node: Node) -> Tensor:
    x, y, c = node[0], node[1], node.get(2)
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    found: Tensor = node.emit(
        "matmul", x, y, transpose_x=bool(node.attr("transA", 0)), transpose_y=bool(node.attr("transB", 0))
    )
    found = _scaled(node, found, alpha)
    return found if c is None or beta == 0 else node.emit("add", found, _scaled(node, c, beta))


def _scaled(node: Node, x: Tensor, factor: float) -> Tensor:
    """`x` times a factor that is a float32, as attributes are."""
    factor = float(np.float32(factor))
    return x if factor == 1.0 else node.emit("scale", x, scale=factor)


@converter("Einsum")
def einsum(node: Node) -> Tensor:
    result: Tensor = node.emit("einsum", *node.tensors(), equation=node.attr("equation").replace(" ", ""))
    return result


@converter("Det")
def determinant(node: Node) -> Tensor:
    result: Tensor = node.emit("det", node[0])
    return result
