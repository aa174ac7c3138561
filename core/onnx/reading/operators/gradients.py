"""Operators of our own domain, which `backpass_client` writes for models of PyTorch: values where gradients end, and
operators that ONNX lacks, or has only as formulas that are not exact or not differentiable everywhere.
"""

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


_ELEMENTWISE = {
    "Atan2": "atan2", "Digamma": "digamma", "Erfinv": "erfinv", "Hypot": "hypot", "Lgamma": "lgamma",
    "Logaddexp": "logaddexp", "Xlogy": "xlogy",
}  # fmt: skip

_RUNNING = {"Cumprod": "cumprod", "Logcumsumexp": "logcumsumexp"}
"""Running results along the axis `axis`."""


@converter(*_ELEMENTWISE, domain=DOMAIN)
def elementwise(node: Node) -> Tensor:
    result: Tensor = node.emit(_ELEMENTWISE[node.op], *(node[i] for i in range(len(node))))
    return result


@converter(*_RUNNING, domain=DOMAIN)
def running(node: Node) -> Tensor:
    result: Tensor = node.emit(_RUNNING[node.op], node[0], axis=node.attr("axis", -1))
    return result
