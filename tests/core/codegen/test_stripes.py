"""Attention that runs in stripes agrees with the reference executor, however the program writes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend as codegen_backend
from core.codegen import parallel, stripes
from core.codegen.backend import CpuBackend
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.instructions import Gemm, Rows
from core.plan.striped import Domain, Striped
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run

B, H, L, S, D, E = 2, 3, 11, 19, 6, 5
"""Batch, heads, queries, keys, and elements of a query and of a value."""


def limits(least: int = 4, stripe: int = 1, repeated: int = 0, block: int = 4) -> CpuBackend:
    """The CPU with stripes of at least `least` rows for arrays of any size."""
    backend = CpuBackend()
    found = replace(CPU_TARGET.stripes, nbytes=0, least=least, stripe=stripe, repeated=repeated, block=block)
    backend.target = replace(CPU_TARGET, stripes=found)  # type: ignore[misc]
    return backend


BACKENDS = {
    "repeats": limits(),
    "stores": limits(repeated=2**62),
    "whole": limits(stripe=2**40),
    "single": limits(least=1),
}


def _scores(q: Value, k: Value) -> Value:
    return q.builder.emit("matmul", q, k, transpose_y=True)


def _softmax(x: Value) -> Value:
    return x.builder.emit("softmax", x)


def _mixed(p: Value, v: Value) -> Value:
    return p.builder.emit("matmul", p, v)


def plain(q, k, v):
    return _mixed(_softmax(_scores(q, k) * 0.4), v)


def scaled_before(q, k, v):
    return _mixed(_softmax(_scores(q * 0.4, k)), v)


def transposed_key(q, k, v):
    turned = q.builder.emit("transpose", k, axes=(0, 1, 3, 2))
    return _mixed(_softmax(q.builder.emit("matmul", q, turned) * 0.4), v)


def added_mask(q, k, v, mask):
    return _mixed(_softmax(_scores(q, k) * 0.4 + mask), v)


def causal(q, k, v):
    scores = _scores(q, k)
    past = q.builder.emit("triangle_mask_like", scores)
    hidden = q.builder.emit("full_like", scores, value=-1e9 if q.dtype != "float16" else -6e4)
    return _mixed(_softmax(q.builder.emit("where", past, scores, hidden)), v)


def fused(q, k, v):
    return q.builder.emit("scaled_dot_product_attention", q, k, v)


def fused_causal(q, k, v):
    return q.builder.emit("scaled_dot_product_attention", q, k, v, causal=True, softcap=3.0)


def fused_mask(q, k, v, mask):
    return q.builder.emit("scaled_dot_product_attention", q, k, v, mask)


def dropped(q, k, v):
    p = q.builder.emit("dropout", _softmax(_scores(q, k)), p=0.3, seed=3)
    return _mixed(p, v)


def fetched(q, k, v):
    p = _softmax(_scores(q, k))
    return _mixed(p, v), p


def twice(q, k, v):
    first = _mixed(_softmax(_scores(q, k)), v)
    b = q.builder
    again = b.emit("slice", first, axes=(3,), starts=(0,), ends=(1,))
    return _mixed(_softmax(_scores(q * b.emit("tanh", again), k)), v) + first


def side_by_side(q, k, v):
    return plain(q, k, v) + _mixed(_softmax(_scores(q * q, k)), v)


def from_the_right(q, k, v):
    """Transposed products: the probabilities are second operands."""
    b = q.builder
    p = b.emit("transpose", _softmax(_scores(q, k)), axes=(0, 1, 3, 2))
    return b.emit("matmul", b.emit("transpose", v, axes=(0, 1, 3, 2)), p)


def shared_keys(q, k, v):
    """All heads read the keys and values of the first one."""
    b = q.builder
    one, both = (b.emit("slice", x, axes=(1,), starts=(0,), ends=(1,)) for x in (k, v))
    return _mixed(_softmax(_scores(q, one)), both)


def statistics(q, k, v):
    """The logarithms of the sums are a result too."""
    b = q.builder
    scores = _scores(q, k)
    return _mixed(_softmax(scores), v), b.emit("logsumexp", scores, axes=(-1,))


MASKS = {
    "rows": np.where(np.arange(S) < 13, 0.0, -1e4),
    "square": np.where(np.tri(L, S, 4, dtype=bool), 0.5, -1e4),
    "heads": np.sin(np.arange(H * L * S)).reshape(H, L, S),
    "lengths": np.where(np.arange(S) < np.array([[[[7]]], [[[S]]]]), 0.0, -1e4),
}
VISIBLE = {
    "some": np.tri(L, S, 4, dtype=bool),
    "none": np.arange(S) < np.array([[[[0]]], [[[7]]]]),
    "rows": (np.arange(L) % 3 > 0)[:, None] & (np.arange(S) > 2),
}
FORMS: dict[str, tuple[Callable[..., Value | tuple[Value, ...]], np.ndarray | None]] = {
    **{f.__name__: (f, None) for f in (
        plain, scaled_before, transposed_key, causal, fused, fused_causal, dropped, fetched, twice, side_by_side,
        from_the_right, shared_keys, statistics,
    )},
    **{f"added_{name}": (added_mask, mask) for name, mask in MASKS.items()},
    **{f"fused_{name}": (fused_mask, mask) for name, mask in VISIBLE.items()},
}  # fmt: skip
SHAPES = ((B, H, L, D), (B, H, S, D), (B, H, S, E))


def block_of(name: str, dtype: str, adjoint: bool = True) -> tuple[Block, list[np.ndarray]]:
    """Attention and its gradients, and operands for it."""
    make, mask = FORMS[name]
    rng = np.random.default_rng(1)
    values = [rng.standard_normal(shape).astype(as_dtype(dtype)) for shape in SHAPES]
    if mask is not None:
        values.append(mask if mask.dtype == bool else mask.astype(as_dtype(dtype)))
    b = BlockBuilder()
    given = [b.param(TensorType(x.shape, x.dtype.name)) for x in values]
    made = make(*given)
    block = b.build(list(made) if isinstance(made, tuple) else [made])
    if adjoint:
        values += [rng.standard_normal(block.types[n].shape).astype(as_dtype(dtype)) for n in block.results]
        block = vjp(block, list(block.params[:3]))
    return block, values


def stripes_of(block: Block, backend: CpuBackend) -> list[Striped]:
    body = plan_block(optimize(block), backend.target).body
    return [each for each in body.instructions if isinstance(each, Striped)]


def agree(block: Block, values: list[np.ndarray], backend: CpuBackend) -> None:
    block = optimize(block)
    with np.errstate(all="ignore"):
        wanted = interpreter_of(block)(Run(), *values)
        found = native_interpreter(block, backend)(Run(), *values)
    for f, w in zip(found, wanted, strict=True):
        assert f.dtype == w.dtype
        dtype = str(w.dtype)
        part = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
        f, w = f.astype("float64"), w.astype("float64")
        np.testing.assert_allclose(f, w, rtol=0, atol=part * max(1.0, np.abs(w).max()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FORMS)
def test_attention_and_its_gradients_agree_with_the_reference_executor(name):
    block, values = block_of(name, "float32")
    agree(block, values, BACKENDS["repeats" if len(name) % 2 else "stores"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("how", BACKENDS)
@pytest.mark.parametrize("name", FORMS)
def test_attention_agrees_with_stripes_of_every_height(name, how, dtype):
    for adjoint in (False, True):
        block, values = block_of(name, dtype, adjoint)
        agree(block, values, BACKENDS[how])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["plain", "fused_causal"])
def test_attention_of_16_bit_floats_agrees_with_the_reference_executor(name, dtype):
    block, values = block_of(name, dtype)
    agree(block, values, BACKENDS["repeats"])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("rows", "columns", "least"), [(66, 70, 1), (68, 64, 3), (130, 66, 64)])
def test_products_of_16_bit_pairs_agree_in_stripes_of_few_rows(rows, columns, least):
    for batch in ((), (2,)):
        b, shapes = BlockBuilder(), ((*batch, rows, 34), (*batch, columns, 34), (*batch, columns, 66))
        x, y, z = (b.param(TensorType(shape, "bfloat16")) for shape in shapes)
        block = vjp(b.build([_mixed(_softmax(_scores(x, y) * 0.4), z)]))
        backend = limits(least)
        backend.target = replace(backend.target, stripes=replace(backend.target.stripes, matrix=0, shared=1))  # type: ignore[misc]
        rng = np.random.default_rng(0)
        values = [rng.standard_normal(block.types[n].shape).astype(as_dtype("bfloat16")) for n in block.params]

        assert any(each.height < 64 or each.domain.rows % each.height for each in stripes_of(block, backend))
        agree(block, values, backend)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["plain", "causal", "fused_some", "twice"])
def test_second_order_gradients_agree_with_the_reference_executor(name):
    block, values = block_of(name, "float64")
    rng = np.random.default_rng(2)
    values += [rng.standard_normal(block.types[n].shape) for n in block.results]
    agree(vjp(block, [*block.params[:3], block.params[-1]]), values, BACKENDS["repeats"])


STORED = {"fetched", "statistics", "from_the_right"}
"""Forms in which other instructions read the scores or probabilities, or a product writes the transposes of them."""


@pytest.mark.parametrize("name", sorted(FORMS.keys() - STORED))
def test_no_product_stores_scores(name):
    block, _ = block_of(name, "float32")
    backend = BACKENDS["repeats"]

    body = plan_block(optimize(block), backend.target).body.instructions

    products = [each for each in body if isinstance(each, Gemm)]
    assert not any(each.c.shape[-2:] == (L, S) for each in products)
    assert any(isinstance(each, Striped) for each in body)
    for each in body:
        assert all(root.nbytes < 4 * B * H * L * S or root.place == "given" for root in each.writes())


def test_probabilities_that_are_a_result_are_stored_and_not_computed_again():
    block, _ = block_of("fetched", "float32")

    first, second = stripes_of(block, BACKENDS["repeats"])

    assert sum(each.c.shape[-2:] == (L, S) for each in first.instructions if isinstance(each, Gemm)) == 1
    assert sum(each.c.shape[-2:] == (L, S) for each in second.instructions if isinstance(each, Gemm)) == 1


def test_results_do_not_depend_on_the_height_of_a_stripe_in_the_forward_pass():
    block, values = block_of("fused_some", "float32", adjoint=False)
    block = optimize(block)

    found = [native_interpreter(block, backend)(Run(), *values)[0] for backend in BACKENDS.values()]

    for each in found:
        np.testing.assert_allclose(each, found[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["plain", "fused_some"])
def test_a_batch_that_is_small_for_the_threads_is_split_into_parts(name, monkeypatch):
    monkeypatch.setattr(codegen_backend, "thread_count", lambda: 4)
    monkeypatch.setattr(stripes, "LONG", 0)
    block, values = block_of(name, "float32")
    agree(block, values, BACKENDS["repeats"])

    run = native_interpreter(optimize(block), BACKENDS["repeats"])
    first, second = run(Run(), *values), run(Run(), *values)

    for x, y in zip(first, second, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_loss_over_many_classes_passes_once_over_the_logits():
    b = BlockBuilder()
    x, w = b.param(TensorType((70, 8), "float32")), b.param(TensorType((8, 20_000), "float32"))
    y = b.param(TensorType((70,), "int64"))
    logits = b.emit("matmul", x, w)
    loss = b.emit("softmax_with_cross_entropy", logits, y, reduction="mean", label_smoothing=0.1)
    block = vjp(b.build([loss]), [x.name, w.name])
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(n).astype("float32") for n in ((70, 8), (8, 20_000))]
    values += [np.where(np.arange(70) % 7, rng.integers(0, 20_000, 70), -100), np.float32(1.5)]

    body = plan_block(optimize(block), CPU_TARGET).body.instructions

    assert sum(isinstance(each, Rows) and 20_000 in (each.kernel.inner, *each.kernel.outer) for each in body) <= 1
    agree(block, values, CpuBackend())


def _logits(kind: str) -> tuple[Block, list[np.ndarray]]:
    """A softmax over classes at the end of a net, its loss, and its gradients."""
    b, rng, rows, classes = BlockBuilder(), np.random.default_rng(0), 21, 67
    h, w = b.param(TensorType((rows, 6), "float32")), b.param(TensorType((6, classes), "float32"))
    bias, y = b.param(TensorType((classes,), "float32")), b.param(TensorType((rows,), "int64"))
    logits = b.emit("matmul", b.emit("tanh", h), w)
    if kind != "no_bias":
        logits = logits + bias
    attrs = {"reduction": "none"} if kind == "rows" else {"reduction": "mean", "label_smoothing": 0.1}
    if kind == "text":
        logits, labels = b.emit("reshape", logits, shape=(3, 7, classes)), b.emit("reshape", y, shape=(3, 7))
    else:
        labels = y
    loss = b.emit("softmax_with_cross_entropy", logits, labels, **attrs)
    if kind == "z_loss":
        loss = loss + b.emit("mean", b.emit("square", b.emit("logsumexp", logits, axes=(-1,)))) * 0.01
    made = b.build([loss])
    wrt = [h.name, w.name] if kind == "no_bias" else [h.name, w.name, bias.name]
    values = [rng.standard_normal(n).astype("float32") for n in ((rows, 6), (6, classes), (classes,))]
    values += [np.where(np.arange(rows) % 5, rng.integers(0, classes, rows), -100)]
    values += [np.float32(1.5) if kind != "rows" else rng.standard_normal(rows).astype("float32")]
    return vjp(made, wrt), values


@pytest.mark.sampled(1, each="kind")
@pytest.mark.parametrize("kind", ["mean", "no_bias", "rows", "text", "z_loss"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_loss_over_classes_in_stripes_of_rows_agrees_with_the_reference_executor(kind, threads, monkeypatch):
    monkeypatch.setattr(codegen_backend, "thread_count", lambda: threads)
    monkeypatch.setattr(parallel, "LONG", 0)
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 0)
    backend = limits()
    backend.target = replace(backend.target, stripes=replace(backend.target.stripes, matrix=0, shared=67 * 4 * 12))  # type: ignore[misc]
    block, values = _logits(kind)

    found = [each for each in stripes_of(block, backend) if each.domain == Domain(1, 21, 67)]

    assert len(found) == 1
    assert all(each.height < 21 for each in found)
    agree(block, values, backend)
