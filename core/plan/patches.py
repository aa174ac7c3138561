"""Convolutions that read the windows of images in place: without padded copies, and with one kernel for each form.

A target takes them if its generator tests whether an element lies in the image (`ConvolutionLimits.patches`). Kernels
of 16-bit images and filters sum in float32, and the result is rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.ir import Op
from core.ir.precision import is_half
from core.plan.halves import narrowed
from core.plan.instructions import Kernel
from core.plan.lowering import Lowering
from core.plan.memory import View
from core.plan.windows import Windows

__all__ = ["PATCHED", "Patches", "lower_patches"]

PATCHED = {
    "correlate": "patch_correlate",
    "correlate_input_adjoint": "patch_input_adjoint",
    "correlate_filter_adjoint": "patch_filter_adjoint",
}
"""The kind of kernel for each op. Its arrays are (image, filter, result), (cotangent, filter, result) and
(cotangent, image, result).
"""


@dataclass(frozen=True, slots=True)
class Patches:
    """A convolution of `batch` images, or one of its adjoints.

    dtype:         of the arrays that it reads; the result is float32 where that is a 16-bit float.
    channels, out: channels of the image and of the result of the convolution, in each group.
    windows:       over the image.
    """

    dtype: str
    batch: int
    groups: int
    channels: int
    out: int
    windows: Windows

    @property
    def plane(self) -> int:
        """Elements of one channel of an image."""
        return math.prod(self.windows.size)

    @property
    def pixels(self) -> int:
        """Elements of one channel of the result of the convolution."""
        return math.prod(self.windows.counts)

    @property
    def size(self) -> int:
        """Elements of a filter's channel."""
        return math.prod(self.windows.kernel)

    @property
    def depth(self) -> int:
        """Products that are summed up to one element of the result of the convolution."""
        return self.channels * self.size

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 2 * self.batch * self.groups * self.out * self.depth * self.pixels


def lower_patches(low: Lowering, op: Op, spec: Patches, first: View, second: View) -> None:
    """Append the kernel of a convolution or adjoint. first, second: its dense operands, in the order of `PATCHED`."""
    (name,) = op.outputs
    type = low.type(name)
    half = is_half(type)
    if half:
        low.stand_alone(name)
    out = low.allocate(type.shape, "float32") if half else low.destination(name)
    low.add(Kernel(PATCHED[op.type], spec, (first, second, out), location=op.location))
    low.define(name, narrowed(low, out, type) if half else out)
