"""Analysis and gradient checks over HTTP."""

from __future__ import annotations

import pytest

from service.schemas.examples import REGRESSION_FEEDS, REGRESSION_ID, WHILE_ID
from tests.core.passes.loops import tanh_loop
from tests.core.wire.constructs import custom
from tests.programs import Sketch


def registered(client, s: Sketch) -> str:
    answer = client.post("/v1/programs", json={"program": s.document})
    assert answer.status_code in (200, 201), answer.text
    return f"/v1/programs/{answer.json()['id']}"


def test_an_analysis_reports_cost_memory_and_residuals(client):
    at = registered(client, tanh_loop(5, 1000))
    answer = client.get(f"{at}/analysis", params={"loss": "loss", "trips": 400})

    assert answer.status_code == 200, answer.text
    report = answer.json()
    by_policy = report["memory"]["by_loop_memory"]
    assert by_policy["binomial"] < by_policy["sqrt"] < by_policy["recompute"] < by_policy["store"]
    assert report["memory"]["peak"] == by_policy["store"]
    assert any(each["each_trip"] for each in report["kept"])
    assert report["missing"] == {}
    assert report["machine_code"]["ops"]["interpreted"] == 0
    (region,) = report["machine_code"]["regions"]
    assert region["arena_bytes"] > 0
    assert region["record_bytes"] >= 400 * 1000 * 8
    assert report["machine_code"]["peak_bytes"] > region["arena_bytes"] + region["record_bytes"]


def test_an_analysis_lists_open_sizes_and_accepts_values_for_them(client):
    at = f"/v1/programs/{REGRESSION_ID}/analysis"
    open_sizes = client.get(at, params={"loss": "loss"}).json()
    bound = client.get(at, params={"loss": "loss", "shape": ["x:3,2", "y:3,1"]}).json()

    assert open_sizes["open_sizes"] == ["x", "y"]
    assert bound["open_sizes"] == []
    assert bound["flops"]["total"] > open_sizes["flops"]["total"]


@pytest.mark.parametrize(
    "wrong", [{"shape": "x"}, {"shape": "x:a"}, {"shape": "unknown:3"}, {"loss": "unknown"}, {"trips": -1}]
)
def test_invalid_queries_of_an_analysis_are_refused(client, wrong):
    answer = client.get(f"/v1/programs/{REGRESSION_ID}/analysis", params={"loss": "loss"} | wrong)

    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


def test_91_a_check_finds_a_wrong_custom_gradient(client):
    for slope, passed in ((2.0, True), (-1.0, False)):
        answer = client.post(f"{registered(client, custom(slope))}/check", json={"loss": "loss"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["passed"] is passed
        assert answer.json()["parameters"]["w"]["checked"] == 2


def test_a_check_accepts_values_and_refuses_invalid_ones(client):
    at = f"/v1/programs/{REGRESSION_ID}/check"
    good = client.post(at, json={"loss": "loss", "feeds": REGRESSION_FEEDS})
    assert good.json()["passed"] is True
    assert set(good.json()["parameters"]) == {"w", "b"}

    for wrong in ({"loss": "loss"}, {"loss": "unknown", "feeds": REGRESSION_FEEDS}, {"samples": 0}, {"loss": 1}):
        answer = client.post(at, json=wrong)
        assert answer.status_code == 422, answer.text
    assert client.post(f"/v1/programs/{WHILE_ID}/check", json={}).status_code == 200
