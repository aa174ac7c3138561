"""A setting that may have several forms gives one sentence for one mistake, and a misspelt name a suggestion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

import service.schemas
from service.problems import from_validation
from service.schemas.examples import REGRESSION_FEEDS, REGRESSION_ID, REGRESSION_PARAMETERS
from service.schemas.gradients import GradientsRequest
from service.schemas.programs import Strict
from service.schemas.sessions import CreateSession

GRADIENTS: dict[str, Any] = {"loss": "loss"}
SESSION: dict[str, Any] = {"program_id": REGRESSION_ID, "loss": "loss"}


def errors(model: type, document: Any) -> list[dict[str, Any]]:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(model).validate_python(document)
    found = from_validation(caught.value, document, model)
    return [each.as_document() for each in found.errors]


MISTAKES: list[tuple[type, dict[str, Any], str, str]] = [
    (GradientsRequest, {"return_gradients": "sum"}, "/return_gradients", "'none', 'norms' or 'all'"),
    (GradientsRequest, {"return_gradients": 5}, "/return_gradients", "'none', 'norms' or 'all', or an array"),
    (GradientsRequest, {"return_gradients": ["w", 1]}, "/return_gradients/1", "string"),
    (GradientsRequest, {"loop_memory": "stored"}, "/loop_memory", "'store'"),
    (GradientsRequest, {"loop_memory": 3}, "/loop_memory", "'store'"),
    (GradientsRequest, {"loop_memory": {"bytes": "1"}}, "/loop_memory/bytes", "integer"),
    (GradientsRequest, {"loop_memory": {"byte": 1}}, "/loop_memory/byte", "unknown member"),
    (GradientsRequest, {"checkpoints": ["h", ""]}, "/checkpoints/1", "at least 1"),
    (GradientsRequest, {"checkpoints": {"bytes": 0}}, "/checkpoints/bytes", "greater than"),
    (GradientsRequest, {"checkpoints": 1.5}, "/checkpoints", "array"),
    (GradientsRequest, {"fetch": "loss"}, "/fetch", "array"),
    (GradientsRequest, {"hooks": [{"match": {"role": "parameter"}, "do": "clip"}]}, "/hooks/0/do", "'clip_value'"),
    (CreateSession, {"optimizer": "sgd"}, "/optimizer", "an object"),
    (CreateSession, {"init": {"initializers": {"w": {"std": [1]}}}}, "/init/initializers/w/std", "number"),
    (CreateSession, {"loss_scale": -1}, "/loss_scale", "greater than 0"),
    (CreateSession, {"loss_scale": "dynamik"}, "/loss_scale", "'dynamic'"),
    (CreateSession, {"loss_scale": [1]}, "/loss_scale", "'dynamic'"),
    (CreateSession, {"loss_scale": {"growth": "2"}}, "/loss_scale/growth", "number"),
    (CreateSession, {"clip": {"by": "norms"}}, "/clip/by", "'global_norm'"),
]


@pytest.mark.parametrize(("model", "wrong", "pointer", "words"), MISTAKES, ids=lambda each: str(each)[:60])
def test_one_mistake_in_a_union_gives_one_sentence(model, wrong, pointer, words):
    base = GRADIENTS if model is GradientsRequest else SESSION
    found = [each for each in errors(model, base | wrong) if each["code"] != "missing"]

    assert [each["pointer"] for each in found] == [pointer], found
    assert words in found[0]["detail"]


class Cat(Strict):
    kind: Literal["cat"]
    lives: int


class Dog(Strict):
    kind: Literal["dog"]
    tricks: list[str]


class Home(Strict):
    pet: Cat | Dog | None = None
    pets: list[Cat | Dog] = []
    tagged: Annotated[Cat | Dog, Field(discriminator="kind")] | Literal["none"] | None = None
    nested: dict[str, int | list[str | int] | Cat] = {}


@pytest.mark.parametrize(
    ("wrong", "pointers"),
    [
        ({"pet": {"kind": "cat", "lives": "9"}}, ["/pet/lives"]),
        ({"pet": {"kind": "dog", "tricks": ["sit", 1]}}, ["/pet/tricks/1"]),
        ({"pet": {"kind": "dog", "trick": ["sit"]}}, ["/pet/trick", "/pet/tricks"]),
        ({"pet": 3}, ["/pet"]),
        ({"pets": [{"kind": "cat", "lives": 1}, {"kind": "cat"}]}, ["/pets/1/lives"]),
        ({"tagged": {"kind": "cow"}}, ["/tagged"]),
        ({"tagged": {"kind": "cat", "lives": 1.5}}, ["/tagged/lives"]),
        ({"tagged": "all"}, ["/tagged"]),
        ({"nested": {"a": "x", "b": [1, 2.5], "c": {"kind": "cat"}}}, ["/nested/a", "/nested/b/1", "/nested/c/lives"]),
    ],
)
def test_the_tag_or_the_type_of_a_value_chooses_the_branch(wrong, pointers):
    assert sorted(each["pointer"] for each in errors(Home, wrong)) == pointers


@pytest.mark.parametrize(
    ("model", "wrong", "pointer", "meant"),
    [
        (GradientsRequest, {"fetsh": []}, "/fetsh", "fetch"),
        (GradientsRequest, {"return_gradients": "norm"}, "/return_gradients", "norms"),
        (GradientsRequest, {"loop_memory": "recompte"}, "/loop_memory", "recompute"),
        (CreateSession, {"optimiser": {"type": "sgd"}}, "/optimiser", "optimizer"),
        (CreateSession, {"init": {"sed": 1}}, "/init/sed", "seed"),
        (CreateSession, {"loss_scale": {"grwth": 2.0}}, "/loss_scale/grwth", "growth"),
        (CreateSession, {"clip": {"by": "globalnorm"}}, "/clip/by", "global_norm"),
    ],
)
def test_a_misspelt_setting_gets_a_suggestion(model, wrong, pointer, meant):
    base = GRADIENTS if model is GradientsRequest else SESSION
    found = {each["pointer"]: each.get("suggestion") for each in errors(model, base | wrong)}

    assert (found[pointer] or "").startswith(f"did you mean {meant}")


@pytest.mark.parametrize("member", ["clip", "optimizer"])
def test_a_value_in_place_of_an_object_gets_the_example_of_its_field(member):
    (error,) = errors(CreateSession, SESSION | {member: "adam"})

    assert (error["pointer"], error["detail"]) == (f"/{member}", "must be an object")
    example = json.loads(error["suggestion"].removeprefix("for example "))
    CreateSession.model_validate(SESSION | {member: example})


@pytest.mark.parametrize(
    ("path", "wrong", "pointer", "meant"),
    [
        ("/v1/sessions", {"optimizer": {"type": "adma"}}, "/optimizer/type", "adam"),
        (
            "/v1/sessions",
            {"optimizer": {"type": "adam", "lerning_rate": 1}},
            "/optimizer/lerning_rate",
            "learning_rate",
        ),
        ("/v1/sessions", {"loss": "los"}, None, "loss"),
        ("/v1/gradients", {"loss": "los"}, None, "loss"),
        ("/v1/gradients", {"fetch": ["predction"]}, None, "prediction"),
        ("/v1/gradients", {"parameter_list": ["w", "bb"]}, None, "b"),
    ],
)
def test_a_misspelt_name_in_a_setting_gets_a_suggestion(client, path, wrong, pointer, meant):
    body = SESSION | ({"feeds": REGRESSION_FEEDS, "parameters": REGRESSION_PARAMETERS} if "grad" in path else {})
    answer = client.post(path, json=body | wrong)
    (error,) = answer.json()["errors"]

    assert answer.status_code == 422
    assert pointer in (None, error["pointer"])
    assert f"did you mean {meant}" in error["suggestion"]


def test_the_search_of_the_catalogue_finds_the_names_of_other_libraries(client):
    for name, op in (("BatchNorm2d", "batch_norm"), ("clamp", "clip"), ("upsample", "interpolate"), ("fftn", "rfft")):
        found = [each["type"] for each in client.get("/v1/ops", params={"search": name}).json()["ops"]]
        assert op in found, (name, found)
        lost = client.get(f"/v1/ops/{name}")
        assert lost.status_code == 404
        assert op in lost.json()["errors"][0]["suggestion"]


def test_a_value_under_a_name_of_the_client_gets_the_example_of_another_name():
    (error,) = errors(CreateSession, SESSION | {"init": {"initializers": {"w": "zeros"}}})

    assert (error["pointer"], error["detail"]) == ("/init/initializers/w", "must be an object")
    example = json.loads(error["suggestion"].removeprefix("for example "))
    CreateSession.model_validate(SESSION | {"init": {"initializers": {"w": example}}})


def import_modules(package: ModuleType) -> Iterator[ModuleType]:
    for each in iter_modules(package.__path__):
        yield import_module(f"{package.__name__}.{each.name}")


MODELS = sorted(
    {
        model
        for module in import_modules(service.schemas)
        for model in vars(module).values()
        if isinstance(model, type) and issubclass(model, Strict) and 0 < len(model.model_fields) <= 16
    },
    key=lambda model: model.__name__,
)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_member_that_resembles_none_gets_the_list_of_the_members(model: type[Strict]):
    found = {each["pointer"]: each for each in errors(model, {"Qqqqqq": 1})}

    assert found["/Qqqqqq"]["detail"] == "unknown member"
    listed = found["/Qqqqqq"]["suggestion"].removeprefix("the members are ").split(", ")
    assert listed == list(model.model_fields)


def test_a_value_in_place_of_an_object_without_an_example_gets_its_members(client):
    answer = client.post("/v1/jobs", json={"dataset_id": "dst_" + "a" * 26, "validation": 0.2})

    (error,) = [each for each in answer.json()["errors"] if each["pointer"] == "/validation"]
    assert (error["detail"], error["suggestion"]) == (
        "must be an object",
        "the members are fraction, dataset_id, every",
    )


def test_a_member_that_belongs_one_level_deeper_leads_there():
    (error,) = errors(CreateSession, SESSION | {"seed": 1})

    assert (error["pointer"], error["suggestion"]) == ("/seed", "did you mean /init/seed?")
