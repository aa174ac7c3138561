"""Declarations of the members of dataclasses that clients write as JSON.

Each field is `Annotated` with a `Member`: the sentence of the API's documentation, and bounds. `read_members` makes the
dataclass from JSON, `check_members` enforces the bounds of any instance, and the service derives its schemas from
`members_of`. A field without a `Member` is not a member of requests.

Where a name chooses one of several kinds, and the members of that kind are in the same object as the name (as in
``{"do": "clip_norm", "max_norm": 1.0}``), the field is annotated with the table of kinds too.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from core.ir.attr_values import convert
from core.ir.bounds import Bounds
from core.ir.errors import ProgramError, below, escaped
from core.ir.suggest import near

__all__ = [
    "Kind",
    "Kinds",
    "Member",
    "MemberField",
    "Name",
    "check_members",
    "members_of",
    "names_of",
    "read_members",
    "summary_of",
]

T = TypeVar("T")
K = TypeVar("K", bound="Kind")


@dataclass(frozen=True, slots=True)
class Member(Bounds):
    """The documentation of a member in the API, and the accepted values.

    text:     a sentence or two for clients.
    examples: as JSON.
    """

    text: str = ""
    examples: tuple[Any, ...] = ()


Name = Annotated[str, Member(min_length=1, max_length=256)]
"""The name of a variable, as clients write it."""


class Kind:
    """One of several kinds; subclasses are frozen dataclasses whose fields are the members of the kind."""

    __slots__ = ()
    name: ClassVar[str]


class Kinds(dict[str, type[K]], Generic[K]):
    """The kinds that a member may name."""

    def add(self, kind: type[K]) -> type[K]:
        """A decorator that declares a kind."""
        if kind.name in self:
            raise ValueError(f"{kind.name!r} is declared twice")
        self[kind.name] = kind
        return kind


@dataclass(frozen=True, slots=True)
class MemberField:
    """A field of a dataclass as a member of requests.

    type:    its annotation without the `Member`; inner annotations keep theirs.
    kinds:   the kinds that it names, if it does.
    default: MISSING if the member is required.
    """

    name: str
    type: Any
    member: Member
    kinds: Kinds[Any] | None
    default: Any

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING


def members_of(kind: type) -> tuple[MemberField, ...]:
    """The members of requests that the dataclass `kind` declares, its own before those it inherits."""
    if kind not in _FOUND:
        _FOUND[kind] = tuple(_members(kind))
    return _FOUND[kind]


_FOUND: dict[type, tuple[MemberField, ...]] = {}


def _members(kind: Any) -> Iterator[MemberField]:
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in sorted(dataclasses.fields(kind), key=lambda field: field.name not in kind.__annotations__):
        if typing.get_origin(hints[field.name]) is not Annotated:
            continue
        inner, *notes = typing.get_args(hints[field.name])
        declared = [note for note in notes if isinstance(note, Member)]
        kinds = [note for note in notes if isinstance(note, Kinds)]
        if declared:
            yield MemberField(field.name, inner, declared[0], kinds[0] if kinds else None, field.default)


def names_of(kind: type) -> list[str]:
    """The names of its members in JSON, including those of all kinds."""
    names: dict[str, None] = {}
    for each in members_of(kind):
        names[each.name] = None
        for one in (each.kinds or {}).values():
            names |= dict.fromkeys(names_of(one))
    return list(names)


def summary_of(kind: type) -> str:
    """The first paragraph of its docstring, on one line."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def check_members(value: Any, noun: str, code: str) -> None:
    """Raises ProgramError with this `code` if a member of the dataclass `value` breaks a bound. noun: "a budget".

    The pointer of the error leads from the object to the member.
    """
    for each in members_of(type(value)):
        found = getattr(value, each.name)
        if each.kinds is not None:
            if type(found) not in each.kinds.values():
                text = f"{noun}: {each.name} must be one of {', '.join(each.kinds)}"
                raise ProgramError(text, code, pointer=f"/{each.name}")
            continue
        wrong = each.member.wrong(found)
        if wrong is None and each.type in (int, float) and not _is_number(found, each.type):
            wrong = f"must be {'a whole number' if each.type is int else 'a number'}"
        if wrong is not None:
            raise ProgramError(f"{noun}: {each.name} {wrong}", code, pointer=f"/{each.name}")


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)


def read_members(kind: type[T], raw: Any, noun: str, code: str) -> T:
    """The dataclass `kind` from its JSON form. noun: its name in errors, such as "a budget".

    Raises ProgramError with this `code`; its pointer leads from `raw` to the member.
    """
    known = members_of(kind)
    if not isinstance(raw, Mapping):
        raise ProgramError(f"{noun} is an object with the members {', '.join(names_of(kind))}", code)
    left, values = dict(raw), {}
    for each in known:
        if each.name not in left:
            if each.required:
                raise ProgramError(f"{noun} needs the member {each.name}", code, pointer=f"/{each.name}")
        elif each.kinds is not None:
            values[each.name] = _read_kind(each, left, noun, code)
        else:
            values[each.name] = _read_value(each, left.pop(each.name), noun, code)
    if left:
        unknown = min(map(str, left))[:64]
        text, hint = f"{noun} has no member {unknown}", near(unknown, names_of(kind))
        raise ProgramError(text, code, suggestion=hint, pointer=f"/{escaped(min(map(str, left)))}")
    return kind(**values)


def _read_kind(each: MemberField, left: dict[str, Any], noun: str, code: str) -> Any:
    """The kind that ``left[each.name]`` names, with its members; all of them are removed from `left`."""
    assert each.kinds is not None
    name = left.pop(each.name)
    kind = each.kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        text = f"{noun}: {each.name} must be one of {', '.join(each.kinds)}"
        raise ProgramError(text, code, pointer=f"/{each.name}")
    own = {member.name for member in members_of(kind)}
    others = {member.name for other in each.kinds.values() for member in members_of(other)} - own
    for member in others & left.keys():
        raise ProgramError(f"{noun}: {name} has no member {member}", code, pointer=f"/{escaped(member)}")
    return read_members(kind, {member: left.pop(member) for member in own & left.keys()}, name, code)


def _read_value(each: MemberField, raw: Any, noun: str, code: str) -> Any:
    with below(f"/{each.name}"):
        try:
            return _value(each.type, raw)
        except (ValueError, TypeError) as error:
            raise ProgramError(f"{noun}: {each.name} {error}", code) from None


def _value(annotation: Any, raw: Any) -> Any:
    """`raw` as the annotation asks. Raises ValueError with the end of a sentence, ProgramError from inside."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        value = _value(args[0], raw)
        for note in args[1:]:
            if isinstance(note, Member) and (wrong := note.wrong(value)) is not None:
                raise ValueError(wrong)
        return value
    if origin in (typing.Union, types.UnionType):
        if raw is None and type(None) in args:
            return None
        return _value(_chosen(args, raw), raw)
    if dataclasses.is_dataclass(annotation):
        return annotation.read(raw)  # type: ignore[union-attr]
    if origin in (tuple, Collection):
        if isinstance(raw, str | Mapping) or not isinstance(raw, Collection):
            raise ValueError("must be a list")
        return tuple(_item(args[0], i, item) for i, item in enumerate(raw))
    return convert(annotation, raw)


def _item(annotation: Any, position: int, raw: Any) -> Any:
    with below(f"/{position}"):
        return _value(annotation, raw)


def _chosen(alternatives: tuple[Any, ...], raw: Any) -> Any:
    """The type, among the alternatives of a union, that a JSON value like `raw` can have."""
    for each in alternatives:
        inner = typing.get_args(each)[0] if typing.get_origin(each) is Annotated else each
        origin = typing.get_origin(inner)
        if isinstance(raw, Mapping):
            fits = dataclasses.is_dataclass(inner)
        elif isinstance(raw, str):
            fits = inner is str or origin is Literal
        elif isinstance(raw, Collection):
            fits = origin in (tuple, Collection)
        else:
            fits = inner in (int, float, bool)
        if fits:
            return each
    return next(each for each in alternatives if each is not type(None))
