"""Sessions train while processes are killed, stopped and starved: every number is that of a calm run, bit for bit.

The short run is a part of `make test`; the long one (`make test-all`) has the size of docs/reliability.md.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.reliability.chaos import ALL, compare, run


def test_no_step_is_lost_or_doubled_under_kills(tmp_path: Path) -> None:
    faults = {"service killed": 1.0, "worker killed": 2.0, "disk full": 1.0, "clock set back": 0.5}
    least = Counter({"service killed": 1, "worker killed": 1})
    calm = run(tmp_path / "calm", 3, 50, jobs=1)

    burnt = run(tmp_path / "burnt", 3, 50, jobs=1, faults=faults, pause=1.0, least=least)

    compare(calm, burnt)
    assert burnt.faults >= least, burnt.faults


@pytest.mark.slow
def test_no_step_is_lost_or_doubled_in_a_long_run_under_every_fault(tmp_path: Path) -> None:
    least = Counter({"service killed": 40, "worker killed": 40})
    calm = run(tmp_path / "calm", 8, 6300, jobs=4)

    burnt = run(tmp_path / "burnt", 8, 6300, jobs=4, faults=ALL, pause=0.6, least=least)

    compare(calm, burnt)
    assert burnt.faults >= least, burnt.faults
