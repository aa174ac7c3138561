"""Attributes that several ops share, declared once."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

__all__ = ["AttrGroup", "attributes_of", "groups_of", "packed"]


class AttrGroup:
    """Base of a frozen dataclass whose fields are attributes that several ops share.

    A keyword-only parameter of a kernel or composite whose annotation is such a class stands for all its fields: the op
    has one attribute for each of them, and the function takes them as one object. The parameter's default, an object of
    the class, replaces the defaults of the fields.
    """

    __slots__ = ()


def groups_of(hints: Mapping[str, Any]) -> dict[str, type[AttrGroup]]:
    """The parameters in `hints` that stand for groups of attributes."""
    return {name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, AttrGroup)}


def attributes_of(group: type[AttrGroup], default: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, type and default of each attribute of a group.

    default: of the parameter that stands for the group, `Parameter.empty` if it has none.
    """
    hints = typing.get_type_hints(group, include_extras=True)
    for each in fields(group):  # type: ignore[arg-type]
        own = inspect.Parameter.empty if each.default is MISSING else each.default
        yield each.name, hints[each.name], own if default is inspect.Parameter.empty else getattr(default, each.name)


def packed(body: Callable[..., Any], groups: Mapping[str, type[AttrGroup]]) -> Callable[..., Any]:
    """`body` as a function of single attributes, which are packed into the objects that it takes."""
    if not groups:
        return body
    names = {name: [each.name for each in fields(group)] for name, group in groups.items()}  # type: ignore[arg-type]

    @functools.wraps(body)
    def function(*inputs: Any, **attrs: Any) -> Any:
        for name, group in groups.items():
            attrs[name] = group(**{each: attrs.pop(each) for each in names[name]})
        return body(*inputs, **attrs)

    return function
