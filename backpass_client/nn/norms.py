"""Normalisations with scale and bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backpass_client.builder.leaves import update
from backpass_client.builder.symbol import Symbol
from backpass_client.functions import op_function
from backpass_client.nn.layer import Layer, size_of

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm"]


class LayerNorm(Layer):
    """Normalise the last axis, then scale and shift it."""

    def __init__(self, *, epsilon: float = 1e-5, bias: bool = True, name: str | None = None) -> None:
        super().__init__(name)
        self.epsilon, self.bias = epsilon, bias

    def forward(self, x: Symbol) -> Symbol:
        n = size_of(x, -1)
        scale = self.parameter("scale", [n], x, "ones")
        bias = self.parameter("bias", [n], x, "zeros") if self.bias else None
        return op_function("layer_norm")(x, scale, bias, begin_norm_axis=x.ndim - 1, epsilon=self.epsilon)

    if TYPE_CHECKING:
        __call__ = forward


class RMSNorm(Layer):
    """Divide the last axis by its root mean square, then scale it."""

    def __init__(self, *, epsilon: float = 1e-6, name: str | None = None) -> None:
        super().__init__(name)
        self.epsilon = epsilon

    def forward(self, x: Symbol) -> Symbol:
        return op_function("rms_norm")(x, self.parameter("scale", [size_of(x, -1)], x, "ones"), epsilon=self.epsilon)

    if TYPE_CHECKING:
        __call__ = forward


class GroupNorm(Layer):
    """Normalise `groups` groups of the channels of x [batch, channels, *spatial]."""

    def __init__(self, groups: int, *, epsilon: float = 1e-5, name: str | None = None) -> None:
        super().__init__(name)
        self.groups, self.epsilon = groups, epsilon

    def forward(self, x: Symbol) -> Symbol:
        n = size_of(x, 1)
        scale, bias = self.parameter("scale", [n], x, "ones"), self.parameter("bias", [n], x, "zeros")
        return op_function("group_norm")(x, scale, bias, groups=self.groups, epsilon=self.epsilon)

    if TYPE_CHECKING:
        __call__ = forward


class InstanceNorm(Layer):
    """Normalise each channel of each sample of x [batch, channels, *spatial]."""

    def __init__(self, *, epsilon: float = 1e-5, name: str | None = None) -> None:
        super().__init__(name)
        self.epsilon = epsilon

    def forward(self, x: Symbol) -> Symbol:
        n = size_of(x, 1)
        scale, bias = self.parameter("scale", [n], x, "ones"), self.parameter("bias", [n], x, "zeros")
        return op_function("instance_norm")(x, scale, bias, epsilon=self.epsilon)

    if TYPE_CHECKING:
        __call__ = forward


class BatchNorm(Layer):
    """Normalise each channel of x [batch, channels, ...] over the batch.

    In training it updates running statistics, which are states of the program; with `train` false it normalises with
    them. momentum: the weight of the old statistics.
    """

    def __init__(
        self, *, train: bool = True, momentum: float = 0.9, epsilon: float = 1e-5, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.train, self.momentum, self.epsilon = train, momentum, epsilon

    def forward(self, x: Symbol) -> Symbol:
        n = size_of(x, 1)
        scale, bias = self.parameter("scale", [n], x, "ones"), self.parameter("bias", [n], x, "zeros")
        mean, variance = self.state("mean", [n], x, 0.0), self.state("variance", [n], x, 1.0)
        out, new_mean, new_variance = op_function("batch_norm")(
            x, scale, bias, mean, variance, momentum=self.momentum, epsilon=self.epsilon, is_test=not self.train
        )
        if self.train:
            update(mean, new_mean)
            update(variance, new_variance)
        return out

    if TYPE_CHECKING:
        __call__ = forward
