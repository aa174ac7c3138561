"""Every mistake in the values of a request has a pointer to the value, and all of them are reported at once.

The laws send each kind of mistake, alone and together with others, to every route that takes values.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.service.wire import FILE

VARIABLES = {
    "x": ("feed", "float32", [-1, 2], [3, 2]),
    "y": ("feed", "float32", [-1, 1], [3, 1]),
    "u": ("feed", "float32", [2], [2]),
    "n": ("feed", "int64", [2], [2]),
    "v/1": ("feed", "float32", [1], [1]),
    "w": ("parameter", "float32", [2, 1], [2, 1]),
    "b": ("parameter", "float32", [1], [1]),
    "c": ("parameter", "float32", [2], [2]),
    "e": ("parameter", "float32", [3], [3]),
    "s": ("state", "float32", [2], [2]),
    "t": ("state", "float32", [1], [1]),
}


def op(type: str, out: str, attrs: dict[str, Any] | None = None, **inputs: str) -> dict[str, Any]:
    slots = {slot: [name] for slot, name in inputs.items()}
    return {"type": type, "inputs": slots, "outputs": {"out": [out]}, "attrs": attrs or {}}


def program() -> dict[str, Any]:
    """A regression on a batch of any size; its loss reads every variable."""
    ops = [
        op("matmul", "xw", x="x", y="w"),
        op("add", "prediction", x="xw", y="b"),
        op("mse_loss", "error", x="prediction", y="y"),
        op("cast", "m", {"dtype": "float32"}, x="n"),
    ]
    total = "error"
    for name in ("u", "m", "v/1", "c", "e", "s", "t"):
        ops.append(op("reduce_sum", f"sum_{name}", x=name))
        ops.append(op("add", f"total_{name}", x=total, y=f"sum_{name}"))
        total = f"total_{name}"
    ops.append(op("assign", "loss", x=total))
    variables = [
        {"name": name, "role": role, "dtype": dtype, "shape": shape}
        for name, (role, dtype, shape, _) in VARIABLES.items()
    ]
    return {"blocks": [{"idx": 0, "parent_idx": -1, "vars": variables, "ops": ops}]}


def right(name: str, shape: list[int] | None = None) -> dict[str, Any]:
    _, dtype, _, sizes = VARIABLES[name]
    sizes = sizes if shape is None else shape
    count = 1
    for size in sizes:
        count *= size
    return {"dtype": dtype, "shape": sizes, "data": [1] * count}


# --- the routes --------------------------------------------------------------------------------------------------


@dataclass
class Opened:
    client: httpx.Client
    program_id: str
    session: str
    tape: str


@dataclass(frozen=True)
class Route:
    """A route that takes values. members: member of the body -> roles of the variables in it; typed: whether the
    service knows the types of the values; needs: whether values may be missing."""

    name: str
    path: Callable[[Opened], str]
    members: dict[str, tuple[str, ...]]
    rest: Callable[[Opened], dict[str, Any]] = lambda opened: {}
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    typed: bool = True
    needs: bool = True
    prefix: dict[str, str] = field(default_factory=dict)  # member -> prefix of its tensors in a file


LOSS = {"loss": "loss"}
FEEDS = {"feeds": ("feed",)}
ALL = {"feeds": ("feed",), "parameters": ("parameter",), "states": ("state",)}
ROUTES = [
    Route("inline", lambda o: "/v1/gradients", ALL, lambda o: {"program": program(), **LOSS}),
    Route("registered", lambda o: f"/v1/programs/{o.program_id}/gradients", ALL, lambda o: LOSS),
    Route("check", lambda o: f"/v1/programs/{o.program_id}/check", ALL, lambda o: LOSS, needs=False),
    Route(
        "session",
        lambda o: "/v1/sessions",
        {"init/parameters": ("parameter", "state")},
        lambda o: {"program_id": o.program_id, **LOSS},
        needs=False,
    ),
    Route("step", lambda o: f"/v1/sessions/{o.session}/steps", FEEDS),
    Route("session gradients", lambda o: f"/v1/sessions/{o.session}/gradients", FEEDS),
    Route("evaluation", lambda o: f"/v1/sessions/{o.session}/evaluations", FEEDS),
    Route(
        "update",
        lambda o: f"/v1/sessions/{o.session}/updates",
        {"gradients": ("parameter",)},
        needs=False,
        prefix={"gradients": "grad/"},
    ),
    Route(
        "put",
        lambda o: f"/v1/sessions/{o.session}/parameters",
        {"parameters": ("parameter",), "states": ("state",)},
        method="PUT",
        headers={"if-match": "*"},
        needs=False,
    ),
    Route(
        "tape",
        lambda o: f"/v1/tapes/{o.tape}/ops",
        {"parameters": ("parameter",), "constants": ("feed",)},
        typed=False,
        needs=False,
        prefix={"parameters": "parameter/", "constants": "constant/"},
    ),
    Route(
        "evaluation of a program",
        lambda o: f"/v1/programs/{o.program_id}/evaluations",
        ALL,
        lambda o: {"fetch": ["loss"]},
    ),
]


@pytest.fixture(scope="module")
def opened(service: Any) -> Iterator[Opened]:
    client = service.client
    id = client.post("/v1/programs", json={"program": program()}).json()["id"]
    session = client.post("/v1/sessions", json={"program_id": id, "loss": "loss"}).json()["id"]
    tape = client.post("/v1/tapes", json={}).json()["id"]
    yield Opened(client, id, session, tape)
    client.delete(f"/v1/sessions/{session}")
    client.delete(f"/v1/tapes/{tape}")


Values = dict[str, dict[str, Any]]  # member -> name -> tensor


def values(route: Route) -> Values:
    return {
        member: {name: right(name) for name, (role, *_) in VARIABLES.items() if role in roles}
        for member, roles in route.members.items()
    }


def escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def sent_as_json(opened: Opened, route: Route, given: Values) -> httpx.Response:
    body = dict(route.rest(opened))
    for member, tensors in given.items():
        at, *steps = body, *member.split("/")
        for step in steps[:-1]:
            at = at.setdefault(step, {})
        at[steps[-1]] = tensors
    return opened.client.request(route.method, route.path(opened), json=body, headers=route.headers)


SIZES = {"float32": 4, "int64": 8, "int32": 4}
CODES = {"float32": "F32", "int64": "I64", "int32": "I32"}


def sent_as_file(opened: Opened, route: Route, given: Values) -> httpx.Response:
    header: dict[str, Any] = {"__metadata__": {"request": json.dumps(route.rest(opened))}}
    end, parts = 0, []
    for member, tensors in given.items():
        for name, each in tensors.items():
            raw = bytes(SIZES.get(each["dtype"], 4) * len(each["data"]))
            span = [end, end + len(raw)]
            code = CODES.get(each["dtype"], each["dtype"])
            full = route.prefix.get(member, "") + name
            header[full] = {"dtype": code, "shape": each["shape"], "data_offsets": span}
            end += len(raw)
            parts.append(raw)
    text = json.dumps(header).encode()
    content = b"".join([len(text).to_bytes(8, "little"), text, *parts])
    headers = {**route.headers, "content-type": FILE}
    return opened.client.request(route.method, route.path(opened), content=content, headers=headers)


FORMS = {"json": sent_as_json, "file": sent_as_file}


# --- the mistakes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """apply: changes the values of a member, given the name of a variable; returns the end of the pointer."""

    name: str
    apply: Callable[[dict[str, Any], str], str]
    typed: bool = False  # needs a declared type
    needed: bool = False  # needs a route on which values may be missing
    only: str = ""  # the form of the body
    says: str = ""


def wrong_dtype(at: dict[str, Any], name: str) -> str:
    at[name] = {**at[name], "dtype": "int32"}
    return f"{escaped(name)}/dtype"


def wrong_shape(at: dict[str, Any], name: str) -> str:
    at[name] = right(name, [5, 1, 1])
    return f"{escaped(name)}/shape"


def missing(at: dict[str, Any], name: str) -> str:
    del at[name]
    return escaped(name)


def unknown(at: dict[str, Any], name: str) -> str:
    at[f"{name}_2"] = right(name)
    return escaped(f"{name}_2")


def short(at: dict[str, Any], name: str) -> str:
    at[name] = {**at[name], "data": at[name]["data"][1:]}
    return f"{escaped(name)}/data"


def no_number(at: dict[str, Any], name: str) -> str:
    at[name] = {**at[name], "data": ["1", *at[name]["data"][1:]]}
    return f"{escaped(name)}/data/0"


def too_large(at: dict[str, Any], name: str) -> str:
    at[name] = {"dtype": "int64", "shape": [1], "data": [2**70]}
    return f"{escaped(name)}/data/0"


def no_tensor(at: dict[str, Any], name: str) -> str:
    at[name] = [1.0]
    return escaped(name)


def bad_base64(at: dict[str, Any], name: str) -> str:
    at[name] = {"dtype": "float32", "shape": [1], "b64": base64.b64encode(b"abc").decode()}
    return f"{escaped(name)}/b64"


def unknown_dtype(at: dict[str, Any], name: str) -> str:
    at[name] = {**at[name], "dtype": "complex64"}
    return f"{escaped(name)}/dtype"


def too_high_rank(at: dict[str, Any], name: str) -> str:
    at[name] = {**at[name], "shape": [1] * 9, "data": [1]}
    return f"{escaped(name)}/shape"


def short_span(at: dict[str, Any], name: str) -> str:
    at[name] = {**at[name], "data": at[name]["data"][1:]}
    return f"{escaped(name)}/data_offsets"


MISTAKES = [
    Mistake("dtype", wrong_dtype, typed=True, says="int32"),
    Mistake("shape", wrong_shape, typed=True, says="[5, 1, 1]"),
    Mistake("missing", missing, needed=True, says="no value"),
    Mistake("unknown", unknown, typed=True, says="has no"),
    Mistake("element count", short, only="json", says="elements"),
    Mistake("no number", no_number, only="json"),
    Mistake("number out of range", too_large, only="json"),
    Mistake("no tensor", no_tensor, only="json"),
    Mistake("base64", bad_base64, only="json"),
    Mistake("unknown dtype", unknown_dtype),
    Mistake("rank", too_high_rank, says="rank 9"),
    Mistake("bytes", short_span, only="file", says="bytes"),
]


def applies(route: Route, mistake: Mistake, form: str) -> bool:
    fits = (route.typed or not mistake.typed) and (route.needs or not mistake.needed)
    return fits and mistake.only in ("", form)


CASES = [(r, f, m) for r in ROUTES for f in FORMS for m in MISTAKES if applies(r, m, f)]


def pointer(route: Route, form: str, mistake: Mistake, member: str, place: str) -> str:
    """The pointer of a mistake. An unknown tensor of a file belongs to a member only if the body has one."""
    no_member = form == "file" and mistake.apply is unknown and len(route.members) > 1
    return f"/{place}" if no_member else f"/{member}/{place}"


def refused(answer: httpx.Response) -> list[dict[str, Any]]:
    problem = answer.json()
    assert answer.status_code == 422, answer.text
    assert problem["code"] in ("invalid-request", "shape-mismatch", "dtype-mismatch", "limit-exceeded"), problem
    assert not any(each["pointer"].startswith(("/program", "/blocks")) for each in problem["errors"]), problem
    return problem["errors"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_the_values_without_a_mistake_are_accepted(opened, route, form):
    """So that each refusal below has its mistake as its only cause."""
    given = values(route)
    if route.name == "tape":
        given = {member: {f"{name}_{form}": v for name, v in each.items()} for member, each in given.items()}
    answer = FORMS[form](opened, route, given)

    assert answer.status_code in (200, 201), answer.text
    if route.name == "session":
        opened.client.delete(f"/v1/sessions/{answer.json()['id']}")


@pytest.mark.parametrize(("route", "form", "mistake"), CASES, ids=lambda each: getattr(each, "name", each))
def test_a_mistake_in_a_value_has_one_error_with_its_pointer(opened, route, form, mistake):
    for member in route.members:
        given = values(route)
        name = next(iter(given[member]))
        place = mistake.apply(given[member], name)

        (error,) = refused(FORMS[form](opened, route, given))

        assert error["pointer"] == pointer(route, form, mistake, member, place)
        assert mistake.says in error["detail"]
        assert name in error["detail"] or "data" in place or form == "file" or not mistake.typed


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_all_mistakes_are_reported_at_once(opened, route, form):
    for shift in range(3):
        given, pointers = values(route), set()
        kinds = [m for m in MISTAKES if applies(route, m, form)]
        for member in route.members:
            for position, name in enumerate(list(given[member])):
                mistake = kinds[(position + shift) % len(kinds)]
                place = mistake.apply(given[member], name)
                pointers.add(pointer(route, form, mistake, member, place))

        errors = refused(FORMS[form](opened, route, given))

        assert {error["pointer"] for error in errors} == pointers


def test_a_wrong_dtype_and_a_wrong_shape_of_one_value_are_two_errors(opened):
    route = ROUTES[1]
    given = values(route)
    given["feeds"]["u"] = {"dtype": "int32", "shape": [1], "data": [1]}

    assert [each["pointer"] for each in refused(sent_as_json(opened, route, given))] == [
        "/feeds/u/dtype",
        "/feeds/u/shape",
    ]


# --- sizes that disagree -----------------------------------------------------------------------------------------

SIZED = [route for route in ROUTES if "feeds" in route.members]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", SIZED, ids=lambda route: route.name)
def test_open_sizes_that_disagree_name_the_feeds_and_their_sizes(opened, route, form):
    given = values(route)
    given["feeds"]["y"] = right("y", [4, 1])
    errors = refused(FORMS[form](opened, route, given))

    assert {error["pointer"] for error in errors} == {"/feeds/x/shape", "/feeds/y/shape"}
    for error in errors:
        assert "'x' [3, 2] and 'y' [4, 1]" in error["detail"]
        assert error["location"]["type"] == "mse_loss"


def test_a_size_that_the_program_fixes_names_the_one_feed(client):
    ops = [op("reshape", "r", {"shape": [2, 3]}, x="x"), op("mul", "h", x="r", y="w"), op("reduce_sum", "loss", x="h")]
    variables = [
        {"name": "x", "role": "feed", "dtype": "float32", "shape": [-1]},
        {"name": "z", "role": "feed", "dtype": "float32", "shape": [-1]},
        {"name": "w", "role": "parameter", "dtype": "float32", "shape": [2, 3]},
    ]
    body = {"program": {"blocks": [{"vars": variables, "ops": ops}]}, "loss": "loss", "parameters": {}}
    body["feeds"] = {name: {"dtype": "float32", "shape": [7], "data": [0] * 7} for name in ("x", "z")}
    body["parameters"] = {"w": {"dtype": "float32", "shape": [2, 3], "data": [0] * 6}}
    (error,) = refused(client.post("/v1/gradients", json=body))

    assert error["pointer"] == "/feeds/x/shape"
    assert "'x' [7] does not fit the program" in error["detail"]
    assert error["location"]["op"] == 0
    assert "op 0" not in error["detail"], "the location has the place"


def test_a_mistake_of_the_question_is_not_blamed_on_the_feeds(opened):
    route = ROUTES[0]
    body = {**route.rest(opened), **values(route), "loss": "nothing"}
    answer = opened.client.post("/v1/gradients", json=body)

    assert not any(each["pointer"].startswith("/feeds") for each in answer.json()["errors"])


def test_sizes_of_an_analysis_are_blamed_on_its_parameter(opened):
    path = f"/v1/programs/{opened.program_id}/analysis?loss=loss"
    for query, count in (("shape=q:1&shape=x:3", 2), ("shape=x:3,2&shape=y:4,1", 2)):
        errors = refused(opened.client.get(f"{path}&{query}"))
        assert [(error["pointer"], error["parameter"]) for error in errors] == [
            ("", f"query: shape/{i}") for i in range(count)
        ]


# --- values that one kind of route takes --------------------------------------------------------------------------


def test_a_parameter_among_the_feeds_of_a_step_is_explained(opened):
    given = values(ROUTES[4])
    given["feeds"]["w"] = right("w")
    (error,) = refused(sent_as_json(opened, ROUTES[4], given))

    assert error["pointer"] == "/feeds/w"
    assert "parameter" in error["detail"]


def test_a_misspelt_feed_gets_a_suggestion(opened):
    given = values(ROUTES[4])
    given["feeds"]["v/11"] = given["feeds"].pop("v/1")
    errors = {error["pointer"]: error for error in refused(sent_as_json(opened, ROUTES[4], given))}

    assert set(errors) == {"/feeds/v~11", "/feeds/v~111"}
    assert "v/1" in errors["/feeds/v~111"]["suggestion"]


def test_gradients_that_are_not_finite_are_all_named_where_they_are_forbidden(opened):
    given = values(ROUTES[7])
    infinite = base64.b64encode(bytes.fromhex("0000807f")).decode()
    given["gradients"]["b"] = {"dtype": "float32", "shape": [1], "b64": infinite}
    given["gradients"]["e"] = {"dtype": "float32", "shape": [3], "b64": base64.b64encode(b"\xff" * 12).decode()}
    path = ROUTES[7].path(opened)
    answer = opened.client.post(path, json={**given, "require_finite": True})

    assert (answer.status_code, answer.json()["code"]) == (422, "numeric-error")
    assert [each["pointer"] for each in answer.json()["errors"]] == ["/gradients/b", "/gradients/e"]


def test_all_mistakes_in_rows_of_a_table_are_reported(opened):
    rows = {"dtype": "int64", "shape": [2], "data": [0, 9]}
    few = {"dtype": "float32", "shape": [1, 1], "data": [1]}
    body = {"gradients": {"w": {"rows": rows, "values": few, "shape": [4, 1]}, "b": {"rows": few, "values": few}}}
    errors = refused(opened.client.post(ROUTES[7].path(opened), json=body))

    assert {each["pointer"] for each in errors} == {
        "/gradients/w/rows",
        "/gradients/w/values/shape",
        "/gradients/w/shape",
        "/gradients/b/rows/dtype",
        "/gradients/b/rows/shape",
        "/gradients/b/values/shape",
    }


def test_the_cotangent_of_a_target_has_a_pointer(opened):
    body = {**values(ROUTES[0]), "targets": ["prediction", "error"], "inputs": ["w"], "program": program()}
    for bad, place in (
        ({"dtype": "float32", "shape": [2, 2], "data": [0] * 4}, "/target_gradients/0/shape"),
        ({"dtype": "float64", "shape": [3, 1], "data": [0] * 3}, "/target_gradients/0/dtype"),
        ({"dtype": "float32", "shape": [2, 2], "data": [0] * 3}, "/target_gradients/0/data"),
    ):
        errors = refused(opened.client.post("/v1/gradients", json={**body, "target_gradients": [bad, None]}))
        assert [each["pointer"] for each in errors] == [place]


def test_the_cotangent_of_a_playback_has_a_pointer(opened):
    line = {"parameters": {"a": right("u")}, "ops": [op("tanh", "h", x="a")], "renew": True}
    assert opened.client.post(f"/v1/tapes/{opened.tape}/ops", json=line).status_code == 200
    body = {"target": "h", "target_gradient": {"dtype": "float32", "shape": [3], "data": [0] * 3}}
    (error,) = refused(opened.client.post(f"/v1/tapes/{opened.tape}/backward", json=body))

    assert error["pointer"] == "/target_gradient/shape"
