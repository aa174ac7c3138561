"""Types that users of the package see. mypy reads this file in `make check`, where an unused ignore is an error."""

from __future__ import annotations

from typing import Annotated, Any, assert_type

import numpy as np
import pytest

import backpass_client as bp

Arrays = dict[str, np.ndarray[Any, Any]]


def hidden(x: bp.Symbol) -> bp.Symbol:
    return bp.relu(bp.nn.Linear(4)(x))


@bp.program
def classifier(
    x: Annotated[bp.Symbol, bp.f32["batch", 2]], label: Annotated[bp.Symbol, bp.i64["batch"]]
) -> dict[str, bp.Symbol]:
    h = bp.concat([hidden(x), bp.maximum(0.0, x)], axis=1)
    top, positions = bp.topk(h, k=1)
    assert_type(bp.split(h, num=2, axis=1), tuple[bp.Symbol, ...])
    assert_type((top, positions), tuple[bp.Symbol, bp.Symbol])
    assert_type(bp.topk(h, k=1).index, bp.Symbol)
    steps = h[:, None]
    assert_type(bp.nn.LSTM(4)(steps), bp.Results)
    assert_type(bp.where(h > 0, 1.0, 0.0), bp.Symbol)
    loss = bp.softmax_with_cross_entropy(h @ bp.parameter("w", [6, 3]), label, reduction="mean")
    return {"loss": loss, "top": top[:, 0]}


@bp.function
def hard(x: bp.Symbol) -> bp.Symbol:
    return bp.sign(x)


@hard.gradient
def straight_through(x: bp.Symbol, result: bp.Symbol, ct: bp.Symbol) -> bp.Symbol:
    return ct


def trained(service: bp.Service, feeds: Arrays) -> Arrays:
    with service.create_session(classifier, optimizer={"type": "adam", "learning_rate": 0.01}) as session:
        assert_type(session.step(feeds), bp.Step)
        return session.parameters()


def on_a_tape(x: bp.Variable) -> bp.Expression:
    return (bp.tanh(x) * x).sum()


def test_a_type_checker_knows_the_results_of_the_package() -> None:
    assert_type(classifier, bp.BuiltProgram)
    assert_type(bp.program(layers=2)(lambda layers, x=bp.f32[2]: x * layers), bp.BuiltProgram)
    assert set(classifier.outputs) == {"loss", "top"}
    assert bp.program(lambda x=bp.f32[2]: hard(x).sum()).loss == "loss"


def test_a_type_checker_finds_mistakes() -> None:
    def wrong(x: Annotated[bp.Symbol, bp.f32[2]]) -> bp.Symbol:
        return bp.softmax(x, dim=0)  # type: ignore[call-arg]

    with pytest.raises(AttributeError):
        bp.sofmax  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(TypeError):
        bp.program(wrong)
    with pytest.raises(bp.InvalidOp):
        bp.program(lambda x=bp.f32[2]: bp.mse_loss(x, x, reduction="maen"))  # type: ignore[arg-type]
