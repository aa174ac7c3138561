"""Random numbers: the published vectors, the distributions, and replay."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from core.compiler.compile import GradientQuery, compile_gradient, key_of
from core.ops.random.counter import philox
from core.wire import read
from tests.programs import Sketch

ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)

# Known answers that Salmon et al. publish with the algorithm.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@pytest.mark.parametrize(("counter", "key", "wanted"), VECTORS)
def test_philox_gives_the_published_words(counter, key, wanted):
    found = philox(np, [np.full(1, c, dtype=np.uint64) for c in counter], key)

    assert tuple(int(w[0]) for w in found) == wanted


def draw(op: str, key: int, **attrs: object) -> np.ndarray:
    from core.ir import TensorType
    from core.ir.builder import BlockBuilder
    from core.runtime.reference import execute

    b = BlockBuilder()
    block = b.build([b.emit(op, b.param(TensorType((), "int64")), **attrs)])
    return execute(block, [np.asarray(key)])[0]


def test_uniform_and_normal_draws_pass_a_kolmogorov_smirnov_test():
    uniform = draw("uniform_random", 5, shape=(20_000,), min=-2.0, max=3.0, dtype="float64")
    normal = draw("gaussian_random", 5, shape=(20_000,), mean=1.0, std=2.0, dtype="float64")

    assert stats.kstest(uniform, "uniform", args=(-2.0, 5.0)).pvalue > 1e-3
    assert stats.kstest(normal, "norm", args=(1.0, 2.0)).pvalue > 1e-3
    assert uniform.min() >= -2.0 and uniform.max() < 3.0


def test_each_of_key_seed_and_stream_changes_the_numbers_and_equal_ones_repeat_them():
    attrs = {"shape": (8,), "dtype": "float64"}
    base = draw("uniform_random", 1, **attrs)

    np.testing.assert_array_equal(base, draw("uniform_random", 1, **attrs))
    for other in (
        draw("uniform_random", 2, **attrs),
        draw("uniform_random", 1, seed=1, **attrs),
        draw("uniform_random", 1, stream=1, **attrs),
    ):
        assert not np.isin(other, base).any()


def test_float32_never_reaches_the_upper_bound():
    assert draw("uniform_random", 3, shape=(200_000,), min=0.0, max=1.0).max() < 1.0


def test_keys_of_steps_differ():
    assert len({int(key_of(seed, step)) for seed in range(30) for step in range(30)}) == 900


def dropout_loop(trips: int) -> Sketch:
    s = Sketch()
    s.param("w", np.linspace(0.5, 1.5, 6))
    s.op("assign", "w", out="h")
    with s.repeat(trips):
        s.op("dropout", s.op("mul", "h", "w"), out="h", p=0.3)
    s.total("h")
    return s


def test_69_dropout_in_a_loop_uses_each_trips_own_mask_in_the_backward_pass_too():
    s = dropout_loop(3)
    exe = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=["h"])

    out = exe.step(s.values, seed=4, step=2)

    # h = w^4 / 0.7^3 where no trip dropped it: the derivative is 4 h / w there and 0 elsewhere
    w, h = s.values["w"], out.fetched["h"]
    np.testing.assert_allclose(out.gradients["w"], 4 * h / w, rtol=1e-12)
    assert set(np.round(h / (w**4 / 0.7**3), 9)) <= {0.0, 1.0}
    masks = {tuple(exe.step(s.values, seed=4, step=k).fetched["h"] > 0) for k in range(20)}
    assert len(masks) > 5


def test_a_replayed_step_gives_the_same_bits():
    s = dropout_loop(2)
    exe = compile_gradient(read(s.document), GradientQuery(loss="loss"))

    first, again = (exe.step(s.values, seed=9, step=1).gradients["w"].tobytes() for _ in range(2))

    assert first == again


def test_the_trips_of_a_loop_draw_different_numbers():
    s = Sketch()
    s.param("w", [1.0])
    s.const(0.0, [3], out="seen")
    s.const(0, [1], "int64", out="t")
    with s.repeat(3):
        s.raw({"type": "uniform_random", "outputs": {"out": ["u"]}, "attrs": {"shape": [3], "dtype": "float64"}})
        s.op("mul", "seen", s.const(10.0), out="seen")
        s.op("add", "seen", "u", out="seen")
    s.total(s.op("mul", "seen", "w"))

    seen = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=["u", "seen"][1:]).step(s.values)

    one = seen.fetched["seen"]
    assert len(set(np.round(one, 6))) == 3
