"""Programs written with the builder: tracing, names, leaves, constants, errors."""

from __future__ import annotations

import inspect
import re
from typing import Annotated

import numpy as np
import pytest

import backpass_client as bp
import core
from backpass_client.builder.signatures import signature_of
from core.ops.other_names import listed, suggestion
from tests.backpass_client.builder.running import gradients, run

X = np.array([[1.0, 2.0], [3.0, 4.0]])


@bp.program
def line(x: bp.f64["batch", 2], y: bp.f64["batch"]):
    w = bp.parameter("w", [2], dtype="float64", init=[0.5, -0.25])
    return {"loss": bp.mse_loss(x @ w, y), "line": x @ w}


def test_a_traced_function_computes_what_its_python_says():
    values = run(line, x=X, y=[1.0, 0.0])

    np.testing.assert_allclose(values["line"], X @ [0.5, -0.25])
    np.testing.assert_allclose(values["loss"], ((X @ [0.5, -0.25] - [1.0, 0.0]) ** 2).mean())


def test_the_gradient_of_a_traced_function_is_that_of_its_formula():
    loss, found = gradients(line, {"x": X, "y": [1.0, 0.0]})

    error = X @ [0.5, -0.25] - [1.0, 0.0]
    np.testing.assert_allclose(found["w"], 2 * X.T @ error / 2)
    assert loss == pytest.approx((error**2).mean())


def test_a_printed_program_shows_feeds_parameters_ops_and_outputs():
    assert str(line) == inspect.cleandoc("""
        program line
          feed x: float64[batch, 2]
          feed y: float64[batch]
          parameter w: float64[2] = given
          matmul: float64[batch] = matmul(x, w)
          loss: float64[] = mse_loss(matmul, y)
          line: float64[batch] = matmul(x, w)
          return loss, line
    """)


def test_feeds_may_be_declared_by_annotations_by_annotated_and_by_defaults():
    def f(a: bp.f64[2], b: Annotated[bp.Symbol, bp.f64[2]], c=bp.f64[2], d=bp.i64, scale=3.0):
        return a + b * c * scale + bp.cast(d, dtype="float64")

    built = bp.program(f)

    assert {name: str(type) for name, type in built.feeds.items()} == {
        "a": "float64[2]", "b": "float64[2]", "c": "float64[2]", "d": "int64[]"
    }  # fmt: skip
    np.testing.assert_allclose(run(built, a=[1, 2], b=[3, 4], c=[5, 6], d=7)["out"], [1 + 45 + 7, 2 + 72 + 7])


def test_other_arguments_take_fixed_values():
    def f(x: bp.f64[2], power, halve=False):
        y = x**power
        return y / 2 if halve else y

    np.testing.assert_allclose(run(bp.program(f, power=3.0), x=[1, 2])["out"], [1, 8])
    np.testing.assert_allclose(run(bp.program(f, power=3.0, halve=True), x=[1, 2])["out"], [0.5, 4])
    with pytest.raises(TypeError, match="argument 'power' of f needs a type"):
        bp.program(f)
    with pytest.raises(TypeError, match="f has no argument 'pwoer'"):
        bp.program(f, power=1.0, pwoer=2.0)


def test_scopes_and_given_names_are_the_names_of_variables():
    @bp.program
    def f(x: bp.f32[3]):
        with bp.scope("encoder"):
            w = bp.parameter("w", [3], init="ones")
            h = (x * w).named("hidden")
            with bp.scope("inner"):
                bp.parameter("w", [3])
        return {"out": h, "doubled": h + h}

    names = [each["name"] for each in f.document()["blocks"][0]["vars"]]
    written = [op["outputs"]["out"][0] for op in f.document()["blocks"][0]["ops"]]

    assert names == ["x", "encoder.w", "encoder.inner.w"]
    assert written == ["encoder.hidden", "doubled", "out"]  # `out` is a copy: its name was chosen already


def test_names_stay_within_the_limit_of_the_service_in_deep_scopes():
    def f(x: bp.f64[2]):
        for i in range(12):
            layer = bp.nn.Linear(2, name=f"a_rather_long_name_{i}")
            x = bp.cond(x.sum() > 0.0, lambda x, layer=layer: layer(x), lambda x: x, x)
            with bp.scope("b" * 60), bp.scope("c" * 60):
                x = bp.tanh(x) + 1.0
        return x.sum()

    built = bp.program(f)

    core.read(built.document())
    assert all(len(name) <= 128 for name in built.parameters)


def test_an_output_takes_its_name_from_a_temporary_that_had_it():
    @bp.program
    def f(x: bp.f64[2]):
        first = bp.exp(x)
        return {"log": first, "exp": bp.log(first)}

    values = run(f, x=[1.0, 2.0])

    np.testing.assert_allclose(values["log"], np.exp([1.0, 2.0]))
    np.testing.assert_allclose(values["exp"], [1.0, 2.0])


def test_outputs_may_be_feeds_parameters_and_the_same_value_twice():
    @bp.program
    def f(x: bp.f64[2]):
        w = bp.parameter("w", bp.f64[2], init=[5.0, 6.0])
        y = x + w
        return {"a": x, "b": w, "c": y, "d": y}

    values = run(f, x=[1.0, 2.0])

    assert {name: value.tolist() for name, value in values.items()} == {
        "a": [1.0, 2.0], "b": [5.0, 6.0], "c": [6.0, 8.0], "d": [6.0, 8.0]
    }  # fmt: skip


def test_operators_and_indices_mean_what_they_mean_in_numpy():
    x = np.arange(24.0).reshape(2, 3, 4) + 1
    cases = {
        "arithmetic": lambda x: (2 - x) * x / 3 + x**2 - 1 / x + 2.0**x,
        "comparison": lambda x: x > 5,
        "part": lambda x: x[1, :, -1],
        "slices": lambda x: x[:, ::-1, 1:3],
        "new axis": lambda x: x[..., None, 2],
        "negative": lambda x: x[-1, 0],
        "transpose": lambda x: x.transpose(2, 0, 1),
        "sums": lambda x: x.sum(1) + x.mean(1, keepdims=True).sum(1),
        "rows": lambda x: x[[1, 0, 1]],
    }
    for name, f in cases.items():
        built = bp.program(lambda x=bp.f64[2, 3, 4], f=f: f(x))
        np.testing.assert_allclose(run(built, x=x)["out"], f(x), err_msg=name)


def test_a_symbol_indexes_one_axis_among_others():
    x, i, rows = np.arange(24.0).reshape(2, 3, 4), 2, np.array([1, 0, 2])
    parts = {
        "scalar": lambda x, i, rows: x[:, i],
        "after an integer": lambda x, i, rows: x[1, rows],
        "after an ellipsis": lambda x, i, rows: x[..., i],
        "between": lambda x, i, rows: x[:, rows, 1:3],
        "with a new axis": lambda x, i, rows: x[None, :, i],
    }
    for name, part in parts.items():
        built = bp.program(lambda x=bp.f64[2, 3, 4], i=bp.i64, rows=bp.i64[3], part=part: part(x, i, rows))
        np.testing.assert_array_equal(run(built, x=x, i=i, rows=rows)["out"], part(x, i, rows), name)


def test_a_slice_ends_at_an_open_size_or_at_a_symbol_as_in_numpy():
    x, table, n, m = np.ones((2, 3)), np.arange(24.0).reshape(6, 4), np.int64(2), np.int32(4)
    parts = {
        "a size": lambda x, table, n, m: table[: x.shape[1]],
        "two sizes": lambda x, table, n, m: table[: x.shape[1], : x.shape[0]],
        "two symbols": lambda x, table, n, m: table[n:m, ..., 1],
        "after an ellipsis": lambda x, table, n, m: table[..., n:],
        "other slices": lambda x, table, n, m: table[None, ::-1, :n],
        "backwards": lambda x, table, n, m: table[n::-1],
        "from the end": lambda x, table, n, m: table[:-n:2],
        "after an integer": lambda x, table, n, m: table[1, :n, None],
    }
    for name, part in parts.items():
        built = bp.program(
            lambda x=bp.f64["batch", "time"], table=bp.f64[6, 4], n=bp.i64, m=bp.i32, f=part: f(x, table, n, m)
        )
        np.testing.assert_array_equal(run(built, x=x, table=table, n=n, m=m)["out"], part(x, table, n, m), name)
    x = bp.f64["batch", 3]
    refused(lambda x=x: x[:, :"time"], "no feed has a size 'time'")
    refused(lambda x=x: x[x:], r"a bound of a slice is one integer, not x=float64\[batch, 3\]")


def test_the_gradient_of_an_open_slice_in_a_loop_reaches_its_rows():
    @bp.program
    def f(x: bp.f64["time"]):
        table = bp.parameter("table", bp.f64[4], init=[1.0, 2.0, 3.0, 4.0])
        body = lambda total, i: (total + (x * table[: x.shape[0]]).sum(), i + 1)
        return bp.while_loop(lambda total, i: i < 2, body, (bp.constant(0.0, dtype="float64"), 0))[0]

    loss, found = gradients(f, {"x": [5.0, 7.0]})

    assert (loss, found["table"].tolist()) == (38.0, [10.0, 14.0, 0.0, 0.0])


def test_iterating_over_a_symbol_gives_its_rows():
    built = bp.program(lambda x=bp.f64[3, 2]: sum(row * i for i, row in enumerate(x)))

    assert run(built, x=[[1, 2], [3, 4], [5, 6]])["out"].tolist() == [13.0, 16.0]


def test_reshape_keeps_open_sizes_by_name():
    @bp.program
    def f(x: bp.f64["batch", "time", 6]):
        parts = x.reshape("batch", "time", 2, 3)
        return {
            "parts": parts,
            "joined": parts.reshape("batch", "time", 6),
            "flat": x.reshape("batch", -1),
            "rows": x.reshape(-1, 3),
        }

    assert [str(type) for type in f.outputs.values()] == [
        "float64[batch, time, 2, 3]", "float64[batch, time, 6]", "float64[batch, ?]", "float64[?, 3]"
    ]  # fmt: skip
    x = np.arange(24.0).reshape(2, 2, 6)
    values = run(f, x=x)
    assert values["parts"].tolist() == x.reshape(2, 2, 2, 3).tolist()
    assert values["flat"].tolist() == x.reshape(2, -1).tolist()


def test_numbers_and_arrays_become_constants_of_the_right_type():
    @bp.program
    def f(x: bp.f64[2], flag: bp.bool_[2]):
        return {
            "where": bp.where(flag, x, 0.5),
            "array": x * np.array([2.0, 3.0]),
            "list": bp.constant([[1, 2]]),
            "float": bp.constant(1.5),
            "infinite": bp.maximum(x, float("-inf")),
        }

    values = run(f, x=[1.0, 2.0], flag=[True, False])

    assert values["where"].tolist() == [1.0, 0.5]
    assert values["array"].tolist() == [2.0, 6.0]
    assert (values["list"].dtype, values["float"].dtype) == (np.int64, np.float32)
    assert values["infinite"].tolist() == [1.0, 2.0]


def test_states_are_read_before_they_are_updated():
    @bp.program
    def f(x: bp.f64[()]):
        total, count = bp.state("total", bp.f64[()]), bp.state("count", bp.f64[()], init=10.0)
        bp.update(total, count)
        bp.update(count, count + x)
        return {"seen": total + count}

    step = core.compile_forward(core.read(f.document()), ["seen"])
    found = step.step({"x": np.array(5.0), "total": np.array(2.0), "count": np.array(10.0)})

    assert found.fetched["seen"] == 12.0
    assert {name: float(value) for name, value in found.states.items()} == {"total": 10.0, "count": 15.0}


def test_an_output_has_not_the_name_of_an_updated_state():
    def f(name: str):
        count = bp.state("count", dtype="int64")
        after = bp.update(count, count + 1)
        return {name: count, "after": after}

    with pytest.raises(bp.InvalidOp, match="the output 'count' would be the next value of the state of that name"):
        bp.program(f, name="count")
    step = core.compile_forward(core.read(bp.program(f, name="before").document()), ["before", "after"])
    assert step.step({"count": np.array(4)}).fetched == {"before": 4, "after": 5}
    assert bp.program(lambda: {"loss": bp.constant(1.0), "kept": bp.state("kept")}).outputs.keys() == {"loss", "kept"}


def test_the_loss_is_the_output_of_that_name_or_the_only_number():
    assert line.loss == "loss"
    assert bp.program(lambda x=bp.f32[2]: x.sum()).loss == "loss"
    assert bp.program(lambda x=bp.f32[2]: {"error": x.sum(), "x2": x * x}).loss == "error"
    assert bp.program(lambda x=bp.f32[2]: {"a": x.sum(), "b": x.sum()}).loss is None
    assert bp.program(lambda x=bp.i64[2]: x.sum()).loss is None


def test_the_service_accepts_the_types_that_the_client_inferred():
    declared = bp.program(lambda x=bp.f32["n", 3]: bp.typed(bp.matmul(x, x.T), bp.f32["n", "n"]).sum())

    variables = declared.document()["blocks"][0]["vars"]
    assert {"name": "matmul", "dtype": "float32", "shape": [-1, -1]} in variables
    core.read(declared.document())


# --- mistakes ----------------------------------------------------------------------------------------------------


def refused(f, match: str, **fixed) -> None:
    with pytest.raises(bp.InvalidOp, match=match):
        bp.program(f, **fixed)


def test_a_mistake_is_raised_at_its_line_with_the_shapes():
    def f(x: bp.f32["batch", 784]):
        w = bp.parameter("w", [10, 256])
        return x @ w

    with pytest.raises(bp.InvalidOp) as caught:
        bp.program(f)

    assert str(caught.value) == "matmul(x=float32[batch, 784], y=float32[10, 256]): inner sizes differ: 784 and 10"
    lines = [entry.lineno + 1 for entry in caught.traceback if entry.path.name == "test_program.py"]
    assert lines[-1] == f.__code__.co_firstlineno + 2


def test_names_of_other_libraries_lead_to_the_ops_that_do_the_same():
    x = bp.f32[2, 3]
    refused(lambda x=x: bp.function("cat")([x, x]), "there is no op 'cat'; did you mean concat")
    refused(lambda x=x: bp.function("randn_like")(x), "there is no op 'randn_like'; did you mean gaussian_random_like")
    refused(lambda x=x: bp.function("heaviside")(x), "there is no op 'heaviside'; cast the bools of greater_equal")
    for name in listed():
        with pytest.raises(bp.InvalidOp) as caught:
            signature_of(name)
        assert all(op in str(caught.value) for op in re.findall(r"did you mean (\w+)", suggestion(name) or "")), name


def test_mistakes_are_refused_where_they_are_written():
    x = bp.f32[2, 3]
    refused(lambda x=x: bp.function("tahn")(x), "there is no op 'tahn'; did you mean tan")
    refused(lambda x=x: bp.softmax(x, axis=2), "axis 2 is out of range for rank 2")
    refused(lambda x=x: bp.softmax(x, axis="last"), "attribute 'axis' of softmax must be a whole number, not 'last'")
    refused(lambda x=bp.i64[3]: x / 2, r"needs floating-point operands, .*; bp.cast\(x")
    refused(lambda x=bp.i64[3]: x * 0.5, "must be whole numbers")
    refused(lambda x=x: bp.fill_constant(shape=["n", 2]), "a size with a name comes from a symbol: see full_like")
    with pytest.raises(IndexError, match="position 5 is out of range for axis 1 of size 3"):
        bp.program(lambda x=x: x[0, 5])
    refused(
        lambda x=x: bp.dropout(x, p=1.5), "attribute 'p' of dropout must be a number of at least 0 and of at most 1"
    )
    refused(lambda x=x: bp.concat([x, bp.cast(x, dtype="float64")]), "dtypes differ: float32 and float64")
    refused(lambda x=x: bp.slice(x, axes=[0]), "slice needs the attribute 'starts'")
    refused(lambda x=x: bp.matmul(x), "matmul needs the input 'y'")
    refused(lambda x=x: x + bp.Variable([1.0]), "a Variable or an expression of a tape")
    refused(
        lambda x=x: bp.parameter("x", [2]), "the name 'x' of this parameter is taken by the feed at .*test_program.py"
    )
    refused(lambda x=x: bp.parameter("a b", [2]), "the name 'a b' of a parameter must have")
    refused(lambda x=x: bp.parameter("w", [2], init="he_norml"), "the initializer 'he_norml' of 'w' does not exist")
    refused(lambda x=x: bp.parameter("w", [2], init={"type": "normal", "sd": 1}), "has no attribute 'sd'; it has mean")
    refused(lambda x=x: bp.parameter([2]), r"a parameter has a name and a shape, .*: \[2\] is no name")
    refused(lambda x=x: bp.parameter("w", [2], init=np.zeros), "must be numbers or an initializer, not <built-in")
    refused(lambda x=x: bp.parameter("w", [2], init=[1, 2, 3]), r"has the shape \[3\], not float32\[2\]")
    refused(lambda x=x: bp.parameter("w", [2, "batch"]), "needs sizes that are numbers")
    refused(lambda x=x: {"x": x * 2}, "the name 'x' of this variable is taken by the feed at .*test_program.py")
    refused(lambda x=x: {"y": 3}, "output 'y' of the program must be a symbol, not a int")
    refused(lambda x=x: bp.constant(np.zeros(20_000)), "a constant of 20000 elements is too large")
    refused(lambda x=x: {"a": x * 2, "b": bp.update(x, x)}, "is not a state")
    refused(lambda x=bp.f32["a"], y=bp.f32["b"]: x + y, "sizes a and b do not broadcast")
    refused(lambda x=x: bp.typed(x * 2, bp.f32[3, 3]), r"is float32\[2, 3\], not float32\[3, 3\]")


def test_a_symbol_has_no_value_and_says_so():
    with pytest.raises(TypeError, match=r"is a symbol of a program and has no value yet; bp\.cond"):
        bp.program(lambda x=bp.f32[()]: x if x > 0 else -x)
    for convert in (float, int, np.asarray):
        with pytest.raises(TypeError, match="has no value yet"):
            bp.program(lambda x=bp.f32[()], convert=convert: convert(x))
    for name in ("item", "numpy", "grad", "backward"):
        with pytest.raises(
            AttributeError, match=f"'{name}'; values come from Program.evaluate or a session, gradients"
        ):
            bp.program(lambda x=bp.f32[()], name=name: getattr(x, name))
    for differentiate in (bp.grad, bp.value_and_grad):
        with pytest.raises(TypeError, match=r"grad differentiates a function, .*, not <x: float32\[\]>"):
            bp.program(lambda x=bp.f32[()], differentiate=differentiate: differentiate(x))


def test_a_built_program_computes_in_a_service_and_says_so():
    with pytest.raises(TypeError, match=r"'line' is no function any more: register it, service.programs.create"):
        line(X, [1.0, 0.0])
    with pytest.raises(AttributeError, match=r"no attribute 'evaluate'; register it, .* and call evaluate"):
        line.evaluate({"x": X})
    with pytest.raises(AttributeError, match=r"no attribute 'shape'$"):
        line.shape  # noqa: B018
    with pytest.raises(
        TypeError, match=r"a program is a function under @bp.program, a document or an id, not <function"
    ):
        bp.Program(bp.Service("http://127.0.0.1:1"), lambda x: x)


def test_a_symbol_of_another_program_is_refused():
    leaked = []
    bp.program(lambda x=bp.f32[2]: leaked.append(x) or x)

    refused(lambda y=bp.f32[2]: y + leaked[0], "a symbol belongs to one program")


def test_parts_of_programs_outside_of_a_program_are_refused():
    with pytest.raises(bp.BackpassError, match="a parameter is part of a program"):
        bp.parameter("w", [2])
    with pytest.raises(bp.BackpassError, match="nothing records the op 'relu'"):
        bp.relu(np.zeros(3))


def test_a_size_may_be_a_number_of_numpy_and_one_number_is_the_size_of_a_vector():
    f = lambda x=bp.f32["batch", 3]: (x @ bp.parameter("w", 3) + bp.state("s", np.int64(1))).sum()
    assert bp.program(f).parameters["w"] == bp.f32[3] == bp.f32[np.int32(3)]
    classes = np.array([0, 2, 1]).max() + 1
    assert bp.program(lambda x=bp.f32["batch", 3]: bp.nn.Linear(classes)(x)).outputs["out"] == bp.f32["batch", 3]
    refused(lambda x=bp.f32["batch", 3]: bp.nn.Linear(2.0)(x), "a size is a number of at least 0")


def test_an_op_of_unknown_type_can_be_declared():
    def f(x: bp.f64[3, 2]):
        unknown = bp.array_stack(bp.array_unstack(x))
        with pytest.raises(bp.InvalidOp, match=r"the shape of array_stack is not known; declare it with bp\.typed"):
            _ = unknown.shape
        return bp.typed(unknown, bp.f64[None, 2]).sum()

    assert run(bp.program(f), x=np.ones((3, 2)))["loss"] == 6.0


def test_an_unknown_shape_names_the_op_at_which_it_was_lost():
    def f(x: bp.f32[3, 2]):
        h = x
        for _ in range(2):  # the second trip depends on the first
            h = bp.tanh(bp.array_stack(bp.array_unstack(h)) + x)
        return {"out": bp.nn.Linear(2)(h)}

    refused(f, r"^the shape of tanh_1 is not known, because the type of array_stack_1 \(array_stack, .*test_program")


def test_every_op_knows_the_line_that_wrote_it():
    def f(x: bp.f32[2]):
        y = bp.exp(x)
        return y * 2

    built = bp.program(f)

    first = f.__code__.co_firstlineno
    assert built.line(0, 0) == f"{__file__}:{first + 1}"
    assert built.line(0, 1) == f"{__file__}:{first + 2}"


def test_a_dtype_is_a_name_one_of_this_package_or_one_of_numpy():
    def f(x: bp.f64[2]):
        for i, dtype in enumerate(("float32", bp.f32, np.float32, np.dtype("float32"))):
            assert bp.cast(x, dtype=dtype).dtype == "float32"
            assert bp.parameter(f"w{i}", 2, dtype=dtype).type == bp.f32[2]
            assert bp.constant([1, 2], dtype).dtype == "float32"
        return x.sum()

    bp.program(f)
    for dtype in (bp.f16, bp.bf16, bp.f32, bp.f64, bp.u8, bp.i8, bp.i16, bp.i32, bp.i64, bp.bool_):
        assert getattr(bp, repr(dtype).removeprefix("backpass_client.")) is dtype
    refused(
        lambda x=bp.f64[2]: bp.parameter("w", 2, dtype="float"), "'float' is no dtype of programs; there are bool, "
    )
    refused(lambda x=bp.f64[2]: bp.state("w", 2, dtype=np.complex64), "complex64'> is no dtype of programs")
    with pytest.raises(TypeError, match=r"^attribute 'dtype' of cast cannot be <class 'float'>$"):
        bp.program(lambda x=bp.f64[2]: bp.cast(x, dtype=float))


def test_a_dtype_alone_is_the_type_of_one_number():
    @bp.program
    def scaled(x: bp.f64):
        bp.update(steps := bp.state("steps", bp.i64), steps + 1)
        return x * bp.parameter("factor", bp.f64, init=2.0)

    assert str(scaled.parameters["factor"]) == "float64[]"
    assert str(scaled.states["steps"]) == "int64[]"
    with pytest.raises(TypeError, match="not iterable"):
        list(bp.f32)


def test_an_unknown_attribute_is_refused_with_the_names_that_exist():
    with pytest.raises(TypeError, match=r"no attribute 'scael'; it has x, bias, .*scale"):
        bp.program(lambda x=bp.f32[3]: bp.scale(x, scael=2.0))
