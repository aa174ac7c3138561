"""The client's table of ops is the one that the declarations give."""

from __future__ import annotations

from service.cli.signatures import signatures
from tests.paths import ROOT


def test_the_stored_table_equals_the_generated_one():
    stored = (ROOT / "backpass_client" / "builder" / "ops.json").read_text()

    assert stored == signatures(), "run `make catalogue`"
