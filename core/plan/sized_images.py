"""Lowerings of ops on images whose number, height or width only the run tells (`core.plan.sized`).

Images beyond the number have unspecified elements, and so have their results. Sums over images leave them out. Of an
image, windows read neutral elements beyond its sizes, as they do in its padding.
"""

from __future__ import annotations

import math

from core.ir import Op
from core.ops.common.windows import pads_of, sizes
from core.plan.compose import Maker
from core.plan.entries import Entry
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import Axes, Incomparable, same_size, sizes_of, with_equal
from core.plan.plan import NOT_COVERED
from core.plan.sized import by_image, limited, new_size, rule, run, set_sizes, under, whole
from core.plan.sizes import Size
from core.plan.unsupported import Unsupported

__all__: list[str] = []

CHANNELS = 1
"""The axis of the channels; those after it are spatial."""


@rule("correlate", "max_pool", "window_sum")
def _of_each(low: Lowering, op: Op) -> None:
    x = op.inputs[0]
    own = sizes_of(low, x)
    if op.type == "max_pool" and _spatial(own):
        _check_readers(low, op.outputs[1])
    _lower_each(low, op, _counted(low, op, x), x, -math.inf if op.type == "max_pool" else 0)


@rule("correlate_input_adjoint")
def _to_each(low: Lowering, op: Op) -> None:
    op = with_equal(low, op, (0, 0), (2, 0))
    ct, _, like = op.inputs
    _same_windows(low, op, ct, like)
    _lower_each(low, op, dict(sizes_of(low, like)), ct)


@rule("window_sum_adjoint")
def _sums_to_each(low: Lowering, op: Op) -> None:
    op = with_equal(low, op, (0, 0), (1, 0))
    ct, like = op.inputs
    _same_windows(low, op, ct, like)
    _lower_each(low, op, dict(sizes_of(low, like)), ct)


@rule("unpool_like", "pick")
def _by_positions(low: Lowering, op: Op) -> None:
    op = with_equal(low, op, (0, 0), (len(op.inputs) - 1, 0))
    x, index, *_ = op.inputs
    first, second = sizes_of(low, x), sizes_of(low, index)
    if not same_size(low, first.get(0), second.get(0)):
        raise Incomparable
    images = op.inputs[-1] if op.type == "unpool_like" else x
    own = sizes_of(low, images)
    if _spatial(own) or _spatial(second):
        pool = low.uses.producers.get(index)
        if pool is None or pool.type != "max_pool" or _spatial(sizes_of(low, pool.inputs[0])) != _spatial(own):
            raise Unsupported("positions in images whose size only the run tells")
    if op.type == "unpool_like" and _spatial(first) != _spatial(second):
        raise Incomparable
    _lower_each(low, op, dict(sizes_of(low, op.inputs[-1])), x if op.type == "unpool_like" else None)


@rule("correlate_filter_adjoint")
def _to_filter(low: Lowering, op: Op) -> None:
    op = with_equal(low, op, (0, 0), (1, 0))
    ct, x, _ = op.inputs
    _known_channels(low, op)
    _same_windows(low, op, ct, x)
    set_sizes(low, op, [{}])
    if low.target.expects:
        with by_image(low, sizes_of(low, ct).get(0)):
            run(low, _filled(low, op, (ct, x)))
    else:
        run(low, under(low, op, {name: whole(low, name) for name in (ct, x)}))


def _lower_each(low: Lowering, op: Op, own: Axes, read: str | None, fill: float = 0) -> None:
    """Lower an op whose results have these sizes, one part for each image. Nothing is computed beyond their number.

    read: the operand whose elements beyond its heights and widths are replaced by `fill`; None for no operand.
    """
    _known_channels(low, op)
    set_sizes(low, op, [own] * len(op.outputs))
    with by_image(low, own.get(0)):
        run(low, op if read is None else _filled(low, op, (read,), fill))


def _known_channels(low: Lowering, op: Op) -> None:
    """Raises Unsupported if an operand has an open number of channels, a filter has an open size, or the target has no
    code for images of open heights or widths.
    """
    opened = [sizes_of(low, name) for name in op.inputs]
    filters = {"correlate": 1, "correlate_input_adjoint": 1, "correlate_filter_adjoint": 2}.get(op.type)
    if any(CHANNELS in own for own in opened) or (filters is not None and opened[filters]):
        raise Unsupported(f"{op.type} with channels or filters whose number only the run tells")
    if any(map(_spatial, opened)) and not low.target.expects:
        raise Unsupported(f"{op.type} of images whose size only the run tells")


# --- heights and widths -------------------------------------------------------------------------------------------


def _spatial(own: Axes) -> Axes:
    return {axis: size for axis, size in own.items() if axis > CHANNELS}


def _filled(low: Lowering, op: Op, names: tuple[str, ...], fill: float = 0) -> Op:
    """`op` on images that have `fill` beyond their heights and widths."""
    changed: dict[str, Entry] = {}
    for name in names:
        own = sizes_of(low, name)
        if _spatial(own):
            with limited(low, own.get(0)):
                changed[name] = low.dense(whole(low, name, fill, frozenset(_spatial(own))))
    return under(low, op, changed) if changed else op


def _counted(low: Lowering, op: Op, x: str) -> Axes:
    """The sizes of the results of windows over `x`."""
    return {
        axis: size if axis <= CHANNELS else _windows_along(low, op, x, axis, size)
        for axis, size in sizes_of(low, x).items()
    }


def _same_windows(low: Lowering, op: Op, ct: str, x: str) -> None:
    """Raises Unsupported if the code cannot tell that `ct` has the sizes of windows over `x`."""
    wanted, found = _spatial(_counted(low, op, x)), _spatial(sizes_of(low, ct))
    if wanted.keys() != found.keys() or not all(same_size(low, size, found[axis]) for axis, size in wanted.items()):
        raise Incomparable


def _windows_along(low: Lowering, op: Op, x: str, axis: int, size: Size) -> Size:
    """The number of windows along an axis of `x`. Axes of one size have one number of windows."""
    if op.attrs.get("ceil_mode"):
        raise Unsupported("windows that may lie partly outside of images whose size only the run tells")
    k, i = low.type(x).rank - 2, axis - 2
    if "kernel_size" in op.attrs:
        kernel = op.attrs["kernel_size"]
    else:
        kernel = low.type(op.inputs[2 if op.type == "correlate_filter_adjoint" else 1]).shape[2:]
    window, stride, spread = (
        sizes(each, k, what, 1)[i]
        for each, what in (
            (kernel, "kernel_size"),
            (op.attrs["strides"] or kernel, "strides"),
            (op.attrs["dilations"], "dilations"),
        )
    )
    more = sum(pads_of(op.attrs["paddings"], k)[i]) - spread * (window - 1) - 1
    if stride == 1 and more == -1:
        return size
    key = (size, more, stride)
    if key not in low.derived.windows:
        if size.bound + more < 0:
            raise Unsupported("windows that are larger than the images")
        of, found = Maker(low), new_size(low, (size.bound + more) // stride + 1)
        left = of.add(size.length, of.integer(more))
        zero, one = of.integer(0), of.integer(1)
        of.check(of("greater_equal", left, zero), NOT_COVERED, "a window that is larger than the image", op.location)
        steps = of("floor_div", of("maximum", left, zero), of.integer(stride))
        low.copy(of.add(steps, one), found.length)
        low.derived.windows[key] = found
    return low.derived.windows[key]


def _check_readers(low: Lowering, index: str) -> None:
    """Raises Unsupported unless `unpool_like` and `pick` alone read the positions of maxima, as their second operand.

    The code counts positions in the memory for the largest images, clients and other ops count them in the images.
    """
    for each in low.uses.readers(index):
        takes = each is not None and each.type in ("unpool_like", "pick") and each.inputs[1] == index
        if each is None or not takes or each.inputs.count(index) > 1:
            raise Unsupported("positions in images whose size only the run tells")
