"""Comparison of a program with its module: the outputs, and the gradients of a random sum of them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import backpass_client as bp
from backpass_client.torch_tensors import to_array

__all__ = ["Applied", "assert_as_in_torch"]


class Applied(nn.Module):
    """A function as a module. Its inputs are the feeds `x`, `y` and `z`."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor | None = None, z: Tensor | None = None) -> Tensor:
        return self.function(*(each for each in (x, y, z) if each is not None))


def assert_as_in_torch(
    service: bp.Service, module: nn.Module | Callable[..., Tensor], *inputs: Tensor, rtol: float = 1e-4
) -> None:
    """Compare the output and the gradients of all parameters and float inputs. rtol: of the largest element."""
    module = module if isinstance(module, nn.Module) else Applied(module)
    same = copy.deepcopy(module)
    leaves = [each.clone().requires_grad_(each.is_floating_point()) for each in inputs]
    expected = same(*(each.clone() for each in leaves))
    seed = torch.randn(expected.shape, dtype=expected.dtype)

    program = bp.from_torch(module, inputs, service, loss=lambda y, target: (y * target).sum(), targets=seed)
    feeds = dict(zip(program.inputs, map(to_array, (*inputs, seed)), strict=True))
    parameters = {name: each for name, each in same.named_parameters() if each.requires_grad}
    differentiated = {n: x for n, x in zip(program.inputs, leaves, strict=False) if x.requires_grad} | parameters
    loss, output = program.outputs
    found = program.gradients(
        feeds=feeds, targets=[loss], inputs=list(differentiated), fetch=[output], unconnected="zeros"
    )

    _assert_close(found.fetched[output], expected.detach(), rtol, "output")
    (expected * seed).sum().backward()
    for name, each in differentiated.items():
        _assert_close(found.gradients[name], torch.zeros_like(each) if each.grad is None else each.grad, rtol, name)


def _assert_close(found: np.ndarray, expected: Tensor, rtol: float, name: str) -> None:
    wanted = to_array(expected)
    largest = float(np.abs(wanted).max()) if wanted.size else 0.0
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * max(largest, 1e-30), err_msg=name)
