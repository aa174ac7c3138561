"""Arrays with a size of 0: results that depend on nothing else are known when the plan is made."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.plan import plan_block
from core.plan.partition import plan_parts
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from core.wire import read
from tests.laws.agreement import both
from tests.laws.random_programs import second_order
from tests.programs import Sketch


def block_of(op: str, *shapes: tuple[int, ...], **attrs) -> Block:
    b = BlockBuilder()
    return b.build([b.emit(op, *(b.param(TensorType(shape, "float32")) for shape in shapes), **attrs)])


def run(block: Block, *args) -> list[np.ndarray]:
    return list(native_interpreter(block, CPU)(Run(), *args))


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "wanted"),
    [
        ("reduce_sum", [(0, 3)], {"axes": (0,)}, np.zeros(3)),
        ("reduce_prod", [(3, 0)], {"axes": (1,)}, np.ones(3)),
        ("matmul", [(2, 0), (0, 3)], {}, np.zeros((2, 3))),
        ("concat", [(0, 2), (0, 2)], {"axis": 0}, np.zeros((0, 2))),
        ("add", [(0, 2), (2,)], {}, np.zeros((0, 2))),
        ("pad_constant", [(0, 2)], {"paddings": (1, 1, 0, 0), "value": 4.0}, np.full((2, 2), 4.0)),
    ],
)
def test_a_result_of_nothing_has_no_instructions(op, shapes, attrs, wanted):
    block = block_of(op, *shapes, **attrs)

    plan = plan_block(block, CPU_TARGET)

    assert not plan.interpreted
    assert len(plan.body.instructions) <= 1  # one that fills the result
    (found,) = run(block, *(np.ones(shape, "float32") for shape in shapes))
    np.testing.assert_array_equal(found, np.asarray(wanted, "float32"))


def test_an_empty_operand_of_a_concatenation_is_left_out():
    block = block_of("concat", (0, 2), (3, 2), (0, 2), axis=0)
    x = np.arange(6, dtype="float32").reshape(3, 2)

    assert not plan_block(block, CPU_TARGET).interpreted
    np.testing.assert_array_equal(run(block, x[:0], x, x[:0])[0], x)


def test_positions_in_empty_rows_are_checked():
    b = BlockBuilder()
    block = b.build([b.emit("gather", b.param(TensorType((4, 0), "float32")), b.param(TensorType((2,), "int64")))])
    x = np.zeros((4, 0), "float32")

    assert not plan_block(block, CPU_TARGET).interpreted
    assert run(block, x, np.array([0, 3]))[0].shape == (2, 0)
    with pytest.raises(ExecutionError) as caught:
        run(block, x, np.array([0, 4]))
    assert caught.value.code == "index_out_of_range"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("batch", "hidden"), [(0, 4), (3, 0), (0, 0)])
def test_a_net_with_empty_layers_or_no_rows_is_machine_code(batch, hidden):
    rng = np.random.default_rng(0)
    s = Sketch()
    x = s.param("x", rng.standard_normal((batch, 5)))
    w, v = s.param("w", rng.standard_normal((5, hidden))), s.param("v", rng.standard_normal((hidden, 2)))
    h = s.op("softmax", s.op("tanh", s.op("matmul", x, w))) if hidden else s.op("tanh", s.op("matmul", x, w))
    rows = s.op("concat", [s.op("matmul", h, v), s.param("more", rng.standard_normal((2, 2)))], axis=0)
    s.total(s.op("square", rows))
    program = read(s.document)

    for executable in (compile_gradient(program, GradientQuery(loss="loss")), second_order(program, inputs=("w", "v"))):
        block = executable.interpreter.block
        assert not plan_parts(block, CPU_TARGET).refused
        assert not plan_block(block, CPU_TARGET).interpreted
        both(block, [s.values[v.name] for v in executable.inputs])


def test_a_loop_over_no_elements_is_machine_code():
    s = Sketch()
    h = s.param("h", [0.5, -0.25])
    x = s.param("x", np.zeros((0, 1, 2)))
    w = s.param("w", np.eye(2))
    u = s.param("u", np.eye(2))
    s.op("rnn", x, s.op("unsqueeze", h, axes=[0]), w, u, out=["every", "last"])
    s.total(s.op("square", s.op("concat", [s.op("reduce_sum", "every", axes=[0]), "last"], axis=0)))
    program = read(s.document)

    executable = compile_gradient(program, GradientQuery(loss="loss"))

    assert not plan_parts(executable.interpreter.block, CPU_TARGET).refused
    both(executable.interpreter.block, [s.values[v.name] for v in executable.inputs])


def test_a_loss_over_no_rows_is_machine_code():
    """The labels are lowered before the logits, which give them only a shape."""
    b = BlockBuilder()
    logits, labels = b.param(TensorType((0, 3), "float64")), b.param(TensorType((0,), "int64"))
    block = optimize(b.build([b.emit("softmax_with_cross_entropy", logits, labels)]))

    assert not plan_block(block, CPU_TARGET).interpreted
    assert run(block, np.zeros((0, 3)), np.zeros(0, "int64"))[0].shape == (0,)
