"""The tape: values, backward passes, structure, limits, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_forward, compile_gradient
from core.ir.errors import ExecutionError, InvalidProgram, ProgramError
from core.ir.registry import REGISTRY, Example, OpSpec
from core.tape import Steps, Tape, TapeLimits
from core.wire import read, write
from tests.programs import identical, whole

X, Y = np.arange(6.0).reshape(2, 3) / 4, np.arange(12.0).reshape(3, 4) / 7 - 0.5


def op(type: str, out: str | None = None, /, attrs: dict[str, Any] | None = None, **inputs: Any) -> dict[str, Any]:
    """An op as in a JSON program. `out` names its output `out`."""
    found: dict[str, Any] = {"type": type, "inputs": inputs, "attrs": attrs or {}}
    return found if out is None else found | {"outputs": {"out": [out]}}


def tape(mode: str = "immediate", **more: Any) -> Tape:
    """A tape with two parameters x [2, 3] and y [3, 4], without ops."""
    made = Tape(mode, **more)  # type: ignore[arg-type]
    made.append(parameters={"x": X, "y": Y})
    return made


def small_and_big(mode: str, **more: Any) -> Tape:
    """A shared product and a big network on it, places 1 to 6, which the loss at place 8 does not need."""
    made = tape(mode, **more)
    big = [op("tanh", f"b{i}", x=f"b{i - 1}" if i else "p") for i in range(6)]
    made.append([op("matmul", "p", x="x", y="y"), *big, op("square", "q", x="p"), op("mean", "loss", x="q")])
    return made


# Values


def test_an_immediate_tape_computes_every_value_when_the_op_is_appended():
    t = tape()
    (appended,) = t.append([op("matmul", "p", x="x", y="y")])

    assert (appended.place, appended.type, str(appended.outputs[0][1])) == (0, "matmul", "float64[2, 4]")
    assert t.computed == {"x", "y", "p"}
    np.testing.assert_array_equal(t.evaluate(["p"]).values["p"], X @ Y)


def test_a_lazy_tape_runs_only_ops_that_reach_the_requested_value_and_each_once():
    t = small_and_big("lazy")
    assert t.computed == {"x", "y"}

    first, again = t.evaluate(["q"]), t.evaluate(["q"])
    assert (first.ran, again.ran) == ((0, 7), ())
    np.testing.assert_array_equal(again.values["q"], (X @ Y) ** 2)
    assert t.evaluate(["b1", "loss"]).ran == (1, 2, 8)
    assert t.computed == {"x", "y", "p", "q", "b0", "b1", "loss"}


def test_unnamed_outputs_get_names():
    t = tape()
    parts = op("split", x="x", attrs={"num": 3, "axis": 1})
    (one,), (three,) = t.append([op("tanh", x="x")]), t.append([parts])

    assert [name for name, _ in one.outputs] == ["tanh_0"]
    assert [name for name, _ in three.outputs] == ["split_1_0", "split_1_1", "split_1_2"]
    np.testing.assert_array_equal(t.evaluate(["split_1_2"]).values["split_1_2"], X[:, 2:])


def test_a_failing_op_is_located_on_the_tape_even_in_a_reused_step():
    steps = Steps()
    for extra in (0, 3):
        t = tape("lazy", steps=steps)
        t.append([op("tanh", x="x") for _ in range(extra)])
        t.append([op("gather", "g", x="y", index="i")], constants={"i": np.array([9])})
        with pytest.raises(ExecutionError) as caught:
            t.evaluate(["g"])
        assert caught.value.location is not None
        assert (caught.value.location.op, caught.value.location.type) == (extra, "gather")


def test_a_failing_immediate_op_is_not_appended():
    t = tape()
    with pytest.raises(ExecutionError):
        t.append([op("tanh", "h", x="x"), op("gather", x="y", index="i")], constants={"i": np.array([9])})
    assert (len(t), set(t.types) - {"@KEY"}, t.nbytes) == (0, {"x", "y"}, X.nbytes + Y.nbytes)
    assert t.append([op("tanh", "h", x="x")])[0].place == 0


# Playback


@pytest.mark.parametrize("mode", ["immediate", "lazy"])
def test_a_network_the_loss_does_not_need_is_not_differentiated(mode):
    t = small_and_big(mode)

    found = t.gradients("loss")

    assert found.played == (8, 7, 0)
    assert found.ran == (() if mode == "immediate" else (0, 7, 8))
    np.testing.assert_allclose(found.gradients["x"], (2 * (X @ Y) / 8) @ Y.T, rtol=1e-14)
    np.testing.assert_allclose(found.gradients["y"], X.T @ (2 * (X @ Y) / 8), rtol=1e-14)
    assert t.gradients("b5", wrt=["p"], seed=np.ones((2, 4))).played == (6, 5, 4, 3, 2, 1)


def test_a_gradient_is_final_after_the_last_use_of_its_variable():
    t = Tape()
    t.append(
        [
            op("mul", "ab", x="a", y="b"),
            op("mul", "aab", x="a", y="ab"),
            op("add", "s", x="aab", y="c"),
            op("mul", "loss", x="s", y="c"),
        ],
        parameters={"a": np.array(2.0), "b": np.array(3.0), "c": np.array(5.0)},
    )
    found = t.gradients("loss", ["a", "b", "c", "ab", "loss"])

    assert found.played == (3, 2, 1, 0)
    assert found.final == (("loss", None), ("c", 2), ("ab", 1), ("a", 0), ("b", 0))
    assert {k: v.item() for k, v in found.gradients.items()} == {"a": 60, "b": 20, "c": 22, "ab": 10, "loss": 1}


def test_ops_without_a_cotangent_are_not_in_the_backward_pass():
    t = tape()
    t.append([op("tanh", "t", x="x"), op("reshape_as", "r", x="y", like="z"), op("reduce_sum", "loss", x="r")],
             constants={"z": np.zeros((4, 3))})  # fmt: skip
    t.append([op("add", "tt", x="t", y="t"), op("stop_gradient", "st", x="tt"), op("reduce_sum", "l2", x="st")])

    assert t.gradients("loss").played == (2, 1)
    found = t.gradients("l2", ["x", "y"])
    assert (found.played, found.gradients) == ((), {})
    assert found.missing == {"x": "stopped_at:st", "y": "not_on_path_to_loss"}


def test_integers_and_unused_variables_have_a_reason_for_their_missing_gradient():
    t = tape()
    t.append([op("gather", "g", x="x", index="i"), op("mean", "loss", x="g")], constants={"i": np.array([1]),
             "unused": np.array(1.0)})  # fmt: skip
    assert t.gradients("loss", ["i", "unused", "y"]).missing == {
        "i": "integer_dtype",
        "unused": "unused",
        "y": "unused",
    }


@pytest.mark.parametrize(
    ("target", "seed", "code"),
    [
        ("p", None, "loss_not_scalar"),
        ("p", np.ones((2, 3)), "target_grad_shape"),
        ("p", np.ones((2, 4), "float32"), "target_grad_shape"),
        ("i", None, "loss_not_float"),
        ("nothing", None, "unknown_variable"),
        ("@KEY", None, "unknown_variable"),
    ],
)
def test_an_impossible_backward_pass_is_refused(target, seed, code):
    t = tape()
    t.append([op("matmul", "p", x="x", y="y")], constants={"i": np.array(1)})
    with pytest.raises(ProgramError) as caught:
        t.gradients(target, seed=seed)
    assert caught.value.code == code


# Recorded gradients


@pytest.mark.parametrize("mode", ["immediate", "lazy"])
def test_recorded_gradients_can_be_differentiated_repeatedly(mode):
    t = Tape(mode)
    t.append([op("tanh", "y", x="x")], parameters={"x": np.array(0.3)})
    names = ["y"]
    for _ in range(3):
        found, missing, _ = t.record_gradients(names[-1], ["x"])
        assert missing == {}
        names.append(found["x"])
    y = np.tanh(0.3)
    s = 1 - y * y
    wanted = [y, s, -2 * y * s, -2 * s * s + 4 * y * y * s]
    values = t.evaluate(names).values

    np.testing.assert_allclose([values[n] for n in names], wanted, rtol=1e-12)
    np.testing.assert_allclose(t.gradients(names[1]).gradients["x"], wanted[2], rtol=1e-12)


def test_a_recorded_gradient_of_an_intermediate_uses_only_later_ops():
    t = Tape()
    t.append(
        [op("assign", "z", x="x"), op("mul", "y", x="x", y="z"), op("square", "w", x="y")],
        parameters={"x": np.array(3.0)},
    )
    found, _, _ = t.record_gradients("y", ["z"])
    assert t.evaluate([found["z"]]).values[found["z"]] == 3.0
    assert t.gradients(found["z"]).gradients["x"] == 1.0
    seeded, _, _ = t.record_gradients("w", ["y"], seed="x")
    assert t.evaluate([seeded["y"]]).values[seeded["y"]] == 2 * 9 * 3


def test_a_recording_that_exceeds_the_limits_leaves_the_tape_unchanged():
    t = small_and_big("immediate", limits=TapeLimits(ops=11))
    before = (len(t), t.nbytes, set(t.types))
    with pytest.raises(ProgramError) as caught:
        t.record_gradients("loss")
    assert (caught.value.code, (len(t), t.nbytes, set(t.types))) == ("tape_full", before)


# Structure


def iteration(t: Tape, scale: float) -> dict[str, Any]:
    h, p, loss = (f"{n}{len(t)}" for n in ("h", "p", "loss"))
    t.append(
        [op("matmul", h, x="x", y="y"), op("scale", p, x=h, attrs={"scale": scale}), op("mean", loss, x=p)],
    )
    return t.gradients(loss).gradients


@pytest.mark.parametrize("mode", ["immediate", "lazy"])
def test_iterations_with_the_same_structure_share_compiled_steps(mode):
    steps = Steps()
    for _ in range(3):  # other tapes, with other values
        t = Tape(mode, steps=steps)
        t.append(parameters={"x": np.random.normal(size=(2, 3)), "y": Y})
        iteration(t, 2.0)
        iteration(t, 2.0)  # the same tape again, with other names
    assert (steps.compiled, steps.reused) == (2, 10)
    iteration(t, 3.0)
    assert steps.compiled == 4
    t = Tape(mode, steps=steps)
    t.append(parameters={"x": X.astype("float32"), "y": Y.astype("float32")})
    iteration(t, 2.0)
    assert steps.compiled == 6


def test_zeros_of_different_sign_are_different_structures():
    steps = Steps()
    for value in (0.0, -0.0):
        t = Tape(steps=steps)
        t.append([op("fill_constant", "z", attrs={"shape": [], "value": value, "dtype": "float64"})])
        assert str(t.evaluate(["z"]).values["z"]) == str(value)


def test_the_cache_of_compiled_steps_is_bounded():
    steps = Steps(capacity=12)
    t = Tape("lazy", steps=steps)
    t.append(parameters={"x": X, "y": Y})
    for scale in range(1, 20):
        iteration(t, float(scale))
    assert len(steps._cached) < 6
    iteration(t, 19.0)
    assert steps.reused == 2


# The tape as a program


def test_a_tape_written_as_a_program_reads_back_compiles_and_differentiates():
    t = small_and_big("lazy")
    t.append([op("dropout", "d", x="p", attrs={"p": 0.5})])
    document = t.write()

    program = read(document)

    assert write(program) == document
    assert program.block == t.program().block
    wanted = t.gradients("loss")
    found = compile_gradient(program, GradientQuery(loss="loss")).step({"x": X, "y": Y})
    identical(found.loss, wanted.value)
    for name in ("x", "y"):
        identical(found.gradients[name], wanted.gradients[name])
    dropped = compile_forward(program, ["d"]).step({"x": X, "y": Y})
    np.testing.assert_array_equal(dropped.fetched["d"], t.evaluate(["d"]).values["d"])


def test_recorded_gradients_are_part_of_the_program():
    t = small_and_big("immediate")
    found, _, _ = t.record_gradients("loss")
    program = read(t.write())
    out = compile_forward(program, list(found.values())).step({"x": X, "y": Y}).fetched
    for name, gradient in t.gradients("loss").gradients.items():
        np.testing.assert_allclose(out[found[name]], gradient, rtol=1e-14)


def array_examples(spec: OpSpec) -> list[Example]:
    """The examples whose inputs are arrays or omitted."""
    assert spec.example_rule is not None
    return [e for e in spec.example_rule() if not any(isinstance(x, list) for x in (*e.inputs, *e.outputs))]


OPS = sorted(name for name, spec in REGISTRY.items() if spec.kind in ("primitive", "composite"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("type", OPS)
def test_every_op_gives_the_same_on_a_tape_as_in_a_program(type):
    spec = REGISTRY[type]
    for example in array_examples(spec):
        given = {f"i{i}": np.asarray(x) for i, x in enumerate(example.inputs) if x is not None}
        slots: dict[str, list[str]] = {}
        for i, x in enumerate(example.inputs):
            slot = spec.inputs[min(i, len(spec.inputs) - 1)]
            if x is not None:
                slots.setdefault(slot.name, []).append(f"i{i}")
        attrs = {k: list(v) if isinstance(v, tuple) else v for k, v in example.attrs.items()}
        now, later = Tape(), Tape("lazy")
        appended = {}
        for each in (now, later):
            (appended[each],) = each.append([op(type, attrs=attrs, **slots)], parameters=given)
        names = [name for name, kind in appended[now].outputs if hasattr(kind, "shape")]
        assert [name for name, _ in appended[now].outputs] == [name for name, _ in appended[later].outputs]
        first, second = now.evaluate(names).values, later.evaluate(names).values
        for name, wanted in zip(names, example.outputs, strict=False):
            identical(first[name], second[name])
            np.testing.assert_allclose(np.asarray(first[name], "float64"), np.asarray(wanted, "float64"), rtol=1e-5,
                                       atol=1e-6)  # fmt: skip
        target = next((n for n in names if now.types[n].is_float), None)
        if target is None or not spec.differentiable:
            continue
        ones = np.ones(first[target].shape, first[target].dtype)
        found = now.gradients(target, seed=ones)
        query = GradientQuery(targets=(target,), inputs=tuple(given))
        wanted = compile_gradient(read(now.write()), query).step(given)
        assert found.gradients.keys() == wanted.gradients.keys()
        for name, gradient in found.gradients.items():
            identical(gradient, whole(wanted.gradients)[name])


# Errors and their locations


def test_all_errors_of_an_append_are_located_and_nothing_is_appended():
    t = tape()
    t.append([op("tanh", "h", x="x")])
    with pytest.raises(InvalidProgram) as caught:
        t.append(
            [
                op("exp", "e", x="h"),
                op("matmul", x="x", y="x"),
                op("mul", x="nothing", y="x"),
                op("tahn", x="x"),
                op("exp", "h", x="x"),
                op("softmax", x="x", attrs={"axis": 7}),
                op("add", "s", x="x", z="x"),
                op("relu", x="s"),
            ],
            constants={"c": np.zeros(3)},
        )
    reported = [(p.code, p.pointer, p.op) for p in caught.value.problems]
    assert reported == [
        ("shape_mismatch", "/ops/1", 2),
        ("unknown_variable", "/ops/2/inputs/x", 3),
        ("unknown_op", "/ops/3", 4),
        ("duplicate_variable", "/ops/4/outputs", 5),
        (reported[4][0], "/ops/5", 6),
        ("bad_slot", "/ops/6/inputs/z", 7),
    ]
    unknown = caught.value.problems[1]
    assert (unknown.slot, unknown.variable) == ("x", "nothing")
    assert (len(t), set(t.types) - {"@KEY"}) == (1, {"x", "y", "h"})
    assert t.append([op("exp", x="h")])[0].place == 1


def test_the_form_of_appended_ops_and_leaves_is_checked():
    t = tape()
    for ops, leaves, pointer in (
        ([{"inputs": {}}], {}, "/ops/0"),
        ([op("tanh", "y@GRAD", x="x")], {}, "/ops/0/outputs/out/0"),
        ([3], {}, "/ops/0"),
        ([], {"a b": np.zeros(2)}, "/constants/a b"),
        ([], {"grad/w": np.zeros(2)}, "/constants/grad~1w"),
        ([], {"x": np.zeros(2)}, None),
    ):
        if pointer is None:
            t.append([op("tanh", x="x")])
        with pytest.raises(ProgramError) as caught:
            t.append(ops, constants=leaves)
        assert caught.value.problems[0].pointer == (pointer or "/constants/x"), caught.value.problems
    with pytest.raises(ProgramError, match="both a parameter and a constant"):
        t.append(parameters={"n": X}, constants={"n": X})


@pytest.mark.parametrize("type", ["while", "if_else", "loop", "scan", "net", "call", "switch_case"])
def test_ops_with_inner_blocks_are_refused(type):
    with pytest.raises(ProgramError) as caught:
        tape().append([op("tanh", x="x"), op(type, x="x", attrs={"sub_block": 1})])
    (reported,) = caught.value.problems
    assert (reported.code, reported.pointer, reported.op, reported.op_type) == (
        "control_flow_on_tape",
        "/ops/1",
        1,
        type,
    )
    assert "client" in (reported.suggestion or "")


def test_a_tape_limits_its_ops_and_bytes():
    t = tape(limits=TapeLimits(ops=3, bytes=2000))
    with pytest.raises(ProgramError, match="more than 3 ops"):
        t.append([op("tanh", x="x")] * 4)
    huge = op("fill_constant", attrs={"shape": [1 << 14, 1 << 14], "value": 0.0, "dtype": "float64"})
    for refused in (lambda: t.append([huge]), lambda: t.append(constants={"big": np.zeros(300)})):
        with pytest.raises(ProgramError, match="2000 bytes") as caught:
            refused()
        assert caught.value.code == "tape_full"
    assert len(t) == 0
    t.append([op("tanh", x="x")] * 3)


# Forgetting


def test_releasing_variables_frees_ops_and_values_that_nothing_else_needs():
    t = small_and_big("immediate")
    t.release([*(f"b{i}" for i in range(5)), "p", "nothing"])
    assert len(t) == 9  # b5 still needs them
    with pytest.raises(ProgramError, match="no variable 'p'"):
        t.append([op("tanh", x="p")])
    t.release(["b5"])
    assert sorted(set(t.types) - {"@KEY"}) == ["loss", "p", "q", "x", "y"]
    assert t.gradients("loss").played == (8, 7, 0)
    t.release(["loss", "q", "x"])
    assert (len(t), set(t.types) - {"@KEY"}, t.nbytes) == (0, {"y"}, Y.nbytes)


def test_a_long_immediate_loop_that_releases_variables_stays_small():
    t, steps, size = tape(), None, 0
    for i in range(50):
        t.append([op("matmul", f"h{i}", x="x", y="y"), op("mean", f"l{i}", x=f"h{i}")])
        t.gradients(f"l{i}")
        t.release([f"h{i}", f"l{i}"])
        if i == 0:
            steps, size = t.steps.compiled, t.nbytes
    assert (len(t), t.steps.compiled, t.nbytes) == (0, steps, size)


def test_a_renewed_tape_keeps_only_parameters_and_they_can_be_replaced():
    t = small_and_big("lazy")
    t.append(constants={"c": X})
    with pytest.raises(ProgramError, match="read by ops"):
        t.append(parameters={"x": X})
    t.gradients("loss")
    t.renew()
    assert (len(t), set(t.types) - {"@KEY"}, t.nbytes) == (0, {"x", "y"}, X.nbytes + Y.nbytes)
    t.append([op("matmul", "p", x="x", y="y")], parameters={"x": 2 * X})
    np.testing.assert_array_equal(t.evaluate(["p"]).values["p"], 2 * X @ Y)


def test_random_ops_repeat_with_the_seed_and_change_when_the_tape_is_renewed():
    draw = op("uniform_random", "u", attrs={"shape": [8], "dtype": "float64"})

    def drawn(t: Tape) -> list[float]:
        t.append([draw])
        return t.evaluate(["u"]).values["u"].tolist()

    one, same, other = Tape(seed=3), Tape("lazy", seed=3), Tape(seed=4)
    first = drawn(one)
    assert first == drawn(same) != drawn(other)
    one.renew()
    assert drawn(one) != first


def test_a_failed_append_with_renew_leaves_the_tape_unchanged():
    t = small_and_big("lazy")
    t.append([op("uniform_random", "u", attrs={"shape": [3]})], constants={"c": X})
    program, value, drawn, held = t.write(), t.evaluate(["loss"]).values["loss"], t.evaluate(["u"]), t.nbytes
    for wrong in ([op("tahn", x="x")], [op("matmul", x="x", y="x")], [op("neg", x="c")]):
        with pytest.raises(InvalidProgram):
            t.append(wrong, parameters={"z": X}, renew=True)
        assert (t.write(), t.nbytes, t.renewals) == (program, held, 0)
    assert t.evaluate(["loss"]).values["loss"] == value
    np.testing.assert_array_equal(t.evaluate(["u"]).values["u"], drawn.values["u"])
    t.append([op("neg", "n", x="x")], renew=True)
    assert (len(t), t.renewals) == (1, 1)


def test_a_failed_append_restores_a_replaced_parameter():
    t = tape()
    with pytest.raises(InvalidProgram):
        t.append([op("tahn", x="x")], parameters={"x": 2 * X})
    np.testing.assert_array_equal(t.evaluate(["x"]).values["x"], X)
    assert t.nbytes == X.nbytes + Y.nbytes


def test_a_tape_limits_the_rank_of_results():
    chain = [op("unsqueeze", f"y{i}", x=f"y{i - 1}" if i else "x", attrs={"axes": [0]}) for i in range(9)]
    with pytest.raises(ProgramError, match="above the limit of 8") as caught:
        tape().append(chain)
    assert caught.value.problems[0].code == "limit_exceeded"
