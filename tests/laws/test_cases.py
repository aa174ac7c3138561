"""The numbered cases of docs/semantics.md: the name of the test of a case begins with its number."""

from __future__ import annotations

import re

from tests.names import files_of_tests

CASES = 95
NUMBERS = re.compile(r"test_(\d+(?:_and_\d+)*)_")


def test_every_case_has_a_test_and_every_number_is_a_case():
    numbers = {int(number) for name in files_of_tests() if (m := NUMBERS.match(name)) for number in m[1].split("_and_")}

    assert sorted(numbers) == list(range(1, CASES + 1))
