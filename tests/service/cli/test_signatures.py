"""The client's table of ops and their types are those that the declarations give."""

from __future__ import annotations

from service.cli.signatures import signatures
from service.cli.stubs import stub
from tests.paths import ROOT


def test_the_stored_table_equals_the_generated_one():
    stored = (ROOT / "backpass_client" / "builder" / "ops.json").read_text()

    assert stored == signatures(), "run `make catalogue`"


def test_the_stored_types_equal_the_generated_ones():
    stored = (ROOT / "backpass_client" / "_ops.pyi").read_text()

    assert stored == stub(), "run `make catalogue`"
