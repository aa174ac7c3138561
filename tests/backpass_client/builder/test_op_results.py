"""Results of ops and layers that have several: named members, unpacking, and errors that name the members."""

from __future__ import annotations

import copy
import operator
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import backpass_client as bp
from backpass_client.arithmetic import Arithmetic
from core.ir.registry import REGISTRY
from tests.backpass_client.builder.running import run
from tests.backpass_client.builder.test_inference import cases

SEVERAL = {
    name: spec
    for name, spec in sorted(REGISTRY.items())
    if len(spec.outputs) > 1 and not spec.variadic_outputs and spec.example_rule and any(cases(spec))
}
UNARY = {"__neg__": operator.neg, "__invert__": operator.invert, "__abs__": abs}
BINARY = [
    name
    for name, method in sorted(vars(Arithmetic).items())
    if isinstance(method, FunctionType) and method.__code__.co_varnames == ("self", "other") and name != "__eq__"
]
LAYERS: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "LSTM": (lambda: bp.nn.LSTM(2), bp.f64["batch", 3, 4], ("out", "states")),
    "GRU": (lambda: bp.nn.GRU(2), bp.f64["batch", 3, 4], ("out", "states")),
    "RNN": (lambda: bp.nn.RNN(2), bp.f64["batch", 3, 4], ("out", "states")),
}


def traced(f: Any, *types: bp.Type) -> None:
    """Call `f` with feeds of these types, in a program of its own."""
    with bp.Builder("test"):
        f(*[bp.feed(f"x{i}", type) for i, type in enumerate(types)])


def test_the_operators_of_symbols_are_known_here():
    assert {"__add__", "__rmatmul__", "__lt__", "__rand__"} <= set(BINARY) and len(BINARY) == 26


@pytest.mark.parametrize("name", SEVERAL)
def test_results_of_an_op_have_the_names_of_its_outputs(name: str):
    spec = SEVERAL[name]
    given, attrs = next(cases(spec))
    types = {s: t if isinstance(t, list) else [t] for s, t in given.items()}

    with bp.Builder("test"):
        operands: dict[str, Any] = {}
        for slot, each in types.items():
            made = [bp.feed(f"{slot}_{i}", bp.Type(t.dtype, tuple(t.shape))) for i, t in enumerate(each)]
            operands[slot] = made if isinstance(given[slot], list) else made[0]
        found = bp.function(name)(**operands, **attrs)

        assert type(found) is bp.Results and found.slots == spec.outputs
        assert all(getattr(found, each) is value for each, value in zip(spec.outputs, found, strict=True))
        assert_names_its_members(found, f"{', '.join(spec.outputs)} = bp.{name}(...)")


@pytest.mark.parametrize("name", LAYERS)
def test_results_of_a_layer_have_names(name: str):
    made, type, names = LAYERS[name]

    def check(x: Any) -> None:
        found = made()(x)
        first, second = found
        assert found.slots == names and (first, second) == (found.out, found.states)
        assert_names_its_members(found, f"{name} returns 2 results; out, states = layer(...)")

    traced(check, type)


def test_every_layer_returns_one_symbol_or_named_results():
    x = bp.f64["batch", 3, 4]
    made = {
        "BatchNorm": bp.nn.BatchNorm, "InstanceNorm": bp.nn.InstanceNorm, "GroupNorm": lambda: bp.nn.GroupNorm(3),
        "LayerNorm": bp.nn.LayerNorm, "RMSNorm": bp.nn.RMSNorm, "Linear": lambda: bp.nn.Linear(2),
        "Conv": lambda: bp.nn.Conv(2, 2), "ConvTranspose": lambda: bp.nn.ConvTranspose(2, 2),
        "Dropout": lambda: bp.nn.Dropout(0.1), "Embedding": lambda: bp.nn.Embedding(5, 2),
        "MultiHeadAttention": lambda: bp.nn.MultiHeadAttention(2),
        "TransformerBlock": lambda: bp.nn.TransformerBlock(2), **{name: each[0] for name, each in LAYERS.items()},
    }  # fmt: skip
    assert set(made) == {*bp.nn.__all__} - {"Layer"}

    for name, layer in made.items():
        traced(
            lambda x, layer=layer, name=name: check_kind(layer()(x), name),
            bp.i64["batch"] if name == "Embedding" else x,
        )


def check_kind(found: Any, name: str) -> None:
    assert isinstance(found, bp.Symbol if name not in LAYERS else bp.Results), name
    if isinstance(found, bp.Results):
        assert len(found.slots) == len(found)


def assert_names_its_members(found: bp.Results, text: str) -> None:
    """Each operator of a single result, with any other operand, and each attribute of one is an error with `text`."""
    for name in BINARY:
        for other in (2, 0.5, np.ones(3), np.float32(2)):
            with pytest.raises(TypeError, match="needs one array, not a tuple of them") as caught:
                getattr(found, name)(other)
            assert text in str(caught.value)
    for unary in UNARY.values():
        with pytest.raises(TypeError, match="needs one array") as caught:
            unary(found)
        assert text in str(caught.value)
    for attribute in ("sum", "shape", "dtype", "T", "reshape"):
        with pytest.raises(AttributeError) as no_attribute:
            getattr(found, attribute)
        assert text in str(no_attribute.value)


@pytest.mark.parametrize(
    "wrong",
    [lambda x, r: np.ones(3) * r, lambda x, r: 2 * r, lambda x, r: x + r, lambda x, r: x @ r, lambda x, r: r * x],
)
def test_an_operator_with_results_on_either_side_names_them(wrong: Any):
    def check(x: Any) -> None:
        with pytest.raises(TypeError, match=r"topk returns 2 results; out, index = bp.topk\(...\)"):
            wrong(x, bp.topk(x, k=2))

    traced(check, bp.f64[3])


def test_the_states_of_an_lstm_are_named():
    def check(x: Any) -> None:
        out, (h, c) = found = bp.nn.LSTM(2)(x)
        assert (h, c) == (found.states.h, found.states.c) and out is found.out
        with pytest.raises(AttributeError, match=r"'mean': LSTM returns 2 results; h, c = states$"):
            found.states.mean()

    traced(check, bp.f64["batch", 3, 4])


def test_a_layer_of_ones_own_that_returns_a_tuple_names_itself():
    class Halves(bp.nn.Layer):
        def forward(self, x: Any) -> Any:
            return x[:1], x[1:]

    def check(x: Any) -> None:
        first, _ = found = Halves()(x)
        assert first.shape == (1,)
        with pytest.raises(AttributeError, match="Halves returns 2 results; take one of them"):
            found.sum()

    traced(check, bp.f64[3])


def test_results_are_carried_through_loops_and_branches_with_their_names():
    @bp.program
    def f(x: bp.f64[4]):
        def body(i: bp.Symbol, best: bp.Results) -> tuple[bp.Symbol, bp.Results]:
            return i + 1, best.like([best.out * 2.0, best.index])

        _, best = bp.while_loop(lambda i, best: i < 3, body, (bp.constant(0), bp.topk(x, k=2)))
        chosen = bp.cond(x.sum() > 0, lambda: bp.topk(x, k=2), lambda: bp.topk(-x, k=2))
        return {"best": best.out, "at": chosen.index}

    found = run(f, x=np.array([3.0, 1.0, 7.0, 5.0]))
    assert found["best"].tolist() == [56.0, 40.0] and found["at"].tolist() == [2, 3]


def test_results_are_tuples_that_join_compare_and_copy():
    found = bp.Results.of("topk", ("out", "index"), (1, 2))

    joined = found + (3,)  # noqa: RUF005
    assert found == (1, 2) and joined == (1, 2, 3) and found < (1, 3)
    assert copy.copy(found).index == copy.deepcopy(found).index == 2
    assert repr(found) == "topk(out=1, index=2)" and repr(bp.Results.of("split", (), (1, 2))) == "split(1, 2)"
