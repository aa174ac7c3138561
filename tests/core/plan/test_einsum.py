"""Einsums of any operands as machine code: several arrays, repeated letters, letters of one operand alone."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.cpu_target import CPU_TARGET
from core.ir import TensorType
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.instructions import Gemm
from tests.core.plan.agreement import agree, with_ops

SIZES = {"a": 3, "b": 5, "c": 1, "d": 17, "n": 4}

EQUATIONS = [
    "ad,db,bn->an", "na,adb,nb->nd", "ab,cd,nd->", "a,b,d,n->nadb", "aa->a", "aa->", "abab->ba", "ndd,nd->n",
    "ab,ad->d", "nab,nab->n", "an,an->n", "abd,abd->", "ab->", "ab->ba", "ad,cd->ac", "aab,bb->ab", "abn,nd->bd",
    "n,n->n", "nad,nbd,nd->nab", "bda,bda->d",
]  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("equation", EQUATIONS)
def test_an_einsum_and_its_gradient_are_machine_code_alone(equation):
    rng = np.random.default_rng(0)
    left, _, right = equation.partition("->")
    shapes = {f"x{i}": tuple(SIZES[c] for c in term) for i, term in enumerate(left.split(","))}
    types = {name: TensorType(shape, "float64") for name, shape in shapes.items()}
    forward = with_ops(types, ("einsum", tuple(types), {"equation": equation}))
    block = vjp(forward, forward.params)
    given = [rng.normal(size=shape) for shape in shapes.values()]
    ct = rng.normal(size=tuple(SIZES[c] for c in right))

    agree(block, [*given, ct])


@pytest.mark.parametrize(("shapes", "equation"), [
    (((2, 3, 5), (1, 5, 4)), "...ij,...jk->...ik"),
    (((2, 3), (1, 3), (2, 1)), "...i,...i,...j->...ij"),
    (((3, 1, 4), (5, 4)), "...a,...a->..."),
    (((4, 4, 2), (1,)), "ii...,...->i..."),
])  # fmt: skip
def test_axes_of_an_ellipsis_broadcast(shapes, equation):
    rng = np.random.default_rng(1)
    types = {f"x{i}": TensorType(shape, "float64") for i, shape in enumerate(shapes)}
    forward = with_ops(types, ("einsum", tuple(types), {"equation": equation}))
    given = [rng.normal(size=shape) for shape in shapes]
    wanted = np.einsum(equation, *given)

    agree(vjp(forward, forward.params), [*given, rng.normal(size=wanted.shape)])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_einsum_of_three_arrays_agrees_in_narrow_dtypes(dtype):
    rng = np.random.default_rng(2)
    types = {"x": TensorType((4, 3), dtype), "y": TensorType((3, 2, 6), dtype), "z": TensorType((4, 6), dtype)}
    given = [rng.integers(-3, 4, t.shape).astype(as_dtype(dtype)) for t in types.values()]

    agree(with_ops(types, ("einsum", "xyz", {"equation": "nk,kpq,nq->np"})), given)


@pytest.mark.parametrize("equation", [
    "nk,ekh->enh", "nk,enh->ekh", "ekh,nk->enh", "nk,abkh->abnh", "bnk,ekh->benh", "bnk,ekh->ebnh", "nk,nh->hk",
])  # fmt: skip
def test_a_product_is_stored_in_the_order_of_the_result(equation):
    sizes = {"n": 40, "k": 33, "h": 36, "e": 3, "a": 2, "b": 2}
    rng = np.random.default_rng(3)
    left, _, _ = equation.partition("->")
    types = {f"x{i}": TensorType(tuple(sizes[c] for c in term), "float64") for i, term in enumerate(left.split(","))}
    block = with_ops(types, ("einsum", tuple(types), {"equation": equation}))
    (product,) = plan_block(block, CPU_TARGET).body.instructions

    assert isinstance(product, Gemm)
    agree(block, [rng.normal(size=t.shape) for t in types.values()])


def random_equations(seed: int, count: int) -> list[tuple[str, dict[str, int]]]:
    """Equations of two or three operands with letters in any order, and the sizes of the letters."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        sizes = {c: draw.choice((1, 2, 3, 5, 9, 70 if draw.random() < 0.2 else 4)) for c in "bimnk"}
        terms = [draw.sample("bimnk", draw.randint(1, 4)) for _ in range(draw.choice((2, 2, 2, 3)))]
        letters = sorted(set().union(*terms))
        result = draw.sample(letters, draw.randint(0, min(4, len(letters))))
        found.append((",".join(map("".join, terms)) + "->" + "".join(result), sizes))
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(8))
def test_random_einsums_and_their_gradients_equal_numpys(seed, dtype):
    for equation, sizes in random_equations(seed, 12):
        rng = np.random.default_rng(seed)
        left, _, right = equation.partition("->")
        shapes = [tuple(sizes[c] for c in term) for term in left.split(",")]
        types = {f"x{i}": TensorType(shape, dtype) for i, shape in enumerate(shapes)}
        forward = with_ops(types, ("einsum", tuple(types), {"equation": equation}))
        given = [rng.integers(-3, 4, shape).astype(dtype) for shape in (*shapes, tuple(sizes[c] for c in right))]

        agree(forward, given[:-1])
        agree(vjp(forward, forward.params), given)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("result", list(map("".join, itertools.permutations("bio"))))
@pytest.mark.parametrize("sizes", [(2, 3, 5, 4), (3, 70, 66, 65)], ids=["small", "large"])
def test_batches_rows_columns_and_sums_may_be_axes_in_any_order(sizes, result):
    rng = np.random.default_rng(4)
    size = dict(zip("biok", sizes, strict=True))
    terms = ["".join(order) for letters in ("bik", "bok") for order in itertools.permutations(letters)]
    types = {term: TensorType(tuple(size[c] for c in term), "float64") for term in terms}
    equations = [(x, y) for x in terms[:6] for y in terms[6:]]
    block = with_ops(types, *(("einsum", (x, y), {"equation": f"{x},{y}->{result}"}) for x, y in equations))

    agree(block, [rng.integers(-3, 4, t.shape).astype("float64") for t in types.values()])
