"""One sentence for one mistake in a value that may have several forms.

pydantic reports the mistakes of every form of a union. Here the value chooses the form: by its JSON type, and by a
member that names the form. Only the mistakes of that form are reported. If the value has none of the types, one mistake
lists them.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from core.ir.suggest import near
from service.problems.words import MUST_BE, said

__all__ = ["one_form", "suggested"]

Mistake = Mapping[str, Any]
Path = tuple[str | int, ...]

OBJECTS = ("dict_type", "model_type", "model_attributes_type")
"""Mistakes of a value that must be an object."""

MOST_LISTED = 16

QUOTED = re.compile(r"'([^']*)'")


def one_form(mistakes: Sequence[Mistake], document: Any) -> list[Mistake]:
    """The mistakes of one form for each union. Their `loc` leads into the document, without names of forms."""
    found: list[Mistake] = []
    unions: dict[Path, dict[str | int, list[Mistake]]] = {}
    for mistake in mistakes:
        where = tuple(mistake["loc"])
        split = _form(where, document, mistake["type"] == "missing")
        if split is None:
            found.append(mistake)
            continue
        shorter = {**mistake, "loc": where[:split] + where[split + 1 :]}
        unions.setdefault(where[:split], {}).setdefault(where[split], []).append(shorter)
    for path, forms in unions.items():
        found += _chosen(path, [one_form(each, document) for each in forms.values()], _value(document, path))
    return found


def _form(where: Path, document: Any, missing: bool) -> int | None:
    """The position of the first part of `where` that is the name of a form, which the document does not contain."""
    at = document
    for i, part in enumerate(where):
        if not _contains(at, part):
            return None if missing and i == len(where) - 1 else i
        at = at[part]
    return None


def _contains(at: Any, part: str | int) -> bool:
    return part in at if isinstance(at, dict) else isinstance(at, list) and part in range(len(at))


def _value(document: Any, path: Path) -> Any:
    for part in path:
        document = document[part]
    return document


def _chosen(path: Path, forms: list[list[Mistake]], value: Any) -> list[Mistake]:
    """The mistakes of the form that the value has the type of; one mistake that lists all types if there is none."""
    fitting = [each for each in forms if not any(_is_other_type(m, path, value) for m in each)]
    if fitting:
        return min(fitting, key=lambda each: (sum(_is_other_tag(m, path) for m in each), len(each)))
    words = [said(mistake).removeprefix(MUST_BE) for each in forms for mistake in each[:1]]
    words = list(dict.fromkeys(words))
    listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, or {words[-1]}"
    context = {key: value for each in forms for key, value in each[0].get("ctx", {}).items()}
    return [{**forms[0][0], "said": MUST_BE + listed, "ctx": context}]


def _is_other_type(mistake: Mistake, path: Path, value: Any) -> bool:
    if tuple(mistake["loc"]) != path:
        return False
    if mistake["type"] == "literal_error":
        return not isinstance(value, str)
    return bool(mistake["type"].endswith("_type"))


def _is_other_tag(mistake: Mistake, path: Path) -> bool:
    """Whether the member that names the form names another one."""
    return mistake["type"] == "literal_error" and len(mistake["loc"]) == len(path) + 1


# --- suggestions -------------------------------------------------------------------------------------------------


def suggested(mistake: Mistake, document: Any, model: type[BaseModel] | None) -> str | None:
    """A suggestion for an unknown member, a misspelt choice, and a value in place of an object: the name that is meant,
    an example of the field, or the members that there are.

    The `loc` of the mistake leads into `document`.
    """
    path = tuple(mistake["loc"])
    if mistake["type"] in OBJECTS and model is not None and path:
        return _example(model, path) or _listed(_members(model, path))
    if mistake["type"] == "extra_forbidden" and model is not None:
        members = _members(model, path[:-1])
        place = _deeper(model, path)
        return near(str(path[-1]), members) or (place and f"did you mean {place}?") or _listed(members)
    if "expected" in mistake.get("ctx", {}):
        value = _value(document, path)
        return near(value, QUOTED.findall(mistake["ctx"]["expected"])) if isinstance(value, str) else None
    return None


def _deeper(model: type[BaseModel], path: Path) -> str | None:
    """The pointer of a member of this name in a member of the object at `path`, such as /init/seed for /seed."""
    for member in _members(model, path[:-1]):
        if path[-1] in _members(model, (*path[:-1], member)):
            return "/" + "/".join(map(str, (*path[:-1], member, path[-1])))
    return None


def _listed(members: Sequence[str]) -> str | None:
    """A list of the members of an object; None if it has no members, or more than `MOST_LISTED`."""
    names = [name for name in dict.fromkeys(members) if not name.startswith("_")]
    return f"the members are {', '.join(names)}" if 0 < len(names) <= MOST_LISTED else None


def _example(model: type[BaseModel], path: Path) -> str | None:
    """The first example of the value at `path` in a `model`, in words; None if there is none.

    A value under a name that the client chose has the example of another name.
    """
    examples = _examples_of_field(model, path)
    if not examples and len(path) > 1:
        examples = [value for each in _examples_of_field(model, path[:-1]) for value in _values_of(each)]
    return f"for example {json.dumps(examples[0])}" if examples else None


def _examples_of_field(model: type[BaseModel], path: Path) -> list[Any]:
    at: list[Any] = [model]
    for part in path[:-1]:
        at = [each for annotation in at for each in _inside(annotation, part)]
    kinds = [kind for each in at for kind in _alternatives(each) if _is_model(kind)]
    fields = [kind.model_fields[path[-1]] for kind in kinds if path[-1] in kind.model_fields]
    return [example for field in fields for example in field.examples or ()]


def _values_of(example: Any) -> list[Any]:
    return list(example.values()) if isinstance(example, dict) else []


def _members(model: type[BaseModel], path: Path) -> list[str]:
    """The members that an object at `path` in a `model` may have."""
    at: list[Any] = [model]
    for part in path:
        at = [each for annotation in at for each in _inside(annotation, part)]
    return [name for each in at for kind in _alternatives(each) if _is_model(kind) for name in kind.model_fields]


def _inside(annotation: Any, part: str | int) -> Iterator[Any]:
    for each in _alternatives(annotation):
        args = typing.get_args(each)
        if _is_model(each) and part in each.model_fields:
            yield each.model_fields[part].annotation
        elif typing.get_origin(each) in (list, dict) and args:
            yield args[-1]


def _alternatives(annotation: Any) -> list[Any]:
    """The forms of a union; the annotation itself if it is none."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _alternatives(args[0])
    if args and origin not in (list, dict, tuple, typing.Literal):
        return [each for arg in args for each in _alternatives(arg)]
    return [annotation]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
