"""JSON as of RFC 8259, without repeated members and infinite numbers.

The fast parser silently keeps the last of repeated members. A hook on every object would detect them at five times the
cost, so it runs only if a count of colons differs: each member has one colon, and the colons inside strings can be
counted in the parsed object. If the text has no more colons than that, no member was dropped. For a short text there is
a faster test: the parsed object, serialised again, equals the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import orjson

from service.problems import HttpProblem

__all__ = ["parse_json"]

SHORT = 4096  # bytes
FLAT = 64  # objects and arrays; orjson cannot serialise some hundreds of nested ones

NOT_A_NUMBER = re.compile("nan|inf(inity)?", re.IGNORECASE)  # as Python, JavaScript and others write them

ESCAPED_COLON = (b"\\u003a", b"\\u003A")


def parse_json(data: bytes | bytearray, *, max_depth: int = 64) -> dict[str, Any]:
    """The JSON object in `data`.

    max_depth: limit of nested objects and arrays, the outermost included.
    Raises HttpProblem 400: limit-exceeded for deeper JSON, invalid-json for all other errors.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if "depth" in error.msg or "recursion" in error.msg.lower():
            raise _too_deep(max_depth) from None
        wrong, at = _not_utf8(data) or (_mistake(data.decode(), error), error.pos)
        raise HttpProblem("invalid-json", f"{wrong}, at character {at}", offset=at) from None
    if not isinstance(document, dict):
        raise HttpProblem("invalid-json", "the outermost value is not an object")
    if _is_short(data, max_depth) and orjson.dumps(document) == data.rstrip(b" "):
        return document
    colons = _colons(document, max_depth)
    if data.count(b":") != colons or any(escaped in data for escaped in ESCAPED_COLON):
        json.loads(data, object_pairs_hook=_without_repeats)
    return document


def _not_utf8(data: bytes | bytearray) -> tuple[str, int] | None:
    """An error text and the character at which `data` ceases to be UTF-8; None if it is UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return "the body is not UTF-8", len(data[: error.start].decode())
    return None


def _mistake(text: str, error: orjson.JSONDecodeError) -> str:
    """The mistake in a JSON text, with its remedy where the parser's words name none."""
    if not text.strip():
        return "the JSON is empty"
    found = NOT_A_NUMBER.match(text, error.pos)
    if found or "infinity" in error.msg:
        word = found[0] if found else "number beyond float64"
        return f"JSON has no {word}: send a tensor with such a value as b64 in place of data, or as safetensors"
    return error.msg


def _is_short(data: bytes | bytearray, max_depth: int) -> bool:
    """Whether serialising it is fast, and it cannot be nested too deeply."""
    return len(data) <= SHORT and data.count(b"{") + data.count(b"[") <= min(FLAT, max_depth)


def _too_deep(max_depth: int) -> HttpProblem:
    return HttpProblem("limit-exceeded", f"the JSON is nested deeper than {max_depth} levels", status=400)


def _colons(document: dict[str, Any], max_depth: int) -> int:
    """Number of colons in the text of `document`, if no string escapes one.

    Raises HttpProblem if it is nested deeper than `max_depth`.
    """
    colons, depth = 0, 0
    level: list[Any] = [document]
    while level:
        depth += 1
        if depth > max_depth:
            raise _too_deep(max_depth)
        inner: list[Any] = []
        for holder in level:
            if type(holder) is dict:
                colons += len(holder) + "".join(holder).count(":")
                items: Iterable[Any] = holder.values()
            elif _holders(holder):
                items = holder
            else:
                continue
            for item in items:
                kind = type(item)
                if kind is str:
                    colons += item.count(":")
                elif kind is dict or kind is list:
                    inner.append(item)
        level = inner
    return colons


def _holders(items: list[Any]) -> bool:
    """Whether an item may contain a colon. A list of a million numbers must not be walked in Python."""
    return not {dict, list, str}.isdisjoint(map(type, items))


def _without_repeats(members: list[tuple[str, Any]]) -> None:
    seen = set()
    for name, _ in members:
        if name in seen:
            raise HttpProblem("invalid-json", f"the member {name[:100]!r} is repeated in one object")
        seen.add(name)
