"""Cases 1-37, 76-82, 87-94 of docs/semantics.md that need no loop or branch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.backward.append_backward import Options, append_backward, gradients
from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.errors import NotDifferentiable, ProgramError
from core.ir.registry import REGISTRY, Family, op
from core.wire import Limits, read, write
from tests.programs import Sketch, close, grads, step

FAMILY = Family("tests", "Ops of tests")

W = [1.0, 2.0, 3.0]


def one(value: object = W) -> Sketch:
    s = Sketch()
    s.param("w", value)
    return s


def backward(s: Sketch, parameter_list: list[str] | None = None, **options: object):
    return append_backward(read(s.document), "loss", parameter_list, Options(**options))  # type: ignore[arg-type]


def origins(b: object) -> list[str]:
    """The types of the forward ops of the backward ops; consecutive ops of one forward op count once."""
    places = [at for _, at in b.forward_of]  # type: ignore[attr-defined]
    return [at.type for at, before in zip(places, [None, *places], strict=False) if at != before]


def test_1_the_backward_pass_mirrors_the_forward_pass_in_reverse():
    s = Sketch()
    s.feed("x", np.ones((2, 3)))
    s.param("w", np.ones((3, 4)))
    s.param("b", np.ones(4))
    s.op("mean", s.op("tanh", s.op("add", s.op("matmul", "x", "w"), "b")), out="loss")

    b = backward(s)

    assert origins(b) == ["mean", "tanh", "add", "matmul"]
    assert b.program.block.ops[4].type == "fill_constant"
    assert b.program.block.ops[4].outputs == ("loss@GRAD",)
    assert b.params_grads == (("w", "w@GRAD"), ("b", "b@GRAD"))
    assert "x@GRAD" not in b.program.block.types
    assert b.roles[:5] == (0, 0, 0, 256, 257)
    assert set(b.roles[5:]) == {1}
    made = {pair: b.program.block.ops[i] for i, pair in enumerate(b.role_vars) if pair}
    assert {pair: op.outputs for pair, op in made.items()} == {
        ("w", "w@GRAD"): ("w@GRAD",),
        ("b", "b@GRAD"): ("b@GRAD",),
    }
    assert [at.type for i, at in b.forward_of if b.role_vars[i]] == ["add", "matmul"]


def test_1_of_several_contributions_the_sum_makes_the_gradient_final():
    s = Sketch()
    s.param("w", np.ones(3))
    s.total(s.op("mul", "w", "w"))

    b = backward(s)

    assert [(op.type, pair) for op, pair in zip(b.program.block.ops, b.role_vars, strict=True) if pair] == [
        ("sum", ("w", "w@GRAD"))
    ]
    assert b.as_document()["op_role_vars"][-1] == ["w", "w@GRAD"]


def test_2_one_reader_per_variable_needs_no_sum():
    s = one()
    s.total(s.op("tanh", s.op("square", "w")))

    b = backward(s)

    assert not any("@RENAME@" in n for n in b.program.block.types)
    assert not any(op.type == "sum" for op in b.program.block.ops)


def five_readers() -> Sketch:
    s = one()
    twice = s.op("scale", "w", out="twice", scale=2.0)
    s.op("sum", [twice, s.op("tanh", "w"), s.op("mul", "w", "w"), s.op("add", "w", twice)], out="y")
    s.total("y")
    return s


def test_3_every_contribution_is_renamed_and_one_sum_adds_them():
    s = five_readers()
    b = backward(s)
    sums = {op.outputs[0]: op.inputs for op in b.program.block.ops[6:] if op.type == "sum"}

    assert sorted(sums["w@GRAD"]) == [f"w@GRAD@RENAME@{i}" for i in range(5)]
    assert len(sums["twice@GRAD"]) == 2
    assert len(sums) == 2
    close(grads(s)["w"], [7.41997434, 9.07065082, 11.00986604])


def test_4_both_slots_of_one_op_and_two_positions_of_one_slot():
    s = one()
    s.op("concat", ["w", "w", s.op("scale", "w", scale=2.0)], out="c", axis=0)
    s.total(s.op("mul", "c", "c"))

    close(grads(s)["w"], [12, 24, 36])


def test_5_a_matrix_times_its_own_transpose():
    s = Sketch()
    s.param("f", [[1.0], [2.0]])
    s.total(s.op("matmul", "f", "f", transpose_y=True))

    close(grads(s)["f"], [[6], [6]])


def test_6_the_sum_stands_right_after_the_last_contribution():
    b = backward(five_readers())
    ops = b.program.block.ops
    at = {name: i for i, op in enumerate(ops) for name in op.outputs}

    assert at["w@GRAD"] == 1 + max(at[f"w@GRAD@RENAME@{i}"] for i in range(5))
    assert b.ready_at == {"w": at["w@GRAD"]}


def test_7_and_8_an_unread_output_has_a_zero_cotangent():
    s = one([1.0, 2.0, 3.0, 4.0])
    s.op("split", "w", out=["a", "b"], axis=0, num=2)
    s.total(s.op("mul", "a", "a"))
    close(grads(s)["w"], [2, 4, 0, 0])
    assert sum(op.type == "fill_zeros_like" for op in backward(s).program.block.ops) <= 1

    s = one([1.0, 2.0, 3.0, 4.0])
    s.declare("b", stop_gradient=True)
    s.op("split", "w", out=["a", "b"], axis=0, num=2)
    s.op("add", s.total(s.op("mul", "a", "a"), out="p"), s.total(s.op("mul", "b", "b"), out="q"), out="loss")
    close(grads(s)["w"], [2, 4, 0, 0])
    assert not any(at is not None and at.op == 3 for _, at in backward(s).forward_of)


def test_9_no_grad_set_cuts_all_paths_through_its_variables():
    s = one()
    s.param("v", W)
    s.op("tanh", "w", out="h")
    s.total(s.op("mul", "h", "v"))

    b = backward(s, no_grad_set={"h"})

    assert b.missing == {"w": "in_no_grad_set"}
    assert "tanh" not in origins(b)
    close(grads(s, no_grad_set=("h",))["v"], np.tanh(W))


def test_10_ops_before_a_stopped_variable_have_no_backward_ops():
    s = one()
    s.declare("t5", stop_gradient=True)
    h = "w"
    for _ in range(5):
        h = s.op("tanh", h)
    s.total(h)

    b = backward(s)

    assert b.forward_of == ()
    assert b.missing == {"w": "stopped_at:t5"}


def test_11_ops_off_the_path_to_the_loss_are_neither_differentiated_nor_run():
    s = one()
    s.op("exp", "w", out="big")
    s.total(s.op("tanh", "w"))

    assert "exp" not in origins(backward(s))
    exe = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    assert "exp" not in [i.op.type for i in exe.interpreter.calls]


def test_12_unused_and_unknown_parameters():
    s = one()
    s.param("u", W)
    s.total("w")

    assert backward(s).params_grads == (("w", "w@GRAD"), ("u", None))
    assert backward(s).missing == {"u": "unused"}
    with pytest.raises(ProgramError) as error:
        backward(s, parameter_list=["nobody"])
    assert error.value.code == "unknown_variable"


def test_13_a_frozen_parameter_costs_nothing_and_lets_gradients_through():
    s = Sketch()
    s.param("w", [2.0])
    s.param("frozen", [3.0], trainable=False)
    s.total(s.op("mul", s.op("square", "w"), "frozen"))

    b = backward(s)

    assert [name for name, _ in b.params_grads] == ["w"]
    assert "frozen@GRAD" not in b.program.block.types
    close(grads(s)["w"], [12.0])


def test_15_an_integer_ends_its_path_without_an_error():
    s = one()
    s.total(s.op("mul", "w", s.op("cast", s.op("argmax", "w"), dtype="float64")))

    close(grads(s)["w"], [2, 2, 2])


def test_16_an_op_without_a_gradient_is_an_error_only_on_a_path_from_a_requested_variable():
    @op(unavailable="a test says so")
    def opaque(xp, x):
        """A test op."""
        return x

    opaque.infer(lambda x: x)
    try:
        s = one()
        s.param("v", W)
        s.op("opaque", "w", out="y")
        s.total(s.op("mul", "y", "v"))
        with pytest.raises(NotDifferentiable) as error:
            backward(s)
        assert error.value.code == "no_gradient_registered"
        assert error.value.location is not None and error.value.location.op == 0
        assert "opaque" in error.value.message and "stop_gradient" in (error.value.suggestion or "")
        close(step(s, parameter_list=("v",)).gradients["v"], W)
    finally:
        del REGISTRY["opaque"]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_17_and_18_a_loss_has_one_element_any_rank_and_may_be_a_parameter(shape):
    s = Sketch()
    s.param("loss", np.full(shape, 3.0))

    close(grads(s)["loss"], np.ones(shape))
    assert grads(s)["loss"].shape == shape


def test_17_other_losses_are_refused():
    s = one()
    s.op("square", "w", out="loss")
    s.op("argmax", "w", out="index")
    program = read(s.document)

    for loss, code in (("loss", "loss_not_scalar"), ("index", "loss_not_float"), ("nobody", "unknown_variable")):
        with pytest.raises(ProgramError) as error:
            append_backward(program, loss)
        assert error.value.code == code


def test_19_a_second_backward_pass_does_not_change_the_first():
    s = one()
    s.total(s.op("mul", "w", "w"))
    once = append_backward(read(s.document), "loss")
    twice = append_backward(once.program, "loss")

    first, second = once.gradients["w"], twice.gradients["w"]
    assert first != second
    n = len(once.program.block.ops)
    assert twice.program.block.ops[:n] == once.program.block.ops
    exe = compile_gradient(once.program, GradientQuery(loss="loss"), fetch=["w@GRAD"])
    out = exe.step(s.values)
    close(out.gradients["w"], [2, 4, 6])
    close(out.fetched["w@GRAD"], [2, 4, 6])


def test_20_two_losses_on_one_trunk():
    s = one()
    s.op("tanh", "w", out="h")
    s.total(s.op("mul", "h", "w"), out="first")
    s.total(s.op("square", "h"), out="second")

    close(step(s, loss="first").gradients["w"], [1.1815685, 1.10532923, 1.02465287])
    close(step(s, loss="second").gradients["w"], [0.63970001, 0.13621869, 0.01963449])


def test_21_targets_of_any_shape_with_their_own_seeds():
    s = one()
    s.op("mul", "w", "w", out="y")
    query = {"loss": None, "targets": ("y",), "inputs": ("w",), "target_gradients": (True,)}

    out = step(s, values={"target_gradients/0": np.array([1.0, 10.0, 100.0])}, **query)

    close(out.gradients["w"], [2, 40, 600])


def test_21_seeds_of_the_wrong_shape_or_number_are_refused():
    s = one()
    s.feed("seed", [1.0])
    s.op("mul", "w", "w", out="y")
    program = read(s.document)

    for seeds in (["seed"], [None, None]):
        with pytest.raises(ProgramError) as error:
            gradients(program, ["y"], ["w"], seeds)
        assert error.value.code == "target_grad_shape"


def test_22_several_targets_add_up_and_a_target_that_feeds_another_keeps_its_seed():
    s = one()
    s.op("square", "w", out="y")
    s.op("scale", "y", out="z", scale=3.0)
    query = {"loss": None, "inputs": ("w",)}

    close(step(s, targets=("y", "z"), **query).gradients["w"], 4 * 2 * np.array(W))
    close(step(s, targets=("y", "y"), **query).gradients["w"], 2 * 2 * np.array(W))


def test_24_a_target_is_its_own_input_and_unconnected_inputs_are_null_zero_or_an_error():
    s = one()
    s.param("u", W)
    s.op("square", "w", out="y")
    query = {"loss": None, "targets": ("y",)}

    close(step(s, inputs=("y",), **query).gradients["y"], [1, 1, 1])
    assert step(s, inputs=("u",), **query).missing == {"u": "unused"}
    close(step(s, inputs=("u",), unconnected="zeros", **query).gradients["u"], [0, 0, 0])
    with pytest.raises(ProgramError):
        step(s, inputs=("u",), unconnected="error", **query)


@pytest.mark.parametrize(("a", "b"), [((3, 1), (1, 4)), ((), (2, 3)), ((4,), (2, 3, 4))])
@pytest.mark.parametrize("unknown", [False, True])
def test_25_broadcasting_is_undone(a, b, unknown):
    s = Sketch()
    r = np.random.default_rng(0)
    x, y = r.standard_normal(a), r.standard_normal(b)
    s.feed("x", x)
    s.feed("y", y)
    s.total(s.op("mul", s.op("add", "x", "y"), s.op("add", "x", "y")))
    if unknown:
        for var in s.blocks[0]["vars"]:
            var["shape"] = [-1] * len(var["shape"])

    program = read(s.document)
    query = GradientQuery(targets=("loss",), inputs=("x", "y"))
    shapes = {"x": a, "y": b}
    found = [compile_gradient(program, query, shapes=shapes).step(s.values).gradients]
    if unknown:  # a backward pass built for open sizes must give the same gradients
        found.append(compile_gradient(program, query).step(s.values).gradients)
    for each in found:
        close(each["x"], np.broadcast_to(2 * (x + y), np.broadcast_shapes(a, b)).sum(reduced(a, b)).reshape(a))
        close(each["y"], np.broadcast_to(2 * (x + y), np.broadcast_shapes(a, b)).sum(reduced(b, a)).reshape(b))


def reduced(own: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    out = np.broadcast_shapes(own, other)
    padded = (1,) * (len(out) - len(own)) + own
    return tuple(i for i, n in enumerate(padded) if n == 1)


def test_29_each_use_of_a_counter_sees_its_own_value():
    s = one()
    s.const(1.0, out="i")
    s.op("mul", "w", "i", out="a")
    s.op("increment", "i", out="i", step=1)
    s.op("mul", "w", "i", out="b")
    s.total(s.op("mul", "a", "b"))

    close(grads(s)["w"], 2 * 2 * np.array(W))


def test_35_a_graph_with_a_side_branch():
    s = Sketch()
    for name in "abx":
        s.param(name, 2.0)
    s.op("mul", "a", "b", out="c")
    s.op("sum", ["x", "a", "c"], out="d")
    s.op("exp", "c", out="e")
    s.op("square", "d", out="f")
    b = append_backward(read(s.document), "f")
    assert [at.type for _, at in b.forward_of if at][-1] == "mul"
    assert "exp" not in origins(b)


@pytest.mark.parametrize("n", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_35_a_chain_may_be_longer_than_the_recursion_limit(n):
    long = one([0.5])
    long.op("assign", "w", out="h")
    for _ in range(n):
        long.op("scale", "h", out="h", scale=1.0, bias=1e-6)
    long.total("h")
    program = read(long.document, Limits(max_ops=2 * n))
    close(compile_gradient(program, GradientQuery(loss="loss")).step(long.values).gradients["w"], [1.0])


def test_35_a_cycle_of_blocks_is_refused():
    s = one()
    s.feed("c", True, "bool")
    with s.block() as outer:
        with s.block() as inner:
            s.branch("c", outer, None)
        s.branch("c", inner, None)
    s.branch("c", outer, None)
    s.total("w")

    with pytest.raises(ProgramError) as error:
        read(s.document)
    assert "block_cycle" in [p.code for p in error.value.problems]


def test_37_a_shared_weight_in_two_products():
    s = Sketch()
    s.param("w", np.eye(2))
    s.feed("x", np.ones((3, 2)))
    s.feed("z", np.ones((3, 2)))
    s.feed("seed", np.ones((3, 2)))
    s.op("matmul", "x", "w", out="y")
    s.op("matmul", "z", "w", out="u")
    program = read(s.document)

    b = gradients(program, ["y", "u"], ["w"], ["seed", "seed"])
    made = [op.type for op in b.program.block.ops[2:] if op.type != "assign"]  # the seeds get their names by assign
    assert made == ["matmul", "matmul", "sum"]
    assert gradients(program, ["y"], [], ["seed"]).forward_of == ()
    assert gradients(program, ["y", "u"], ["w"], options=Options(no_grad_set={"y", "u"})).gradients == {}


def test_76_three_orders_of_a_cube():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("mul", s.op("mul", "w", "w"), "w", out="y")
    program = read(s.document)

    for wanted in ([0.75, 1.47], [3, 4.2], [6, 6]):
        target = "y" if wanted[0] == 0.75 else target  # noqa: F821
        exe = compile_gradient(program, GradientQuery(targets=(target,), inputs=("w",)))
        close(exe.step(s.values).gradients["w"], wanted)
        b = gradients(program, [target], ["w"])
        program, target = b.program, b.gradients["w"]


def second(s: Sketch) -> np.ndarray:
    """d/dw of sum(dw^2)."""
    b = append_backward(read(s.document), "loss")
    document = write(b.program)
    root = document["blocks"][0]
    root["ops"] += [
        {"type": "square", "inputs": {"x": [b.gradients["w"]]}, "outputs": {"out": ["g2"]}},
        {"type": "reduce_sum", "inputs": {"x": ["g2"]}, "outputs": {"out": ["penalty"]}},
    ]
    exe = compile_gradient(read(document), GradientQuery(loss="penalty", parameter_list=("w",)))
    return exe.step(s.values).gradients["w"]


def wx() -> Sketch:
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.feed("x", [1.0, 2.0])
    return s


def test_79_second_order_through_a_branch():
    s = wx()
    s.feed("c", True, "bool")
    with s.block() as yes:
        s.op("mul", s.op("tanh", s.op("mul", "w", "x")), "w", out="y")
    with s.block() as no:
        s.op("assign", "w", out="y")
    s.branch("c", yes, no)
    s.total("y")

    close(second(s), [2.06900916, -0.4919777])


def test_80_second_order_of_ops_that_other_frameworks_refuse():
    s = wx()
    s.total(s.op("mul", s.op("softmax", s.op("mul", "w", "x")), "x"))
    close(second(s), [0.17816954, -0.35633908])

    s = wx()
    parts = s.op("concat", ["w", s.op("square", "w"), s.op("mul", "x", "w")], axis=0)
    weights = s.op("concat", ["x", "w", "x"], axis=0)
    normal = s.op("layer_norm", s.op("reshape", parts, shape=[1, 6]), epsilon=1e-5)
    s.total(s.op("mul", s.op("reshape", normal, shape=[6]), weights))
    close(second(s), [10.53772393, -8.00844358])

    s = wx()
    s.op("reduce_max", s.op("mul", s.op("square", "w"), "x"), out="loss")
    close(second(s), [0, 22.4])

    s = wx()
    s.feed("label", [1], "int64")
    logits = s.op("reshape", s.op("mul", "w", "x"), shape=[1, 2])
    s.total(s.op("softmax_with_cross_entropy", logits, "label"))
    close(second(s), [0.59399966, -1.18799932])

    s = wx()
    cubes = s.total(s.op("mul", s.op("square", "w"), "w"), out="cubes")
    s.op("add", s.op("reduce_prod", "w"), cubes, out="loss")
    close(second(s), [12.64, 19.448])


def test_80_first_order_at_the_kinks():
    def at(value: list[float], type: str, **attrs: object) -> np.ndarray:
        s = one(value)
        s.total(s.op(type, "w", **attrs))
        return grads(s)["w"]

    close(at([0, 2, 3], "reduce_prod"), [6, 0, 0])
    close(at([2, 2, 1], "reduce_max"), [0.5, 0.5, 0])
    close(at([-1, 0, 1], "clip", min=-1.0, max=1.0), [1, 1, 1])
    close(at([0.0], "abs"), [0])
    s = one([0.0])
    s.param("p", [0.0])
    s.total(s.op("pow", "w", "p"))
    close(grads(s)["w"], [0])
    close(grads(s)["p"], [0])
    s = one([1.0])
    s.param("p", [1.0])
    s.total(s.op("maximum", "w", "p"))
    close([grads(s)["w"], grads(s)["p"]], [[0.5], [0.5]])


def test_82_the_derivative_with_respect_to_the_seed_is_a_forward_mode_product():
    s = one()
    s.feed("seed", [1.0, 1.0, 1.0])
    s.feed("v", [1.0, -2.0, 0.5])
    s.op("tanh", "w", out="y")
    b = gradients(read(s.document), ["y"], ["w"], ["seed"])

    exe = compile_gradient(
        b.program,
        GradientQuery(targets=(b.gradients["w"],), inputs=("seed",), target_gradients=(True,)),
    )
    out = exe.step(s.values | {"target_gradients/0": s.values["v"]})

    close(out.gradients["seed"], (1 - np.tanh(W) ** 2) * s.values["v"])


def test_87_ten_mistakes_are_all_reported_with_their_places():
    document = {
        "blocks": [
            {
                "idx": 0,
                "vars": [
                    {"name": "w", "dtype": "float64", "shape": [2], "role": "parameter"},
                    {"name": "m", "dtype": "float64", "shape": [2, 3], "role": "parameter"},
                ],
                "ops": [
                    {"type": "tahn", "inputs": {"x": ["w"]}, "outputs": {"out": ["a"]}},
                    {"type": "tanh", "inputs": {"x": ["w"]}, "outputs": {"out": ["b"]}, "attrs": {"q": 1}},
                    {"type": "tanh", "inputs": {"z": ["w"]}, "outputs": {"out": ["c"]}},
                    {"type": "tanh", "inputs": {"x": ["w", "w"]}, "outputs": {"out": ["d"]}},
                    {"type": "tanh", "inputs": {"x": ["nobody"]}, "outputs": {"out": ["e"]}},
                    {"type": "tanh", "inputs": {"x": ["later"]}, "outputs": {"out": ["f"]}},
                    {"type": "add", "inputs": {"x": ["w"], "y": ["m"]}, "outputs": {"out": ["g"]}},
                    {"type": "matmul", "inputs": {"x": ["m"], "y": ["m"]}, "outputs": {"out": ["h"]}},
                    {"type": "scale", "inputs": {"x": ["w"]}, "outputs": {"out": ["i"]}, "attrs": {"scale": "2"}},
                    {"type": "tanh", "inputs": {"x": ["w"]}, "outputs": {"y": ["j"]}},
                    {"type": "tanh", "inputs": {"x": ["w"]}, "outputs": {"out": ["later"]}},
                ],
            }
        ]
    }
    with pytest.raises(ProgramError) as error:
        read(document)

    found = [(p.op, p.code) for p in error.value.problems]
    assert found == [
        (0, "unknown_op"),
        (1, "bad_attr"),
        (2, "bad_slot"),
        (3, "bad_slot"),
        (4, "unknown_variable"),
        (5, "use_before_definition"),
        (6, "shape_mismatch"),
        (7, "shape_mismatch"),
        (8, "bad_attr"),
        (9, "bad_slot"),
    ]
    assert all(p.pointer.startswith(f"/blocks/0/ops/{p.op}") for p in error.value.problems)
    assert error.value.problems[0].suggestion and "tanh" in error.value.problems[0].suggestion


def test_88_the_same_program_gives_the_same_backward_text():
    texts = {str(append_backward(read(five_readers().document), "loss").as_document()) for _ in range(3)}

    assert len(texts) == 1


def nested(depth: int) -> Sketch:
    s = Sketch()
    s.param("w", [0.9, 1.01])
    s.feed("c", True, "bool")
    s.op("assign", "w", out="h")

    def level(left: int) -> None:
        s.op("mul", "h", "w", out="h")
        if left > 1:
            with s.block() as inner:
                level(left - 1)
            s.branch("c", inner, None)

    level(depth)
    s.total("h")
    return s


def test_93_200_nested_blocks_build_and_run_and_201_are_too_deep():
    w = np.array([0.9, 1.01])

    close(grads(nested(200))["w"], 201 * w**200, 1e-12)
    with pytest.raises(ProgramError) as error:
        read(nested(201).document)
    assert [p.code for p in error.value.problems] == ["too_deep"]


def test_94_reserved_names_are_refused_except_in_programs_written_by_the_service():
    s = one()
    s.op("tanh", "w", out="w@GRAD")
    with pytest.raises(ProgramError) as error:
        read(s.document)
    assert [p.code for p in error.value.problems] == ["reserved_name"]

    s = one()
    s.total(s.op("square", "w"))
    answer = read(write(append_backward(read(s.document), "loss").program))
    close(compile_gradient(answer, GradientQuery(targets=("w@GRAD",), inputs=("w",))).step(s.values).gradients["w"], 2)


def test_a_parameter_overwritten_in_the_forward_part_gets_the_gradient_of_its_entry_value():
    s = one()
    s.op("square", "w", out="w")
    s.op("square", "w", out="w")
    s.total("w")

    close(grads(s)["w"], 4 * np.array(W) ** 3)


def test_the_untaken_side_of_a_branch_gives_no_nan():
    s = one([0.0])
    s.feed("c", False, "bool")
    with s.block() as yes:
        s.op("log", "w", out="y")
    with s.block() as no:
        s.op("square", "w", out="y")
    s.branch("c", yes, no)
    s.total("y")

    assert not math.isnan(float(grads(s)["w"][0]))


def test_stop_gradient_holds_for_a_variable_that_branches_define():
    s = one()
    s.feed("c", True, "bool")
    s.declare("y", stop_gradient=True)
    with s.block() as yes:
        s.op("square", "w", out="y")
    with s.block() as no:
        s.op("tanh", "w", out="y")
    s.branch("c", yes, no)
    s.total(s.op("mul", "y", "w"))

    close(grads(s)["w"], np.array(W) ** 2)


@pytest.mark.parametrize("value", [2**53 + 1, -(2**60) - 1, 10**400])
def test_a_constant_that_would_be_rounded_is_refused(value):
    s = one()
    s.raw({"type": "fill_constant", "outputs": {"out": ["k"]}, "attrs": {"value": value, "dtype": "int64"}})

    with pytest.raises(ProgramError) as error:
        read(s.document)
    assert [p.code for p in error.value.problems] == ["bad_attr"]
