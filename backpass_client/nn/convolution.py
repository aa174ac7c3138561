"""Convolutions over one, two or three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backpass_client.builder.symbol import Symbol
from backpass_client.builder.types import InvalidOp
from backpass_client.functions import op_function
from backpass_client.nn.layer import Layer, size_of

__all__ = ["Conv", "ConvTranspose"]

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
        rank, inputs = _sizes(x, self.groups)
        filter = self.parameter(
            "weight", [self.channels, inputs // self.groups, *_each(self.kernel, rank)], x, self.init
        )
        bias = self.parameter("bias", [self.channels], x, "zeros") if self.bias else None
        return op_function(f"conv{rank}d")(
            x, filter, bias, strides=_each(self.stride, rank), dilations=_each(self.dilation, rank), groups=self.groups,
            **_padding(self.padding, rank),
        )  # fmt: skip

    if TYPE_CHECKING:
        __call__ = forward


class ConvTranspose(Layer):
    """The transpose of a convolution with `channels` channels, of x [batch, inputs, *spatial], such as to enlarge it.

    The weight is [inputs, channels / groups, *kernel]. Along each axis the result has (n - 1) * stride - paddings +
    dilation * (kernel - 1) + 1 + output_padding elements.

    padding: removed from both sides of each axis; with "same" the result has n * stride elements; or "valid".
    """

    def __init__(
        self,
        channels: int,
        kernel: Sizes,
        *,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        output_padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        init: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.channels, self.kernel, self.groups, self.bias, self.init = channels, kernel, groups, bias, init
        self.stride, self.padding, self.dilation, self.output_padding = stride, padding, dilation, output_padding

    def forward(self, x: Symbol) -> Symbol:
        rank, inputs = _sizes(x, self.groups)
        if self.channels % self.groups:
            raise InvalidOp(f"{self.channels} channels cannot be divided into {self.groups} groups")
        shape = [inputs, self.channels // self.groups, *_each(self.kernel, rank)]
        filter = self.parameter("weight", shape, x, self.init)
        bias = self.parameter("bias", [self.channels], x, "zeros") if self.bias else None
        return op_function(f"conv{rank}d_transpose")(
            x, filter, bias, strides=_each(self.stride, rank), dilations=_each(self.dilation, rank), groups=self.groups,
            output_padding=_each(self.output_padding, rank), **_padding(self.padding, rank),
        )  # fmt: skip

    if TYPE_CHECKING:
        __call__ = forward


def _sizes(x: Symbol, groups: int) -> tuple[int, int]:
    """(number of spatial axes, channels of x). Raises InvalidOp unless `groups` divides the channels."""
    rank = x.ndim - 2
    if not 1 <= rank <= 3:
        raise InvalidOp(f"a convolution needs x [batch, channels, *spatial] with 1 to 3 spatial axes, not {x!r}")
    inputs = size_of(x, 1)
    if inputs % groups:
        raise InvalidOp(f"{inputs} channels cannot be divided into {groups} groups")
    return rank, inputs


def _padding(padding: Sizes | str, rank: int) -> dict[str, Any]:
    return {"padding": padding} if isinstance(padding, str) else {"paddings": _each(padding, rank)}


def _each(sizes: Sizes, rank: int) -> list[int]:
    return [sizes] * rank if isinstance(sizes, int) else list(sizes)
