"""`unfold` beside windows taken one by one, and `fold` as its transpose, however their windows lie."""

from __future__ import annotations

import numpy as np
import pytest

from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.passes.expand import expand_composites
from tests.core.ops.test_kinks_nn import run
from tests.programs import Sketch, grads

CASES = {
    "every element": ((5, 6), {"kernel": (3, 2)}),
    "borders": ((5, 6), {"kernel": (3, 3), "paddings": (1, 2)}),
    "uneven borders": ((5, 6), {"kernel": (2, 2), "paddings": (1, 0, 0, 2)}),
    "dilated": ((7, 8), {"kernel": (3, 2), "dilations": (2, 3)}),
    "long windows": ((40,), {"kernel": (20,)}),
    "tiles": ((6, 8), {"kernel": (3, 2), "strides": (3, 2)}),
    "tiles that leave a rest": ((7, 8), {"kernel": (3, 2), "strides": (3, 2)}),
    "tiles with borders": ((4, 4), {"kernel": (3, 2), "strides": (3, 2), "paddings": (1, 1)}),
    "dilated tiles": ((8, 8), {"kernel": (2, 2), "strides": (2, 2), "dilations": (2, 1)}),
    "strides": ((7, 9), {"kernel": (3, 3), "strides": (2, 2)}),
    "a line": ((9,), {"kernel": (4,), "dilations": (2,)}),
    "a line of tiles": ((9,), {"kernel": (3,), "strides": (3,)}),
    "a volume": ((3, 4, 5), {"kernel": (2, 3, 2)}),
    "a volume of tiles": ((4, 6, 4), {"kernel": (2, 3, 4), "strides": (2, 3, 4)}),
    "one window": ((3, 3), {"kernel": (3, 3)}),
    "single elements": ((3, 4), {"kernel": (1, 1)}),
}


def columns(x: np.ndarray, kernel, strides=None, paddings=None, dilations=None) -> np.ndarray:
    rank = len(kernel)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    pads = paddings or (0,) * rank
    pairs = [(p, p) for p in pads] if len(pads) == rank else list(zip(pads[::2], pads[1::2], strict=True))
    x = np.pad(x, [(0, 0), (0, 0), *pairs])
    counts = [(n - d * (k - 1) - 1) // s + 1
              for n, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)]  # fmt: skip
    out = np.zeros((*x.shape[:2], *kernel, *counts))
    for place in np.ndindex(*kernel):
        for window in np.ndindex(*counts):
            at = tuple(w * s + p * d for w, s, p, d in zip(window, strides, place, dilations, strict=True))
            out[(slice(None), slice(None), *place, *window)] = x[(slice(None), slice(None), *at)]
    return out.reshape(x.shape[0], -1, int(np.prod(counts)))


def matrix(sizes, attrs) -> np.ndarray:
    """[columns, elements]: which element of an image of one channel each element of the columns is."""
    elements = int(np.prod(sizes))
    images = np.eye(elements).reshape(elements, 1, *sizes)
    return columns(images, **attrs).reshape(elements, -1).T


@pytest.mark.parametrize("name", CASES)
def test_columns_are_the_elements_of_windows(name):
    sizes, attrs = CASES[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, *sizes))
    wanted = columns(x, **attrs)
    np.testing.assert_array_equal(run("unfold", x, **attrs), wanted)

    c = rng.standard_normal(wanted.shape)
    s = Sketch()
    s.param("x", x)
    s.feed("c", c)
    s.total(s.op("mul", s.op("unfold", "x", **attrs), "c"))
    back = (c.reshape(6, -1) @ matrix(sizes, attrs)).reshape(x.shape)
    np.testing.assert_allclose(grads(s)["x"], back, atol=1e-12)

    np.testing.assert_allclose(run("fold", c, output_size=sizes, **attrs), back, atol=1e-12)
    s = Sketch()
    s.param("c", c)
    s.feed("x", x)
    s.total(s.op("mul", s.op("fold", "c", output_size=sizes, **attrs), "x"))
    np.testing.assert_allclose(grads(s)["c"], wanted, atol=1e-12)


def test_only_other_windows_gather_their_elements():
    gathers = []
    for name, (sizes, attrs) in CASES.items():
        b = BlockBuilder()
        x = b.param(TensorType((1, 1, *sizes), "float32"))
        block = expand_composites(b.build((b.emit("unfold", x, **attrs),)))
        if "gather" in {op.type for op in block.ops}:
            gathers.append(name)
    assert gathers == ["long windows", "tiles that leave a rest", "dilated tiles", "strides"]
