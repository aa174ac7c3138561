"""Problem documents use the words of JSON: arrays and objects, no lists, dictionaries or instances."""

from __future__ import annotations

import copy
import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from service import routes, schemas
from service.problems import from_validation
from service.problems.words import said
from tests.service.openapi import DOCUMENT, OPERATIONS
from tests.service.wire import problem

OF_PYTHON = re.compile(
    r"\b(Input|[Ff]ield|[Ll]ist|[Dd]ict\w*|[Tt]uple|[Ss]et|instance|None|True|False|int|str|bool|float|valid|should|parse)\b"
)
QUOTED = re.compile("'[^']*'")
JUNK = [None, True, -1, 1.5, 2**70, "", "x", [], [1], {}, {"x": [1]}]


def request_models() -> Iterator[tuple[type[BaseModel], list[Any]]]:
    """The model of each JSON body, and its examples."""
    folders = [(package, each.name) for package in (schemas, routes) for each in pkgutil.iter_modules(package.__path__)]
    modules = [importlib.import_module(f"{package.__name__}.{name}") for package, name in folders]
    for _, _, operation in OPERATIONS:
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        if name:
            model = next(vars(module)[name] for module in modules if name in vars(module))
            yield model, [each["value"] for each in content["examples"].values()]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all members of `value`, down to numbers of a list that are not the first."""
    parts = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, each in parts:
        yield (*path, key)
        yield from places(each, (*path, key))


def changed(value: Any, path: tuple[Any, ...], to: Any) -> Any:
    holder = value = copy.deepcopy(value)
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = to
    return value


def test_no_wrong_member_of_any_request_is_told_in_words_of_python():
    sentences: dict[str, str] = {}
    models = dict(request_models())
    for model, shown in models.items():
        members = DOCUMENT["components"]["schemas"][model.__name__].get("properties", {})
        tried = [(example, path) for example in shown for path in places(example)]
        for base, path in [*tried, *(({}, (name,)) for name in members)]:
            for junk in JUNK:
                document = changed(base, path, junk)
                try:
                    model.model_validate(document)
                except ValidationError as error:
                    for each in from_validation(error, document, model).errors:
                        sentences.setdefault(each.detail, f"{model.__name__} {each.pointer}")

    assert len(models) > 25 and len(sentences) > 40
    assert {text: place for text, place in sentences.items() if OF_PYTHON.search(QUOTED.sub("", text))} == {}


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ({"type": "model_type", "msg": "Input should be a valid dictionary or instance of X"}, "must be an object"),
        ({"type": "int_from_float", "msg": "x"}, "must be an integer"),
        ({"type": "bool_parsing", "msg": "x"}, "must be true or false"),
        ({"type": "too_long", "msg": "x", "ctx": {"field_type": "List", "max_length": 3}},
         "must have at most 3 elements"),
        ({"type": "too_short", "msg": "x", "ctx": {"field_type": "Dictionary", "min_length": 1}},
         "must have at least 1 member"),
        ({"type": "string_too_long", "msg": "x", "ctx": {"max_length": 9}}, "must have at most 9 characters"),
        ({"type": "less_than", "msg": "Input should be less than 5"}, "must be less than 5"),
        ({"type": "value_error", "msg": "Value error, give steps"}, "give steps"),
    ],
)  # fmt: skip
def test_each_kind_of_mistake_has_a_sentence(mistake, sentence):
    assert said(mistake) == sentence


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/v1/sessions?page_size=x", "must be an integer"),
        ("/v1/sessions?page_size=0", "must be greater than or equal to 1"),
        ("/v1/sessions/abc", "must be the id of a session: ses_ and 26 characters"),
        ("/v1/uploads/upl_" + "A" * 26, "must be the id of an upload: upl_ and 26 characters"),
    ],
)
def test_parameters_are_told_in_the_same_words(client, path, sentence):
    assert problem(client.get(path), 422, "invalid-request")["errors"][0]["detail"] == sentence
