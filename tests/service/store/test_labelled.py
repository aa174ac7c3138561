"""Pages of the things that have some labels."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from service.store import labelled
from service.store.labelled import has_labels, labelled_page
from service.store.newest import Place


@dataclass(frozen=True)
class Labelled:
    created: float
    id: str
    labels: dict[str, str]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([], True),
        (["run:7"], True),
        (["run"], True),
        (["run:7", "team:a:b"], True),
        (["run:70"], False),
        (["run:"], False),
        (["7"], False),
        (["run:7", "other"], False),
        (["empty:"], True),
    ],
)
def test_a_label_is_wanted_by_its_name_or_with_its_value(wanted, found):
    assert has_labels({"run": "7", "team": "a:b", "empty": ""}, wanted) is found


@pytest.mark.parametrize("least", [1, 2, 7, 200])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_pages_of_a_label_hold_each_entry_with_it_once_and_in_order(monkeypatch, least, size):
    monkeypatch.setattr(labelled, "LEAST_READ", least)
    rows = [Labelled(50.0 - number, f"{number:03d}", {"third": str(number % 3)}) for number in range(50)]

    def read(after: str, count: int) -> list[Labelled]:
        return Place.of(after).sorted(rows)[:count]

    found, token = [], ""
    while page := labelled_page(read, lambda each: each.labels, token, size, ["third:1"]):
        assert len(page) <= size
        found += [each.id for each in page]
        token = Place.of(token).token(page[-1])

    assert found == [f"{number:03d}" for number in range(1, 50, 3)]
