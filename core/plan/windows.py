"""Windows that slide over images, and the padding that images need for them.

An image is copied into a padded array (`core.plan.geometry.Padding`) if a window reaches beyond it, or if windows move
by more than one element along a row. In the padded array every window is inside its image, and neighbouring windows
read adjacent elements. The adjoint of a convolution copies its result out of such an array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.ir import Op
from core.ops.common.windows import pads_of, sizes
from core.plan.entries import Entry
from core.plan.geometry import Padding, Triple
from core.plan.instructions import Kernel
from core.plan.lowering import Lowering
from core.plan.memory import View

__all__ = ["Windows", "padded", "triple", "windows_of"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over planes of `size`, on three axes. before: padding before the first element. counts: of windows."""

    size: Triple
    kernel: Triple
    strides: Triple
    dilations: Triple
    before: Triple
    counts: Triple

    @property
    def reach(self) -> Triple:
        """Elements that windows read along each axis, padding included."""
        axes = zip(self.counts, self.strides, self.kernel, self.dilations, strict=True)
        a, b, c = ((n - 1) * s + (k - 1) * d + 1 for n, s, k, d in axes)
        return a, b, c

    @property
    def inside(self) -> bool:
        """Whether no window reads padding."""
        return not any(self.before) and all(r <= n for r, n in zip(self.reach, self.size, strict=True))

    def padding(self, dtype: str, planes: int, phases: int, fill: float = 0.0) -> Padding:
        """The padding that lets every window lie inside its plane."""
        depth, height, width = self.reach
        return Padding(dtype, planes, self.size, self.before, (depth, height), width, phases, fill)


def windows_of(
    shape: Sequence[int], result: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], paddings: Sequence[int],
) -> Windows:  # fmt: skip
    """The windows over `shape` that give `result`, from an op's attributes. Both shapes have batch and channels."""
    k = len(shape) - 2
    kernel, strides, dilations, paddings = map(tuple, (kernel, strides, dilations, paddings))
    return Windows(
        triple(shape[2:], 1),
        triple(sizes(kernel, k, "kernel_size", 1), 1),
        triple(sizes(strides, k, "strides", 1), 1),
        triple(sizes(dilations, k, "dilations", 1), 1),
        triple([before for before, _ in pads_of(paddings, k)], 0),
        triple(result[2:], 1),
    )


def padded(low: Lowering, op: Op, entry: Entry, padding: Padding | None) -> View:
    """`entry` as a dense array, with its padding if it needs one."""
    view = low.dense(entry)
    if padding is None:
        return view
    target = low.allocate((padding.planes, padding.plane), padding.dtype)
    low.add(Kernel("fill_room", padding, (view, target), location=op.location))
    return target


def triple(values: Sequence[int], missing: int) -> Triple:
    """The values of one to three spatial axes as values of three. missing: for the axes in front."""
    a, b, c = (*(missing,) * (3 - len(values)), *values)
    return a, b, c
