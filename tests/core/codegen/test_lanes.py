"""The vectors in which rows of some length are computed."""

from __future__ import annotations

import pytest

from core.codegen.cpus import NAMED, generating_for
from core.codegen.vector_slices import lanes_for


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        ("x86-64-v4", {4: 4, 8: 8, 9: 16, 12: 16, 16: 16, 20: 16, 24: 16}),
        ("x86-64-v3", {3: 4, 4: 4, 5: 8, 8: 8, 12: 8}),
    ],
)
def test_a_row_has_as_few_vectors_as_possible_and_as_few_empty_lanes(name, lanes):
    with generating_for(NAMED[name]):
        assert {length: lanes_for("float32", length) for length in lanes} == lanes
