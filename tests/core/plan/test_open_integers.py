"""Integers behind the sizes of a run are 0, whatever memory contains: later ops take them for lengths and positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import core.runtime.memory
from core.compiler.compile import GradientQuery, compile_gradient
from core.compiler.room import room_for
from core.ir.aligned import aligned_empty
from core.wire import read
from tests.behind import check_integers_behind_sizes
from tests.core.compiler.test_room_programs import poisoned
from tests.programs import Sketch

LABELS, WIDTH = 5, 2
OPEN = {"x": [-1, WIDTH], "ids": [-1], "ones": [-1, -1], "three": [], "threes": [-1], "label": []}


def out_of_range(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """As `aligned_empty`; integers in it are no positions, also if they are counted from the end."""
    array = aligned_empty(shape, dtype)
    array.view(np.uint8)[...] = 0x7F
    return array


@pytest.fixture(autouse=True)
def arenas_without_positions(poisoned_arenas: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.runtime.memory, "aligned_empty", out_of_range)


def pooled(s: Sketch, lengths: str, x: str) -> str:
    return s.op("sequence_pool", x, lengths, pool_type="sum")


def expanded_lengths(s: Sketch) -> str:
    """A length for each sequence, all of one feed."""
    return pooled(s, s.op("expand_as", "three", "ids"), s.op("repeat", "x", "threes", axis=0))


def expanded_labels(s: Sketch) -> str:
    """Of no rows, a label may be any number."""
    return s.op("embedding", "table", s.op("expand_as", "label", "ids"))


def products_of_no_elements(s: Sketch) -> str:
    """Each is 1, so each sequence has one row."""
    return pooled(s, s.op("reduce_prod", "ones", axes=[1]), "x")


def concatenated(s: Sketch) -> str:
    """Ids of several trips, fewer in each."""
    s.op("assign", "ids", out="left")
    s.op("create_array", shape=[-1], dtype="int64", out="array")
    s.const(0, dtype="int64", out="i")
    with s.repeat(3):
        s.op("array_write", "left", "i", "array", out="array")
        s.op("slice", "left", axes=[0], starts=[1], ends=[1000], out="left")
        s.op("increment", "i", out="i", step=1)
    return s.op("embedding", "table", s.op("array_concat", "array"))


CASES = (expanded_lengths, expanded_labels, products_of_no_elements, concatenated)


def feeds_of(rows: int, columns: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    return {
        "x": rng.standard_normal((rows, WIDTH)),
        "ids": rng.integers(0, LABELS, rows),
        "ones": np.ones((rows, columns), "int64"),
        "three": np.array(3),
        "threes": np.full(rows, 3),
        "label": np.array(LABELS - 1 if rows else LABELS),
    }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_values_and_gradients_agree_with_the_reference_executor(
    case: Callable[[Sketch], str], checked: bool, monkeypatch: pytest.MonkeyPatch
):
    if checked:
        check_integers_behind_sizes(monkeypatch)
    s = Sketch()
    for name, value in feeds_of(3, 2).items():
        s.feed(name, value, str(value.dtype), shape=OPEN[name])
    s.param("table", np.linspace(-1, 1, LABELS * WIDTH).reshape(LABELS, WIDTH))
    found = case(s)
    s.op("reduce_sum", s.op("mul", s.op("sin", found), s.op("reduce_sum", "table")), out="loss")
    program, query = read(s.document), GradientQuery(targets=("loss",), inputs=("x", "table"), unconnected="zeros")
    room = room_for(program, {name: value.shape for name, value in feeds_of(3, 2).items()})
    code = compile_gradient(program, query, [found], room=room).compiled()
    for rows, columns in ((3, 2), (16, 5), (1, 0), (4, 0), (0, 2)):
        feeds = feeds_of(rows, columns)
        values = {**feeds, "table": s.values["table"]}
        assert code.packs is not None

        wanted = compile_gradient(program, query, [found], {n: v.shape for n, v in feeds.items()}).step(values)
        got = code.step(poisoned(room, dict(code.packs(values)), feeds))

        for place in ("fetched", "gradients"):
            for name, want in getattr(wanted, place).items():
                np.testing.assert_allclose(getattr(got, place)[name], want, 1e-10, 1e-12, err_msg=name)
