"""Ops on single numbers come first, so that a pass over an array need not wait for them."""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, Optimizer, compile_training, optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block
from core.plan.early import early_first
from core.plan.instructions import Rows
from core.wire import read
from tests.laws.agreement import both
from tests.programs import Sketch

SIZE = 3000


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "nadam", "radam", "adamax"])
def test_a_step_of_an_optimiser_is_one_pass_over_a_parameter(optimizer):
    s = Sketch()
    w, x = s.param("w", np.ones(SIZE), "float32"), s.feed("x", np.ones(SIZE), "float32")
    s.op("reduce_sum", s.op("mul", s.op("square", w), x), out="loss")
    executable = compile_training(
        read(s.document),
        GradientQuery(loss="loss"),
        Optimizer(optimizer, {"learning_rate": 0.1}),
        gives_gradients=False,
    )

    body = plan_block(executable.interpreter.block, CPU_TARGET).body.instructions

    assert sum(isinstance(each, Rows) and each.kernel.inner * each.kernel.rows >= SIZE for each in body) == 1


def test_a_number_that_depends_on_an_array_and_an_op_that_can_fail_keep_their_places():
    b = BlockBuilder()
    x, a, n = (b.param(TensorType(*each)) for each in (((9,), "float64"), ((), "float64"), ((1,), "int64")))
    total = b.emit("reduce_sum", x)
    from_array = b.emit("exp", total)
    part = b.emit("floor_div", n, n)
    number = b.emit("exp", a)
    block = b.build([from_array, part, b.emit("mul", x, number)])

    order = [op.outputs[0] for _, op in early_first(block)]

    assert order[0] == number.name
    assert order.index(total.name) < order.index(from_array.name) < order.index(part.name)
    both(optimize(block), [np.arange(9.0), np.float64(0.5), np.array([3])])


@pytest.mark.parametrize("rows", [3000, 300_000])
def test_a_loss_over_classes_and_its_gradient_are_one_pass_over_the_logits(rows):
    """The labels of many rows are counted before the pass, too."""
    b = BlockBuilder()
    x, labels = b.param(TensorType((rows, 4), "float32")), b.param(TensorType((rows,), "int64"))
    loss = b.build([b.emit("softmax_with_cross_entropy", x, labels, reduction="mean")])

    body = plan_block(optimize(vjp(loss, [x.name])), CPU_TARGET).body.instructions

    assert sum(isinstance(each, Rows) and each.kernel.inner * each.kernel.rows == 4 * rows for each in body) == 1
