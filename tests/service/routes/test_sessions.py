"""Sessions over HTTP: training, sequence numbers, versions, invalid requests and failures."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from service.schemas.examples import REGRESSION, REGRESSION_FEEDS
from tests.service.conftest import serve
from tests.service.wire import FILE, array, endless, file_of, opened, problem, read_file, regression, tensor, tensors

SGD = {"type": "sgd", "learning_rate": 0.1}
SKETCH = regression()
FEEDS = {name: SKETCH.values[name] for name in "xy"}
BODY = {"feeds": tensors(FEEDS)}


def gradient(w: np.ndarray) -> np.ndarray:
    """The gradient of the regression's loss with respect to w."""
    return 2 * FEEDS["x"].T @ (FEEDS["x"] @ w - FEEDS["y"]) / len(FEEDS["x"])


def weights(client: httpx.Client, path: str) -> np.ndarray:
    return array(client.get(f"{path}/parameters").json()["parameters"]["w"])


@pytest.fixture
def path(client):
    with opened(client, SKETCH, optimizer=SGD) as path:
        yield path


# Training


def test_steps_apply_the_optimizer(client, path):
    w = SKETCH.values["w"]
    for seq in (1, 2, 3):
        answer = client.post(f"{path}/steps", json={"seq": seq, "return_gradients": "all", **BODY})
        said = answer.json()
        np.testing.assert_allclose(array(said["gradients"]["w"]), gradient(w), rtol=1e-12)
        w = w - 0.1 * gradient(w)
        assert (said["seq"], said["next_seq"], said["step"]) == (seq, seq + 1, seq)
        assert answer.headers["etag"] == f'"{said["weights_version"]}"' == f'"e1.v{seq}"'
    np.testing.assert_allclose(weights(client, path), w, rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "clipped"),
    [
        ({"clip": {"by": "value", "max": 0.01}}, lambda g: np.clip(g, -0.01, 0.01)),
        ({"clip": {"by": "value", "min": -0.5, "max": 0.0}}, lambda g: np.clip(g, -0.5, 0.0)),
        ({"clip": {"by": "norm", "max_norm": 0.01}}, lambda g: g * 0.01 / np.linalg.norm(g)),
        ({"clip": {"by": "global_norm", "max_norm": 0.01}}, lambda g: g * 0.01 / np.linalg.norm(g)),
        ({"clip_norm": 0.01}, lambda g: g * 0.01 / np.linalg.norm(g)),
    ],
)
def test_gradients_are_clipped_before_the_optimizer(client, settings, clipped):
    w = SKETCH.values["w"]
    with opened(client, SKETCH, optimizer=SGD, **settings) as path:
        said = client.post(f"{path}/steps", json={"seq": 1, "return_gradients": "all", **BODY}).json()
        np.testing.assert_allclose(array(said["gradients"]["w"]), gradient(w), rtol=1e-12)
        np.testing.assert_allclose(weights(client, path), w - 0.1 * clipped(gradient(w)), rtol=1e-12)
        w = weights(client, path)
        client.post(f"{path}/updates", json={"seq": 2, "gradients": tensors({"w": gradient(w)})})
        np.testing.assert_allclose(weights(client, path), w - 0.1 * clipped(gradient(w)), rtol=1e-12)


def test_a_step_reads_and_writes_safetensors(client, path):
    said, arrays = read_file(client.post(f"{path}/steps", **file_of(FEEDS, seq=1, fetch=["prediction"])))
    assert (said["seq"], arrays.keys()) == (1, {"loss", "fetch/prediction"})
    np.testing.assert_allclose(arrays["fetch/prediction"], FEEDS["x"] @ SKETCH.values["w"])


def test_gradients_and_evaluations_change_nothing(client, path):
    found = client.post(f"{path}/gradients", json=BODY).json()
    again = client.post(f"{path}/gradients", json=BODY).json()
    value = client.post(f"{path}/evaluations", json={"feeds": tensors({"x": FEEDS["x"]}), "fetch": ["prediction"]})

    np.testing.assert_allclose(array(found["gradients"]["w"]), gradient(SKETCH.values["w"]), rtol=1e-12)
    assert found["gradients"] == again["gradients"]
    np.testing.assert_allclose(array(value.json()["fetched"]["prediction"]), FEEDS["x"] @ SKETCH.values["w"])
    assert client.get(path).json()["weights_version"] == "e1.v0"
    np.testing.assert_array_equal(weights(client, path), SKETCH.values["w"])


@pytest.mark.parametrize("optimizer", [SGD, {"type": "adam"}, {"type": "momentum", "nesterov": True}])
def test_an_update_with_computed_gradients_equals_a_step(client, optimizer):
    with opened(client, SKETCH, optimizer=optimizer) as stepped, opened(client, SKETCH, optimizer=optimizer) as refusal:
        for _ in range(3):
            client.post(f"{stepped}/steps", json=BODY)
            found = client.post(f"{refusal}/gradients", json=BODY).json()
            answer = client.post(f"{refusal}/updates", json={"gradients": found["gradients"]})
            assert answer.status_code == 200, answer.text
        np.testing.assert_array_equal(weights(client, stepped), weights(client, refusal))


def test_an_update_accepts_the_gradients_file(client, path):
    request = file_of(FEEDS)
    _, arrays = read_file(client.post(f"{path}/gradients", **request))
    answer = client.post(f"{path}/updates", **file_of({"grad/w": arrays["grad/w"]}, seq=1))
    assert answer.status_code == 200, answer.text
    np.testing.assert_allclose(weights(client, path), SKETCH.values["w"] - 0.1 * gradient(SKETCH.values["w"]))


def test_the_same_seed_gives_the_same_parameters(client):
    runs = []
    for seed in (3, 3, 4):
        body = {"program": SKETCH.document, "loss": "loss", "optimizer": SGD, "init": {"seed": seed}}
        opened_path = f"/v1/sessions/{client.post('/v1/sessions', json=body).json()['id']}"
        client.post(f"{opened_path}/steps", json=BODY)
        runs.append(weights(client, opened_path).tolist())
        client.delete(opened_path)
    assert runs[0] == runs[1] != runs[2]


def test_initializers_set_the_initial_parameters(client):
    body = {"program": SKETCH.document, "loss": "loss", "init": {"initializers": {"w": {"type": "ones"}}}}
    made = client.post("/v1/sessions", json=body)
    path = made.headers["location"]
    assert weights(client, path).tolist() == [[1.0], [1.0]]
    assert client.delete(path).status_code == 204


def test_steps_keep_states_and_evaluations_do_not(client):
    sketch = regression()
    sketch._leaf("state", "seen", 0.0, "float64")
    sketch.op("increment", "seen", out="seen", step=1)
    with opened(client, sketch, optimizer=SGD) as path:

        def seen() -> float:
            return array(client.get(f"{path}/parameters").json()["states"]["seen"]).item()

        client.post(f"{path}/steps", json=BODY)
        client.post(f"{path}/steps", json=BODY)
        client.post(f"{path}/gradients", json=BODY)
        value = client.post(f"{path}/evaluations", json={"fetch": ["seen"]}).json()
        assert (seen(), array(value["fetched"]["seen"]).item()) == (2.0, 3.0)


# Sequence numbers


def test_a_step_sent_twice_is_executed_once(client, path):
    body = {"seq": 1, **BODY}
    first, again = client.post(f"{path}/steps", json=body), client.post(f"{path}/steps", json=body)

    assert first.content == again.content
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["etag"] == first.headers["etag"]
    assert client.get(path).json()["step"] == 1


def test_a_used_sequence_number_with_another_body_is_a_conflict(client, path):
    client.post(f"{path}/steps", json={"seq": 1, **BODY})
    other = client.post(f"{path}/steps", json={"seq": 1, "return_gradients": "all", **BODY})
    elsewhere = client.post(f"{path}/updates", json={"seq": 1, "gradients": {"w": tensor(np.ones((2, 1)))}})
    for answer in (other, elsewhere):
        refusal = problem(answer, 409, "sequence-conflict")
        assert (refusal["expected_seq"], refusal["weights_version"]) == (2, "e1.v1")


def test_a_skipped_sequence_number_is_a_gap(client, path):
    refusal = problem(client.post(f"{path}/steps", json={"seq": 3, **BODY}), 409, "sequence-gap")
    assert (refusal["expected_seq"], refusal["weights_version"]) == (1, "e1.v0")
    assert client.post(f"{path}/steps", json={"seq": 1, **BODY}).status_code == 200


def test_a_failed_step_does_not_use_its_sequence_number(client, path):
    wrong = client.post(f"{path}/steps", json={"seq": 1, "feeds": tensors({"x": FEEDS["x"]})})
    assert "y" in problem(wrong, 422, "invalid-request")["detail"]
    assert client.post(f"{path}/steps", json={"seq": 1, **BODY}).json()["step"] == 1


def test_the_last_64_answers_are_stored(client, path):
    bodies = [{"seq": seq, "deadline_s": 10 + seq, **BODY} for seq in range(1, 67)]
    for body in bodies:
        assert client.post(f"{path}/steps", json=body).status_code == 200
    assert client.post(f"{path}/steps", json=bodies[2]).headers["idempotency-replayed"] == "true"
    problem(client.post(f"{path}/steps", json=bodies[1]), 409, "sequence-conflict")


def test_the_service_numbers_steps_without_a_sequence_number(client, path):
    assert [client.post(f"{path}/steps", json=BODY).json()["seq"] for _ in range(3)] == [1, 2, 3]


def test_a_step_sent_six_times_at_once_is_executed_once(client, path):
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: client.post(f"{path}/steps", json={"seq": 1, **BODY}), range(6)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert client.get(path).json()["step"] == 1


# Parameters and their versions


def test_parameters_are_read_and_written_as_a_file(client, path):
    answer = client.get(f"{path}/parameters", headers={"accept": FILE})
    said, arrays = read_file(answer)
    request = file_of({"w": arrays["w"] + 1})
    request["headers"]["if-match"] = answer.headers["etag"]

    put = client.put(f"{path}/parameters", **request)

    assert (said["states"], put.headers["etag"]) == ([], '"e1.v1"')
    np.testing.assert_array_equal(weights(client, path), SKETCH.values["w"] + 1)


def test_replacing_parameters_requires_the_present_version(client, path):
    body = {"parameters": tensors({"w": np.ones((2, 1))})}
    problem(client.put(f"{path}/parameters", json=body), 428, "precondition-required")
    client.post(f"{path}/steps", json=BODY)
    for stale in ('"e1.v0"', 'W/"e1.v1"'):
        refusal = problem(
            client.put(f"{path}/parameters", json=body, headers={"if-match": stale}), 412, "precondition-failed"
        )
        assert refusal["weights_version"] == "e1.v1"
    assert client.put(f"{path}/parameters", json=body, headers={"if-match": '"x", "e1.v1"'}).status_code == 200
    assert client.put(f"{path}/parameters", json=body, headers={"if-match": "*"}).status_code == 200


def test_a_session_is_deleted_only_in_the_version_of_if_match(client, path):
    before = client.get(path).headers["etag"]
    said = client.post(f"{path}/steps", json=BODY)

    refusal = problem(client.delete(path, headers={"If-Match": before}), 412, "precondition-failed")
    problem(client.delete(path, headers={"If-Match": "x"}), 422, "invalid-request")
    goes_on = client.post(f"{path}/steps", json=BODY)

    assert refusal["weights_version"] == said.json()["weights_version"]
    assert (goes_on.status_code, goes_on.json()["step"]) == (200, 2)
    assert client.delete(path, headers={"If-Match": goes_on.headers["etag"]}).status_code == 204
    assert client.delete(path, headers={"If-Match": before}).status_code == 204, "a closed session stays closed"
    problem(client.get(path), 410, "gone")


def test_an_if_match_without_quoted_etags_is_refused_as_malformed(client, path):
    version = client.get(path).headers["etag"]
    change = {"optimizer": {"learning_rate": 0.25}}

    for malformed in (version.strip('"'), f"{version} {version}", "W/x"):
        refusal = problem(client.patch(path, json=change, headers={"If-Match": malformed}), 422, "invalid-request")
        assert refusal["errors"][0]["parameter"] == "header: If-Match"
        assert "in double quotes" in refusal["detail"]

    assert client.patch(path, json=change, headers=[("If-Match", '"x"'), ("If-Match", version)]).status_code == 200
    assert client.patch(path, json=change, headers={"If-Match": "*"}).status_code == 200


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"w": np.ones((2, 1)), "v": np.ones(1)}, "invalid-request"),
        ({"w": np.ones((1, 2))}, "shape-mismatch"),
        ({"w": np.ones((2, 1), "float32")}, "dtype-mismatch"),
        ({"x": FEEDS["x"]}, "invalid-request"),
    ],
)
def test_parameters_are_replaced_all_or_not_at_all(client, path, parameters, code):
    answer = client.put(f"{path}/parameters", json={"parameters": tensors(parameters)}, headers={"if-match": "*"})
    problem(answer, 422, code)
    np.testing.assert_array_equal(weights(client, path), SKETCH.values["w"])


def test_unchanged_parameters_are_answered_with_304(client, path):
    etag = client.get(f"{path}/parameters").headers["etag"]
    assert client.get(f"{path}/parameters", headers={"if-none-match": etag}).status_code == 304
    client.post(f"{path}/steps", json=BODY)
    assert client.get(f"{path}/parameters", headers={"if-none-match": etag}).status_code == 200
    assert client.get(f"{path}/parameters", params={"names": ["w"]}).json()["parameters"].keys() == {"w"}
    problem(client.get(f"{path}/parameters", params={"names": ["v"]}), 422, "invalid-request")


# Values that are not finite


def test_require_finite_refuses_a_step_with_nan_and_changes_nothing(client, path):
    feeds = {**FEEDS, "x": FEEDS["x"] * np.nan}
    refused = client.post(f"{path}/steps", **file_of(feeds, seq=1, require_finite=True))
    assert refused.status_code == 422
    refusal = problem(refused, 422, "numeric-error")
    assert "the loss is not finite" in refusal["detail"]
    last = len(SKETCH.document["blocks"][0]["ops"]) - 1
    assert (refusal["location"]["block"], refusal["location"]["op"]) == (0, last)
    np.testing.assert_array_equal(weights(client, path), SKETCH.values["w"])

    said, arrays = read_file(client.post(f"{path}/steps", **file_of(feeds, seq=1, return_gradients="norms")))
    assert (said["finite"], said["gradient_norms"]) == (False, {"w": None, "global": None})
    assert np.isnan(arrays["loss"])
    assert client.get(f"{path}/parameters").json()["parameters"]["w"]["finite"] is False


# Invalid requests


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"loss": "nothing"}, 422, "invalid-program"),
        ({"loss": None}, 422, "invalid-request"),
        ({"optimizer": {"type": "best"}}, 422, "invalid-request"),
        ({"optimizer": {}}, 422, "invalid-request"),
        ({"optimizer": {"type": "sgd", "learning_rat": 0.1}}, 422, "invalid-request"),
        ({"optimizer": {"type": "adam", "beta1": "high"}}, 422, "invalid-request"),
        ({"clip_norm": 0}, 422, "invalid-request"),
        ({"clip": {"by": "length", "max_norm": 1.0}}, 422, "invalid-request"),
        ({"clip": {"by": "value", "max_norm": 1.0}}, 422, "invalid-request"),
        ({"clip": {"by": "norm", "max_norm": 1.0}, "clip_norm": 1.0}, 422, "invalid-request"),
        ({"clip": {"by": "value", "max": 1.0, "decay_first": True}, "optimizer": {"type": "adamw"}}, 422, None),
        ({"lease_s": 1e9}, 422, "limit-exceeded"),
        ({"program_id": "prg_" + "a" * 26}, 422, "invalid-request"),
        ({"program": None, "program_id": "prg_" + "a" * 26}, 404, "not-found"),
        ({"init": {"parameters": {"v": tensor(1.0)}}}, 422, "invalid-request"),
        ({"init": {"parameters": {"w": tensor(1.0)}}}, 422, "shape-mismatch"),
        ({"init": {"initializers": {"w": {"type": "best"}}}}, 422, None),
        ({"init": {"initializers": {"v": {"type": "ones"}}}}, 422, None),
        ({"unknown": 1}, 422, "invalid-request"),
    ],
)
def test_an_invalid_session_is_refused(client, change, status, code):
    answer = client.post("/v1/sessions", json={"program": SKETCH.document, "loss": "loss"} | change)
    assert problem(answer, status, code or answer.json()["code"])["detail"]


def test_a_variable_cannot_have_the_name_of_an_optimizer_state(client):
    sketch = regression()
    sketch.param("w/first", [1.0])
    body = {"program": sketch.document, "loss": "loss", "optimizer": {"type": "adam"}}
    assert problem(client.post("/v1/sessions", json=body), 422, "invalid-program")["reason"] == "reserved-name"


@pytest.mark.parametrize(
    ("call", "body", "code"),
    [
        ("steps", {"seq": 0}, "invalid-request"),
        ("steps", {"seq": 1.0}, "invalid-request"),
        ("steps", {"seq": "1"}, "invalid-request"),
        ("steps", {"seq": 2**70}, "invalid-request"),
        ("steps", {"feeds": tensors({**FEEDS, "w": np.ones((2, 1))})}, "invalid-request"),
        ("steps", {**BODY, "fetch": ["nothing"]}, "invalid-program"),
        ("steps", {**BODY, "return_gradients": ["nothing"]}, "invalid-request"),
        ("updates", {}, "invalid-request"),
        ("updates", {"gradients": tensors({"x": np.ones(1)})}, "invalid-request"),
        ("updates", {"gradients": tensors({"w": np.ones(3)})}, "shape-mismatch"),
        ("updates", {"gradients": tensors({"w": np.ones((2, 1)), "grad/w": np.ones((2, 1))})}, "invalid-request"),
        ("gradients", {"feeds": {"x": 1}}, "invalid-request"),
        ("evaluations", {"fetch": ["prediction"]}, "invalid-request"),
    ],
)
def test_an_invalid_call_is_refused_and_changes_nothing(client, path, call, body, code):
    problem(client.post(f"{path}/{call}", json=body), 422, code)
    assert client.get(path).json()["next_seq"] == 1
    np.testing.assert_array_equal(weights(client, path), SKETCH.values["w"])


# Opening, listing, closing


def test_a_closed_session_is_gone_and_can_be_closed_again(client):
    with opened(client, SKETCH) as path:
        assert path.removeprefix("/v1/sessions/") in {s["id"] for s in client.get("/v1/sessions").json()["sessions"]}
        assert [client.delete(path).status_code for _ in range(2)] == [204, 204]
        problem(client.get(path), 410, "gone")
        problem(client.post(f"{path}/steps", json=BODY), 410, "gone")
    unknown = "/v1/sessions/ses_" + "a" * 26
    problem(client.get(unknown), 404, "not-found")
    problem(client.delete(unknown), 404, "not-found")


def test_sessions_are_listed_in_pages(client):
    with opened(client, SKETCH) as one, opened(client, SKETCH) as two, opened(client, SKETCH) as three:
        found, token = [], ""
        while token is not None:
            page = client.get("/v1/sessions", params={"page_size": 2, "page_token": token}).json()
            found += [f"/v1/sessions/{session['id']}" for session in page["sessions"]]
            token = page["next_page_token"]
    assert {one, two, three} <= set(found)
    assert [path for path in found if path in (one, two, three)] == [three, two, one]
    assert len(found) == len(set(found))


def test_a_program_in_use_is_not_deleted(client):
    sketch = regression(rows=3)
    id = client.post("/v1/programs", json={"program": sketch.document}).json()["id"]
    with opened(client, sketch):
        problem(client.delete(f"/v1/programs/{id}"), 409, "in-use")
    assert client.delete(f"/v1/programs/{id}").status_code == 204


# Limits and failures


def test_sessions_waiting_calls_and_leases_are_limited(tmp_path: Path):
    with serve(tmp_path, sessions=2, session_pipeline=1, loop_trips=10**12, op_executions=10**12) as served:
        client = served.client
        with opened(client, endless()) as slow, opened(client, SKETCH, lease_s=2.0) as idle:
            body = {"program": SKETCH.document, "loss": "loss"}
            problem(client.post("/v1/sessions", json=body), 429, "quota-exceeded")
            time.sleep(2.1)
            with opened(client, SKETCH):  # replaces the session with the expired lease
                assert "lease" in problem(client.get(idle), 410, "gone")["detail"]

            run = {"feeds": tensors({"go": np.array(True)}), "deadline_s": 1.5}
            with ThreadPoolExecutor(4) as threads:
                codes = sorted(threads.map(lambda _: client.post(f"{slow}/steps", json=run).status_code, range(4)))
            assert codes == [429, 429, 504, 504]
            stop = {"feeds": tensors({"go": np.array(False)}), "seq": 1}
            assert client.post(f"{slow}/steps", json=stop).json()["step"] == 1  # the stopped steps changed nothing


def state_of(client: httpx.Client, pid: int) -> str:
    """The state of the worker with this process number."""
    return next(w["state"] for w in client.get("/v1/workers").json()["workers"] if w["pid"] == pid)


def test_92_a_worker_killed_during_a_step_loses_only_its_own_sessions(tmp_path: Path):
    with serve(tmp_path, workers=2, loop_trips=10**12, op_executions=10**12) as served:
        client = served.client
        with opened(client, endless(), durability="none") as doomed, opened(client, SKETCH, optimizer=SGD) as other:
            workers = {path: client.get(path).json()["worker"] for path in (doomed, other)}
            assert workers[doomed] != workers[other]
            pid = next(w["pid"] for w in client.get("/v1/workers").json()["workers"] if w["id"] == workers[doomed])

            body: dict[str, Any] = {"seq": 1, "feeds": tensors({"go": np.array(True)})}
            with ThreadPoolExecutor(1) as threads:
                call = threads.submit(client.post, f"{doomed}/steps", json=body)
                while state_of(client, pid) != "busy":
                    assert not call.done()
                    time.sleep(0.02)
                os.kill(pid, signal.SIGKILL)
                killed = time.monotonic()
                answer = call.result()
                took = time.monotonic() - killed

            refusal = problem(answer, 503, "worker-lost")
            assert took < 20
            assert (refusal["retryable"], refusal["expected_seq"]) == (True, 1)
            assert "retry-after" in answer.headers
            assert client.post(f"{other}/steps", json=BODY).json()["step"] == 1
            problem(client.post(f"{doomed}/steps", json=body), 410, "gone")
            assert client.get(doomed).json()["state"] == "lost"
            served.wait_until_ready()
            assert client.delete(doomed).status_code == 204
            end = time.monotonic() + 60
            while time.monotonic() < end:
                states = [worker["state"] for worker in client.get("/v1/workers").json()["workers"]]
                if set(states) <= {"idle", "busy"}:
                    break
                time.sleep(0.1)
            with opened(client, SKETCH) as fresh:
                assert client.post(f"{fresh}/steps", json=BODY).status_code == 200


def test_a_session_follows_a_learning_rate_schedule(client):
    rate = {"schedule": "piecewise_decay", "boundaries": [1], "values": [0.5, 0.25]}
    session = client.post(
        "/v1/sessions",
        json={"program": REGRESSION, "loss": "loss", "optimizer": {"type": "sgd", "learning_rate": rate}},
    )
    assert session.status_code == 201, session.text
    at = f"/v1/sessions/{session.json()['id']}"
    moves = []
    for _ in range(2):
        before = client.get(f"{at}/parameters").json()["parameters"]["b"]["data"][0]
        step = client.post(f"{at}/steps", json={"feeds": REGRESSION_FEEDS, "return_gradients": "all"}).json()
        after = client.get(f"{at}/parameters").json()["parameters"]["b"]["data"][0]
        moves.append((before - after) / step["gradients"]["b"]["data"][0])
    assert moves == pytest.approx([0.5, 0.25], rel=1e-4)
    wrong = {"type": "sgd", "learning_rate": {"schedule": "steep"}}
    refused = client.post("/v1/sessions", json={"program": REGRESSION, "loss": "loss", "optimizer": wrong})
    assert refused.status_code == 422
