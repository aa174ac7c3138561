"""Attention and losses in stripes on an emulated device agree with the reference executor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.device import step, stripes
from core.device.gpu import DEVICE_TARGET
from core.device.rules import Rules
from core.device.segments import Segment
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan import Plan, plan_block
from core.plan.instructions import Gemm
from core.plan.striped import Striped
from core.plan.target import Target
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.core.codegen.test_stripes import B, H, L, S, _logits, block_of, plain
from tests.device.agreement import SCOPES, agree
from tests.device.emulator import EmulatedBackend, compiler
from tests.device.test_emulated_programs import agree as agree_in_parts

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

NAMES = (
    "plain", "transposed_key", "added_heads", "causal", "fused_causal", "dropped", "twice", "side_by_side",
    "from_the_right", "shared_keys", "statistics",
)  # fmt: skip


def target(least: int = 4, stripe: int = 1, repeated: int = 0) -> Target:
    """The device with stripes of at least `least` rows for arrays of any size."""
    found = replace(DEVICE_TARGET.stripes, nbytes=0, least=least, stripe=stripe, repeated=repeated)
    return replace(DEVICE_TARGET, stripes=found)


def striped_block(name: str, dtype: str, with_target: Target) -> tuple[Block, list[np.ndarray]]:
    """Attention with its gradients, which the target runs in stripes, and operands for it."""
    block, values = block_of(name, dtype)
    block = optimize(block)
    assert any(isinstance(i, Striped) for i in plan_block(block, with_target).body.instructions)
    return block, values


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_attention_and_its_gradients_agree_with_the_reference_executor(name):
    block, values = striped_block(name, "float32", target())

    agree(block, values, EmulatedBackend(target=target(), seed=3, rules=SCOPES[1 + len(name) % 2]))


@pytest.mark.sampled(1, each="dtype")
@pytest.mark.parametrize("name", ["plain", "transposed_key", "from_the_right"])
@pytest.mark.parametrize(("dtype", "part"), [("bfloat16", 0.02), ("float16", 0.0025)])
def test_attention_in_16_bits_adds_up_its_stripes_in_float32(name, dtype, part):
    found = target(1)
    block, values = striped_block(name, dtype, found)
    striped = [i for i in plan_block(block, found).body.instructions if isinstance(i, Striped)]
    backends = [EmulatedBackend(3, 64, target=found, seed=seed, rules=SCOPES[1]) for seed in (1, 2)]

    agree_in_parts(block, values, backends, part)

    assert {product.c.dtype for each in striped for product in each.sums} == {"float32"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["plain", "fused_some"])
@pytest.mark.parametrize(("least", "repeated"), [(1, 0), (5, 2**62), (L, 0)])
def test_attention_agrees_with_stripes_of_every_height(name, least, repeated):
    found = target(least, repeated=repeated)
    block, values = striped_block(name, "float64", found)
    backend = EmulatedBackend(3, 32, target=found, seed=least, rules=SCOPES[1 + repeated % 2])

    agree(block, values, backend)


@pytest.mark.parametrize("constant", ["SHARED_BYTES", "UNITS"])
def test_stripes_in_scratch_memory_and_without_parts_agree_with_the_reference_executor(constant, monkeypatch):
    monkeypatch.setattr(stripes, constant, 0)
    block, values = striped_block("plain", "float32", target())

    agree(block, values, EmulatedBackend(3, 32, target=target(), seed=1, rules=SCOPES[1]))


def test_bits_do_not_depend_on_the_launch():
    block, values = striped_block("plain", "float32", target())
    found = [
        native_interpreter(block, EmulatedBackend(blocks, 64, target=target(), seed=seed, rules=SCOPES[1]))(
            Run(), *values
        )
        for blocks, seed in ((1, 1), (2, 2), (5, 3))
    ]

    for one, two, three in zip(*found, strict=True):
        assert one.tobytes() == two.tobytes() == three.tobytes()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("least", "terms"), [(1, 4), (6, 4), (4, 1)])
def test_operands_whose_rows_begin_between_two_vectors_agree_with_the_reference_executor(least, terms):
    """Rows lie 6 or 18 numbers apart, so that only some of them, or of the matrices, begin at 16 bytes times n."""
    b = BlockBuilder()
    q = b.param(TensorType((B, H, terms, 18), "float32"))
    k = b.param(TensorType((B, H, 16, terms + 2), "float32"))
    v = b.param(TensorType((B, H, 16, 6), "float32"))
    cut = lambda x, size: b.emit("slice", x, axes=(3,), starts=(0,), ends=(size,))
    made = plain(b.emit("transpose", cut(q, 16), axes=(0, 1, 3, 2)), cut(k, terms), cut(v, 4))
    block = b.build([made])
    rng = np.random.default_rng(least)
    values = [rng.standard_normal(block.types[n].shape).astype("float32") for n in (*block.params, *block.results)]
    block = optimize(vjp(block, list(block.params)))
    found = target(least, repeated=2**62)
    assert any(isinstance(i, Striped) for i in plan_block(block, found).body.instructions)

    agree(block, values, EmulatedBackend(3, 64, target=found, rules=SCOPES[1]))


@pytest.mark.parametrize("name", ["twice", "side_by_side"])
def test_equal_instructions_may_run_on_different_numbers_of_blocks(name, monkeypatch):
    monkeypatch.setattr(step, "segments_of", launches_of_many_sizes)
    block, values = striped_block(name, "float32", target())

    agree(block, values, EmulatedBackend(4, 32, target=target()))


def launches_of_many_sizes(plan: Plan, blocks: int, rules: Rules) -> tuple[Segment, ...]:
    """Each instruction in a launch of its own, on one block, two, and so on."""
    return tuple(Segment("wide", (each,), 1 + i % blocks) for i, each in enumerate(plan.body.instructions))


def test_no_product_stores_scores():
    block, _ = striped_block("plain", "float32", target())
    plan = plan_block(block, target())

    assert not any(isinstance(i, Gemm) and i.c.root.nbytes >= B * H * L * S * 4 for i in plan.body.instructions)


@pytest.mark.parametrize("kind", ["mean", "rows", "text"])
def test_a_loss_over_classes_in_stripes_of_rows_agrees_with_the_reference_executor(kind):
    block, values = _logits(kind)
    block = optimize(block)
    found = replace(target(), stripes=replace(target().stripes, matrix=0, shared=67 * 4 * 12))
    assert any(isinstance(i, Striped) and i.shared for i in plan_block(block, found).body.instructions)

    agree(block, values, EmulatedBackend(target=found, seed=2, rules=SCOPES[2]))
