"""Layers of `bp.nn`: their values equal numpy's, their gradients differences, and their parameters are shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backpass_client as bp
import core
from tests.backpass_client.builder.running import (
    assert_gradients_agree_with_differences,
    first_values,
    run,
)
from tests.backpass_client.builder.test_program import refused

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(3, 4))
IMAGE = RANDOM.normal(size=(2, 4, 5, 6))
SEQUENCE = RANDOM.normal(size=(3, 4, 2))


def drawn(built: bp.BuiltProgram) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {n: v + 0.3 * random.normal(size=v.shape) for n, v in first_values(built).items()}


def test_a_linear_layer_is_a_product_and_a_sum():
    built = bp.program(lambda x=bp.f64["batch", 4]: bp.nn.Linear(5)(x))
    values = drawn(built)

    expected = X @ values["linear.weight"] + values["linear.bias"]
    np.testing.assert_allclose(run(built, x=X, **values)["out"], expected)
    assert str(built.outputs["out"]) == "float64[batch, 5]"


def test_a_layer_called_twice_shares_its_parameters_and_two_layers_do_not():
    @bp.program
    def f(x: bp.f64[3, 4]):
        layer, other = bp.nn.Linear(4, name="layer"), bp.nn.Linear(4, name="layer")
        return other(layer(layer(x)))

    assert list(f.parameters) == ["layer.weight", "layer.bias", "layer_1.weight", "layer_1.bias"]
    values = drawn(f)
    once = lambda x: x @ values["layer.weight"] + values["layer.bias"]
    expected = once(once(X)) @ values["layer_1.weight"] + values["layer_1.bias"]
    np.testing.assert_allclose(run(f, x=X, **values)["out"], expected)


def test_a_layer_may_be_part_of_several_programs():
    layer = bp.nn.Linear(2)
    first = bp.program(lambda x=bp.f64[3, 4]: layer(x))
    second = bp.program(lambda x=bp.f32[3, 7]: layer(x))

    assert [str(built.parameters["linear.weight"]) for built in (first, second)] == ["float64[4, 2]", "float32[7, 2]"]


def normalized(x: np.ndarray, axes: Any, epsilon: float = 1e-5) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


NORMS = {
    "LayerNorm": (bp.nn.LayerNorm(), lambda x: normalized(x, -1), -1),
    "RMSNorm": (bp.nn.RMSNorm(), lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6), -1),
    "InstanceNorm": (bp.nn.InstanceNorm(), lambda x: normalized(x, (2, 3)), 1),
    "GroupNorm": (
        bp.nn.GroupNorm(2),
        lambda x: normalized(x.reshape(2, 2, 2, 5, 6), (2, 3, 4)).reshape(x.shape),
        1,
    ),
    "BatchNorm": (bp.nn.BatchNorm(), lambda x: normalized(x, (0, 2, 3)), 1),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_normalizes_then_scales_and_shifts(name: str):
    layer, expected, axis = NORMS[name]
    built = bp.program(lambda x=bp.f64["batch", 4, 5, 6]: layer(x))
    values = drawn(built)
    (prefix,) = {n.split(".")[0] for n in built.parameters}
    shape = [-1 if i == axis % 4 else 1 for i in range(4)]
    scale, bias = values[f"{prefix}.scale"].reshape(shape), values.get(f"{prefix}.bias", np.zeros(1))
    bias = bias.reshape(shape) if bias.size > 1 else bias

    np.testing.assert_allclose(run(built, x=IMAGE, **values)["out"], expected(IMAGE) * scale + bias, rtol=1e-9)


def test_batch_norm_updates_its_running_statistics_and_uses_them_in_tests():
    def f(x: bp.f64["batch", 4], train):
        return bp.nn.BatchNorm(train=train, momentum=0.8)(x)

    trained, tested = bp.program(f, train=True), bp.program(f, train=False)
    assert {str(t) for t in trained.states.values()} == {"float64[4]"}
    values = {**first_values(trained), "x": X}
    assert values["batch_norm.variance"].tolist() == [1.0] * 4

    step = core.compile_forward(core.read(trained.document()), ["out"])
    states = step.step(values).states
    np.testing.assert_allclose(states["batch_norm.mean"], 0.2 * X.mean(0))
    np.testing.assert_allclose(states["batch_norm.variance"], 0.8 + 0.2 * X.var(0))
    expected = (X - states["batch_norm.mean"]) / np.sqrt(states["batch_norm.variance"] + 1e-5)
    np.testing.assert_allclose(run(tested, **{**values, **states})["out"], expected)


def test_dropout_drops_in_training_only():
    def f(x: bp.f32[1000], train):
        return bp.nn.Dropout(0.25, train=train)(x)

    kept = run(bp.program(f, train=True), x=np.ones(1000))["out"]
    np.testing.assert_allclose(np.unique(kept), [0.0, 4 / 3], rtol=1e-6)
    assert 0.6 < (kept > 0).mean() < 0.9
    assert (run(bp.program(f, train=False), x=np.ones(1000))["out"] == 1).all()


@pytest.mark.parametrize(
    ("shape", "options", "out"),
    [
        ((2, 4, 7), {"kernel": 3}, "float64[2, 8, 5]"),
        ((2, 4, 5, 6), {"kernel": (3, 2), "stride": 2, "padding": 1, "groups": 2}, "float64[2, 8, 3, 4]"),
        ((2, 4, 5, 6), {"kernel": 3, "padding": "same", "bias": False}, "float64[2, 8, 5, 6]"),
        ((1, 4, 3, 4, 3), {"kernel": 2, "dilation": (1, 2, 1)}, "float64[1, 8, 2, 2, 2]"),
    ],
)
def test_a_convolution_has_as_many_axes_as_its_input(shape: Any, options: dict[str, Any], out: str):
    built = bp.program(lambda x=bp.f64[shape]: {"loss": (y := bp.nn.Conv(8, **options)(x)).sum(), "y": bp.tanh(y)})
    values = {**drawn(built), "x": RANDOM.normal(size=shape)}

    assert str(built.outputs["y"]) == out
    assert list(run(built, **values)["y"].shape) == [int(n) for n in out[8:-1].split(", ")]
    assert_gradients_agree_with_differences(built, values)


def test_a_1x1_convolution_is_a_linear_layer_at_each_place():
    built = bp.program(lambda x=bp.f64[2, 4, 5, 6]: bp.nn.Conv(3, 1)(x))
    values = drawn(built)

    expected = np.einsum("nchw,oc->nohw", IMAGE, values["conv.weight"][:, :, 0, 0])
    expected += values["conv.bias"][:, None, None]
    np.testing.assert_allclose(run(built, x=IMAGE, **values)["out"], expected)


@pytest.mark.parametrize(
    ("shape", "options", "out"),
    [
        ([2, 4, 5], {"kernel": 3}, [2, 6, 7]),
        ([2, 4, 5, 6], {"kernel": 2, "stride": 2, "bias": False}, [2, 6, 10, 12]),
        ([1, 4, 3, 3], {"kernel": 3, "stride": 2, "padding": 1, "output_padding": 1, "groups": 2}, [1, 6, 6, 6]),
        ([1, 4, 3, 3], {"kernel": 3, "stride": (2, 1), "padding": "same"}, [1, 6, 6, 3]),
        ([1, 4, 2, 2, 2], {"kernel": (1, 2, 1), "dilation": (1, 2, 1)}, [1, 6, 2, 4, 2]),
    ],
)
def test_a_transposed_convolution_is_the_adjoint_of_a_convolution(shape: Any, options: dict[str, Any], out: Any):
    """For all x and y the products <conv_transpose(x), y> and <x, conv(y)> are equal."""
    conv = {name: value for name, value in options.items() if name not in ("bias", "output_padding")}

    def f(x=bp.f64[tuple(shape)], y=bp.f64[tuple(out)]):
        grown = bp.nn.ConvTranspose(6, name="layer", **options)(x)
        assert list(grown.shape) == out
        small = bp.nn.Conv(4, **conv, bias=False, name="layer")
        return {"left": (grown * y).sum(), "right": (x * small(y)).sum()}

    built = bp.program(f)
    values = drawn(built) | {"x": RANDOM.normal(size=shape), "y": RANDOM.normal(size=out)}
    values |= {"layer_1.weight": values["layer.weight"]}
    values |= {"layer.bias": np.zeros(6)} if options.get("bias", True) else {}

    found = run(built, **values)
    np.testing.assert_allclose(found["left"], found["right"])


# --- recurrent layers --------------------------------------------------------------------------------------------

LENGTHS = [4, 1, 3]
CELLS = {"LSTM": bp.nn.LSTM, "GRU": bp.nn.GRU, "RNN": bp.nn.RNN}


def recurrent(name: str, **options: Any) -> tuple[bp.BuiltProgram, bp.BuiltProgram]:
    """(over sequences of given lengths, over whole sequences), with the same parameters."""

    def outputs(found: Any) -> dict[str, Any]:
        out, last = found
        last = last if isinstance(last, tuple) else (last,)
        loss = bp.tanh(out).sum() + sum((s * s).sum() for s in last)
        return {"loss": loss, "out": out, **{f"last_{i}": s for i, s in enumerate(last)}}

    def padded(x: bp.f64["batch", "time", 2], lengths: bp.i64["batch"]):
        return outputs(CELLS[name](3, name="cell", **options)(x, lengths))

    def whole(x: bp.f64["batch", "time", 2]):
        return outputs(CELLS[name](3, name="cell", **options)(x))

    return bp.program(padded), bp.program(whole)


@pytest.mark.parametrize("options", [{}, {"layers": 2, "bidirectional": True}], ids=["plain", "deep"])
@pytest.mark.parametrize("name", CELLS)
def test_sequences_of_different_lengths_give_what_each_gives_alone(name: str, options: dict[str, Any]):
    padded, whole = recurrent(name, **options)
    values = drawn(padded)

    together = run(padded, x=SEQUENCE, lengths=LENGTHS, **values)

    for i, n in enumerate(LENGTHS):
        alone = run(whole, x=SEQUENCE[i : i + 1, :n], **values)
        np.testing.assert_allclose(together["out"][i, :n], alone["out"][0], rtol=1e-12)
        assert (together["out"][i, n:] == 0).all()
        for last in [k for k in alone if k.startswith("last")]:
            np.testing.assert_allclose(together[last][:, i], alone[last][:, 0], rtol=1e-12)


@pytest.mark.parametrize("name", CELLS)
def test_gradients_of_recurrent_layers_agree_with_differences(name: str):
    padded, _ = recurrent(name, bidirectional=True)

    assert_gradients_agree_with_differences(padded, {**drawn(padded), "x": SEQUENCE, "lengths": LENGTHS})


def test_a_recurrent_layer_starts_from_given_states_and_takes_time_first():
    def f(x: bp.f64["time", "batch", 2], h: bp.f64[1, "batch", 3], c: bp.f64[1, "batch", 3]):
        out, (last, _) = bp.nn.LSTM(3, time_first=True)(x, initial=(h, c))
        return {"out": out, "last": last}

    built = bp.program(f)
    values = {**drawn(built), "x": SEQUENCE.transpose(1, 0, 2)}
    first = run(built, h=np.zeros((1, 3, 3)), c=np.zeros((1, 3, 3)), **values)
    other = run(built, h=np.ones((1, 3, 3)), c=np.ones((1, 3, 3)), **values)

    np.testing.assert_allclose(first["out"][-1], first["last"][0])
    assert (first["out"] != other["out"]).all()
    assert [str(t) for t in built.outputs.values()] == ["float64[time, batch, 3]", "float64[1, batch, 3]"]


# --- attention ---------------------------------------------------------------------------------------------------


def test_attention_with_several_heads_is_that_of_each_head():
    @bp.program
    def f(q: bp.f64["batch", "l", 4], k: bp.f64["batch", "s", 4], mask: bp.bool_["batch", 1, 1, "s"]):
        return bp.nn.MultiHeadAttention(2, name="a")(q, k, mask=mask)

    values = drawn(f)
    q, k = RANDOM.normal(size=(2, 3, 4)), RANDOM.normal(size=(2, 5, 4))
    mask = np.arange(5) < np.array([5, 2])[:, None, None, None]
    found = run(f, q=q, k=k, mask=mask, **values)["out"]

    linear = lambda x, n: x @ values[f"a.{n}.weight"] + values[f"a.{n}.bias"]
    heads = []
    for h in (slice(0, 2), slice(2, 4)):
        scores = linear(q, "query")[..., h] @ linear(k, "key")[..., h].transpose(0, 2, 1) / np.sqrt(2)
        weights = np.where(mask[:, 0], np.exp(scores), 0)
        heads.append(weights / weights.sum(-1, keepdims=True) @ linear(k, "value")[..., h])
    np.testing.assert_allclose(found, linear(np.concatenate(heads, -1), "out"))
    assert str(f.outputs["out"]) == "float64[batch, l, 4]"


def test_a_transformer_block_trains_with_dropout():
    @bp.program
    def f(x: bp.f64["batch", "time", 4]):
        return (bp.nn.TransformerBlock(2, hidden=6, activation="relu", dropout=0.3)(x) ** 2).sum()

    assert_gradients_agree_with_differences(f, {**drawn(f), "x": SEQUENCE @ np.ones((2, 4)) + 0.1})


def test_mistakes_in_layers_are_refused_with_the_shapes():
    refused(lambda x=bp.f32["batch", "features"]: bp.nn.Linear(3)(x), "axis -1 of .* must have a size that is a number")
    refused(lambda x=bp.f32["batch", 3]: bp.nn.Conv(3, 3)(x), r"needs x \[batch, channels, \*spatial\]")
    refused(lambda x=bp.f32["batch", 5, 6]: bp.nn.MultiHeadAttention(4)(x), "6 features cannot be divided into 4 heads")
    refused(lambda x=bp.f32["batch", 5, 6, 6]: bp.nn.GroupNorm(2)(x), "5 channels cannot be divided into 2 groups")
    refused(
        lambda x=bp.f32["batch", 3], y=bp.f32["batch", 4]: (layer := bp.nn.Linear(3))(x) + layer(y),
        "was declared by another call of its layer",
    )
    with pytest.raises(bp.BackpassError, match="the layer 'linear' is part of a program"):
        bp.nn.Linear(3)(np.zeros((2, 2)))
