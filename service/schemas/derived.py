"""Models of requests from the dataclasses of the core that declare them (`core.ir.members`)."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Collection
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, create_model

from core.ir.members import Kinds, Member, MemberField, members_of, names_of, summary_of

__all__ = ["as_core", "derived", "text_of"]

M = TypeVar("M", bound=BaseModel)

MODELS: dict[type, type[BaseModel]] = {}
"""Dataclass -> its model, for members of that type."""


def derived(kind: type) -> Callable[[type[M]], type[M]]:
    """A decorator that adds to a model the members that the dataclass `kind` declares, before those of the model.

    The dataclasses of members must have their models already. Without a docstring the model takes that of `kind`.
    """

    def decorate(model: type[M]) -> type[M]:
        fields = _fields(kind)
        own = {name: (field.annotation, field) for name, field in model.model_fields.items()}
        made: Any = create_model(
            model.__name__,
            __base__=model,
            __doc__=model.__doc__ if "__doc__" in vars(model) and model.__doc__ else inspect.getdoc(kind),
            __module__=model.__module__,
            **{**fields, **own},  # type: ignore[arg-type]
        )
        MODELS[kind] = made
        return made  # type: ignore[no-any-return]

    return decorate


def as_core(model: BaseModel, kind: type) -> dict[str, Any]:
    """The members of `kind` in `model` as JSON without nulls, for ``kind.read``."""
    return model.model_dump(include=set(names_of(kind)), exclude_none=True)


def text_of(kind: type, name: str) -> str:
    """The description of member `name` of the dataclass `kind`, for a parameter outside of a body."""
    return next(each.member.text for each in members_of(kind) if each.name == name)


def _fields(kind: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in members_of(kind):
        if each.kinds is None:
            found[each.name] = (_typed(each.type), _field(each.member, each.member.text, each.default))
        else:
            found[each.name] = (Literal[tuple(each.kinds)], _field(each.member, _listed(each), each.default))
            found |= _of_all(each.kinds)
    return found


def _listed(each: MemberField) -> str:
    """The text of a member that names a kind, with a line for each kind."""
    assert each.kinds is not None
    return "\n\n".join([each.member.text, *(f"`{name}`: {summary_of(kind)}" for name, kind in each.kinds.items())])


def _of_all(kinds: Kinds[Any]) -> dict[str, Any]:
    """The members of all kinds. All are optional in the model; the dataclass of a kind requires its own."""
    takers: dict[str, list[tuple[str, MemberField]]] = {}
    for name, kind in kinds.items():
        for each in members_of(kind):
            takers.setdefault(each.name, []).append((name, each))
    found = {}
    for member, several in takers.items():
        first = several[0][1]
        text = f"With {' and '.join(f'`{name}`' for name, _ in several)}"
        text += ", required: " if all(each.required for _, each in several) else ": "
        assert all(each.member == first.member and each.type == first.type for _, each in several), (
            f"kinds declare {member} differently"
        )
        found[member] = (_typed(first.type) | None, _field(first.member, text + first.member.text, None))
    return found


def _field(member: Member, text: str, default: Any) -> Any:
    bounds = {
        name: value
        for name in ("gt", "ge", "lt", "le", "min_length", "max_length")
        if (value := getattr(member, name)) is not None
    }
    examples = list(member.examples) or None
    if default is dataclasses.MISSING:
        return Field(description=text or None, examples=examples, **bounds)
    plain = list(default) if isinstance(default, tuple) else default
    return Field(plain, description=text or None, examples=examples, **bounds)


def _typed(annotation: Any) -> Any:
    """The annotation of a core member as pydantic reads JSON: lists for tuples, models for dataclasses."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        inner = _typed(args[0])
        for note in args[1:]:
            if isinstance(note, Member):
                inner = Annotated[inner, _field(note, note.text, dataclasses.MISSING)]
        return inner
    if origin in (typing.Union, types.UnionType):
        return reduce(or_, [_typed(each) for each in args])
    if origin in (tuple, Collection):
        return list[_typed(args[0])]  # type: ignore[misc]
    return MODELS.get(annotation, annotation)
