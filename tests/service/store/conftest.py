"""A store on each kind of database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.store.store import Store

__all__: list[str] = []


@pytest.fixture(params=["sqlite", "postgresql"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Makes stores of one database, which are open until the test ends."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    made: list[Store] = []

    def make() -> Store:
        made.append(Store(tmp_path / "data", url))
        made[-1].open_now()
        return made[-1]

    yield make
    for each in made:
        each.close_now()


@pytest.fixture
def store(make_store: Callable[[], Store]) -> Store:
    return make_store()
