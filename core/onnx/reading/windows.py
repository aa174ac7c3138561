"""Windows over spatial axes, as convolutions and poolings describe them by attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.onnx.reading.node import Node
from core.onnx.reading.values import Tensor

__all__ = ["Windows", "windows"]


@dataclass(frozen=True, slots=True)
class Windows:
    """One number for each spatial axis. pads: before and after, axis by axis.

    following: the axes of open sizes whose pads depend on the size; their `pads` are 0.
    """

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[tuple[int, int]]
    automatic: bool
    following: list[int]

    @property
    def paddings(self) -> list[int]:
        """The pads as the ops of a program take them: before and after each axis in turn."""
        return [n for pair in self.pads for n in pair]


def windows(node: Node, x: Tensor, kernel: Sequence[int], needs_pads: bool = True, follows: bool = False) -> Windows:
    """The windows of `node` over `x` [batch, channels, *spatial].

    needs_pads: whether SAME pads fit `x` here. follows: whether the caller pads the axes `following`.
    """
    n = x.rank - 2
    if not 1 <= n <= 3:
        raise node.refuse(f"it needs one to three spatial axes, not {x.type}")
    if len(kernel) != n or min(kernel) < 1:
        raise node.refuse(f"the kernel {list(kernel)} does not fit {x.type}")
    strides = _each(node, "strides", n, 1)
    dilations = _each(node, "dilations", n, 1)
    automatic = node.attr("auto_pad", "NOTSET")
    pads = [(0, 0)] * n
    following: list[int] = []
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        if needs_pads:
            following = [i for i in range(n) if x.shape[i + 2] == -1 and strides[i] > 1]
            if following and not follows:
                raise node.refuse("auto_pad with a stride needs known spatial sizes")
            axes = zip(x.shape[2:], kernel, strides, dilations, strict=True)
            pads = [_same(m, d * (k - 1) + 1, s, automatic == "SAME_LOWER") for m, k, s, d in axes]
    elif automatic == "NOTSET":
        given = [int(p) for p in node.attr("pads", [0] * 2 * n)]
        if len(given) != 2 * n:
            raise node.refuse(f"the pads {given} do not fit {x.type}")
        pads = list(zip(given[:n], given[n:], strict=True))
    elif automatic != "VALID":
        raise node.refuse(f"auto_pad must be NOTSET, SAME_UPPER, SAME_LOWER or VALID, not {automatic!r}")
    return Windows(list(kernel), strides, dilations, pads, automatic != "NOTSET", following)


def _each(node: Node, name: str, n: int, default: int) -> list[int]:
    found = [int(k) for k in node.attr(name, [default] * n)]
    if len(found) != n or min(found) < 1:
        raise node.refuse(f"{name} must be {n} numbers of at least 1, not {found}")
    return found


def _same(size: int, reach: int, stride: int, lower: bool) -> tuple[int, int]:
    """Pads with which an axis of `size` has ceil(size / stride) windows of length `reach`; 0 if they depend on it."""
    if size == -1 and stride > 1:
        return 0, 0
    windows = 1 if size == -1 else -(-size // stride)
    total = max((windows - 1) * stride + reach - (1 if size == -1 else size), 0)
    less, more = total // 2, total - total // 2
    return (more, less) if lower else (less, more)
