"""Two row kernels compute what they did, with fewer bytes between them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend
from core.codegen.backend import CpuBackend
from core.codegen.cpu_target import CPU_TARGET
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.passes.pipeline import optimize
from core.plan import narrow, plan_block
from core.plan.instructions import Gemm, Rows
from core.plan.memory import Root, View
from core.plan.narrow import narrowed
from core.plan.row_kernels import Operand, RowInstruction, RowKernel
from core.runtime.native import native_interpreter
from core.runtime.run import Run

ROWS, COLUMNS = 3, 16
OPS = {"exp": np.exp, "neg": np.negative, "square": np.square, "mul": np.multiply, "add": np.add}


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    monkeypatch.setattr(narrow, "LEAST_BYTES", 0)


def load(operand: int) -> RowInstruction:
    return RowInstruction("load", "float32", True, operand=operand)


def store(value: int, operand: int) -> RowInstruction:
    return RowInstruction("store", "float32", True, (value,), operand=operand)


def apply(op: str, *args: int) -> RowInstruction:
    return RowInstruction("apply", "float32", True, args, op)


def rows(roots: list[Root], code: list[RowInstruction]) -> Rows:
    written = {i.operand for i in code if i.kind == "store"}
    operands = tuple(Operand("float32", (COLUMNS,), 1, i in written) for i in range(len(roots)))
    views = tuple(View(root, "float32", (ROWS, COLUMNS), (COLUMNS, 1)) for root in roots)
    return Rows(RowKernel((ROWS,), COLUMNS, operands, tuple(code)), views, tuple(i.op for i in code if i.op))


def root(place: str = "arena") -> Root:
    return Root(4 * ROWS * COLUMNS, place)  # type: ignore[arg-type]


def between(first: Rows, second: Rows) -> int:
    """The arrays that the first kernel writes and the second one reads."""
    return len({*first.writes()} & {v.root for v in second.views})


def run(instructions: tuple[Rows, ...], memory: dict[Root, np.ndarray]) -> None:
    """Run row kernels on arrays, as their definition says."""
    for each in instructions:
        made: list[np.ndarray] = []
        for instr in each.kernel.code:
            args = [made[a] for a in instr.args]
            if instr.kind == "load":
                made.append(memory[each.views[instr.operand].root])
            elif instr.kind == "store":
                memory[each.views[instr.operand].root] = args[0]
                made.append(args[0])
            else:
                made.append(OPS[instr.op](*args))


def pair(seed: int) -> tuple[tuple[Rows, Rows], Root, Root]:
    """Two random kernels, what the first one reads and what the second one writes."""
    draw = random.Random(seed)
    x, result = root("given"), root("given")
    code = [load(0)]
    for _ in range(draw.randrange(2, 9)):
        op = draw.choice([*OPS])
        code.append(apply(op, *(draw.randrange(len(code)) for _ in range(2 if op in ("mul", "add") else 1))))
    stored = draw.sample(range(1, len(code)), min(len(code) - 1, draw.randrange(1, 5)))
    middle = [root() for _ in stored]
    first = rows([x, *middle, root("given")], [*code, *(store(n, i + 1) for i, n in enumerate(stored))])
    if draw.random() < 0.5:  # a result of its own
        more = store(draw.randrange(1, len(code)), len(stored) + 1)
        first = rows([v.root for v in first.views], [*first.kernel.code, more])
    theirs = [load(i) for i in range(len(middle))]
    for i in range(1, len(middle)):
        theirs.append(apply(draw.choice(["mul", "add"]), len(theirs) - 1 if i > 1 else 0, i))
    second = rows([*middle, result], [*theirs, store(len(theirs) - 1, len(middle))])
    return (first, second), x, result


@pytest.mark.parametrize("seed", range(60))
def test_the_kernels_compute_what_they_did(seed):
    before, x, result = pair(seed)
    after = narrowed(before)
    value = np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype("float32") * 0.3
    given = [v.root for v in before[0].views if v.root.place == "given" and v.root is not x]

    with np.errstate(all="ignore"):
        memories = [{x: value}, {x: value}]
        run(before, memories[0])
        run(after, memories[1])  # type: ignore[arg-type]

    for each in (result, *given):
        assert (each in memories[0]) == (each in memories[1])
        if each in memories[0]:
            np.testing.assert_array_equal(memories[0][each], memories[1][each])
    assert between(*after) <= between(*before)  # type: ignore[arg-type]


def test_some_of_these_kernels_have_fewer_bytes_between_them():
    pairs = [pair(seed)[0] for seed in range(60)]

    assert sum(between(*narrowed(each)) < between(*each) for each in pairs) >= 5  # type: ignore[arg-type]


def gaussian(also: int | None = None, place: str = "none") -> tuple[Rows, Rows]:
    """-x and exp(-x^2), which the second kernel multiplies.

    also: a further value that the first one stores. place: of x, which is a product that is not stored, or an array.
    """
    x, negative, bell, more, result = root(place), root(), root(), root("given"), root("given")
    code = [load(0), apply("neg", 0), apply("square", 0), apply("neg", 2), apply("exp", 3), store(1, 1), store(4, 2)]
    first = rows([x, negative, bell, more], [*code, *([store(also, 3)] if also is not None else [])])
    return first, rows([negative, bell, result], [load(0), load(1), apply("mul", 0, 1), store(2, 2)])


def test_a_value_that_only_the_second_kernel_needs_moves_there():
    first, second = narrowed(gaussian())

    assert between(first, second) == 1  # type: ignore[arg-type]
    assert "exp" in second.ops  # type: ignore[union-attr]
    assert "exp" not in [i.op for i in first.kernel.code]  # type: ignore[union-attr]


def test_a_value_that_takes_long_and_that_both_need_is_stored():
    before = gaussian(also=4)

    assert narrowed(before) == before


def test_a_product_does_not_move_to_a_sum():
    """It would be rounded once less there."""
    x, square, negative, result = root("none"), root(), root(), root("given")
    first = rows([x, square, negative], [load(0), apply("square", 0), apply("neg", 0), store(1, 1), store(2, 2)])
    code = [load(0), load(1), apply("add", 0, 1), store(2, 2)]
    apart = first, rows([square, negative, result], code)
    product = first, rows([square, negative, result], [*code[:2], apply("mul", 0, 1), code[3]])

    assert narrowed(apart) == apart
    assert between(*narrowed(product)) == 1  # type: ignore[arg-type]


def test_both_kernels_read_an_array_that_stays_in_memory():
    first, second = gaussian(place="given")
    x = first.views[0].root
    changing = first, rows([root("given"), x], [load(0), store(0, 1)]), second

    assert between(*narrowed((first, second))) == 0  # type: ignore[arg-type]
    assert x in {*narrowed((first, second))[1].reads()}
    assert x not in {*narrowed(changing)[2].reads()}


def test_an_array_that_others_read_stays():
    first, second = gaussian()
    others = first, second, rows([first.views[2].root, root("given")], [load(0), store(0, 1)])

    assert narrowed(others) == others


def gelus(layers: int = 2, rows: int = 128, width: int = 96) -> Block:
    """The gradients of dense layers with gelu."""
    b = BlockBuilder()
    h = b.param(TensorType((rows, width), "float32"))
    for _ in range(layers):
        h = b.emit("gelu", b.emit("matmul", h, b.param(TensorType((width, width), "float32"))))
        h = b.emit("matmul", h, b.param(TensorType((width, width), "float32")))
    return optimize(vjp(b.build([b.emit("reduce_sum", b.emit("square", h))])))


def test_the_adjoint_of_gelu_has_three_arrays_of_the_forward_pass():
    plan = plan_block(gelus(), CPU_TARGET)

    def stores(instructions):
        products = [each.then for each in instructions if isinstance(each, Gemm) and each.then is not None]
        return [len({*each.writes()}) for each in products if "erfc" in each.ops]

    assert stores(plan.body.instructions) == [4, 4]
    assert stores(narrowed(plan.body.instructions)) == [3, 3]


def test_the_bits_of_gelu_stay(monkeypatch):
    block = gelus()
    rng = np.random.default_rng(0)
    values = [(0.1 * rng.standard_normal(block.types[n].shape)).astype("float32") for n in block.params]

    found = native_interpreter(block, CpuBackend())(Run(), *values)
    monkeypatch.setattr(backend, "narrowed", lambda instructions: instructions)
    wanted = native_interpreter(block, CpuBackend())(Run(), *values)

    assert [f.tobytes() for f in found] == [w.tobytes() for w in wanted]


def test_little_memory_is_not_divided(monkeypatch):
    monkeypatch.undo()
    before = gaussian()

    assert narrowed(before) == before


def test_a_constant_that_one_kernel_stores_for_another_one_stays_in_memory():
    x, middle, result = root("given"), root(), root("given")
    constant = RowInstruction("constant", "float32", True, value=2.0)
    first = rows([x, middle, root("given")], [load(0), constant, store(1, 1), store(0, 2)])
    second = rows([middle, result], [load(0), apply("exp", 0), store(1, 1)])

    assert narrowed((first, second)) == (first, second)
