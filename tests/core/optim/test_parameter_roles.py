"""First values of parameters follow the roles that the parameters play."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, Optimizer, compile_training
from core.ir.errors import ProgramError
from core.ir.registry import REGISTRY
from core.optim.initializers import BY_ROLE, initial_parameters
from core.optim.parameter_roles import WEAK, parameter_roles
from core.wire import read
from tests.programs import Sketch

RNG = np.random.default_rng(11)


def first_values(s: Sketch, initializers: dict[str, Any] | None = None) -> dict[str, np.ndarray]:
    program = read(s.document)
    leaves = (*program.parameters, *program.states)
    return initial_parameters(leaves, initializers or {}, 3, parameter_roles(program))


def norm_of(s: Sketch, x: str, tag: str, channels: int) -> str:
    """Batch normalisation with its own scale, bias and running statistics."""
    for name in ("scale", "bias"):
        s.param(f"{tag}.{name}", np.zeros(channels), "float32")
    for name in ("mean", "var"):
        s._leaf("state", f"{tag}.{name}", np.zeros(channels), "float32")
    rest = (f"{tag}.scale", f"{tag}.bias", f"{tag}.mean", f"{tag}.var")
    return s.op("batch_norm", x, *rest, out=[f"{tag}.y", f"{tag}.mean", f"{tag}.var"])[0]


def u_net() -> Sketch:
    """Convolutions down and up again, with a connection across, batch and layer normalisation and prelu."""
    s = Sketch()
    s.feed("x", RNG.standard_normal((2, 1, 8, 8)), "float32")
    s.feed("wanted", RNG.standard_normal((2, 1, 8, 8)), "float32")

    def convolved(x: str, tag: str, shape: tuple[int, ...]) -> str:
        s.param(f"{tag}.filter", np.zeros(shape), "float32")
        y = s.op("conv2d", x, f"{tag}.filter", paddings=[1, 1])
        return s.op("relu", norm_of(s, y, tag, shape[0]))

    top = convolved("x", "down", (4, 1, 3, 3))
    low = convolved(s.op("max_pool2d", top, kernel_size=[2, 2], out=["pooled", "where"])[0], "low", (8, 4, 3, 3))
    s.param("up.filter", np.zeros((8, 4, 2, 2)), "float32")
    s.param("up.bias", np.zeros((1, 4, 1, 1)), "float32")
    up = s.op("add", s.op("conv2d_transpose", low, "up.filter", strides=[2, 2]), "up.bias")
    s.param("slope", np.zeros(1), "float32")
    joined = convolved(s.op("prelu", s.op("concat", [top, up], axis=1), "slope"), "joined", (4, 8, 3, 3))
    s.param("out.filter", np.zeros((1, 4, 1, 1)), "float32")
    s.op("mse_loss", s.op("conv2d", joined, "out.filter"), "wanted", out="loss")
    return s


def test_a_u_net_left_to_its_defaults_trains_every_parameter():
    s = u_net()
    step = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer("adam", {"learning_rate": 0.01}))
    values = {**step.initial_state(), **first_values(s), "x": s.values["x"], "wanted": s.values["wanted"]}
    losses = []
    for _ in range(12):
        out = step.step(values)
        assert [name for name, gradient in out.gradients.items() if not gradient.any()] == []
        losses.append(float(out.loss))
        values |= out.parameters | out.optimizer_state | out.states

    assert losses[-1] < 0.8 * losses[0]


def test_scales_and_variances_start_at_one_and_biases_and_means_at_zero():
    found = first_values(u_net())

    for tag in ("down", "low", "joined"):
        assert [found[f"{tag}.{n}"].flat[0] for n in ("scale", "bias", "mean", "var")] == [1, 0, 0, 1]
    assert not found["up.bias"].any()
    assert found["slope"] == [0.25]
    assert all(found[name].std() > 0.05 for name in found if name.endswith("filter"))


def through(s: Sketch, name: str, how: str) -> str:
    """`name`, a matrix [1, 3] or a longer form of it, changed in form only."""
    match how:
        case "cast":
            return s.op("cast", s.op("cast", name, dtype="float32"), dtype="float64")
        case "reshape":
            return s.op("reshape", s.op("flatten", name, axis=0), shape=[3])
        case "transpose":
            return s.op("squeeze", s.op("transpose", name, axes=[1, 0]), axes=[1])
        case "slice":
            return s.op(
                "slice", s.op("scale", s.op("reshape", name, shape=[3]), scale=2.0), axes=[0], starts=[0], ends=[3]
            )
    return s.op("reshape", name, shape=[3])


@pytest.mark.parametrize("how", ["cast", "reshape", "transpose", "slice"])
@pytest.mark.parametrize("where", ["outside", "loop", "branch"])
def test_roles_are_found_through_changes_of_form_and_in_blocks(how, where):
    s = Sketch()
    s.feed("x", RNG.standard_normal((4, 3)))
    s.param("gain", np.zeros((1, 3)))
    s.op("assign", "x", out="h")

    def body() -> None:
        flat = through(s, "gain", how)
        s.op("layer_norm", "h", flat if how != "cast" else s.op("reshape", flat, shape=[3]), out="h")

    if where == "outside":
        body()
    elif where == "loop":
        with s.repeat(2):
            body()
    else:
        go = s.op("less_than", s.const(0.0), s.op("mean", "x"))
        with s.block() as yes:
            body()
        s.branch(go, yes, None)
    s.op("mean", "h", out="loss")

    assert parameter_roles(read(s.document)) == {"gain": "scale"}


def test_a_stack_of_scales_that_a_loop_indexes_is_a_scale():
    s = Sketch()
    s.feed("x", RNG.standard_normal((4, 3)))
    s.param("gains", np.zeros((2, 3)))
    s.op("assign", "x", out="h")
    index = f"i{s.count + 1}"
    with s.repeat(2):
        s.op("rms_norm", "h", s.op("gather", "gains", index), out="h")
    s.op("mean", "h", out="loss")

    assert parameter_roles(read(s.document)) == {"gains": "scale"}


def test_roles_are_found_in_functions():
    f = Sketch()
    f.feed("x", np.zeros((4, 3)))
    f.feed("g", np.zeros(3))
    f.op("layer_norm", "x", "g", out="y")
    s = Sketch()
    s.feed("x", RNG.standard_normal((4, 3)))
    s.param("gain", np.zeros((1, 3)))
    s.functions = {"f": {"program": f.document, "results": ["y"]}}
    s.construct("call", {"x": ["x", s.op("reshape", "gain", shape=[3])]}, {"out": ["y"]}, function="f")
    s.total("y")

    assert parameter_roles(read(s.document)) == {"gain": "scale"}


def test_vectors_in_products_and_sums_are_scales_and_biases_and_matrices_are_weights():
    s = Sketch()
    s.feed("x", RNG.standard_normal((4, 3)))
    for name, shape in {
        "w": (3, 3),
        "gate": (4, 3),
        "gain": (3,),
        "bias": (1, 3),
        "sigma": (3,),
        "alone": (3,),
    }.items():
        s.param(name, np.zeros(shape))
    y = s.op("add", s.op("mul", s.op("matmul", "x", "w"), "gain"), "bias")
    s.op("mul", s.op("div", y, "sigma"), "gate", out="y")
    s.op("add", s.op("mean", "y"), s.op("reduce_sum", s.op("mul", "alone", "alone")), out="loss")

    assert parameter_roles(read(s.document)) == {"gain": "scale", "bias": "shift", "sigma": "divisor"}
    found = first_values(s)
    assert found["gain"].tolist() == found["sigma"].tolist() == [1, 1, 1]
    assert not found["bias"].any()
    assert found["w"].std() > 0.1 < found["gate"].std()


@pytest.mark.parametrize("product", ["matmul", "addmm", "einsum", "conv1d", "conv1d_transpose"])
def test_a_narrow_matrix_that_a_product_reads_is_a_weight_though_a_sum_reads_it_too(product):
    is_filter = product.startswith("conv1d")
    s = Sketch()
    s.feed("x", RNG.standard_normal((5, 1, 3) if is_filter else (5, 1)))
    s.param("w", np.zeros((1, 1, 20)[:: -1 if product == "conv1d" else 1] if is_filter else (1, 20)))
    s.param("b", np.zeros((1, 20)))
    match product:
        case "addmm":
            y = s.op("addmm", "b", "x", "w")
        case "einsum":
            y = s.op("einsum", ["x", "w"], equation="ij,jk->ik")
        case _:
            y = s.op(product, "x", "w")
    moved = s.op("sub", "w", s.op("scale", "w", scale=0.1))  # as a step of gradient descent inside of the program
    s.op("add", s.op("mean", y), s.op("mean", moved), out="loss")

    assert parameter_roles(read(s.document)) == ({"b": "shift"} if product == "addmm" else {})
    assert first_values(s)["w"].std() > 0.1


def test_a_table_tied_to_the_output_starts_as_a_table():
    s = Sketch()
    s.feed("ids", [0, 1, 2], dtype="int64")
    s.param("E", np.zeros((500, 64)))
    s.op("mean", s.op("matmul", s.op("embedding", "E", "ids"), "E", transpose_y=True), out="loss")

    rows = (first_values(s)["E"] ** 2).sum(1)

    assert abs(rows.mean() - 1) < 0.05
    assert rows.std() < 0.4


def test_a_state_that_sums_and_products_read_starts_at_zero():
    s = Sketch()
    s.param("w", np.zeros(3))
    s._leaf("state", "velocity", np.zeros(3), "float64")
    s.op("add", s.op("mul", "velocity", "w"), "w", out="velocity")
    s.total("velocity")

    assert not first_values(s)["velocity"].any()


@pytest.mark.parametrize("name", [n for n, spec in REGISTRY.items() if any(x.role for x in spec.inputs)])
def test_every_declared_role_has_an_initial_value(name):
    for slot in REGISTRY[name].inputs:
        assert slot.role is None or WEAK.get(slot.role, slot.role) in BY_ROLE


def test_a_name_goes_before_patterns_and_the_first_pattern_before_the_next():
    given = {"low.*": {"type": "ones"}, "*.filter": {"type": "constant", "value": 3.0}, "up.filter": {"type": "zeros"}}
    found = first_values(u_net(), given)

    assert (found["low.filter"] == 1).all()
    assert (found["low.mean"] == 1).all()
    assert not found["up.filter"].any()
    assert (found["down.filter"] == 3).all()
    assert (found["down.scale"] == 1).all()


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(ProgramError, match=r"'decoder\.\*'"):
        first_values(u_net(), {"decoder.*": {"type": "ones"}})


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "momentum"])
def test_a_frozen_parameter_keeps_its_value_though_the_query_names_it(optimizer):
    s = Sketch()
    s.feed("x", 1.0)
    s.param("w", 2.0)
    s.param("frozen", 3.0, trainable=False)
    s.op("mul", s.op("mul", "w", "frozen"), "x", out="loss")
    query = GradientQuery(loss="loss", parameter_list=("w", "frozen"), unconnected="zeros")
    decay = {"learning_rate": 0.1, "weight_decay": 0.5}
    exe = compile_training(read(s.document), query, Optimizer(optimizer, decay))

    out = exe.step(s.values | exe.initial_state())

    assert out.gradients.keys() == {"w", "frozen"} and out.gradients["frozen"] == 0
    assert out.parameters.keys() == {"w"} and out.parameters["w"] < 2
    assert not any(name.startswith("frozen/") for name in out.optimizer_state)
