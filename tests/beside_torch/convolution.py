"""Convolution and its transpose."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from tests.beside_torch.installed import F, torch
from tests.beside_torch.pools import BOX, IMAGE, LINE, bordered, each, pads
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def same(sizes: Any, kernel: Any, strides: Any, dilations: Any) -> list[tuple[int, int]]:
    out = []
    for m, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-m // s) - 1) * s + d * (k - 1) + 1 - m, 0)
        out.append((total // 2, total - total // 2))
    return out


def conv(n: int, depthwise: bool = False) -> Callable[..., Any]:
    def f(
        x: Any,
        filter: Any,
        bias: Any,
        strides: Any,
        paddings: Any,
        dilations: Any,
        padding: str,
        data_format: str,
        **more: int,
    ) -> Any:
        last = data_format.endswith("C")
        x = x.movedim(-1, 1) if last else x
        strides, dilations = each(strides, n), each(dilations, n)
        if padding == "same":
            sides = same(x.shape[2:], filter.shape[2:], strides, dilations)
        else:
            sides = [(0, 0)] * n if padding == "valid" else pads(paddings, n)
        groups = x.shape[1] if depthwise else more["groups"]
        run = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
        out = run(bordered(x, sides), filter, bias, strides, 0, dilations, groups)
        return out.movedim(1, -1) if last else out

    if depthwise:
        return lambda x, filter, bias, strides, paddings, dilations, padding, data_format: f(
            x, filter, bias, strides, paddings, dilations, padding, data_format
        )
    return lambda x, filter, bias, strides, paddings, dilations, padding, data_format, groups: f(
        x, filter, bias, strides, paddings, dilations, padding, data_format, groups=groups
    )


def transposed(n: int) -> Callable[..., Any]:
    def f(
        x: Any,
        filter: Any,
        bias: Any,
        strides: Any,
        paddings: Any,
        output_padding: Any,
        dilations: Any,
        groups: int,
        padding: str,
        data_format: str,
    ) -> Any:
        last = data_format.endswith("C")
        x = x.movedim(-1, 1) if last else x
        strides, dilations, more = each(strides, n), each(dilations, n), each(output_padding, n)
        run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
        out = run(x, filter, None, strides, 0, 0, groups, dilations)
        if padding == "same":
            sides = same(
                [m * s for m, s in zip(x.shape[2:], strides, strict=True)], filter.shape[2:], strides, dilations
            )
            wanted = [m * s for m, s in zip(x.shape[2:], strides, strict=True)]
            ends = [w - have + a for (a, _), w, have in zip(sides, wanted, out.shape[2:], strict=True)]
        else:
            sides = [(0, 0)] * n if padding == "valid" else pads(paddings, n)
            ends = [m - b for (_, b), m in zip(sides, more, strict=True)]
        out = bordered(out, [(-a, e) for (a, _), e in zip(sides, ends, strict=True)])
        out = out if bias is None else out + bias.reshape(-1, *[1] * n)
        return out.movedim(1, -1) if last else out

    return f


def correlate(x: Any, filter: Any, strides: Any, paddings: Any, dilations: Any, groups: int) -> Any:
    n = x.ndim - 2
    run = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
    return run(bordered(x, pads(paddings, n)), filter, None, each(strides, n), 0, each(dilations, n), groups)


def filter_adjoint(ct: Any, x: Any, like: Any, strides: Any, paddings: Any, dilations: Any, groups: int) -> Any:
    """The gradient of the filter is a convolution of x with the cotangent, computed from patches of x."""
    n = x.ndim - 2
    strides, dilations = each(strides, n), each(dilations, n)
    x = bordered(x, pads(paddings, n))
    x = x.unflatten(1, (groups, x.shape[1] // groups))
    ct = ct.unflatten(1, (groups, ct.shape[1] // groups))
    parts = []
    for at in product(*map(range, like.shape[2:])):
        cut = (slice(None),) * 3 + tuple(
            slice(i * d, i * d + (m - 1) * s + 1, s)
            for i, d, s, m in zip(at, dilations, strides, ct.shape[3:], strict=True)
        )
        parts.append(torch.einsum("ngc...,ngo...->goc", x[cut].flatten(3), ct.flatten(3)))
    return torch.stack(parts, -1).reshape(like.shape)


def input_adjoint(ct: Any, filter: Any, like: Any, strides: Any, paddings: Any, dilations: Any, groups: int) -> Any:
    n = ct.ndim - 2
    run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
    out = run(ct, filter, None, each(strides, n), 0, 0, groups, each(dilations, n))
    sides = pads(paddings, n)
    return bordered(
        out, [(-a, m + a - have) for (a, _), m, have in zip(sides, like.shape[2:], out.shape[2:], strict=True)]
    )


def row_conv(x: Any, filter: Any) -> Any:
    k, d = filter.shape
    rows = F.pad(x.transpose(1, 2), (0, k - 1))
    return F.conv1d(rows, filter.t().unsqueeze(1), groups=d).transpose(1, 2)


OPS: dict[str, Callable[..., Any]] = {
    "conv1d": conv(1),
    "conv1d_transpose": transposed(1),
    "conv2d": conv(2),
    "conv2d_transpose": transposed(2),
    "conv3d": conv(3),
    "conv3d_transpose": transposed(3),
    "correlate": correlate,
    "correlate_filter_adjoint": filter_adjoint,
    "correlate_input_adjoint": input_adjoint,
    "depthwise_conv2d": conv(2, depthwise=True),
    "row_conv": row_conv,
}

CONVS: list[dict[str, Any]] = [
    {},
    {"strides": (2,)},
    {"paddings": (2,)},
    {"dilations": (2,), "paddings": (1,)},
    {"strides": (3,), "paddings": (1,), "dilations": (2,)},
]


def convolved(x: tuple[int, ...], k: int) -> list[Inputs]:
    n = len(x) - 2
    plain = [case((2, 4, *x[2:]), (3, 4, *[k] * n), (3,), **attrs) for attrs in CONVS]
    grouped = [case((2, 4, *x[2:]), (6, 2, *[k] * n), groups=2, **attrs) for attrs in CONVS]
    return [
        *plain,
        *grouped,
        case((2, 4, *x[2:]), (4, 1, *[k] * n), groups=4),
        case((1, 1, *x[2:]), (1, 1, *[k] * n), padding="same", strides=(2,)),
    ]


def spread(x: tuple[int, ...], k: int) -> list[Inputs]:
    n = len(x) - 2
    ways = [
        *CONVS[:3],
        {"strides": (2,), "paddings": (1,), "output_padding": (1,)},
        {"strides": (2,), "dilations": (2,)},
        {"dilations": (3,), "output_padding": (2,)},
        {"strides": (2,), "dilations": (4,), "paddings": (1,), "output_padding": (3,)},
    ]
    plain = [case((2, 4, *x[2:]), (4, 3, *[k] * n), (3,), **attrs) for attrs in ways]
    grouped = [case((2, 4, *x[2:]), (4, 2, *[k] * n), groups=2, **attrs) for attrs in ways]
    return [*plain, *grouped, case((1, 2, *x[2:]), (2, 2, *[k] * n), padding="same", strides=(2,))]


MORE: dict[str, list[Inputs]] = {
    "conv1d": convolved(LINE, 2),
    "conv2d": [
        *convolved(IMAGE, 2),
        case((2, 5, 6, 4), (3, 4, 2, 3), (3,), data_format="NHWC", padding="same", strides=(2, 1)),
    ],
    "conv3d": convolved(BOX, 2),
    "conv1d_transpose": spread((2, 2, 4), 3),
    "conv2d_transpose": spread((2, 2, 3, 4), 3),
    "conv3d_transpose": spread((1, 2, 2, 3, 2), 3),
    "depthwise_conv2d": [case((2, 3, 6, 5), (6, 1, 2, 3), (6,), strides=(2, 1), paddings=(1, 0))],
    "correlate": [case((2, 4, 5, 6), (6, 2, 2, 3), groups=2, paddings=(1, 0, 2, 1), strides=(2, 1))],
    "correlate_filter_adjoint": [case((2, 6, 4, 5), (2, 4, 5, 6), (6, 2, 2, 2), groups=2)],
    "correlate_input_adjoint": [case((2, 6, 4, 5), (6, 2, 2, 2), (2, 4, 5, 6), groups=2)],
    "row_conv": [case((2, 5, 3), (k, 3)) for k in (1, 2, 5, 7)],
}
