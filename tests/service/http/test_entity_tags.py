"""Lists of entity tags in headers."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from service.http.entity_tags import has_current, is_named, of_file, tags_in


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


@pytest.mark.parametrize(
    ("line", "has"),
    [('"a"', True), ('W/"a"', True), ("*", True), ('"b", "a"', True), ('"a.safetensors"', False), ("a", False)],
)
def test_if_none_match_compares_one_form_and_ignores_what_is_malformed(line, has):
    assert has_current(Headers({"if-none-match": line}), '"a"') is has


def test_if_match_accepts_the_tag_of_any_form_but_no_weak_one():
    assert of_file('"a"') == '"a.safetensors"'
    assert is_named(['"a"'], '"a"') and is_named(['"b"', of_file('"a"')], '"a"') and is_named(["*"], '"a"')
    assert not is_named(['W/"a"', '"b"'], '"a"')
