"""Attention and losses in stripes on an emulated device agree with the reference executor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.compiler.compile import optimize
from core.device import stripes
from core.device.gpu import DEVICE_TARGET
from core.ir import Block
from core.plan import plan_block
from core.plan.data import Gemm
from core.plan.striped import Striped
from core.plan.target import Target
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.core.codegen.test_stripes import B, H, L, S, _logits, block_of
from tests.device.emulator import EmulatedBackend, compiler
from tests.device.test_emulated import agree

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


@pytest.mark.parametrize("name", NAMES)
def test_attention_and_its_gradients_agree_with_the_reference_executor(name):
    block, values = striped_block(name, "float32", target())

    agree(block, values, EmulatedBackend(target=target(), seed=3))


@pytest.mark.parametrize("name", ["plain", "fused_some"])
@pytest.mark.parametrize(("least", "repeated"), [(1, 0), (5, 2**62), (L, 0)])
def test_attention_agrees_with_stripes_of_every_height(name, least, repeated):
    found = target(least, repeated=repeated)
    block, values = striped_block(name, "float64", found)
    backend = EmulatedBackend(3, 32, target=found, seed=least)

    agree(block, values, backend)


@pytest.mark.parametrize("constant", ["SHARED_BYTES", "UNITS"])
def test_stripes_in_scratch_memory_and_without_parts_agree_with_the_reference_executor(constant, monkeypatch):
    monkeypatch.setattr(stripes, constant, 0)
    block, values = striped_block("plain", "float32", target())

    agree(block, values, EmulatedBackend(3, 32, target=target(), seed=1))


def test_bits_do_not_depend_on_the_launch():
    block, values = striped_block("plain", "float32", target())
    found = [
        native_interpreter(block, EmulatedBackend(blocks, 64, target=target(), seed=seed))(Run(), *values)
        for blocks, seed in ((1, 1), (2, 2), (5, 3))
    ]

    for one, two, three in zip(*found, strict=True):
        assert one.tobytes() == two.tobytes() == three.tobytes()


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

    agree(block, values, EmulatedBackend(target=found, seed=2))
