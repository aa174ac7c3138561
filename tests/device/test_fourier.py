"""Discrete Fourier transforms on an emulated GPU have the bits of those on the CPU, for any length and axis."""

from __future__ import annotations

import numpy as np
import pytest

from core.device.fourier import fourier_scratch, fourier_units
from core.device.rules import Rules
from core.device.threads import Threads
from core.plan.fourier import Fourier
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.core.codegen.stepwise import block_of, compiled
from tests.core.codegen.test_fourier import agree, by_definition, cases, pairs
from tests.device.emulator import EmulatedBackend, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

WIDE = Rules(launch=0.0, block_bandwidth=1.0, block_flops=1.0)

LENGTHS = [2, 4, 6, 7, 13, 17, 34, 60, 97, 128]
"""Of one pass and of several, with each radix, and with prime factors that need a convolution."""

LINES = [((), ()), ((5,), ()), ((150,), ()), ((), (3,)), ((2,), (21,)), ((3, 2), (2, 5))]
"""The axes before and after the transformed one: one block and several, whole and not."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("n", LENGTHS)
def test_transforms_have_the_bits_of_those_on_the_cpu(n):
    for number, (x, attrs) in enumerate(cases(n, LINES)):
        check(x, attrs, blocks=1 + number % 3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("before", "n", "after"), [((2,), 4000, ()), ((), 3584, (3,)), ((3,), 1009, ()), ((2,), 1000, (9,))]
)
def test_long_transforms_have_the_bits_of_those_on_the_cpu(before, n, after):
    check(pairs(*before, n, *after), {"axis": len(before), "inverse": False, "norm": "backward"}, blocks=2)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("n", [1, *LENGTHS])
def test_transforms_of_real_lines_have_the_bits_of_those_on_the_cpu(n):
    for number, (x, attrs) in enumerate(cases(n, LINES)):
        how = {"axis": attrs["axis"], "norm": attrs["norm"], "inner": 0.5}
        half = np.ascontiguousarray(np.take(x, range(n // 2 + 1), axis=how["axis"]))
        for op, given, more in (("real_dft", np.ascontiguousarray(x[..., 0]), {}), ("real_from_dft", half, {"n": n})):
            backend = EmulatedBackend(1 + number % 3, 64, seed=1, rules=WIDE)
            found = native_interpreter(block_of(op, given, **how, **more), backend)(Run(), given)[0]
            assert np.asarray(found).tobytes() == compiled(op, given, **how, **more).tobytes()


def check(x: np.ndarray, attrs: dict[str, object], blocks: int) -> None:
    found = [
        native_interpreter(block_of("dft", x, **attrs), EmulatedBackend(blocks, 64, seed=seed, rules=WIDE))(Run(), x)[0]
        for seed in (1, 2)
    ]
    assert np.asarray(found[0]).tobytes() == np.asarray(found[1]).tobytes()
    agree(np.asarray(found[0]), by_definition(x, **attrs), str(x.dtype))
    assert np.asarray(found[0]).tobytes() == compiled("dft", x, **attrs).tobytes()


def test_short_lines_share_a_block_and_long_ones_lie_in_scratch_memory():
    threads = Threads(132, 256)
    assert fourier_units(Fourier("float32", 4096, 64, 1, False, 1.0), threads) == 256
    assert fourier_scratch(Fourier("float32", 4096, 64, 1, False, 1.0), threads) == 0
    assert fourier_scratch(Fourier("float64", 3, 4096, 1, False, 1.0), threads) == 3 * 2 * 4096 * 16
