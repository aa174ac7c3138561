"""The table of threats in docs/security.md names tests that exist, one row for each threat."""

from __future__ import annotations

import re

from tests.names import files_of_tests
from tests.paths import ROOT

ROWS = {
    int(number): cells
    for number, cells in re.findall(r"^\| (\d+) \| (.+) \|$", (ROOT / "docs" / "security.md").read_text(), re.M)
}


def test_every_threat_has_a_row() -> None:
    assert sorted(ROWS) == list(range(1, 51))


def test_every_named_test_exists() -> None:
    known = files_of_tests().keys()
    for number, cells in ROWS.items():
        named = set(re.findall(r"`(test_\w+)`", cells))
        assert named <= known, (number, named - known)
        assert named or "no test: " in cells, number
