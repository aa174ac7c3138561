"""Convolutions over one, two or three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backpass_client.builder.symbol import Symbol
from backpass_client.builder.types import InvalidOp
from backpass_client.functions import op_function
from backpass_client.nn.layer import Layer, size_of

__all__ = ["Conv"]

Sizes = int | Sequence[int]


class Conv(Layer):
    """A convolution of x [batch, channels, *spatial] with `channels` filters; one number stands for all axes.

    padding: zeros on both sides of each axis; or "same", or "valid".
    """

    def __init__(
        self,
        channels: int,
        kernel: Sizes,
        *,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        init: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.channels, self.kernel, self.groups, self.bias, self.init = channels, kernel, groups, bias, init
        self.stride, self.padding, self.dilation = stride, padding, dilation

    def forward(self, x: Symbol) -> Symbol:
        rank = x.ndim - 2
        if not 1 <= rank <= 3:
            raise InvalidOp(f"a convolution needs x [batch, channels, *spatial] with 1 to 3 spatial axes, not {x!r}")
        inputs = size_of(x, 1)
        if inputs % self.groups:
            raise InvalidOp(f"{inputs} channels cannot be divided into {self.groups} groups")
        filter = self.parameter(
            "weight", [self.channels, inputs // self.groups, *_each(self.kernel, rank)], x, self.init
        )
        bias = self.parameter("bias", [self.channels], x, "zeros") if self.bias else None
        attrs: dict[str, Any] = {"padding": self.padding} if isinstance(self.padding, str) else {}
        if not isinstance(self.padding, str):
            attrs["paddings"] = _each(self.padding, rank)
        return op_function(f"conv{rank}d")(
            x, filter, bias, strides=_each(self.stride, rank), dilations=_each(self.dilation, rank), groups=self.groups,
            **attrs,
        )  # fmt: skip

    if TYPE_CHECKING:
        __call__ = forward


def _each(sizes: Sizes, rank: int) -> list[int]:
    return [sizes] * rank if isinstance(sizes, int) else list(sizes)
