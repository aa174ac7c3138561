"""The page about options of gradients and training, written from the dataclasses of the core that declare them."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal

from core.autodiff.hooks import Hook, Match
from core.backward.query import GradientQuery
from core.cost.budget import Budget
from core.ir.members import MemberField, members_of, summary_of
from core.optim.clipping import Clip
from core.optim.loss_scaling import LossScale

__all__ = ["options_page"]

HEAD = """# Options of gradients and training

Members of `POST /v1/gradients`, `POST /v1/programs/{id}/gradients`, `POST /v1/programs/{id}/backward` and
`POST /v1/sessions`. `make catalogue` writes this page from the declarations that define these requests, and a test
compares the two.
"""
SECTIONS: tuple[tuple[str, type, str], ...] = (
    ("Query", GradientQuery, "A session takes `loss`, `parameter_list` and the members from `no_grad_set` on."),
    (
        "Hook",
        Hook,
        'One element of `hooks`, such as `{"match": {"variable": "1:h"}, "do": "record"}`.',
    ),
    ("Match", Match, "The member `match` of a hook."),
    ("Budget", Budget, "In place of `checkpoints` or `loop_memory`."),
    ("Clip", Clip, "The member `clip` of a session."),
    ("Loss scale", LossScale, 'The member `loss_scale` of a session: this object, a constant, or `"dynamic"`.'),
)
NAMES = {Hook: "hook", Match: "match", Budget: "budget"}
WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def options_page() -> str:
    """The text of docs/options.md."""
    lines = [HEAD]
    for title, kind, place in SECTIONS:
        lines += [f"## {title}", "", inspect.getdoc(kind) or "", "", place, "", *_table(members_of(kind)), ""]
        for each in members_of(kind):
            for name, one in (each.kinds or {}).items():
                lines += [f"### `{each.name}`: `{name}`", "", summary_of(one), ""]
                lines += [*_table(own), ""] if (own := members_of(one)) else []
    return "\n".join(lines[:-1]) + "\n"


def _table(members: Collection[MemberField]) -> Iterator[str]:
    yield "| member | | default | |"
    yield "|---|---|---|---|"
    for each in members:
        kind = " or ".join(f"`{name}`" for name in each.kinds) if each.kinds else _words(each.type)
        default = "required" if each.required else f"`{_json(each.default)}`"
        yield f"| `{each.name}` | {kind}{_bounds(each)} | {default} | {each.member.text} |"


def _bounds(each: MemberField) -> str:
    signs = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    found = [f"{words} {bound}" for sign, words in signs.items() if (bound := getattr(each.member, sign)) is not None]
    return ", " + " and ".join(found) if found else ""


def _words(annotation: Any) -> str:
    """The JSON type of an annotation."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _words(args[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(each) for each in args)
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in args)
    if origin in (tuple, Collection):
        return f"list of {_words(args[0])}s"
    return NAMES.get(annotation) or WORDS[annotation]


def _json(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.10g}"
    return {None: "null", (): "[]", True: "true", False: "false"}.get(value, str(value))
