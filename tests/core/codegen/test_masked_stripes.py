"""Stripes of attention that leave out hidden columns agree with the reference executor, whatever numbers enter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend as codegen_backend
from core.codegen import stripes
from core.codegen.backend import CpuBackend
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.striped import Striped, Window
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run

B, H, L, S, D, E = 2, 3, 13, 19, 6, 5
"""Batch, heads, queries, keys, and elements of a query and of a value."""


def limits(block: int, least: int = 4, repeated: int = 0) -> CpuBackend:
    """The CPU with stripes of `least` rows that leave out `block` columns at a time, for arrays of any size."""
    backend = CpuBackend()
    found = replace(CPU_TARGET.stripes, nbytes=0, least=least, stripe=1, repeated=repeated, block=block)
    backend.target = replace(CPU_TARGET, stripes=found)  # type: ignore[misc]
    return backend


BACKENDS = {
    "repeats": limits(4),
    "stores": limits(4, repeated=2**62),
    "single": limits(1, least=1),
    "wide": limits(8, least=2),
}


def attend(scores: Value, v: Value) -> Value:
    b = scores.builder
    return b.emit("matmul", b.emit("softmax", scores), v)


def product(q: Value, k: Value) -> Value:
    return q.builder.emit("matmul", q, k, transpose_y=True) * 0.4


def replaced(low: float, *, first: int | None = None, last: int | None = 0):
    """Attention to the keys from ``row + first`` to ``row + last``; other scores are `low`."""

    def make(q, k, v):
        b, scores = q.builder, product(q, k)
        seen = None
        if last is not None:
            seen = b.emit("triangle_mask_like", scores, diagonal=last)
        if first is not None:
            past = b.emit("logical_not", b.emit("triangle_mask_like", scores, diagonal=first - 1))
            seen = past if seen is None else b.emit("logical_and", seen, past)
        return attend(b.emit("where", seen, scores, b.emit("full_like", scores, value=low)), v)

    return make


def triangle(q, k, v):
    scores = product(q, k)
    ones = q.builder.emit("full_like", scores, value=1.0)
    return attend(scores + q.builder.emit("scale", q.builder.emit("tril", ones), scale=1e9, bias=-1e9), v)


def fused(q, k, v):
    return q.builder.emit("scaled_dot_product_attention", q, k, v, causal=True)


def dropped(q, k, v):
    b, scores = q.builder, product(q, k)
    hidden = b.emit("full_like", scores, value=-1e9)
    p = b.emit("softmax", b.emit("where", b.emit("triangle_mask_like", scores), scores, hidden))
    return b.emit("matmul", b.emit("dropout", p, p=0.3, seed=3), v)


def added(q, k, v, mask):
    return attend(product(q, k) + mask, v)


def fused_mask(q, k, v, mask):
    return q.builder.emit("scaled_dot_product_attention", q, k, v, mask)


BANDS = {
    "causal": (replaced(-1e9), (None, 0)),
    "infinite": (replaced(-np.inf), (None, 0)),
    "small": (replaced(-1e4), (None, 0)),
    "shifted": (replaced(-1e9, last=3), (None, 3)),
    "sliding": (replaced(-1e9, first=-3), (-3, 0)),
    "both": (replaced(-1e9, first=-2, last=2), (-2, 2)),
    "later": (replaced(-1e9, first=1, last=None), (1, None)),
    "triangle": (triangle, (None, 0)),
    "fused": (fused, (None, 0)),
    "dropped": (dropped, (None, 0)),
}
PAST = np.tri(L, S, 2, dtype=bool)
MASKS = {
    "past": PAST,
    "lengths": np.arange(S) < np.array([[[[7]]], [[[S]]]]),
    "empty": np.arange(S) < np.array([[[[0]]], [[[9]]]]),
    "middle": (np.arange(S) > 8) & (np.arange(S) < 12) & (np.arange(L) % 5 > 0)[:, None],
    "all": np.ones((L, S), bool),
    "heads": np.broadcast_to(PAST, (H, L, S)) & (np.arange(S) > np.arange(H)[:, None, None]),
}
GIVEN = {
    **{f"fused_{name}": (fused_mask, mask) for name, mask in MASKS.items()},
    **{f"added_{name}": (added, np.where(mask, 0.5, -1e9)) for name, mask in MASKS.items()},
    "added_infinite": (added, np.where(PAST, 0.0, -np.inf)),
    "added_slope": (added, np.where(PAST, -0.3 * np.arange(S), -1e30)),
    "added_nan": (added, np.where(PAST, np.where(np.arange(S) == 3, np.nan, 0.0), -1e9)),
    "added_large": (added, np.where(PAST, np.where(np.arange(S) == 3, 1e10, 0.0), -1e9)),
    "added_low": (added, np.where(PAST, -2e9, -1e9)),
}


PARTS = {"float64": 1e-12, "float32": 2e-5, "float16": 2**-9, "bfloat16": 2**-6}
"""Of the largest number of a result: two last bits of a 16-bit float."""


def block_of(make, dtype: str = "float32", mask: np.ndarray | None = None) -> tuple[Block, list[np.ndarray]]:
    """Attention and its gradients, and operands for it."""
    rng = np.random.default_rng(1)
    kind = as_dtype(dtype)
    values = [rng.standard_normal(shape).astype(kind) for shape in ((B, H, L, D), (B, H, S, D), (B, H, S, E))]
    if mask is not None:
        with np.errstate(over="ignore"):
            values.append(mask if mask.dtype == bool else mask.astype(kind))
    b = BlockBuilder()
    block = b.build([make(*(b.param(TensorType(x.shape, x.dtype.name)) for x in values))])
    values.append(rng.standard_normal((B, H, L, E)).astype(kind))
    return vjp(block, list(block.params[:3])), values


def windows_of(block: Block, backend: CpuBackend) -> list[Window | None]:
    body = plan_block(optimize(block), backend.target).body
    return [each.window for each in body.instructions if isinstance(each, Striped)]


def agree(block: Block, values: list[np.ndarray], backend: CpuBackend) -> None:
    """Compare machine code with the reference executor: numbers, infinities and NaN."""
    block = optimize(block)
    with np.errstate(all="ignore"):
        wanted = interpreter_of(block)(Run(), *values)
        found = native_interpreter(block, backend)(Run(), *values)
    for f, w in zip(found, wanted, strict=True):
        part = PARTS[w.dtype.name]
        f, w = (x if x.dtype == np.float64 else x.astype(np.float32) for x in (f, w))
        largest = np.abs(w[np.isfinite(w)]).max(initial=1.0)
        np.testing.assert_allclose(f, w, rtol=part, atol=part * largest)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", BACKENDS)
@pytest.mark.parametrize("name", BANDS)
def test_attention_to_a_band_agrees_with_the_reference_executor(name, how):
    block, values = block_of(BANDS[name][0])
    agree(block, values, BACKENDS[how])


@pytest.mark.parametrize("name", BANDS)
def test_a_band_is_found(name):
    make, edges = BANDS[name]
    block, _ = block_of(make)

    for window in windows_of(block, BACKENDS["repeats"]):
        assert window is not None and window.mask is None
        assert (window.first, window.last) == edges


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["repeats", "stores"])
@pytest.mark.parametrize("name", GIVEN)
def test_attention_under_a_mask_that_is_data_agrees_with_the_reference_executor(name, how):
    make, mask = GIVEN[name]
    block, values = block_of(make, mask=mask)

    assert all(window is not None and window.mask is not None for window in windows_of(block, BACKENDS[how]))
    agree(block, values, BACKENDS[how])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["causal", "sliding", "fused", "small"])
@pytest.mark.parametrize("operand", range(4))
@pytest.mark.parametrize("number", [1e6, -1e13, 3e38, np.inf, np.nan])
def test_numbers_that_are_not_moderate_give_what_the_reference_executor_gives(name, operand, number):
    for place in ((1, 2, -1, 0), (0, 0, 0, 1)):
        block, values = block_of(BANDS[name][0])
        values[operand][place] = number
        agree(block, values, BACKENDS["repeats"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["causal", "infinite", "small", "sliding", "triangle", "fused", "dropped"])
def test_16_bit_attention_to_a_band_agrees_with_the_reference_executor(name, dtype):
    block, values = block_of(BANDS[name][0], dtype)

    assert all(window is not None for window in windows_of(block, BACKENDS["repeats"]))
    for how in ("repeats", "stores"):
        agree(block, values, BACKENDS[how])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", GIVEN)
def test_16_bit_attention_with_a_fed_mask_agrees_with_the_reference_executor(name, dtype):
    make, mask = GIVEN[name]
    block, values = block_of(make, dtype, mask=mask)

    assert all(window is not None and window.mask is not None for window in windows_of(block, BACKENDS["repeats"]))
    for how in ("repeats", "stores"):
        agree(block, values, BACKENDS[how])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["causal", "small", "fused"])
@pytest.mark.parametrize("operand", range(4))
@pytest.mark.parametrize("number", [2e4, -3e4, np.inf, np.nan])
def test_16_bit_attention_on_large_numbers_agrees_with_the_reference_executor(name, operand, number, dtype):
    for place in ((1, 2, -1, 0), (0, 0, 0, 1)):
        block, values = block_of(BANDS[name][0], dtype)
        values[operand][place] = number
        agree(block, values, BACKENDS["repeats"])


@pytest.mark.parametrize(("dtype", "largest"), [("float16", 16), ("bfloat16", 1024)])
def test_a_mask_hides_columns_of_16_bit_scores_up_to_a_size_of_the_operands(dtype, largest):
    """Up to there, the scores of hidden keys have no influence, and beyond it the mask may show them."""
    make, mask = added, np.where(PAST, 0.0, -9000.0 if dtype == "float16" else -(2.0**27))
    for factor in (1, 1024):
        block, values = block_of(make, dtype, mask=mask)
        values[0][:], values[1][:] = largest, 1
        values[1][:, :, L:] = largest * factor
        agree(replace(block, results=block.results[:1]), values, BACKENDS["repeats"])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["causal", "both", "fused"])
def test_second_order_gradients_agree_with_the_reference_executor(name):
    block, values = block_of(BANDS[name][0], "float64")
    rng = np.random.default_rng(2)
    values += [rng.standard_normal(block.types[n].shape) for n in block.results]
    agree(vjp(block, [*block.params[:3], block.params[-1]]), values, BACKENDS["repeats"])


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_the_gradient_of_a_hidden_key_is_zero_unless_numbers_are_large(scale):
    """Scores below -1e9 are smaller than those behind a mask of -1e9."""
    block, values = block_of(BANDS["causal"][0])
    values[0] *= scale
    values[1] *= scale
    with np.errstate(all="ignore"):
        _, _, _, value_gradient = native_interpreter(optimize(block), BACKENDS["repeats"])(Run(), *values)

    assert (value_gradient[:, :, L:] == 0).all() == (scale == 1.0)
    agree(block, values, BACKENDS["repeats"])


def test_probabilities_that_others_read_have_zeros_behind_the_mask():
    b = BlockBuilder()
    q, k, v = (b.param(TensorType(shape, "float32")) for shape in ((B, H, L, D), (B, H, S, D), (B, H, S, E)))
    scores = product(q, k)
    hidden = b.emit("full_like", scores, value=-1e9)
    p = b.emit("softmax", b.emit("where", b.emit("triangle_mask_like", scores), scores, hidden))
    block = b.build([b.emit("matmul", p, v), b.emit("cumsum", p, axis=-2)])
    rng = np.random.default_rng(1)
    values = [rng.standard_normal(block.types[n].shape).astype("float32") for n in block.params]
    block = optimize(block)
    run = native_interpreter(block, BACKENDS["repeats"])
    run(Run(), *(value * np.float32(1e6) for value in values))  # fills the memory with other numbers

    assert all(windows_of(block, BACKENDS["repeats"]))
    for f, w in zip(run(Run(), *values), interpreter_of(block)(Run(), *values), strict=True):
        np.testing.assert_allclose(f, w, rtol=2e-5, atol=2e-5)


def test_scores_that_the_loss_reads_too_keep_all_columns():
    def make(q, k, v):
        b, scores = q.builder, product(q, k)
        seen = b.emit("triangle_mask_like", scores)
        hidden = b.emit("where", seen, scores, b.emit("full_like", scores, value=-1e9))
        return attend(hidden, v) + b.emit("reduce_max", scores, axes=(-1,), keepdims=True)

    block, values = block_of(make)

    assert not any(windows_of(block, BACKENDS["repeats"]))
    agree(block, values, BACKENDS["repeats"])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["causal", "sliding", "fused"])
def test_the_forward_pass_gives_the_same_bits_with_any_number_of_threads(name, monkeypatch):
    monkeypatch.setattr(stripes, "LONG", 0)
    block, values = block_of(BANDS[name][0])
    block = optimize(replace(block, results=block.results[:1]))
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(codegen_backend, "thread_count", lambda threads=threads: threads)
        found.append(native_interpreter(block, BACKENDS["repeats"])(Run(), *values)[0])

    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


@pytest.mark.sampled(1, each="name")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["causal", "fused", "sliding"])
def test_long_sequences_agree_with_the_reference_executor(name, threads, monkeypatch):
    monkeypatch.setattr(codegen_backend, "thread_count", lambda: threads)
    rng, shape = np.random.default_rng(0), (4, 4, 200, 32)
    b = BlockBuilder()
    made = BANDS[name][0](*(b.param(TensorType(shape, "float32")) for _ in range(3)))
    block = b.build([made])
    block = vjp(block, list(block.params[:3]))
    values = [rng.standard_normal(shape).astype("float32") for _ in range(4)]

    assert all(windows_of(block, CpuBackend()))
    agree(block, values, CpuBackend())
