"""Lowerings of ops on images whose number only the run tells (`core.plan.sized`).

Images beyond the number have unspecified elements, and so have their results. Sums over images leave them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.ir import Op
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import same_size, sizes_of, with_equal
from core.plan.sized import rule, run, set_sizes, under, whole
from core.plan.sizes import Size
from core.plan.unsupported import Unsupported

__all__: list[str] = []


@rule("correlate", "max_pool", "window_sum")
def _of_each(low: Lowering, op: Op) -> None:
    _lower_each(low, op, op.inputs[0])


@rule("correlate_input_adjoint")
def _to_each(low: Lowering, op: Op) -> None:
    op = with_equal(low, op, (0, 0), (2, 0))
    _lower_each(low, op, op.inputs[2])


@rule("window_sum_adjoint")
def _sums_to_each(low: Lowering, op: Op) -> None:
    op = with_equal(low, op, (0, 0), (1, 0))
    _lower_each(low, op, op.inputs[1])


@rule("unpool_like", "pick")
def _by_positions(low: Lowering, op: Op) -> None:
    op = with_equal(low, op, (0, 0), (len(op.inputs) - 1, 0))
    first = sizes_of(low, op.inputs[0]).get(0)
    if not same_size(low, first, sizes_of(low, op.inputs[1]).get(0)):
        raise Unsupported("sizes that only the run can compare")
    _lower_each(low, op, op.inputs[-1])


def _lower_each(low: Lowering, op: Op, images: str) -> None:
    """Lower an op whose results have one part for each of the `images`. Nothing is computed beyond their number."""
    _only_images(low, op)
    own = dict(sizes_of(low, images))
    set_sizes(low, op, [own] * len(op.outputs))
    with _images(low, own.get(0)):
        run(low, op)


@rule("correlate_filter_adjoint")
def _to_filter(low: Lowering, op: Op) -> None:
    op = with_equal(low, op, (0, 0), (1, 0))
    _only_images(low, op)
    set_sizes(low, op, [{}])
    number = sizes_of(low, op.inputs[0]).get(0)
    if low.target.expects:
        with _images(low, number):
            run(low, op)
    else:
        run(low, under(low, op, {name: whole(low, name) for name in op.inputs[:2]}))


@contextmanager
def _images(low: Lowering, number: Size | None) -> Iterator[None]:
    """Kernels inside the context leave out the images beyond this number, if the target has kernels that can."""
    low.images = number if low.target.expects else None
    try:
        yield
    finally:
        low.images = None


def _only_images(low: Lowering, op: Op) -> None:
    """Raises Unsupported if another size than the number of images is open."""
    if any(sizes_of(low, name).keys() - {0} for name in op.inputs):
        raise Unsupported(f"{op.type} of images whose size only the run tells")
