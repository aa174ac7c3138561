"""The limit of an answer is checked before a call takes effect."""

from __future__ import annotations

import numpy as np
import pytest

from core.ir.errors import ExecutionError
from service.worker import sessions
from service.worker.running import check_answer_size
from tests.programs import Sketch
from tests.service.worker.test_last_step import Side


def wide() -> Sketch:
    s = Sketch()
    s.param("w", np.arange(1000.0))
    s.op("mul", "w", "w", out="squares")
    s.total("squares")
    return s


@pytest.mark.parametrize("compile", ["never", "always"])
def test_a_step_whose_answer_is_too_large_does_not_change_the_session(compile: str):
    side = Side(wide(), compile)
    for _ in range(3):  # the last ones are bound steps
        side.step({}, "none")
    before = {name: np.array(value) for name, value in side.session.parameters.items()}
    version = side.session.version

    side.state.answer_bytes = 7999
    assert side.step({}, "all") == "answer_too_large"

    assert side.session.version == version
    np.testing.assert_array_equal(side.session.parameters["w"], before["w"])
    side.state.answer_bytes = 8008  # the gradient and the loss
    _, arrays = side.step({}, "all")
    assert sum(array.nbytes for array in arrays.values()) == 8008


def test_reading_too_many_parameters_is_refused_with_the_remedies():
    side = Side(wide(), "never")
    side.state.answer_bytes = 7999
    with pytest.raises(ExecutionError, match=r"8000 bytes.*7999.*safetensors.*fewer") as raised:
        sessions.get_parameters(side.state, {"id": "s", "names": None}, {})
    assert raised.value.code == "answer_too_large"
    assert sessions.get_parameters(side.state, {"id": "s", "names": []}, {})[1] == {}


def test_a_call_without_a_limit_returns_anything():
    side = Side(wide(), "never")
    check_answer_size(side.state, {"x": np.zeros(10**6)})
