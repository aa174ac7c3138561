"""Two services share one PostgreSQL. Each request goes to any of them, while these and the database are killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.postgres import postgres
from tests.reliability.chaos import SHARED, compare, run


@pytest.mark.slow
def test_sessions_that_move_between_services_lose_nothing_under_kills(tmp_path: Path) -> None:
    faults = {"service killed": 1.0, "worker killed": 1.0, "store restarted": 1.0}
    least = Counter({"service killed": 1, "store restarted": 1})
    calm = run(tmp_path / "calm", 2, 30, workers=1)
    with postgres() as store:
        burnt = run(
            tmp_path / "burnt", 2, 30, workers=1, services=2, store=store, faults=faults, pause=2.0, least=least
        )

    compare(calm, burnt)
    assert burnt.faults >= least, burnt.faults


@pytest.mark.slow
def test_sessions_that_move_between_services_lose_nothing_under_every_fault(tmp_path: Path) -> None:
    least = Counter({"service killed": 20, "store restarted": 5})
    calm = run(tmp_path / "calm", 8, 3000)
    with postgres() as store:
        burnt = run(tmp_path / "burnt", 8, 3000, services=2, store=store, faults=SHARED, pause=0.5, least=least)

    compare(calm, burnt)
    assert burnt.faults >= least, burnt.faults
