"""Lists of entity tags in headers."""

from __future__ import annotations

import pytest

from service.http.entity_tags import tags_in


@pytest.mark.parametrize(
    ("lines", "tags"),
    [
        (["*"], ["*"]), ([" * "], ["*"]), (['"a"'], ['"a"']), (['"a", W/"b"'], ['"a"', 'W/"b"']),
        (['"a","b"'], ['"a"', '"b"']), (['"a"', '"b"'], ['"a"', '"b"']), (['"a,b"'], ['"a,b"']),
        ([',"a",,"b",'], ['"a"', '"b"']),
        (['""'], ['""']), ([""], []), ([], []),
    ],
)  # fmt: skip
def test_the_quoted_tags_of_all_lines_are_found(lines, tags):
    assert tags_in(lines) == tags


@pytest.mark.parametrize(
    "line", ["e1.v0", '"a" "b"', '"a""b"', '"a', 'a"', '"a", b', '*, "a"', "W/a", 'w/"a"', '"a b"']
)
def test_a_line_with_anything_else_is_malformed(line):
    assert tags_in([line]) is None
