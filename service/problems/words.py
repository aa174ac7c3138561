"""The mistakes that pydantic finds, in the words of JSON: a client sees arrays and objects, no lists and dictionaries.

No sentence quotes the value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from service.ids import ONE_LINE

__all__ = ["MUST_BE", "said"]

MUST_BE = "must be "
OF_PYDANTIC = re.compile(r"Value error, |Input should (?=be )")

KINDS = {
    "bool": "true or false",
    "dict": "an object",
    "float": "a number",
    "int": "an integer",
    "list": "an array",
    "model": "an object",
    "model_attributes": "an object",
    "string": "a string",
}
"""The type in the name of a mistake, also of one in a query -> the type of JSON."""

OF_KIND = re.compile(r"(.+)_(?:type|parsing|parsing_size|from_float)")
TOO_LONG = {
    "too_long": "at most",
    "too_short": "at least",
    "string_too_long": "at most",
    "string_too_short": "at least",
}

TOKEN_SIGN = "~"  # in the pattern of a page token (`service.store.newest`), and in no other
ID_PATTERN = re.compile(r"^\^\(?([a-z]{3}_)\[a-z2-7\]\{26\}\)?\??\$$")
THINGS = {
    "ckp_": "a checkpoint",
    "dst_": "a dataset",
    "job_": "a job",
    "key_": "a key",
    "opn_": "an operation",
    "prg_": "a program",
    "ses_": "a session",
    "tap_": "a tape",
    "upl_": "an upload",
}
"""Prefix of an id -> the kind of thing that it names."""


def said(mistake: Mapping[str, Any]) -> str:
    """The sentence for a mistake of pydantic or of one of our validators; of one that has a sentence, `said`, that."""
    if "said" in mistake:
        return str(mistake["said"])
    kind, context = mistake["type"], mistake.get("ctx", {})
    of_kind = OF_KIND.fullmatch(kind)
    if of_kind is not None and of_kind[1] in KINDS:
        return MUST_BE + KINDS[of_kind[1]]
    match kind:
        case "union_tag_invalid":  # the only message of pydantic that quotes the value
            return "unknown tag of a union"
        case "extra_forbidden":
            return "unknown member"
        case "missing" if mistake["msg"] == "Field required":
            return "is missing"
        case "literal_error":
            return MUST_BE + context["expected"]
        case "finite_number":
            return f"{MUST_BE}finite"
        case "string_pattern_mismatch":
            if TOKEN_SIGN in context["pattern"]:
                return f"{MUST_BE}the `next_page_token` of a page of this list"
            found = ID_PATTERN.search(context["pattern"])
            if found is not None and found[1] in THINGS:
                return f"{MUST_BE}the id of {THINGS[found[1]]}: {found[1]} and 26 characters"
            if context["pattern"] == ONE_LINE.pattern:
                return f"{MUST_BE}one line, without characters that control a terminal or the direction of text"
            return f"must match the pattern {context['pattern']}"
        case _ if kind in TOO_LONG:
            count = context["max_length" if kind.endswith("long") else "min_length"]
            of_object = "member" if context.get("field_type") == "Dictionary" else "element"
            part = "character" if kind.startswith("string") else of_object
            return f"must have {TOO_LONG[kind]} {count} {part}{'s' * (count != 1)}"
    return OF_PYDANTIC.sub(lambda found: "must " if found[0].startswith("Input") else "", str(mistake["msg"]), count=1)
