"""Tensor arrays whose elements have common open sizes: every op on them agrees with the reference executor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.compiler.room import room_for
from core.wire import read
from tests.core.compiler.test_room_programs import poisoned
from tests.programs import Sketch

STEPS, WIDTH = 4, 5


def elements(s: Sketch) -> str:
    """The elements of x, each a batch of an open size."""
    return s.op("array_unstack", "x")


def joined(s: Sketch, array: str) -> str:
    return s.op("array_join", array, shape=[-1, WIDTH], dtype="float64")


CASES: dict[str, Callable[[Sketch], list[str]]] = {
    "join": lambda s: [joined(s, elements(s))],
    "read": lambda s: [s.op("array_read", elements(s), "i")],
    "length": lambda s: [s.op("cast", s.op("array_length", elements(s)), dtype="float64")],
    "concat": lambda s: [s.op("array_concat", elements(s))],
    "write": lambda s: [joined(s, s.op("array_write", s.op("array_read", elements(s), "i"), "j", elements(s)))],
    "assign": lambda s: [joined(s, s.op("assign", elements(s)))],
    "read and join": lambda s: (lambda a: [s.op("array_read", a, "i"), s.op("array_read", a, "j"), joined(s, a)])(
        elements(s)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_agree_with_the_reference_executor(name):
    s = Sketch()
    s.feed("x", np.ones((STEPS, 3, WIDTH)), shape=[STEPS, -1, WIDTH])
    s.feed("i", 2, "int64")
    s.feed("j", 0, "int64")
    s.param("w", np.linspace(0.5, 1.5, WIDTH))
    found = CASES[name](s)
    s.op("sum", [s.op("reduce_sum", s.op("sin", s.op("mul", each, "w"))) for each in found], out="loss")
    program, query = read(s.document), GradientQuery(targets=("loss",), inputs=("x", "w"), unconnected="zeros")
    for rows in (3, 16, 1, 9):
        x = np.random.default_rng(rows).standard_normal((STEPS, rows, WIDTH))
        values, shapes = s.values | {"x": x}, {"x": x.shape}
        room = room_for(program, shapes)
        code = compile_gradient(program, query, found, room=room).compiled()
        assert code.packs is not None

        wanted = compile_gradient(program, query, found, shapes).step(values)
        got = code.step(poisoned(room, dict(code.packs(values)), {"x": x}))

        for place in ("fetched", "gradients"):
            for each, want in getattr(wanted, place).items():
                np.testing.assert_allclose(getattr(got, place)[each], want, rtol=1e-10, atol=1e-12, err_msg=each)
