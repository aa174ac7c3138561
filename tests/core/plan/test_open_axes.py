"""Ops on feeds with open sizes along several axes are machine code alone, and agree with the reference executor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient
from core.compiler.room import room_for
from core.ir import Program
from core.ir.errors import ExecutionError
from core.ops.common.types import as_dtype
from core.plan.instructions import Gemm, Kernel, Limited, Rows
from core.plan.partition import PlannedParts, plan_parts
from core.runtime.backend import Backend
from core.wire import read
from tests.core.compiler.test_room_programs import poisoned
from tests.programs import Sketch

SIZES = ((3, 5), (16, 2), (1, 1), (7, 16))
"""(batch, time). The code has room for 16 of each."""

LARGER = ((3, 5), (16, 2), (2, 3), (7, 16))
"""The same for `tiles`."""

BATCH, TIME = SIZES[0]

Case = Callable[[Sketch], list[str]]


def x_of(s: Sketch, *shape: int, name: str = "x", dtype: str = "float64") -> str:
    """A feed of random numbers, whose sizes BATCH and TIME are open."""
    return s.feed(name, np.random.default_rng(len(name)).standard_normal(shape), dtype, shape=opened(shape))


def opened(shape: tuple[int, ...]) -> list[int]:
    return [-1 if n in (BATCH, TIME) else n for n in shape]


def w_of(s: Sketch, *shape: int, dtype: str = "float64") -> str:
    return s.param("w", np.random.default_rng(7).standard_normal(shape), dtype)


def shapes(s: Sketch) -> list[str]:
    """Axes that stay open keep their memory; those that are merged or divided move their elements."""
    x, y = x_of(s, BATCH, TIME, 6), x_of(s, 4, TIME, 2, BATCH, name="y")
    kept = [
        s.op("unflatten", x, axis=2, sizes=[2, 3]),
        s.op("unsqueeze", x, axes=[0, 2, 4]),
        s.op("merge_axes", y, start=1, end=3),
    ]
    kept.append(s.op("squeeze", kept[1], axes=[2]))
    kept.append(s.op("merge_axes", kept[0], start=2, end=4))
    rows = [
        s.op("reshape", x, shape=[-1, 6]),
        s.op("merge_axes", x, start=0, end=2),
        s.op("merge_axes", y, start=0, end=2),
    ]
    flat = [s.op("reshape", each, shape=[-1]) for each in (x, y, s.op("transpose", x, axes=[1, 0, 2]))]
    parts = [
        s.op("reshape", x, shape=[-1, 2]),
        s.op("merge_axes", x, start=1, end=3),
        s.op("reshape", rows[0], shape=[-1, 3]),
    ]
    back = [s.op("reshape_as", rows[0], x), s.op("reshape_as", flat[2], x), s.op("reshape_as", flat[1], y)]
    turned = s.op("reshape_as", x, s.op("transpose", x, axes=[1, 0, 2]))  # other sizes, in other places
    return [*kept, *rows, *flat, *parts, *back, turned]


def products(s: Sketch) -> list[str]:
    """Sums over an open size leave out what lies beyond its length."""
    x, y, w = x_of(s, BATCH, TIME, 4), x_of(s, BATCH, TIME, 4, name="other"), w_of(s, 4, 4)
    heads = [s.op("transpose", s.op("unflatten", each, axis=2, sizes=[2, 2]), axes=[0, 2, 1, 3]) for each in (x, y)]
    scores = s.op("matmul", *heads, transpose_y=True)
    gram = s.op("matmul", x, y, transpose_x=True)
    batch = s.op("reduce_sum", x, axes=[1])
    square = s.op("matmul", batch, batch, transpose_y=True)
    return [
        scores,
        s.op("matmul", scores, heads[1]),
        s.op("matmul", scores, heads[0], transpose_x=True),
        gram,
        s.op("matmul", x, gram),
        s.op("matmul", square, square),
        s.op("matmul", s.op("matmul", x, w), s.op("unsqueeze", w, axes=[0])),
        *(s.op("einsum", [x, y], equation=e) for e in ("btd,bsd->bts", "btd,bte->de", "btd,std->bs", "btd,btd->b")),
        s.op("einsum", [x, y, w], equation="btd,bsf,df->bst"),
        s.op("einsum", [x, w], equation="...d,de->...e"),
        s.op("einsum", [x], equation="btd->db"),
    ]


def heads(s: Sketch) -> list[str]:
    """Attention of two heads, with as many sentences as the run has."""
    x, w = x_of(s, BATCH, 8, 16), w_of(s, 16, 16)
    one, other = (s.op("matmul", s.op(each, x), w) for each in ("sin", "tanh"))
    query, key = (
        s.op("transpose", s.op("unflatten", each, axis=2, sizes=[2, 8]), axes=[0, 2, 1, 3]) for each in (one, other)
    )
    return [s.op("matmul", s.op("softmax", s.op("matmul", query, key, transpose_y=True), axis=3), key)]


def long_products(dtype: str) -> Case:
    def case(s: Sketch) -> list[str]:
        """Room for 4,096 rows or terms, which products take in parts. The runs fill no whole number of them."""
        batch, w = x_of(s, BATCH, 256, 40, dtype=dtype), w_of(s, 40, 24, dtype=dtype)
        x = s.op("reshape", batch, shape=[-1, 40])
        few = s.op("reshape", x_of(s, BATCH, 256, 2, name="few", dtype=dtype), shape=[-1, 2])
        near = s.op("tanh", s.op("matmul", x, w))
        deep = s.op("tanh", s.op("matmul", batch, w))
        sums = [
            s.op("matmul", x, x, transpose_x=True),
            s.op("matmul", x, near, transpose_x=True),
            s.op("matmul", near, few, transpose_x=True),
            s.op("matmul", x, few, transpose_x=True),
            s.op("matmul", s.op("transpose", few, axes=[1, 0]), near),
            s.op("einsum", [deep, batch], equation="btd,bte->ed"),
            s.op("reduce_sum", x, axes=[0]),
        ]
        return [near, *(s.op("scale", each, scale=1e-3) for each in sums)]  # the sine of large numbers is not exact

    case.__name__ = f"long products {dtype}"
    return case


def beginnings(s: Sketch) -> list[str]:
    """Sums over all rows but the last ones: the rows behind them are read later, and stay as they are."""
    x = s.op("reshape", x_of(s, BATCH, 256, 8), shape=[-1, 8])
    near = s.op("tanh", s.op("matmul", x, w_of(s, 8, 8)))
    parts = [s.op("slice", each, axes=[0], starts=[0], ends=[-100]) for each in (near, x)]
    return [
        s.op("matmul", parts[0], parts[1], transpose_x=True),
        s.op("matmul", parts[1], parts[1], transpose_x=True),
        s.op("sin", near),
        s.op("reduce_sum", near, axes=[0]),
    ]


def normalised(dtype: str) -> Case:
    def case(s: Sketch) -> list[str]:
        """Means and variances of channels over an open number of images."""
        x, small = x_of(s, BATCH, 4, 80, 64, dtype=dtype), x_of(s, BATCH, 2, 5, 4, name="small", dtype=dtype)
        line, rows = x_of(s, BATCH, 4, TIME, name="line", dtype=dtype), x_of(s, BATCH, 6, name="row", dtype=dtype)
        one = x_of(
            s, BATCH, 1, 96, 96, name="one", dtype=dtype
        )  # rows of all images would be longer than any pass takes
        made = []
        for i, (each, channels) in enumerate(((x, 4), (small, 2), (line, 4), (rows, 6), (one, 1))):
            named = (
                s.param(f"{name}{i}", np.random.default_rng(i).uniform(0.5, 2, channels), dtype)
                for name in ("scale", "shift", "mean", "variance")
            )
            made.append(s.op("batch_norm", each, *named))
        return [*made, s.op("mul", made[1], made[1]), s.op("relu", made[0])]

    case.__name__ = f"normalised {dtype}"
    return case


def images(dtype: str) -> Case:
    def case(s: Sketch) -> list[str]:
        x, w = x_of(s, BATCH, 4, 9, 8, dtype=dtype), w_of(s, 4, 4, 3, 3, dtype=dtype)
        made = [
            s.op("conv2d", x, w, paddings=[1, 1]),
            s.op("conv2d", x, w, strides=[2, 2]),
            s.op("conv2d", x, s.op("slice", w, axes=[1], starts=[0], ends=[2]), groups=2),
            s.op("conv2d_transpose", x, w, strides=[2, 2]),
            s.op("max_pool2d", x, kernel_size=[2, 2]),
            s.op("max_pool2d", x, kernel_size=[3, 3], strides=[2, 2], paddings=[1, 1]),
            s.op("avg_pool2d", x, kernel_size=[2, 2]),
            s.op("avg_pool2d", x, kernel_size=[3, 3], strides=[1, 1], paddings=[1, 1]),
        ]
        if dtype == "float32":  # large enough for several threads, with scratch memory
            for channels, size, name, attrs in (
                (16, 24, "wide", {"paddings": [1, 1]}),
                (128, 6, "deep", {"strides": [2, 2]}),
                (192, 4, "tiny", {"strides": [2, 2]}),  # one product takes several images
            ):
                given = x_of(s, BATCH, channels, size, size, name=f"{name}_x", dtype=dtype)
                filters = np.random.default_rng(3).standard_normal((channels, channels, 3, 3)) / channels
                made.append(s.op("conv2d", given, s.param(name, filters, dtype), **attrs))
        return made

    case.__name__ = f"images {dtype}"
    return case


def windows(dtype: str) -> Case:
    def case(s: Sketch) -> list[str]:
        """Images and signals whose sizes are open, down to one pixel."""
        x, line, w = x_of(s, BATCH, 4, TIME, BATCH, dtype=dtype), x_of(s, 2, 4, TIME, name="line", dtype=dtype), {}
        for name, shape in (("one", (4, 4, 1, 1)), ("w", (4, 4, 3, 3)), ("part", (4, 2, 2, 3)), ("along", (4, 4, 3))):
            w[name] = s.param(name, np.random.default_rng(len(name)).standard_normal(shape), dtype)
        same = s.op("conv2d", x, w["w"], padding="same")
        seen = s.op("relu", s.op("add", same, x))
        around = {"kernel_size": [3, 3], "strides": [1, 1], "paddings": [1, 1]}
        pooled = s.op("max_pool2d", seen, kernel_size=[3, 3], strides=[2, 2], paddings=[1, 1])
        made = [
            s.op("conv2d", seen, w["w"], padding="same", dilations=[2, 2]),
            s.op("conv2d", seen, w["one"]),
            s.op("conv2d", seen, w["w"], strides=[2, 2], paddings=[1, 1]),
            s.op("conv2d", seen, w["part"], paddings=[2, 1], groups=2),
            s.op("conv2d", pooled, w["w"], paddings=[1, 1]),
            s.op("max_pool2d", same, **around),
            s.op("scale", s.op("max_pool2d", s.op("stop_gradient", same), **around), scale=0.5),
            s.op("avg_pool2d", seen, **around),
            s.op("avg_pool2d", seen, kernel_size=[1, 1], strides=[2, 2]),
            s.op("conv1d", line, w["along"], paddings=[2], dilations=[2]),
            s.op("conv1d", line, w["along"], paddings=[1], strides=[3]),
            s.op("global_avg_pool", seen),
        ]
        return [same, *made]

    case.__name__ = f"windows {dtype}"
    return case


def tiles(s: Sketch) -> list[str]:
    """Windows side by side, of which the last may lie partly beyond the image; images have two pixels at least."""
    x, w = x_of(s, BATCH, 4, TIME, TIME), w_of(s, 4, 4, 2, 2)
    seen = s.op("tanh", x)
    largest = s.op("max_pool2d", seen, kernel_size=[2, 2])
    squares = s.op("reduce_sum", s.op("square", largest))
    inner = {"inputs": {"targets": [squares], "inputs": [x]}, "outputs": {"out": ["dx"]}}
    s.document["blocks"][0]["ops"].append({"type": "gradients", **inner})
    return [
        "dx",
        largest,
        s.op("avg_pool2d", seen, kernel_size=[2, 2]),
        s.op("avg_pool2d", seen, kernel_size=[2, 2], strides=[1, 1], paddings=[1, 1]),
        s.op("conv2d", seen, w, strides=[2, 2]),
        s.op("add", s.op("conv2d", largest, w, paddings=[1, 1]), s.op("conv2d", largest, w, paddings=[1, 1])),
    ]


def chosen(s: Sketch) -> list[str]:
    """One element at each place, along an axis of known size and along open ones."""
    x = x_of(s, BATCH, TIME, 6)
    rng = np.random.default_rng(0)
    for name, shape, most in (("at", (BATCH, TIME, 1), 6), ("first", (BATCH, TIME, 6), 1), ("label", (BATCH, TIME), 6)):
        s.feed(name, rng.integers(-most if name != "label" else 0, most, shape), "int64", shape=opened(shape))
    return [
        s.op("take_along_axis", x, "at", axis=2),
        s.op("take_along_axis", x, "first", axis=1),
        s.op("take_along_axis", x, "first", axis=0),
        s.op("softmax_with_cross_entropy", x, s.op("unsqueeze", "label", axes=[2])),
    ]


def sequences(dtype: str) -> Case:
    def case(s: Sketch) -> list[str]:
        """As many sequences as the batch has, of as many rows as there are times, and of 0, 1 or more of the batch."""
        x, w = x_of(s, BATCH, TIME, 4, dtype=dtype), w_of(s, 12, 2, dtype=dtype)
        steps = np.array([[1, 0, 1, 0, 0]] * BATCH)
        s.feed("steps", steps, "int64", shape=opened(steps.shape))
        times = s.op("reduce_sum", s.op("full_like", "steps", value=1), axes=[1])
        first = s.op("full_like", times, value=1)
        changes = s.op("mod", s.op("cumsum", first, axis=0), s.op("full_like", times, value=2))
        ids = s.op("sub", s.op("cumsum", changes, axis=0), changes)
        counts = s.op("segment_sum", first, ids, times)
        found = [s.op("segment_prod", s.op("reduce_mean", x, axes=[1]), ids, times)]
        for given, lengths in ((s.op("reshape", x, shape=[-1, 4]), times), (s.op("reduce_mean", x, axes=[1]), counts)):
            found += [s.op("sequence_softmax", given, lengths), s.op("sequence_reverse", given, lengths)]
            found += [s.op("sequence_conv", given, lengths, w)]
            for kind in ("sum", "mean", "sqrt", "max", "first", "last"):
                found.append(s.op("sequence_pool", given, lengths, pool_type=kind))
        return found

    case.__name__ = f"sequences {dtype}"
    return case


def wide(s: Sketch) -> list[str]:
    """As many sequences as the batch has, in arrays that are wider than the longest of them."""
    x, steps = x_of(s, BATCH, 4), np.array([[1, 0, 1, 0, 0]] * BATCH)
    s.feed("steps", steps, "int64", shape=opened(steps.shape))
    lengths = s.op("reduce_sum", "steps", axes=[1])
    ones = s.op("full_like", lengths, value=1)
    mask = s.op("sequence_mask", lengths, maxlen=17, dtype="float64")
    return [
        s.op("sequence_pad", x, ones, pad_value=0.5, padded_length=7),
        s.op("sequence_pad", x, ones, x_of(s, 1, name="empty"), padded_length=7),
        s.op("matmul", x, s.op("matmul", mask, w_of(s, 17, 2)), transpose_x=True),
    ]


def draws(s: Sketch) -> list[str]:
    """Numbers are counted along the sizes of the run."""
    x, y, z = x_of(s, BATCH, TIME, 4), x_of(s, 2, BATCH, 4, TIME, name="y"), x_of(s, BATCH, 4, name="z")
    share = s.op("sigmoid", y)
    kinds = ("uniform_random_like", "gaussian_random_like", "truncated_gaussian_like", "exponential_like")
    made = [s.op(kind, each, seed=seed) for seed, kind in enumerate(kinds) for each in (x, y, z)]
    steps = [s.op("randint_like", each, low=0, high=9, dtype="int64") for each in (x, y)]
    counts = [s.op("cast", each, dtype="float64") for each in steps]
    return [*made, *counts, s.op("bernoulli", share), s.op("dropout", x, p=0.4, seed=1), s.op("dropout", z, p=0.4)]


def masks(s: Sketch) -> list[str]:
    x = x_of(s, BATCH, TIME, 6)
    scores = s.op("einsum", [x, x], equation="btd,bsd->bts")
    sums = [s.op("logsumexp", x, axes=[i]) for i in range(3)]
    return [s.op("tril", scores), s.op("triu", scores, diagonal=1), s.op("layer_norm", x), s.op("softmax", x), *sums]


def scans(time: int) -> Case:
    def case(s: Sketch) -> list[str]:
        """Of all networks, the states of a batch of an open size."""
        x = x_of(s, time, BATCH, 4)
        rng, found = np.random.default_rng(1), []
        for type, gates in (("lstm", 4), ("gru", 3), ("rnn", 1)):
            states = [x_of(s, BATCH, 2, name=f"{type}_{i}") for i in range(2 if type == "lstm" else 1)]
            shapes = {"x": (gates * 2, 4), "h": (gates * 2, 2), "bx": (gates * 2,), "bh": (gates * 2,)}
            weights = [s.param(f"{type}_w{n}", rng.standard_normal(shape)) for n, shape in shapes.items()]
            for reverse in (False, True):
                names = [f"{type}_{reverse}_{i}" for i in range(1 + len(states))]
                found += s.op(type, x, *states, *weights, out=names, reverse=reverse)
        return found

    case.__name__ = f"scans of {'open' if time == TIME else 'known'} length"
    return case


def lattices(time: int, most: int) -> Case:
    def case(s: Sketch) -> list[str]:
        """Sequences of `time` steps with `most` labels, as many as the batch has."""
        x, y = x_of(s, time, BATCH, 4), x_of(s, BATCH, time, 4, name="y")
        rng = np.random.default_rng(2)
        for name, shape, classes in (("letters", (BATCH, most), 4), ("labels", (BATCH, time), 4)):
            s.feed(name, rng.integers(1, classes, shape), "int64", shape=opened(shape))
        counted = []
        for name, n, share in (("steps", time, 0.9), ("counts", most, 0.4)):
            s.feed(name, rng.random((BATCH, n)) < share, "bool", shape=opened((BATCH, n)))
            counted.append(s.op("reduce_sum", s.op("cast", name, dtype="int64"), axes=[1]))
        steps, counts = counted
        w = s.param("w", rng.standard_normal((6, 4)))
        scores = s.op("log_softmax", x, axis=2)
        best = s.op("crf_decoding", y, w, steps)
        return [
            s.op("ctc_loss", scores, "letters", steps, counts, reduction="none", zero_infinity=True),
            s.op("linear_chain_crf", y, w, "labels", steps),
            s.op("linear_chain_crf", y, w, "labels"),
            s.op("cast", best, dtype="float64"),
            s.op("cast", s.op("crf_decoding", y, w), dtype="float64"),
        ]

    case.__name__ = f"lattices of {time} steps and {most} labels"
    return case


def whole_numbers(s: Sketch) -> list[str]:
    """Reductions of integers and bools."""
    x = x_of(s, BATCH, TIME, 3)
    scaled = s.op("scale", x, scale=9.0)
    made = []
    for dtype, ops in (("int64", ("max", "min", "sum")), ("int32", ("max", "min")), ("bool", ("all", "any"))):
        given = s.op("cast", scaled, dtype=dtype) if dtype != "bool" else s.op("greater_than", scaled, x)
        reduced = [s.op(f"reduce_{op}", given, axes=axes) for op in ops for axes in ([0], [1], [0, 1], [0, 1, 2])]
        made += [s.op("cast", each, dtype="float64") for each in reduced]
    return made


def cuts(s: Sketch) -> list[str]:
    """Slices along open and known axes with ends that are data. Other open axes keep their sizes."""
    x, made = x_of(s, BATCH, TIME, 4), []
    for i, (axes, first, end, step) in enumerate(
        (
            ([0], [0], [2], [1]),
            ([1], [0], [-1], [1]),
            ([1], [1], [100], [1]),
            ([1], [-1], [-100], [-1]),
            ([0, 1], [0, 0], [2, 2], [1, 2]),
            ([2], [1], [3], [1]),
        )
    ):
        named = [s.feed(f"{name}{i}", np.array(v), "int64") for name, v in zip("abc", (first, end, step), strict=True)]
        shape = [-1, -1, 2 if axes == [2] else 4]
        made.append(s.op("dynamic_slice", x, *named, axes=axes, shape=shape))
    return [*made, s.op("matmul", made[1], made[1], transpose_x=True), s.op("reduce_sum", made[0], axes=[0])]


def copies(s: Sketch) -> list[str]:
    """Positions of extremes along open axes, running extremes, and copies along known axes."""
    x, y = x_of(s, BATCH, TIME, 4), x_of(s, TIME, 4, name="y")
    at = [s.op(op, x, axis=axis) for op in ("argmax", "argmin") for axis in (0, 1, 2)]
    at.append(s.op("argmax", s.op("cast", s.op("scale", x, scale=3.0), dtype="int32"), axis=1, keepdims=True))
    made = [s.op("cast", each, dtype="float64") for each in at]
    made += [
        s.op(op, x, axis=axis, out=[f"{op}{axis}", f"{op}{axis}_at"])[0]
        for op in ("cummax", "cummin")
        for axis in (0, 1)
    ]
    return [*made, s.op("tile", x, repeats=[1, 1, 2]), s.op("tile", y, repeats=[3, 1, 2])]


def matrices(dtype: str) -> Case:
    def case(s: Sketch) -> list[str]:
        """Factors, systems and eigenvalues of batches of matrices, whose numbers are open."""
        x, y = x_of(s, BATCH, 4, 6, dtype=dtype), x_of(s, BATCH, TIME, 4, 6, name="steps", dtype=dtype)
        eye, w = s.op("eye", num_rows=4, dtype=dtype), w_of(s, 4, 2, dtype=dtype)
        made = []
        for each, turn in ((x, [0, 2, 1]), (y, [0, 1, 3, 2])):
            gram = s.op("matmul", each, each, transpose_y=True)
            a = s.op("add", s.op("scale", gram, scale=0.1), eye)
            right = s.op("slice", each, axes=[-1], starts=[0], ends=[3])
            solved = [s.op("solve", a, right), s.op("solve", a, w), s.op("triangular_solve", a, right)]
            made += [
                *solved,
                *(s.op(op, a) for op in ("cholesky", "inverse", "det", "logdet", "matrix_exp", "eigvalsh")),
            ]
            made += [*s.op("qr", s.op("transpose", each, axes=turn), out=[f"q{len(turn)}", f"r{len(turn)}"])]
            made += [s.op("svd", each, out=[f"{name}{len(turn)}" for name in "usv"])[1], s.op("pinv", each)]
            if turn == [0, 2, 1]:  # an open number of right-hand sides
                made.append(s.op("solve", a, x_of(s, BATCH, 4, TIME, name="sides", dtype=dtype)))
        return made

    case.__name__ = f"matrices {dtype}"
    return case


def transforms(dtype: str) -> Case:
    def case(s: Sketch) -> list[str]:
        """Fourier transforms of batches of signals, along each axis of known size."""
        x, y = x_of(s, BATCH, 12, dtype=dtype), x_of(s, BATCH, TIME, 9, 2, name="y", dtype=dtype)
        z = x_of(s, BATCH, 10, TIME, name="z", dtype=dtype)
        spectra = [s.op("rfft", x), s.op("rfft", y, axis=2), s.op("rfft", z, axis=1), s.op("fft", y, axis=2)]
        return [*spectra, s.op("irfft", spectra[0]), s.op("irfft", spectra[2], axis=1)]

    case.__name__ = f"transforms {dtype}"
    return case


CASES = (
    whole_numbers,
    copies,
    cuts,
    matrices("float64"),
    pytest.param(matrices("float32"), marks=pytest.mark.slow),
    transforms("float64"),
    transforms("float32"),
    scans(4),
    scans(TIME),
    lattices(6, 2),
    pytest.param(lattices(TIME, 2), marks=pytest.mark.slow),
    pytest.param(lattices(6, TIME), marks=pytest.mark.slow),
    lattices(TIME, TIME),
    shapes,
    products,
    heads,
    beginnings,
    long_products("float64"),
    long_products("float32"),
    long_products("bfloat16"),
    pytest.param(normalised("float64"), marks=pytest.mark.slow),
    normalised("float32"),
    normalised("bfloat16"),
    images("float64"),
    images("float32"),
    pytest.param(images("float16"), marks=pytest.mark.slow),
    images("bfloat16"),
    tiles,
    windows("float64"),
    pytest.param(windows("float32"), marks=pytest.mark.slow),
    windows("bfloat16"),
    chosen,
    sequences("float64"),
    sequences("float16"),
    sequences("bfloat16"),
    wide,
    draws,
    masks,
)
TOLERANCE = {"float64": 1e-9, "float32": 2e-5, "float16": 1e-2, "bfloat16": 1e-1}


def program_of(case: Case) -> tuple[Sketch, Program, list[str]]:
    s = Sketch()
    found = case(s)
    terms = [s.op("reduce_mean", s.op("sin", each)) for each in found]
    s.op("sum", terms, out="loss")
    return s, read(s.document), found


def feeds_of(s: Sketch, program: Program, batch: int, time: int) -> dict[str, np.ndarray]:
    """The feeds of the sketch, repeated to other sizes."""
    to, found = {BATCH: batch, TIME: time}, {}
    for v in program.feeds:
        value = np.asarray(s.values[v.name], as_dtype(v.type.dtype))
        for axis, n in enumerate(v.type.shape):
            if n == -1:
                value = np.take(value, np.arange(to[value.shape[axis]]) % value.shape[axis], axis)
        found[v.name] = value
    return found


def assert_equal_for_sizes(case: Case, backend: Backend | None = None) -> PlannedParts:
    """One code for all sizes computes what the reference executor computes for each. backend: of another target.

    Returns the parts of the code.
    """
    s, program, found = program_of(case)
    leaves = [v for v in program.variables if v.type.is_float]
    query = GradientQuery(targets=("loss",), inputs=tuple(v.name for v in leaves))
    tolerance = TOLERANCE[leaves[0].type.dtype]
    feeds = feeds_of(s, program, *SIZES[0])
    room = room_for(program, {name: value.shape for name, value in feeds.items()})
    code = compile_gradient(program, query, found, room=room)
    parts = plan_parts(code.interpreter.block, CPU_TARGET if backend is None else backend.target)
    code = (code if backend is None else code.on(backend)).compiled()
    for batch, time in LARGER if case is tiles else SIZES:
        feeds = feeds_of(s, program, batch, time)
        exact = compile_gradient(program, query, found, {name: value.shape for name, value in feeds.items()})
        parameters = {v.name: np.asarray(s.values[v.name], as_dtype(v.type.dtype)) for v in program.parameters}
        values = {**feeds, **parameters}
        assert code.packs is not None
        wanted, got = exact.step(values), code.step(poisoned(room, dict(code.packs(values)), feeds))
        for place in ("fetched", "gradients"):
            for name, want in getattr(wanted, place).items():
                have = getattr(got, place)[name]
                assert (have.shape, have.dtype) == (want.shape, want.dtype), name
                scale = np.abs(want.astype("float64")).max(initial=0)
                np.testing.assert_allclose(
                    have.astype("float64"),
                    want.astype("float64"),
                    tolerance,
                    tolerance * scale,
                    err_msg=f"{place} {name}",
                )
    return parts


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_values_and_gradients_are_machine_code_and_agree_with_the_reference_executor(case):
    parts = assert_equal_for_sizes(case)

    assert [*parts.refused.values(), *(each.reason for plan in parts.regions for each in plan.interpreted)] == []


def test_products_read_zeros_behind_the_rows_that_a_run_fills():
    s, program, found = program_of(heads)
    feeds = feeds_of(s, program, *SIZES[0])
    room = room_for(program, {name: value.shape for name, value in feeds.items()})
    code = compile_gradient(program, GradientQuery(loss="loss"), found, room=room)
    (plan,) = plan_parts(code.interpreter.block, CPU_TARGET).regions
    ended, cleared = set(), 0

    for each in plan.body.instructions:
        if isinstance(each, Gemm):
            assert not ended & {each.a.root, each.b.root}
        elif isinstance(each, Kernel) and each.kind == "clear_tail":
            ended.discard(each.views[1].root)
            cleared += 1
        elif isinstance(each, Limited) and isinstance(each.instruction, Gemm | Rows):
            ended |= {root for root in each.writes() if root.nbytes >= 16 * 8 * 16}  # not those of small sums

    assert cleared >= 2


@pytest.mark.parametrize("axis", ["steps", "labels", "field_steps"])
def test_lengths_of_sequences_above_the_sizes_of_the_run_are_errors(axis):
    """The code has room for 16 steps and labels, the run has 5 of them."""
    s = Sketch()
    x, y = x_of(s, TIME, BATCH, 4), x_of(s, BATCH, TIME, 4, name="y")
    w, letters = s.param("w", np.zeros((6, 4))), np.ones((BATCH, TIME), "int64")
    s.feed("letters", letters, "int64", shape=opened(letters.shape))
    for name in ("steps", "labels", "field_steps"):
        s.feed(name, np.full(BATCH, TIME + (name == axis)), "int64", shape=[-1])
    loss = s.op("ctc_loss", s.op("log_softmax", x, axis=2), "letters", "steps", "labels")
    s.op("sum", [loss, s.op("reduce_mean", s.op("linear_chain_crf", y, w, "letters", "field_steps"))], out="loss")
    program = read(s.document)
    feeds = feeds_of(s, program, *SIZES[0])
    room = room_for(program, {name: value.shape for name, value in feeds.items()})
    code = compile_gradient(program, GradientQuery(loss="loss"), (), room=room).compiled()
    assert code.packs is not None

    with pytest.raises(ExecutionError) as error:
        code.step(poisoned(room, dict(code.packs({**feeds, "w": np.zeros((6, 4))})), feeds))

    assert error.value.code == "shape_mismatch"


def test_a_batch_normalisation_passes_over_open_images_as_often_as_over_known_ones():
    s = Sketch()
    x, w = x_of(s, BATCH, 8, 32, 32, dtype="float32"), s.param("w", np.ones((8, 8, 3, 3)), "float32")
    named = (s.param(name, np.ones(8), "float32") for name in ("scale", "shift", "mean", "variance"))
    seen = s.op("relu", s.op("batch_norm", s.op("conv2d", x, w, paddings=[1, 1]), *named))
    s.op("reduce_mean", s.op("conv2d", seen, w, paddings=[1, 1]), out="loss")
    program, images = read(s.document), {"x": (16, 8, 32, 32)}

    def passes(**how: object) -> int:
        code = compile_gradient(program, GradientQuery(loss="loss"), (), **how)
        (plan,) = plan_parts(code.interpreter.block, CPU_TARGET).regions
        rows = [each.instruction if isinstance(each, Limited) else each for each in plan.body.instructions]
        found = [each for each in rows if isinstance(each, Rows) and each.ops]
        return sum(each.kernel.rows * each.kernel.inner == 16 * 8 * 32 * 32 for each in found)

    assert passes(room=room_for(program, images)) == passes(shapes=images) == 5
