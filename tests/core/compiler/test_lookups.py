"""Tables whose gradients nobody sees are updated by rows, with the bits of the whole update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.autodiff.hooks import Hook
from core.compiler.compile import Clip, Executable, GradientQuery, Optimizer, compile_training
from core.compiler.trainer import Trainer
from core.wire import read
from tests.programs import Sketch

STEPS = [[[1, 4, 1], [0, -1, 30]], [[2, 3, 1], [1, 1, 1]], [[39, 0, 5], [6, 7, 8]]]


def model(reader: str = "", lookup: str = "embedding", **attrs: Any) -> Sketch:
    """A loss over rows of a table of 40 rows. reader: a further op that reads the table."""
    s = Sketch()
    s.param("E", np.linspace(-1, 1, 120).reshape(40, 3), "float32")
    s.param("w", np.linspace(0.5, 1, 3), "float32")
    s.feed("ids", STEPS[0], dtype="int64")
    s.op("mul", s.op(lookup, "E", "ids", **attrs), "w", out="rows")
    if reader:
        s.op("reduce_mean", s.op(reader, "E"), out="more")
        s.op("add", "rows", "more", out="rows")
    s.total(s.op("tanh", "rows"))
    return s


def of_columns() -> Sketch:
    """A loss over columns of a table with many rows for each id."""
    s = Sketch()
    s.param("E", np.linspace(-1, 1, 160).reshape(40, 4), "float32")
    s.feed("ids", STEPS[0], dtype="int64")
    s.total(s.op("tanh", s.op("gather", "E", "ids", axis=1)))
    return s


def compiled(s: Sketch, gives_gradients: bool, optimizer: str = "sgd", **how: Any) -> Executable:
    chosen = Optimizer(optimizer, {"learning_rate": 0.1})
    query = how.pop("query", GradientQuery(loss="loss"))
    return compile_training(read(s.document), query, chosen, gives_gradients=gives_gradients, **how)


def updates_rows(executable: Executable) -> bool:
    return any(each.place == "parameters" and each.table is not None for each in executable.layout)


@pytest.mark.sampled(2, each="optimizer")
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"padding_idx": 1},
        *({"lookup": "embedding_bag", "mode": mode} for mode in ("sum", "mean", "max")),
        {"lookup": "gather"},
        {"lookup": "gather", "axis": -2},
    ],
    ids=["plain", "padding", "sums", "means", "maxima", "gathers", "gathers_from_the_end"],
)
@pytest.mark.parametrize("native", [False, True])
def test_an_update_by_rows_has_the_bits_of_the_whole_update(optimizer, attrs, native):
    s = model(**attrs)
    whole, rows = (compiled(s, gives, optimizer) for gives in (True, False))
    assert (updates_rows(whole), updates_rows(rows)) == (False, True)
    assert rows.densified == ()
    given = {name: s.values[name] for name in ("E", "w")}
    trainers = [Trainer(each.compiled() if native else each, given) for each in (whole, rows)]

    for ids in STEPS:
        losses = [trainer.step({"ids": np.array(ids)}) for trainer in trainers]
        np.testing.assert_allclose(*losses, rtol=1e-6)

    wanted, found = (trainer.values() for trainer in trainers)
    for name, value in wanted.items():
        if native:  # sums over the batch are added up in another order
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-7)
        else:
            np.testing.assert_array_equal(found[name], value)


WHOLE = {
    "gradients are returned": lambda: compiled(model(), True),
    "adam": lambda: compiled(model(), False, "adam"),
    "another reader": lambda: compiled(model("square"), False),
    "a gather of columns": lambda: compiled(of_columns(), False),
    "a fetched gradient": lambda: compiled(model(), False, fetch=["E@GRAD"]),
    "a clip that changes zeros": lambda: compiled(
        model(), False, clip=Clip.read({"by": "value", "min": 0.1, "max": 1.0})
    ),
    "a hook": lambda: compiled(
        model(),
        False,
        query=GradientQuery(
            loss="loss", hooks=(Hook.read({"match": {"role": "parameter"}, "do": "scale", "factor": 2.0}),)
        ),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_other_tables_are_updated_as_a_whole(name):
    executable = WHOLE[name]()

    assert not updates_rows(executable) and executable.densified == ()


def test_a_small_table_is_updated_as_a_whole():
    s = model()
    s.param("F", np.ones((11, 3)), "float32")
    s.op("reduce_sum", s.op("square", s.op("embedding", "F", "ids")), out="part")
    s.op("add", "loss", "part", out="loss")
    executable = compiled(s, False)

    assert {each.name for each in executable.layout if each.table is not None} == {"E"}


def test_all_lookups_of_a_table_are_one_update_of_its_rows():
    s = model(lookup="gather")
    s.feed("others", [39, 2, 4], dtype="int64")
    s.op("reduce_sum", s.op("square", s.op("index_select", "E", "others")), out="part")
    s.op("add", "loss", "part", out="loss")
    whole, rows = (Trainer(compiled(s, gives), {name: s.values[name] for name in "Ew"}) for gives in (True, False))

    for ids in STEPS:
        for trainer in (whole, rows):
            trainer.step({"ids": np.array(ids), "others": np.array([39, 2, 4])})

    np.testing.assert_array_equal(rows.values()["E"], whole.values()["E"])
    assert updates_rows(compiled(s, False))
