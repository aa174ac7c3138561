"""Operators of our own domain, which say where gradients end. `backpass_client` writes them for models of PyTorch."""

from __future__ import annotations

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor

DOMAIN = "backpass"


@converter("StopGradient", domain=DOMAIN)
def stop_gradient(node: Node) -> Tensor:
    x = node[0]
    result: Tensor = node.emit("stop_gradient", x) if x.is_float else x
    return result
