"""An op that gets no machine code leaves no trace in the plan, and a size is known by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from core.plan import open_slices, walk
from core.plan.derived_sizes import DerivedSizes
from core.plan.destinations import Destinations
from core.plan.memory import Root, View
from core.plan.sizes import Size
from core.plan.unsupported import Unsupported


def scalar() -> View:
    return View(Root(8), "int64", (), ())


def test_a_refused_op_undoes_what_it_did_to_the_sums(monkeypatch: pytest.MonkeyPatch):
    """The product is stored by the reference executor's call; its total still is the state that it is added to."""
    destinations, state = Destinations(), scalar()
    destinations.accumulate("product", "total", state)
    low: Any = SimpleNamespace(
        destinations=destinations, shared=SimpleNamespace(interpreted=[]), types={"product": None}, sizes={}
    )
    op: Any = SimpleNamespace(outputs=("product",))

    def refuse(low: Any, _: Any) -> None:
        low.destinations.store("product", "total")
        raise Unsupported("no machine code")

    monkeypatch.setattr(walk, "_lower_natively", refuse)
    monkeypatch.setattr(walk, "interpret", lambda *_: None)
    monkeypatch.setattr(Unsupported, "why", lambda *_: "", raising=False)
    walk._lower(low, op)

    assert destinations.sums == {"product": state}
    assert destinations.taken == {"total"}


def test_destinations_undo_the_last_changes():
    destinations, state = Destinations([("x", scalar()), ("y", scalar())]), scalar()
    destinations.take("x")
    before = destinations.changes
    destinations.take("y")
    destinations.accumulate("product", "total", state)
    between = destinations.changes
    destinations.store("product", "total")

    destinations.undo(between)
    assert (destinations.sums, destinations.taken) == ({"product": state}, {"x", "y", "total"})

    destinations.undo(before)
    assert (destinations.sums, destinations.taken) == ({}, {"x"})


def test_positions_of_a_slice_belong_to_their_size_alone(monkeypatch: pytest.MonkeyPatch):
    """A later size may have the address of an earlier one that exists no more."""
    low: Any = SimpleNamespace(derived=DerivedSizes())
    monkeypatch.setattr(open_slices, "_new_places", lambda _low, _part, size: (size.bound, size.length))

    found = [open_slices._places(low, slice(0, None, 1), Size(n + 1, scalar()))[0] for n in range(50)]
    size = Size(7, scalar())
    again = [open_slices._places(low, slice(0, None, 1), size)[1] for _ in range(2)]

    assert found == list(range(1, 51))
    assert again[0] is again[1] is size.length
