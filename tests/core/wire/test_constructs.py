"""Constructs: their values, and their first and second gradients against finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from core.ir.errors import ExecutionError, ProgramError
from core.wire import Limits, functions, read, write
from tests.programs import Sketch, check, close, grads, step

X = [[1.0, 2.0], [0.5, -1.0], [-1.0, 0.3]]


def test_every_answer_reads_back_as_the_same_program():
    for sketch in (elman("all"), cases(1), rows([True, False, True]), array_in_a_loop(), custom(-1.0)):
        program = read(sketch.document)
        assert read(write(program)) == program


# --- recurrence ------------------------------------------------------------------------------------------------


def elman(outputs: str, reverse: bool = False, kind: str = "recurrent", rows: int = 3) -> Sketch:
    """h := tanh(h @ W + x) over the rows of X, and a loss over all states or the last one."""
    s = Sketch()
    s.param("W", [[0.5, 0.1], [-0.2, 0.7]])
    s.param("h0", [0.2, -0.3])
    s.feed("X", np.asarray(X)[:rows])
    with s.block() as body:
        before = "p" if kind == "recurrent" else "h"
        s.op("tanh", s.op("add", s.op("matmul", before, "W"), "x"), out="h")
        s.op("square", "h", out="y")
    if kind == "recurrent":
        s.construct(
            "recurrent",
            {"inputs": "X", "initial_states": "h0"},
            {"outputs": "ys", "final_states": "last"},
            sub_block=body,
            ex_states=["p"],
            states=["h"],
            step_inputs=["x"],
            step_outputs=["y"],
            reverse=reverse,
        )
    else:
        s.construct(
            "scan",
            {"initial": "h0", "sequences": "X"},
            {"final": "last", "stacked": "ys"},
            sub_block=body,
            states=["h"],
            elements=["x"],
            outputs=["y"],
            reverse=reverse,
        )
    s.total("ys" if outputs == "all" else "last")
    return s


RECURRENT = [
    ("all", False, [[0.09936558, 0.18371989], [0.52476056, -0.22508209]], [0.32832622, -0.0016628]),
    ("all", True, [[-0.42690186, 0.3883997], [-0.13261106, -0.23043636]], None),
    ("last", False, [[0.65357684, 1.0182952], [0.06848657, 0.23042083]], None),
]


@pytest.mark.parametrize("kind", ["recurrent", "scan"])
@pytest.mark.parametrize(("outputs", "reverse", "dW", "dh0"), RECURRENT)
def test_70_a_recurrent_net(outputs, reverse, dW, dh0, kind):
    found = check(elman(outputs, reverse, kind))

    close(found["W"], dW)
    if dh0 is not None:
        close(found["h0"], dh0)


def test_stacked_results_keep_the_order_of_the_sequence():
    forward, backward = (step(elman("all", reverse), ["ys"]).fetched["ys"] for reverse in (False, True))

    h = np.array([0.2, -0.3])
    W = np.array([[0.5, 0.1], [-0.2, 0.7]])
    for x, y in zip(X, forward, strict=True):
        h = np.tanh(h @ W + x)
        close(y, h * h)
    h = np.array([0.2, -0.3])
    for x, y in zip(X[::-1], backward[::-1], strict=True):
        h = np.tanh(h @ W + x)
        close(y, h * h)


def test_a_scan_over_an_empty_sequence_is_legal():
    found = step(elman("all", rows=0), ["ys", "last"])

    assert found.fetched["ys"].shape == (0, 2)
    close(found.fetched["last"], [0.2, -0.3])
    close(found.gradients["W"], np.zeros((2, 2)))
    close(grads(elman("last", rows=0))["h0"], [1, 1])


def test_72_a_state_without_updates_and_one_starting_at_zero_equal_the_unrolled_program():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("fixed", [0.3, -0.4])
    s.feed("X", X)
    with s.block() as body:
        s.op("tanh", s.op("add", s.op("mul", "h", "w"), s.op("mul", "m", "x")), out="next")
    s.construct(
        "recurrent",
        {"inputs": "X", "initial_states": ["fixed", s.const(0.0, [2])]},
        {"outputs": "ys"},
        sub_block=body,
        ex_states=["m", "h"],
        states=["m", "next"],
        step_inputs=["x"],
        step_outputs=["next"],
    )
    s.total("ys")

    found = check(s)

    u = Sketch()  # unrolled by hand
    u.param("w", [0.5, 0.7])
    u.param("fixed", [0.3, -0.4])
    h, total = u.const(0.0, [2]), u.const(0.0)
    for i, x in enumerate(X):
        u.feed(f"x{i}", x)
        h = u.op("tanh", u.op("add", u.op("mul", h, "w"), u.op("mul", "fixed", f"x{i}")))
        total = u.op("add", total, u.op("reduce_sum", h))
    u.op("assign", total, out="loss")
    for name, value in grads(u).items():
        close(found[name], value)


def test_a_scan_may_count_steps_and_overwrite_outer_variables():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("assign", "w", out="total")
    with s.block() as body:
        s.op("mul", "h", "w", out="h")
        s.op("add", "total", "h", out="total")
    s.construct("scan", {"initial": "w"}, {}, sub_block=body, states=["h"], length=3)
    s.total("total")
    w = np.array([0.5, 0.7])

    close(check(s)["w"], 1 + 2 * w + 3 * w**2 + 4 * w**3)


def test_sequences_of_different_lengths_are_refused():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    for name, rows in (("a", 3), ("b", 2)):
        s.feed(name, np.ones((rows, 2)))
        s.blocks[0]["vars"][-1]["shape"] = [-1, 2]
    with s.block() as body:
        s.op("mul", s.op("add", "x", "y"), "w", out="z")
    s.construct(
        "scan", {"sequences": ["a", "b"]}, {"stacked": "zs"}, sub_block=body, elements=["x", "y"], outputs=["z"]
    )
    s.total("zs")

    with pytest.raises((ExecutionError, ProgramError)) as error:
        grads(s)
    assert error.value.code == "shape_mismatch"


def test_a_recurrence_without_residuals_has_no_gradient():
    s = elman("all")
    s.blocks[0]["ops"][0]["attrs"]["is_train"] = False

    with pytest.raises(ProgramError) as error:
        grads(s)
    assert error.value.code == "is_test_loop"


# --- branches --------------------------------------------------------------------------------------------------


def cases(index: int) -> Sketch:
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.feed("k", index, "int64")
    s.op("assign", "w", out="total")
    blocks = []
    for factor in (2.0, 3.0, 5.0, 7.0):
        with s.block() as block:
            s.op("scale", s.op("square", "w"), out="y", scale=factor)
            if factor == 5.0:
                s.op("add", "total", "y", out="total")
        blocks.append(block)
    s.construct("switch_case", {"index": "k"}, {}, branches=blocks[:3], default_block=blocks[3])
    s.total(s.op("add", "y", "total"))
    return s


@pytest.mark.parametrize(("index", "factor"), [(0, 2), (1, 3), (2, 10), (7, 7), (-1, 7)])
def test_43_switch_case_takes_the_default_for_any_other_index(index, factor):
    close(check(cases(index))["w"], 1 + 2 * factor * np.array([0.5, 0.7]))


@pytest.mark.parametrize(("values", "factor"), [((1, 1), 2), ((0, 1), 3), ((0, 0), 5)])
def test_case_takes_the_first_true_condition(values, factor):
    s = Sketch()
    s.param("w", [0.5, 0.7])
    conditions = [s.feed(f"c{i}", bool(v), "bool") for i, v in enumerate(values)]
    blocks = []
    for each in (2.0, 3.0, 5.0):
        with s.block() as block:
            s.op("scale", "w", out="y", scale=each)
        blocks.append(block)
    s.construct("case", {"conditions": conditions}, {"out": "y"}, branches=blocks[:2], default_block=blocks[2])
    s.total("y")

    close(check(s)["w"], [factor, factor])


@pytest.mark.parametrize("taken", [True, False])
def test_a_conditional_block_that_does_not_run_keeps_the_old_value(taken):
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.feed("c", taken, "bool")
    s.op("scale", "w", out="y", scale=3.0)
    with s.block() as block:
        s.op("square", "y", out="y")
    s.construct("conditional_block", {"condition": "c"}, {}, sub_block=block)
    s.total("y")

    close(check(s)["w"], 18 * np.array([0.5, 0.7]) if taken else [3, 3])


def rows(mask: list[bool]) -> Sketch:
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("x", [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    s.feed("mask", mask, "bool")
    with s.block() as yes:
        s.op("mul", "r", "w", out="y")
    with s.block() as no:
        s.op("square", s.op("mul", "r", "w"), out="y")
    s.construct(
        "if_else_rows", {"condition": "mask", "x": "x"}, {"out": "y"}, true_block=yes, false_block=no, rows=["r"]
    )
    s.total("y")
    return s


@pytest.mark.parametrize("mask", [[True, False, True], [True] * 3, [False] * 3])
def test_each_row_goes_through_the_branch_of_its_condition(mask):
    found = check(rows(mask))

    w, x, m = np.array([0.5, 0.7]), np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]), np.array(mask)[:, None]
    close(found["w"], np.where(m, x, 2 * x * x * w).sum(0))
    close(found["x"], np.where(m, w + 0 * x, 2 * x * w * w))


@pytest.mark.parametrize(
    ("mask", "dx"), [([True, False, True], [0.27454109, 0.22362207]), ([True, True, True], [0, 0])]
)
def test_45_the_parameter_of_a_branch_without_rows_has_gradient_0(mask, dx):
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("v", [1.0, 2.0])
    s.feed("X", [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    s.feed("mask", mask, "bool")
    with s.block() as yes:
        s.op("mul", "r", "w", out="y")
    with s.block() as no:
        s.op("tanh", s.op("mul", "r", "v"), out="y")
    s.construct(
        "if_else_rows", {"condition": "mask", "x": "X"}, {"out": "y"}, true_block=yes, false_block=no, rows=["r"]
    )
    s.total("y")

    found = grads(s)

    close(found["v"], dx)
    if mask == [True, False, True]:
        close(found["w"], [0.6, 0.8])


# --- composite ops and functions -------------------------------------------------------------------------------


def test_a_net_runs_its_ops_in_place():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("x", [1.0, 2.0])
    with s.block() as block:
        s.declare("t")
        s.op("mul", "x", "w", out="t")
        s.op("mul", "t", "w", out="y")
    s.construct("net", {}, {}, sub_block=block)
    s.total("y")

    close(check(s)["w"], 2 * np.array([0.5, 0.7]) * [1, 2])


def custom(slope: float, gradient: bool = True) -> Sketch:
    """loss = sum(f(2 w)) with f(x) = x * x and a declared gradient of slope * x * ct (correct: 2 x ct)."""

    def program(*feeds: str) -> Sketch:
        inner = Sketch()
        for name in feeds:
            inner.feed(name, [0.0, 0.0])
        return inner

    f, rule = program("x"), program("x", "y", "dy")
    f.op("mul", "x", "x", out="y")
    rule.op("scale", rule.op("mul", "x", "dy"), out="dx", scale=slope)
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.functions = {"f": {"program": f.document, "results": ["y"], "gradient": "df" if gradient else None}}
    s.functions["df"] = {"program": rule.document, "results": ["dx"]}
    s.construct("call", {"x": s.op("scale", "w", scale=2.0)}, {"out": "y"}, function="f")
    s.total("y")
    return s


def test_a_function_has_the_gradient_of_its_block_unless_it_names_another():
    w = np.array([0.5, 0.7])

    close(check(custom(0.0, gradient=False))["w"], 8 * w)
    close(check(custom(2.0))["w"], 8 * w)
    close(grads(custom(-1.0))["w"], -4 * w)


def calling(**bodies: str) -> Sketch:
    """A program that calls function `f` on w. bodies: of each function, the functions that it applies in turn.

    A name that is no function is an elementwise op.
    """
    s = Sketch()
    s.param("w", [0.5, 0.7])
    for name, body in bodies.items():
        inner, last = Sketch(), "x"
        inner.feed("x", [0.0, 0.0])
        for i, applied in enumerate(body.split()):
            if applied in bodies:
                inner.construct("call", {"x": last}, {"out": f"y{i}"}, function=applied)
            else:
                inner.op(applied, last, out=f"y{i}")
            last = f"y{i}"
        s.functions[name] = {"program": inner.document, "results": [last]}
    s.construct("call", {"x": "w"}, {"out": "y"}, function="f")
    s.total("y")
    return s


def test_functions_call_each_other():
    s = calling(f="g square g", g="h h", h="sin")
    flat = Sketch()
    flat.param("w", [0.5, 0.7])
    last = "w"
    for op in ("sin", "sin", "square", "sin", "sin"):
        last = flat.op(op, last)
    flat.total(last)

    close(check(s)["w"], grads(flat)["w"])


@pytest.mark.parametrize(
    ("bodies", "path"),
    [({"f": "f"}, "f -> f"), ({"f": "g", "g": "sin h", "h": "g"}, "g -> h -> g")],
    ids=["directly", "through others"],
)
def test_a_function_that_calls_itself_is_refused_with_the_path(bodies, path):
    with pytest.raises(ProgramError, match=f"cannot need itself.*{path}") as error:
        read(calling(**bodies).document)

    assert error.value.code == "bad_function"


def test_a_gradient_that_calls_its_function_is_refused():
    s = custom(2.0)
    s.functions["df"]["program"]["blocks"][0]["ops"].insert(
        0, {"type": "call", "inputs": {"x": ["x"]}, "outputs": {"out": ["again"]}, "attrs": {"function": "f"}}
    )

    with pytest.raises(ProgramError, match="for its gradient: f -> df -> f"):
        read(s.document)


def test_calls_of_functions_end_at_the_limits():
    chain = {"f": "f1"} | {f"f{i}": f"f{i + 1}" for i in range(1, 230)} | {"f230": "sin"}
    with pytest.raises(ProgramError, match="nested deeper than the limit") as error:
        read(calling(**chain).document)
    assert error.value.code == "limit_exceeded"

    doubling = {"f": "f1 f1"} | {f"f{i}": f"f{i + 1} f{i + 1}" for i in range(1, 40)} | {"f40": "sin"}
    with pytest.raises(ProgramError, match="takes too long to read"):
        read(calling(**doubling).document, Limits(max_ops=1000))


def test_a_function_read_before_still_counts_its_own_calls():
    first = {f"g{i}": f"g{i + 1}" for i in range(100)} | {"g100": "sin"}
    second = {f"h{i}": f"h{i + 1}" for i in range(150)} | {"h150": "g0"}
    assert read(calling(f="g0 g0", **first).document)

    with pytest.raises(ProgramError, match="nested deeper than the limit"):
        read(calling(f="g0 h0", **first, **second).document)


def test_a_function_is_read_once_for_all_calls_with_operands_of_one_type(monkeypatch):
    """Functions that call each other twice are read in a time that does not double with each."""
    names, read_body = [], functions._read_body

    def noted(r, at, calls, *more):
        names.append(calls[-1])
        return read_body(r, at, calls, *more)

    monkeypatch.setattr(functions, "_read_body", noted)
    doubling = {f"f{i}": f"f{i + 1} f{i + 1}" for i in range(1, 7)} | {"f7": "sin"}
    found = step(calling(f="f1 f1", **doubling))

    assert sorted(names) == ["f", *(f"f{i}" for i in range(1, 8))]
    w = np.array([0.5, 0.7])
    for _ in range(2**7):
        w = np.sin(w)
    close(found.loss, w.sum())


def test_errors_in_a_function_have_a_location():
    s = custom(2.0)
    s.functions["f"]["results"] = ["nothing"]
    s.functions["df"]["program"]["blocks"][0]["ops"][0]["type"] = "mull"
    with pytest.raises(ProgramError) as error:
        read(s.document)
    assert error.value.code == "unknown_variable"

    s = custom(2.0)
    s.functions["df"]["program"]["blocks"][0]["ops"][0]["type"] = "mull"
    with pytest.raises(ProgramError) as error:
        read(s.document)
    assert error.value.problems[0].pointer == "/functions/df/program/blocks/0/ops/0"

    s = custom(2.0)
    s.blocks[0]["ops"][1]["attrs"]["function"] = "g"
    with pytest.raises(ProgramError) as error:
        read(s.document)
    assert error.value.code == "unknown_function"


# --- tensor arrays ---------------------------------------------------------------------------------------------


def array_in_a_loop() -> Sketch:
    """h := tanh(h * w) for three trips, each written to an array; then element 1 again, and the sum of all."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("create_array", out="A", shape=[2], dtype="float64")
    s.const(1.0, [2], out="h")
    s.const(0, dtype="int64", out="t")
    with s.repeat(3):
        s.op("tanh", s.op("mul", "h", "w"), out="h")
        s.op("array_write", "h", "t", "A", out="A")
        s.op("increment", "t", out="t", step=1)
    s.op("array_read", "A", s.const(1, dtype="int64"), out="again")
    s.op("mul", s.op("reduce_sum", s.op("array_stack", "A"), axes=[0]), "again", out="product")
    s.total("product")
    return s


def test_an_array_written_in_a_loop_is_read_outside():
    found = check(array_in_a_loop())

    u = Sketch()
    u.param("w", [0.5, 0.7])
    h, hs = u.const(1.0, [2]), []
    for _ in range(3):
        h = u.op("tanh", u.op("mul", h, "w"))
        hs.append(h)
    u.total(u.op("mul", u.op("sum", hs), hs[1]))
    close(found["w"], grads(u)["w"])


def test_a_value_read_in_the_loop_and_outside_gets_both_gradients():
    s = Sketch()
    s.param("x", [[1.0, 2.0], [3.0, 4.0]])
    s.param("w", [0.5, 0.7])
    s.op("array_unstack", "x", out="A")
    s.const(0.0, [2], out="total")
    s.const(0, dtype="int64", out="t")
    with s.repeat(2):
        s.op("array_read", "A", "t", out="row")
        s.op("add", "total", s.op("mul", "row", "w"), out="total")
        s.op("increment", "t", out="t", step=1)
    s.op("add", "total", s.op("square", s.op("array_read", "A", s.const(0, dtype="int64"))), out="total")
    s.total("total")

    found = check(s)
    close(found["x"], [[0.5 + 2 * 1, 0.7 + 2 * 2], [0.5, 0.7]])


def test_a_write_leaves_the_older_version_unchanged():
    s = Sketch()
    s.param("x", [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    s.param("v", [7.0, 8.0])
    s.op("array_unstack", "x", out="A")
    s.op("array_stack", "A", out="before")
    s.op("array_write", s.op("square", "v"), s.const(1, dtype="int64"), "A", out="A")
    s.op("array_stack", "A", out="after")
    s.total(s.op("mul", "before", "after"))

    found = check(s)
    close(found["x"], [[2, 4], [49, 64], [10, 12]])
    close(found["v"], [2 * 7 * 3, 2 * 8 * 4])


def test_reading_past_the_end_of_an_array_is_an_error_with_a_location():
    s = Sketch()
    s.param("x", [[1.0, 2.0]])
    s.op("array_unstack", "x", out="A")
    s.op("array_read", "A", s.const(1, dtype="int64"), out="y")
    s.total("y")

    with pytest.raises(ExecutionError) as error:
        grads(s)
    assert error.value.code == "index_out_of_range"
    assert error.value.location is not None and error.value.location.type == "array_read"


# --- sequences of different lengths ----------------------------------------------------------------------------


def ragged() -> Sketch:
    """h := tanh(h * w + d * x) from 0 over three sequences of 3, 1 and 2 rows; the sum of their last states."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("d", [1.0, 2.0])
    s.feed("rows", np.arange(12.0).reshape(6, 2) / 10)
    s.feed("lengths", [3, 1, 2], "int64")
    s.op("sequence_to_array", "rows", "lengths", out="steps")
    s.const(0.0, [3, 2], out="h")
    s.const(0, dtype="int64", out="t")
    s.op("reduce_max", "lengths", out="longest")
    s.const(0.0, out="loss")
    with s.repeat("longest"):
        s.op("shrink_rnn_memory", "h", "lengths", "t", out="h")
        s.op("array_read", "steps", "t", out="x")
        s.op("tanh", s.op("add", s.op("mul", "h", "w"), s.op("mul", "x", "d")), out="h")
        s.op("increment", "t", out="t", step=1)
        s.op("shrink_rnn_memory", "h", "lengths", "t", out="going_on")
        ended = s.op("sub", s.op("reduce_sum", "h"), s.op("reduce_sum", "going_on"))
        s.op("add", "loss", ended, out="loss")
    return s


def test_71_variable_lengths_equal_runs_of_each_sequence():
    found = check(ragged())
    close(found["w"], [0.31713921, 0.15563736])
    close(found["d"], [1.11559198, 0.29849196])

    total = {"w": np.zeros(2), "d": np.zeros(2)}
    rows = np.arange(12.0).reshape(6, 2) / 10
    for first, last in ((0, 3), (3, 4), (4, 6)):
        s = Sketch()
        s.param("w", [0.5, 0.7])
        s.param("d", [1.0, 2.0])
        s.feed("x", rows[first:last])
        with s.block() as body:
            s.op("tanh", s.op("add", s.op("mul", "h", "w"), s.op("mul", "row", "d")), out="h")
        given = {"initial": s.const(0.0, [2]), "sequences": "x"}
        s.construct("scan", given, {"final": "last"}, sub_block=body, states=["h"], elements=["row"])
        s.total("last")
        for name, value in grads(s).items():
            total[name] += value
    for name, value in total.items():
        close(found[name], value)


def test_a_final_state_overrides_an_outer_variable_of_its_name():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("assign", "w", out="a")
    with s.block() as body:
        s.op("square", "w", out="a")
        s.op("mul", "h", "w", out="h")
    s.construct("scan", {"initial": "w"}, {"final": "a"}, sub_block=body, states=["h"], length=2)
    s.total("a")

    close(check(s)["w"], 3 * np.array([0.5, 0.7]) ** 2)


def test_a_failure_inside_a_function_has_a_location():
    f = Sketch()
    f.feed("x", [0.0, 0.0])
    f.op("gather", "x", f.const(7, (1,), "int64"), out="y")
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.functions = {"f": {"program": f.document, "results": ["y"]}}
    s.construct("call", {"x": "w"}, {"out": "y"}, function="f")
    s.total("y")

    with pytest.raises(ExecutionError) as error:
        grads(s)

    assert str(error.value).startswith("function 'f', block 0, op 1 (gather): ")
    assert error.value.problems[0].pointer == "/functions/f/program/blocks/0/ops/1"


def test_a_function_may_contain_a_branch_whose_results_nothing_reads():
    f = Sketch()
    f.feed("x", [0.0, 0.0])
    f.op("less_than", f.op("reduce_sum", "x"), f.const(1.0), out="c")
    with f.block() as yes:
        f.op("tanh", "x", out="inside")
    f.branch("c", yes, None)
    f.op("mul", "x", "x", out="y")
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.functions = {"f": {"program": f.document, "results": ["y"]}}
    s.construct("call", {"x": "w"}, {"out": "y"}, function="f")
    s.total("y")

    close(check(s)["w"], [1.0, 1.4])
