"""Factorisations and triangular systems on an emulated device: residuals in float64, and the ops built on them.

Matrices have more rows than a warp, fewer than one, and as many as leave a rest. Triangles that an op ignores are NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.device import cholesky, step, substitution
from core.device.gpu import DEVICE_TARGET
from core.device.ptx import cubin_of, has_linker, ptx_of
from core.device.rules import Rules
from core.device.segments import segments_of
from core.device.step import write_device_step
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.plan import plan_block
from core.plan.instructions import Kernel
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.core.codegen.stepwise import block_of
from tests.core.codegen.test_systems import close, definite, noise
from tests.device.agreement import SCOPES, agree
from tests.device.emulator import EmulatedBackend, compiler
from tests.device.test_products import APART
from tests.device.test_stripes import launches_of_many_sizes

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

SIZES = [(1, "float64"), (7, "float32"), (32, "float32"), (37, "float64")]


def planned(block: Block, *kinds: str) -> Block:
    """The optimised block, whose plan for a device has kernels of these kinds."""
    block = optimize(block)
    found = {i.kind for i in plan_block(block, DEVICE_TARGET).body.instructions if isinstance(i, Kernel)}
    assert found.issuperset(kinds)
    return block


def emulated(kind: str, op: str, *values: np.ndarray, **attrs: Any) -> list[np.ndarray]:
    block = planned(block_of(op, *values, **attrs), kind)
    return list(
        native_interpreter(block, EmulatedBackend(2, 64, seed=len(op), rules=SCOPES[1 + len(op) % 2]))(Run(), *values)
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("n", "dtype"), SIZES)
def test_a_cholesky_factor_times_its_transpose_is_the_matrix(n, dtype):
    x = definite(dtype, 3, n, n)

    (factor,) = emulated("cholesky", "cholesky_factor", x + np.triu(np.full((n, n), np.nan, dtype), 1))

    assert factor.dtype == dtype and (np.triu(factor, 1) == 0).all() and (factor.diagonal(0, 1, 2) > 0).all()
    wide = factor.astype("float64")
    close(wide @ wide.swapaxes(1, 2), x, dtype, n)


@pytest.mark.parametrize(("n", "dtype"), [(70, "float32"), (83, "float64")])
def test_a_matrix_with_more_rows_than_a_tile_has_a_cholesky_factor(n, dtype, monkeypatch):
    monkeypatch.setattr(cholesky, "TILE_BYTES", 20 * 17 * np.dtype(dtype).itemsize)

    test_a_cholesky_factor_times_its_transpose_is_the_matrix(n, dtype)


@pytest.mark.sampled(1)
@pytest.mark.skipif(not has_linker(), reason="no nvJitLink")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["cholesky_factor", "triangular_solve"])
def test_large_matrices_need_no_memory_for_registers(op, dtype):
    matrices = [np.zeros((300, 300), dtype)] * (1 if op == "cholesky_factor" else 2)
    block = planned(block_of(op, *matrices), "cholesky" if op == "cholesky_factor" else "substitute")
    code = write_device_step(plan_block(block, DEVICE_TARGET), 132, 256, APART)

    assert cubin_of(ptx_of(code, "sm_90"), "sm_90").spilled == 0
    assert max(each.shared for each in code.launches) <= 48 << 10


@pytest.mark.sampled(2)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("units", [0, 128])
@pytest.mark.parametrize(("n", "k", "unit"), [(1, 1, False), (9, 3, True), (16, 5, False), (37, 70, False)])
def test_the_solution_of_a_triangular_system_fulfils_it(n, k, unit, units, upper, monkeypatch):
    """A block solves few columns, or many."""
    monkeypatch.setattr(substitution, "UNITS", units)
    x = noise("float64", n, n) / n + np.eye(n)
    part = np.triu(x, unit) if upper else np.tril(x, -unit)
    ignored = np.where((np.triu if upper else np.tril)(np.ones((n, n)), (1 if upper else -1) * unit) > 0, 0, np.nan)
    whole, y = part + np.eye(n) if unit else part, noise("float64", n, k)

    (z,) = emulated("substitute", "triangular_solve", part + ignored, y, upper=upper, unitriangular=unit)

    close(whole @ z, y, "float64", 4 * n)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("n", "dtype"), SIZES)
def test_an_inverse_and_a_solution_by_elimination_fulfil_their_equations(n, dtype):
    x, y = noise(dtype, 3, n, n, seed=4), noise(dtype, 3, n, 2)

    (inverse,) = emulated("eliminate", "inverse", x)
    (z,) = emulated("eliminate", "solve", x, y)

    size = 40 * n * np.linalg.cond(x.astype("float64")).max()
    close(x.astype("float64") @ inverse, np.broadcast_to(np.eye(n), x.shape), dtype, size)
    close(x.astype("float64") @ z, y, dtype, size)


def test_the_first_of_equal_numbers_is_the_pivot_and_the_sign_is_that_of_the_permutation():
    rows = [[1.0, 2, 0], [-1, 5, 1], [1, 0, 3]], [[0, 0, 2], [0, 3, 0], [4, 0, 0]], [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    x = np.array(rows)
    equal = np.where(np.arange(70)[:, None] >= np.arange(70), -1.0, 0.5)  # rows of several warps have the same size

    agree(planned(block_of("lu", x), "eliminate"), [x], EmulatedBackend())
    agree(planned(block_of("lu", equal), "eliminate"), [equal], EmulatedBackend())
    np.testing.assert_allclose(emulated("eliminate", "det", x)[0], np.linalg.det(x), rtol=1e-14)


def test_the_gradient_of_a_determinant_of_singular_matrices_is_the_matrix_of_cofactors():
    x = np.stack(
        [np.zeros((3, 3)), np.outer([1.0, 2, 3], [0.5, -1, 2]), np.arange(1.0, 10).reshape(3, 3), np.eye(3, k=1)]
    )
    rows = [x[:, i] for i in range(3)]
    wanted = np.stack([np.cross(rows[i - 2], rows[i - 1]) for i in range(3)], 1)

    (found,) = emulated("eliminate", "cofactors", x)

    np.testing.assert_allclose(found, wanted, atol=1e-13)


@pytest.mark.parametrize("op", ["cholesky_factor", "det", "inverse", "slogdet"])
def test_gradients_agree_with_the_reference_executor(op):
    x = definite("float64", 2, 11, 11)
    block = block_of(op, x)
    given = [noise("float64", *block.types[name].shape) for name in block.results if block.types[name].is_float]

    agree(planned(vjp(block, [block.params[0]])), [x, *given], EmulatedBackend(seed=5, rules=SCOPES[1]))


def test_a_matrix_that_is_not_positive_definite_has_the_error_of_the_reference_executor():
    x = np.stack([np.eye(5), np.eye(5) - 2 * np.diag([0, 0, 0, 1, 0])])
    block = planned(block_of("cholesky_factor", x), "cholesky")

    agree(block, [x], EmulatedBackend())
    with pytest.raises(ExecutionError):
        native_interpreter(block, EmulatedBackend())(Run(), x)


def test_equal_instructions_may_run_on_different_numbers_of_blocks(monkeypatch):
    monkeypatch.setattr(step, "segments_of", launches_of_many_sizes)
    x = definite("float64", 5, 9, 9)
    b = BlockBuilder()
    given = [b.param(TensorType(x.shape, "float64")) for _ in range(2)]
    block = planned(b.build([b.emit("cholesky_factor", each) for each in given]), "cholesky")

    agree(block, [x, 2 * x], EmulatedBackend(3, 32))


def test_few_matrices_stay_on_one_block_and_many_are_shared_by_all():
    """A block works alone on a matrix, so more blocks than matrices help nothing."""
    for op in ("cholesky_factor", "inverse"):
        one, many = (plan_block(optimize(block_of(op, np.zeros((n, 96, 96)))), DEVICE_TARGET) for n in (1, 132))
        systems = lambda plan: {
            each.blocks for each in segments_of(plan, 132, Rules())
            if any(isinstance(i, Kernel) and i.kind in ("cholesky", "eliminate") for i in each.instructions)
        }  # fmt: skip

        assert systems(one) == {1}
        assert systems(many) == {132}
