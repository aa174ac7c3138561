"""Strict JSON: JSON objects are read, and invalid bytes are refused even if other parsers accept them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.formats.strict_json import parse_json
from service.problems import HttpProblem

NOT_JSON = {
    "empty": b"",
    "blank": b"  ",
    "open": b"{",
    "no value": b'{"a":}',
    "single quotes": b"{'a':1}",
    "no quotes": b"{a:1}",
    "trailing comma": b'{"a":1,}',
    "comment": b'{"a":1}//',
    "trailing garbage": b'{"a":1} x',
    "two documents": b'{"a":1}{"a":1}',
    "list": b"[1]",
    "number": b"1",
    "string": b'"x"',
    "null": b"null",
    "byte order mark": b'\xef\xbb\xbf{"a":1}',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "Latin-1": '{"ä":1}'.encode("latin-1"),
    "stray byte": b'{"a":"\xff"}',
    "overlong": b'{"a":"\xc0\x80"}',
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":Infinity}',
    "-Infinity": b'{"a":-Infinity}',
    "1e999": b'{"a":1e999}',
    "-1e999": b'{"a":-1e999}',
    "5000 digits": b'{"a":' + b"1" * 5000 + b"}",
    "leading zero": b'{"a":01}',
    "leading plus": b'{"a":+1}',
    "leading point": b'{"a":.5}',
    "trailing point": b'{"a":1.}',
    "hexadecimal": b'{"a":0x10}',
    "control character": b'{"a":"\x01"}',
    "bad escape": b'{"a":"\\x"}',
    "lone high surrogate": b'{"a":"\\ud800"}',
    "lone low surrogate": b'{"a":"\\udc00"}',
    "surrogate in a name": b'{"\\ud800":1}',
    "capital True": b'{"a":True}',
    "repeated": b'{"lr":-1,"lr":1}',
    "repeated deep": b'{"a":[{"b":{"c":1,"d":2,"c":3}}]}',
    "repeated with an object": b'{"a":{"x":1},"a":{"x":1}}',
    "repeated by escape": b'{"a":1,"\\u0061":2}',
    "repeated next to an escaped colon": b'{"a":1,"a":"\\u003a"}',
    "repeated next to a capital escaped colon": b'{"a":1,"a":"\\u003A"}',
    "repeated next to a list of numbers": b'{"a":[1,2,3],"a":[1,2,3]}',
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_anything_but_a_json_object_is_refused(name: str):
    with pytest.raises(HttpProblem) as caught:
        parse_json(NOT_JSON[name])

    assert (caught.value.status, caught.value.code) == (400, "invalid-json")
    assert len(caught.value.detail) < 300


@pytest.mark.parametrize(
    ("value", "word", "at"),
    [("NaN", "NaN", 9), ("nan", "nan", 9), ("-Infinity", "Infinity", 10), ("-inf", "inf", 10), ("1e999", "number", 9)],
)
def test_a_number_that_json_does_not_have_is_refused_with_another_way_to_send_it(value: str, word: str, at: int):
    with pytest.raises(
        HttpProblem, match=rf"JSON has no .*{word}.*: send a tensor .* b64 .*, at character {at}"
    ) as caught:
        parse_json(f'{{"é":[1, {value}]}}'.encode())

    assert caught.value.extensions == {"offset": at}


@pytest.mark.parametrize("text", [b"", b"  \n"])
def test_an_empty_body_is_called_empty(text: bytes):
    with pytest.raises(HttpProblem, match="the JSON is empty, at character 0"):
        parse_json(text)


def test_an_error_gives_the_position_of_invalid_utf_8():
    with pytest.raises(HttpProblem) as caught:
        parse_json('{"ö":"ä"}'.encode()[:-3] + b'\xe4"}')

    assert caught.value.detail == "the body is not UTF-8, at character 6"
    assert caught.value.extensions == {"offset": 6}


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("levels", [64, 1000, 100_000, 1_000_000])
def test_nesting_beyond_the_limit_is_refused_at_any_depth(opening: str, levels: int):
    closing = "]" if opening == "[" else "}"
    inside = opening * levels + "1" + closing * levels

    with pytest.raises(HttpProblem) as caught:
        parse_json(f'{{"x":{inside}}}'.encode())

    assert (caught.value.status, caught.value.code) == (400, "limit-exceeded")


def test_nesting_up_to_the_limit_is_read():
    document = parse_json(b'{"x":' + b"[" * 63 + b"]" * 63 + b"}")

    assert json.dumps(document).count("[") == 63


def test_different_objects_may_repeat_a_name():
    assert parse_json(b'{"a":{"x":1},"b":{"x":1},"c":[{"x":1},{"x":1}]}')["c"] == [{"x": 1}, {"x": 1}]


texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(':\\"u003a{}'), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(document=st.dictionaries(texts, values, max_size=4), ascii_only=st.booleans())
def test_the_parser_agrees_with_the_standard_library(document: dict, ascii_only: bool):
    data = json.dumps(document, ensure_ascii=ascii_only).encode()

    assert parse_json(data) == document == json.loads(data)


@settings(max_examples=200, deadline=None)
@given(document=st.dictionaries(texts, values, min_size=1, max_size=4), twice=st.data(), ascii_only=st.booleans())
def test_every_repeated_member_is_refused(document: dict, twice: st.DataObject, ascii_only: bool):
    name = twice.draw(st.sampled_from(sorted(document)))
    again = twice.draw(values)
    members = [*document.items(), (name, again)]
    written = [json.dumps({key: value}, ensure_ascii=ascii_only)[1:-1] for key, value in members]

    with pytest.raises(HttpProblem, match="is repeated"):
        parse_json(("{" + ",".join(written) + "}").encode())


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=40) | st.text(':{}[]",\\u0031eE+-. ', max_size=30).map(str.encode))
def test_any_bytes_give_an_object_or_a_problem(data: bytes):
    try:
        assert isinstance(parse_json(data), dict)
    except HttpProblem as problem:
        assert problem.status == 400


@given(
    st.dictionaries(st.text(max_size=3), st.recursive(st.integers(0, 9) | st.text(max_size=3), st.lists, max_leaves=4)),
    st.integers(0, 3),
)
def test_a_compact_text_is_read_and_refused_with_a_repeated_member(document, blanks):
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b" " * blanks
    assert parse_json(text) == document

    for name in document:
        said = json.dumps({name: 0}, separators=(",", ":"), ensure_ascii=False)[1:-1].encode()
        with pytest.raises(HttpProblem, match="is repeated"):
            parse_json(text.rstrip()[:-1] + b"," + said + b"}")


@pytest.mark.parametrize("depth", [64, 65, 300, 500])
def test_the_depth_limit_holds_for_short_texts(depth):
    text = b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    assert parse_json(text, max_depth=500)
    with pytest.raises(HttpProblem, match="deeper than"):
        parse_json(text, max_depth=depth - 1)
