"""Every error of a request has a place: a pointer into the body, or a parameter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.schemas.examples import REGRESSION, REGRESSION_FEEDS, REGRESSION_ID, REGRESSION_PARAMETERS

GRADIENTS: dict[str, Any] = {
    "program": REGRESSION,
    "loss": "loss",
    "feeds": REGRESSION_FEEDS,
    "parameters": REGRESSION_PARAMETERS,
}
SESSION: dict[str, Any] = {"program_id": REGRESSION_ID, "loss": "loss", "optimizer": {"type": "sgd"}}


def leads_somewhere(pointer: str, body: Any) -> bool:
    at = body
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(at, list) and part.isdigit() and int(part) < len(at):
            at = at[int(part)]
        elif isinstance(at, dict) and part in at:
            at = at[part]
        else:
            return False
    return True


@pytest.mark.parametrize(
    ("path", "wrong", "pointer"),
    [
        ("/v1/gradients", {"return_gradients": "sum"}, "/return_gradients"),
        ("/v1/gradients", {"return_gradients": ["w", 1]}, "/return_gradients/1"),
        ("/v1/gradients", {"return_gradients": {"list[constrained-str]": 1}}, "/return_gradients"),
        ("/v1/gradients", {"loop_memory": {"bytes": 0}}, "/loop_memory/bytes"),
        ("/v1/gradients", {"checkpoints": ["h", ""]}, "/checkpoints/1"),
        ("/v1/gradients", {"feeds": {"a/b~c": 1}}, "/feeds/a~1b~0c"),
        ("/v1/sessions", {"loss_scale": -1}, "/loss_scale"),
        ("/v1/sessions", {"loss_scale": {"growth": "2"}}, "/loss_scale/growth"),
        ("/v1/sessions", {"init": {"seed": -1}}, "/init/seed"),
    ],
)
def test_an_error_points_to_the_invalid_value(client, path, wrong, pointer):
    body = (GRADIENTS if path == "/v1/gradients" else SESSION) | wrong
    answer = client.post(path, json=body)
    problem = answer.json()
    pointers = [error["pointer"] for error in problem["errors"] if error["code"] != "feed-missing"]

    assert answer.status_code == 422
    assert pointer in pointers
    assert all(leads_somewhere(each, body) for each in pointers), pointers
    first = problem["errors"][0]
    assert problem["detail"] == f"{first['pointer']}: {first['detail']}" or len(problem["errors"]) > 1


@pytest.mark.parametrize(
    ("path", "body", "pointers"),
    [
        ("/v1/gradients", {}, {"/program"}),
        ("/v1/gradients", {"program": REGRESSION, "program_id": REGRESSION_ID}, {"/program"}),
        ("/v1/sessions", {}, {"/program", "/loss"}),
        ("/v1/sessions", {"program": REGRESSION, "program_id": REGRESSION_ID}, {"/program", "/loss"}),
        (
            "/v1/sessions",
            {"extra": "ignore", "optimizer_state": True},
            {"/program", "/loss", "/extra", "/optimizer_state"},
        ),
        ("/v1/sessions", {"clip": {"by": "value", "max": 1.0}, "clip_norm": 1.0}, {"/program", "/loss", "/clip_norm"}),
        ("/v1/sessions", {"program_id": 1, "targets": 1}, {"/program_id", "/targets"}),
        ("/v1/sessions", SESSION | {"optimizer": {}}, {"/optimizer/type"}),
        ("/v1/gradients", {"program_id": REGRESSION_ID, "feeds": REGRESSION_FEEDS}, {"/loss"}),
        ("/v1/gradients", GRADIENTS | {"inputs": ["x"]}, {"/inputs"}),
        (
            "/v1/gradients",
            GRADIENTS | {"loss": None, "targets": ["loss"], "parameter_list": ["w"]},
            {"/parameter_list"},
        ),
        ("/v1/datasets", {}, {"/upload"}),
        ("/v1/jobs", {}, {"/program", "/loss", "/dataset_id"}),
        ("/v1/jobs", {"targets": ["y"]}, {"/program", "/targets", "/loss", "/dataset_id"}),
        (
            "/v1/jobs",
            {"program_id": "a", "session_id": "b", "loss": "c", "steps": 1, "epochs": 1},
            {"/program_id", "/loss", "/dataset_id", "/steps"},
        ),
    ],
)
def test_all_missing_and_contradictory_members_are_named_at_once(client, path, body, pointers):
    answer = client.post(path, json=body)

    assert answer.status_code == 422
    assert {error["pointer"] for error in answer.json()["errors"]} == pointers


@pytest.mark.parametrize(
    ("route", "query", "parameter"),
    [
        ("backward", "loss=", "query: loss"),
        ("backward", "loss=loss&parameter_list=w&parameter_list=", "query: parameter_list/1"),
        ("backward", f"loss=loss&no_grad_set={'x' * 300}", "query: no_grad_set/0"),
        ("backward", "loss=loss&checkpoints=", "query: checkpoints/0"),
        ("backward", "loss=loss&targets=loss", "query: loss"),
        ("backward", "loss=loss&inputs=x", "query: inputs"),
        ("backward", "loss=loss&checkpoint_bytes=0", "query: checkpoint_bytes"),
        ("analysis", "loss=", "query: loss"),
        ("analysis", "loss=loss&checkpoints=", "query: checkpoints/0"),
        ("graph", "loss=", "query: loss"),
    ],
)
def test_a_wrong_query_parameter_is_named_as_a_parameter(client, route, query, parameter):
    answer = client.get(f"/v1/programs/{REGRESSION_ID}/{route}?{query}")

    assert answer.status_code == 422
    assert [(each["pointer"], each.get("parameter")) for each in answer.json()["errors"]] == [("", parameter)]


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("/v1/sessions/zz", None, "path: session_id: must be the id of a session: ses_ and 26 characters"),
        ("/v1/tapes/zz", None, "path: tape_id: must be the id of a tape: tap_ and 26 characters"),
        ("/v1/keys/zz", None, "path: key_id: must be the id of a key: key_ and 26 characters"),
        ("/v1/jobs?page_token=zz", None, "query: page_token: must be the `next_page_token` of a page of this list"),
        ("/v1/keys?page_token=zz", None, "query: page_token: must be the id of a key: key_ and 26 characters"),
        ("/v1/sessions", SESSION | {"zz": 1}, "/zz: unknown member"),
        (
            "/v1/sessions",
            SESSION | {"lease_s": 0, "zz": 1},
            "2 values do not match the schema: /lease_s: must be greater than 0 (and 1 more)",
        ),
        ("/v1/sessions", SESSION | {"lease_s": 1e7}, "lease_s exceeds the maximum of 7776000 s"),
        ("/v1/usage?from=2026-11-28&to=2026-11-01", None, "from is after to"),
        ("/v1/usage?from=2020-11-28&to=2026-11-01", None, "the first day must be at most 366 days before the last"),
    ],
)
def test_the_detail_names_the_first_mistake(client, path, body, detail):
    answer = client.get(path) if body is None else client.post(path, json=body)

    assert answer.status_code == 422
    assert answer.json()["detail"] == detail


def test_a_size_beyond_64_bits_is_called_too_large(client):
    huge = 99999999999999999999
    variables = [{"name": "w", "dtype": "float32", "shape": [huge], "role": "parameter"}]
    program = {"blocks": [{"idx": 0, "parent_idx": -1, "vars": variables, "ops": []}]}
    tensor = {"dtype": "float32", "shape": [huge], "data": [1.0]}
    answers = [
        client.post("/v1/programs", json={"program": program}),
        client.post("/v1/gradients", json=GRADIENTS | {"feeds": {**REGRESSION_FEEDS, "x": tensor}}),
        client.get(f"/v1/programs/{REGRESSION_ID}/analysis?loss=loss&shape=x:{huge}"),
    ]

    for answer in answers:
        assert answer.status_code == 422
        assert "a size is too large" in answer.json()["errors"][0]["detail"], answer.text


def test_the_refusal_of_a_media_type_lists_the_accepted_ones(client):
    answer = client.post("/v1/gradients", content=b"x", headers={"content-type": "text/plain"})

    accepted = "the Content-Type must be application/json or application/x-safetensors"
    assert answer.json()["detail"] == f"{accepted}, not text/plain"
    assert client.post("/v1/gradients", content=b"x").json()["detail"] == f"{accepted}; the request has none"
    strange = client.post("/v1/gradients", content=b"x", headers={"content-type": "<b>"})
    assert strange.json()["detail"] == accepted
    assert answer.headers["accept"] == "application/json, application/x-safetensors"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([[1, 2]], 'such as {"dtype": "float32", "shape": [2], "data": [1.5, 2.5]}'),
        (
            {"dtype": "float32", "shape": [2, 2], "data": [[1, 2], [3, 4]]},
            "data has 2; data is one flat list, row after",
        ),
        ({"dtype": "float32", "shape": [3], "data": [1, 2]}, "the shape has 3 elements, but data has 2"),
    ],
)
def test_a_tensor_as_nested_lists_leads_to_the_form_of_tensors(client, value, text):
    answer = client.post("/v1/gradients", json=GRADIENTS | {"feeds": {**REGRESSION_FEEDS, "x": value}})

    detail = answer.json()["errors"][0]["detail"]
    assert answer.status_code == 422 and text in detail
    assert ("flat" in detail) == ("flat" in text)


def test_a_document_in_place_of_the_request_leads_to_the_member(client):
    answer = client.post("/v1/programs", json={"blocks": []})

    error = answer.json()["errors"][0]
    assert (error["pointer"], error["detail"]) == ("/program", "program must be an object")
    assert error["suggestion"] == 'send the document as a member: {"program": {"blocks": [...]}}'
    assert "suggestion" not in client.post("/v1/programs", json={"program": 1}).json()["errors"][0]


def test_a_preflight_request_of_another_origin_names_the_setting(client):
    headers = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}

    assert "BACKPASS_CORS_ORIGINS" in client.options("/v1/gradients", headers=headers).json()["detail"]
    assert client.options("/v1/gradients").json()["detail"] == "this path has no OPTIONS; it has POST"


@pytest.mark.parametrize("wrong", [{"targets": ["loss"]}, {"program": {"blocks": []}}])
def test_an_error_says_only_what_a_validator_says(client, wrong):
    details = [error["detail"] for error in client.post("/v1/sessions", json=SESSION | wrong).json()["errors"]]

    assert any(detail.startswith("give ") for detail in details), details


ASKS: dict[str, Any] = {
    "/loss": {"loss": "zz"},
    "/fetch/1": {"fetch": ["loss", "zz"]},
    "/parameter_list/1": {"parameter_list": ["w", "zz"]},
    "/no_grad_set/1": {"no_grad_set": ["prediction", "zz"]},
    "/no_grad_set/0": {"no_grad_set": ["3:zz"]},
    "/checkpoints/1": {"checkpoints": ["prediction", "zz"]},
    "/checkpoints/0": {"checkpoints": ["3:zz"]},
    "/hooks/0/match/variable": {"hooks": [{"match": {"variable": "zz"}, "do": "scale", "factor": 2.0}]},
    "/targets/1": {"targets": ["loss", "zz"], "inputs": ["w"]},
    "/inputs/1": {"targets": ["loss"], "inputs": ["w", "zz"]},
    "/return_gradients/1": {"return_gradients": ["w", "zz"]},
}
"""Pointer -> members of a request, one of which names no variable of a valid program."""

OPTIONS: dict[str, Any] = {
    "/hooks/0/max": {"hooks": [{"match": {"variable": "w"}, "do": "record", "max": 3}]},
    "/hooks/1/match": {"hooks": [{"match": {"variable": "w"}, "do": "record"}, {"match": {}, "do": "record"}]},
    "/hooks/0/match/op": {"hooks": [{"match": {"op": "zz"}, "do": "record"}]},
    "/checkpoints/bytes": {"checkpoints": {"bytes": 1}},
    "/loop_memory/bytes": {"loop_memory": {"bytes": 1}},
}
"""Pointer -> members of a request, one of which is wrong though every name in it exists."""

SETTINGS: dict[str, Any] = {
    "/init/initializers/w/type": {"init": {"initializers": {"w": {"type": "zz"}}}},
    "/init/initializers/w/std": {"init": {"initializers": {"w": {"type": "zeros", "std": 1}}}},
    "/init/initializers/b~1*": {"init": {"initializers": {"b/*": {"type": "zeros"}}}},
    "/optimizer/type": {"optimizer": {"type": "zz"}},
    "/optimizer/rate": {"optimizer": {"type": "sgd", "rate": 1}},
    "/optimizer/learning_rate": {"optimizer": {"type": "sgd", "learning_rate": "fast"}},
    "/optimizer/learning_rate/schedule": {"optimizer": {"type": "sgd", "learning_rate": {"schedule": "zz"}}},
    "/optimizer/learning_rate/rate": {
        "optimizer": {"type": "sgd", "learning_rate": {"schedule": "cosine_decay", "rate": 1}}
    },
    "/optimizer/groups/1/match": {"optimizer": {"type": "sgd", "groups": [{"match": "w"}, {"match": "zz*"}]}},
    "/optimizer/groups/0/match": {"optimizer": {"type": "sgd", "groups": [{"match": 1}]}},
    "/optimizer/groups/0/momentum": {"optimizer": {"type": "sgd", "groups": [{"match": "w", "momentum": 1}]}},
    "/clip/max_norm": {"clip": {"by": "norm"}},
}
"""Pointer -> settings of a session, one of which is wrong."""


@pytest.mark.parametrize("pointer", ASKS)
def test_an_unknown_name_has_its_place_in_the_request(client, pointer):
    body = {**GRADIENTS, **ASKS[pointer]}
    if "targets" in body:
        del body["loss"]
    answer = client.post("/v1/gradients", json=body)

    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize("pointer", OPTIONS)
def test_a_wrong_option_has_its_place_in_the_request(client, pointer):
    answer = client.post("/v1/gradients", json={**GRADIENTS, **OPTIONS[pointer]})

    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize("pointer", SETTINGS)
def test_a_wrong_setting_of_a_session_has_its_place_in_the_request(client, pointer):
    answer = client.post("/v1/sessions", json={**SESSION, **SETTINGS[pointer]})

    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert answer.json()["title"] != "Program is not valid"


@pytest.mark.parametrize(
    ("ask", "pointer"),
    [
        ({"target": "zz"}, "/target"),
        ({"target": "w"}, "/target"),
        ({"target": "y", "wrt": ["w", "zz"]}, "/wrt/1"),
    ],
)
def test_an_unknown_name_has_its_place_in_a_request_about_a_tape(client, ask, pointer):
    tape = client.post("/v1/tapes", json={}).json()["id"]
    square = {"type": "mul", "inputs": {"x": ["w"], "y": ["w"]}, "outputs": {"out": ["s"]}}
    total = {"type": "reduce_sum", "inputs": {"x": ["s"]}, "outputs": {"out": ["y"]}}
    ops = client.post(
        f"/v1/tapes/{tape}/ops",
        json={"parameters": {"w": {"dtype": "float32", "shape": [2], "data": [1.0, 2.0]}}, "ops": [square, total]},
    )
    answer = client.post(f"/v1/tapes/{tape}/backward", json=ask)

    assert ops.status_code == 200, ops.text
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    client.delete(f"/v1/tapes/{tape}")


def test_an_unknown_limit_of_a_tenant_has_its_place_in_the_request(client):
    answer = client.put("/v1/tenants/acme", json={"limits": {"job": 4}})

    assert [error["pointer"] for error in answer.json()["errors"]] == ["/limits/job"]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"inputs": {"x": ["w"], "y": ["w"], "zz": ["w"]}}, "inputs/zz"),
        ({"outputs": {"out": ["y"], "zz": ["z"]}}, "outputs/zz"),
        ({"attrs": {"zz": 1}}, "attrs/zz"),
        ({"attrs": {"axis": "first"}, "type": "softmax", "inputs": {"x": ["w"]}}, "attrs/axis"),
    ],
)
def test_an_unknown_slot_or_attribute_has_its_place_in_the_op(client, change, place):
    op = {"type": "add", "inputs": {"x": ["w"], "y": ["w"]}, "outputs": {"out": ["y"]}, **change}
    variables = [{"name": "w", "dtype": "float32", "shape": [2], "role": "parameter"}]
    program = {"blocks": [{"idx": 0, "parent_idx": -1, "vars": variables, "ops": [op]}]}
    answer = client.post("/v1/programs", json={"program": program})

    assert [error["pointer"] for error in answer.json()["errors"]] == [f"/program/blocks/0/ops/0/{place}"]


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"learning_rate": {"z/z": 1}}, "/learning_rate/z~1z"),
        ({"return_gradients": ["w", "zz"]}, "/return_gradients/1"),
        ({"fetch": ["zz"]}, "/fetch/0"),
    ],
)
def test_an_unknown_name_has_its_place_in_a_step(client, more, pointer):
    session = client.post("/v1/sessions", json=SESSION).json()["id"]
    answer = client.post(f"/v1/sessions/{session}/steps", json={"feeds": REGRESSION_FEEDS, **more})

    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    client.delete(f"/v1/sessions/{session}")


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("analysis?loss=zz", "query: loss"),
        ("backward?loss=loss&no_grad_set=prediction&no_grad_set=zz", "query: no_grad_set/1"),
        ("graph?loss=zz", "query: loss"),
    ],
)
def test_an_unknown_name_has_its_place_in_the_query(client, query, parameter):
    answer = client.get(f"/v1/programs/{REGRESSION_ID}/{query}")

    assert [(error["pointer"], error["parameter"]) for error in answer.json()["errors"]] == [("", parameter)]


@pytest.mark.parametrize("path", [f"programs/{REGRESSION_ID}", "sessions/{}/model"])
def test_an_unknown_output_of_a_model_has_its_place_in_the_query(client, path):
    session = client.post("/v1/sessions", json=SESSION).json()["id"]
    url = f"/v1/{path.format(session)}?outputs=loss&outputs=zz"
    answer = client.get(url, headers={"accept": "application/x-onnx"})

    assert [(each["pointer"], each["parameter"]) for each in answer.json()["errors"]] == [("", "query: outputs/1")]
    client.delete(f"/v1/sessions/{session}")


def test_an_error_points_to_the_place_of_a_missing_member(client):
    answer = client.post("/v1/sessions", json={"program_id": REGRESSION_ID, "optimizer": {"type": "sgd"}})

    assert [error["pointer"] for error in answer.json()["errors"]] == ["/loss"]


@pytest.mark.parametrize(
    "path",
    [
        f"/v1/programs/{REGRESSION_ID}/analysis?loss=loss&shpe=x:3,2",
        f"/v1/programs/{REGRESSION_ID}/backward?los=loss",
        "/v1/ops?shpe=1",
        "/v1/sessions?shpe=",
        "/problems?shpe=1",
    ],
)
def test_an_unknown_query_parameter_is_refused(client, path):
    answer = client.get(path)
    (error, *_) = [each for each in answer.json()["errors"] if each["code"] == "extra-forbidden"]

    assert answer.status_code == 422
    assert error["parameter"] == ("query: los" if "los=" in path and "shpe" not in path else "query: shpe")


def test_a_step_with_a_misspelt_query_parameter_changes_nothing(client):
    session = client.post("/v1/sessions", json=SESSION).json()["id"]
    step = json.dumps({"feeds": REGRESSION_FEEDS})
    headers = {"content-type": "application/json"}
    answer = client.post(f"/v1/sessions/{session}/steps?profil=true", content=step, headers=headers)

    assert answer.status_code == 422
    assert client.get(f"/v1/sessions/{session}").json()["step"] == 0
    client.delete(f"/v1/sessions/{session}")


def test_an_error_names_the_parameter_with_an_invalid_shape(client):
    answer = client.get(f"/v1/programs/{REGRESSION_ID}/analysis?loss=loss&shape=x:3,2&shape=y")

    (error,) = answer.json()["errors"]
    assert (error["parameter"], error["pointer"]) == ("query: shape/1", "")
