"""Stripes under a band of positions on an emulated device: they leave out hidden columns where the numbers allow it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.device import stripes
from core.device.column_windows import takes_window
from core.device.gpu import DEVICE_TARGET
from core.device.ptx import cubin_of, has_linker, ptx_of
from core.device.step import write_device_step
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block
from core.plan.striped import Striped
from core.plan.target import Target
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.core.codegen.test_masked_stripes import BANDS, GIVEN, L, block_of
from tests.device.agreement import SCOPES, agree
from tests.device.emulator import Emulated, EmulatedBackend, EmulatorFault, compiler
from tests.device.test_stripes import target

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")


def with_windows(block: int = 4, least: int = 4, repeated: int = 0) -> Target:
    """The device with stripes of at least `least` rows, which leave out `block` columns at a time."""
    found = target(least, repeated=repeated)
    return replace(found, stripes=replace(found.stripes, block=block))


TARGETS = {
    "repeats": with_windows(),
    "stores": with_windows(repeated=2**62),
    "high": with_windows(8, least=L),
    "wide": with_windows(8, least=2),
}


def banded(name: str, number: float | None = None, operand: int = 1) -> tuple[Block, list[np.ndarray]]:
    """Attention to a band with its gradients; `number` is one of the numbers of an operand."""
    block, values = block_of(BANDS[name][0])
    if number is not None:
        values[operand][1, 2, -1, 0] = number
    return optimize(block), values


def windowed(block: Block, on: Target) -> list[bool]:
    """Whether each of the stripes of a plan leaves out columns."""
    return [takes_window(i) for i in plan_block(block, on).body.instructions if isinstance(i, Striped)]


FAST = {("causal", "repeats"), ("sliding", "stores"), ("dropped", "high")}


@pytest.mark.parametrize(
    ("name", "how"),
    [pytest.param(n, h, marks=[] if (n, h) in FAST else [pytest.mark.slow]) for n in BANDS for h in TARGETS],
)
def test_attention_to_a_band_agrees_with_the_reference_executor(name, how):
    block, values = banded(name)
    found = windowed(block, TARGETS[how])
    assert found and all(found)

    agree(block, values, EmulatedBackend(3, 64, target=TARGETS[how], seed=len(name), rules=SCOPES[1]))


@pytest.mark.parametrize(
    ("name", "number", "operand"),
    [
        ("fused", np.nan, 1),
        pytest.param("small", 1e6, 1, marks=pytest.mark.slow),
        pytest.param("causal", np.inf, 0, marks=pytest.mark.slow),
        pytest.param("causal", 3e4, 2, marks=pytest.mark.slow),
        pytest.param("sliding", -np.inf, 3, marks=pytest.mark.slow),
    ],
)
def test_a_matrix_with_large_numbers_computes_all_columns(name, number, operand):
    block, values = banded(name, number, operand)
    assert all(windowed(block, TARGETS["repeats"]))

    agree(block, values, EmulatedBackend(3, 32, target=TARGETS["repeats"], rules=SCOPES[1]))


def test_numbers_in_hidden_columns_are_zeros_for_other_readers():
    b = BlockBuilder()
    shapes = ((2, 3, 13, 6), (2, 3, 19, 6), (2, 3, 19, 5))
    q, k, v = (b.param(TensorType(shape, "float32")) for shape in shapes)
    scores = b.emit("matmul", q, k, transpose_y=True)
    seen = b.emit("triangle_mask_like", scores, diagonal=0)
    shown = b.emit("softmax", b.emit("where", seen, scores, b.emit("full_like", scores, value=-1e9)))
    block = optimize(b.build([b.emit("matmul", shown, v), shown]))
    assert all(windowed(block, TARGETS["stores"])) and windowed(block, TARGETS["stores"])
    rng = np.random.default_rng(6)
    values = [rng.standard_normal(shape).astype("float32") for shape in shapes]

    agree(block, values, EmulatedBackend(3, 64, target=TARGETS["stores"], rules=SCOPES[1]))


def test_hidden_columns_are_left_out(monkeypatch):
    """Without the check of numbers, an infinite value reaches no row of a stripe to which it is hidden."""
    block, values = banded("causal")
    block = replace(block, results=block.results[:1])
    values[2][:, :, 12] = np.inf  # row 12 of 13 sees it, and no row of the first two stripes
    with np.errstate(all="ignore"):
        (wanted,) = interpreter_of(block)(Run(), *values)
    assert np.isnan(wanted).any()

    def all_moderate(step, each, flags):
        with step.f.loop(step.launch.number(step.f), stripes.I64(each.domain.batch), step.launch.total) as i:
            step.f.store(stripes.literal(1, "int32"), step.f.at(flags, i, "int32"))
        step.launch.barrier(step.f)

    monkeypatch.setattr(stripes, "find_moderate", all_moderate)
    (found,) = native_interpreter(block, EmulatedBackend(3, 64, target=TARGETS["repeats"], rules=SCOPES[1]))(
        Run(), *values
    )

    assert np.isfinite(found[:, :, :8]).all()
    assert not np.isfinite(wanted[:, :, :8]).all()


def test_bits_do_not_depend_on_the_launch():
    block, values = banded("causal")
    found = [
        native_interpreter(block, EmulatedBackend(*each, target=TARGETS["repeats"], seed=i, rules=SCOPES[1]))(
            Run(), *values
        )
        for i, each in enumerate([(1, 64), (3, 64)])
    ]

    for one, two in zip(*found, strict=True):
        assert one.tobytes() == two.tobytes()


def test_a_mask_that_is_data_leaves_out_no_columns():
    make, mask = GIVEN["fused_past"]
    block, values = block_of(make, mask=mask)
    block = optimize(block)
    assert not any(windowed(block, TARGETS["repeats"]))

    agree(block, values, EmulatedBackend(2, 64, target=TARGETS["repeats"], rules=SCOPES[1]))


def test_the_barrier_behind_the_check_of_numbers_is_needed():
    block, values = banded("causal")
    block = replace(block, results=block.results[:1])
    code = write_device_step(plan_block(block, TARGETS["repeats"]), 3, 64, SCOPES[1])
    (found,) = re.finditer(
        r"call void @moderate\d+\(.*\n(?:  .*\n)*?(  call void @dev_(?:block_)?barrier\(i32 \d+\)\n)", code.text
    )
    start, end = found.span(1)

    native = native_interpreter(block, backend := EmulatedBackend(3, 64, target=TARGETS["repeats"], rules=SCOPES[1]))
    (region,) = backend.compiled
    region.emulated = Emulated(replace(code, text=code.text[:start] + code.text[end:]), watches=True)
    with pytest.raises(EmulatorFault, match="a race"):
        native(Run(), *values)


@pytest.mark.skipif(not has_linker(), reason="no nvJitLink")
@pytest.mark.parametrize(
    "architecture", ["sm_90", *(pytest.param(each, marks=pytest.mark.slow) for each in ("sm_80", "sm_100"))]
)
def test_causal_attention_of_a_real_size_becomes_machine_code_without_spilled_registers(architecture):
    b = BlockBuilder()
    q, k, v = (b.param(TensorType((8, 16, 2048, 64), "float32")) for _ in range(3))
    scores = b.emit("matmul", q, k, transpose_y=True) * 0.125
    seen = b.emit("triangle_mask_like", scores, diagonal=0)
    made = b.emit(
        "matmul", b.emit("softmax", b.emit("where", seen, scores, b.emit("full_like", scores, value=-1e9))), v
    )
    block = b.build([made])
    block = optimize(vjp(block, list(block.params)))
    assert all(windowed(block, DEVICE_TARGET))

    code = write_device_step(plan_block(block, DEVICE_TARGET), 132, 256)

    cubin = cubin_of(ptx_of(code, architecture), architecture)
    assert cubin.spilled == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_stripes_of_16_bit_numbers_compute_all_columns(dtype):
    """The kernel that checks the numbers reads no 16-bit ones."""
    block, _ = block_of(BANDS["causal"][0], dtype)

    found = windowed(optimize(block), TARGETS["repeats"])

    assert found and not any(found)
