"""Learning rates, parameter groups, accumulated gradients, several batches and targets over HTTP."""

from __future__ import annotations

import numpy as np
import pytest

from tests.programs import Sketch
from tests.service.wire import FILE, array, file_of, opened, problem, read_file, tensor, tensors

X = np.arange(24.0).reshape(4, 3, 2) / 8
Y = np.ones((4, 3, 1))
W = np.array([[0.5], [-0.25]])
SGD = {"type": "sgd", "learning_rate": 0.1}
FEEDS = {"x": X[0], "y": Y[0]}
BODY = {"feeds": tensors(FEEDS)}


def sketch() -> Sketch:
    """mean((x w + b - y)^2) for rows of two numbers."""
    s = Sketch()
    s.feed("x", X[0])
    s.feed("y", Y[0])
    s.param("w", W)
    s.param("b", np.zeros(1))
    s.op("add", s.op("matmul", "x", "w"), "b", out="prediction")
    s.op("mse_loss", "prediction", "y", out="loss")
    return s


def gradient(w: np.ndarray, b: np.ndarray, i: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of batch `i` with respect to w and b."""
    error = 2 * (X[i] @ w + b - Y[i]) / 3
    return X[i].T @ error, error.sum(0)


def weights(client, path: str) -> tuple[np.ndarray, np.ndarray]:
    found = client.get(f"{path}/parameters").json()["parameters"]
    return array(found["w"]), array(found["b"])


@pytest.fixture
def path(client):
    with opened(client, sketch(), optimizer=SGD) as path:
        yield path


def test_stopped_steps_have_the_code_of_a_single_step(client):
    s = Sketch()
    s.feed("i", [0, 1], "int64")
    s.param("w", np.ones((3, 2)))
    s.op("mean", s.op("embedding", "w", "i"), out="loss")
    with opened(client, s, optimizer=SGD) as path:
        several = client.post(f"{path}/steps", json={"feeds": tensors({"i": np.array([[0, 1], [2, 9]])}), "batches": 2})
        single = client.post(f"{path}/steps", json={"feeds": tensors({"i": np.array([2, 9])})}).json()
        stopped = several.json()["stopped"]

    assert [stopped[name] for name in ("code", "reason", "location")] == [
        single[name] for name in ("code", "reason", "location")
    ]
    assert (stopped["reason"], stopped["batch"]) == ("index-out-of-range", 1)


def test_groups_have_rates_of_their_own_which_every_answer_names(client):
    groups = [{"match": "b*", "name": "biases", "learning_rate": 0.5}]
    with opened(client, sketch(), optimizer={**SGD, "groups": groups}) as path:
        said = client.post(f"{path}/steps", json=BODY).json()
        gw, gb = gradient(W, np.zeros(1))
        w, b = weights(client, path)
        np.testing.assert_allclose(w, W - 0.1 * gw, rtol=1e-12)
        np.testing.assert_allclose(b, -0.5 * gb, rtol=1e-12)
        assert said["learning_rate"] == {"biases": 0.5, "default": 0.1}

        said = client.post(f"{path}/steps", json={**BODY, "learning_rate": {"biases": 0.25}}).json()
        assert said["learning_rate"] == {"biases": 0.25, "default": 0.1}
        sent = {"gradients": tensors({"w": gw, "b": gb}), "learning_rate": 2.0}
        said = client.post(f"{path}/updates", json=sent).json()
        assert said["learning_rate"] == {"biases": 2.0, "default": 2.0}


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ({**SGD, "groups": [{"match": "head.*"}]}, "group 0 (head.*) of the optimizer has no parameters"),
        ({**SGD, "groups": [{"match": "w", "beta": 1}]}, "group 0 (w): sgd has no attribute 'beta'"),
        ({**SGD, "groups": {"match": "w"}}, "groups is a list of objects"),
    ],
)
def test_wrong_groups_are_refused_in_one_sentence(client, optimizer, words):
    body = {"program": sketch().document, "loss": "loss", "optimizer": optimizer}
    found = problem(client.post("/v1/sessions", json=body), 422, "invalid-request")
    assert words in found["detail"]


def test_a_patch_changes_the_rate_of_an_open_session_without_compiling(client, path):
    client.post(f"{path}/steps", json=BODY)
    before, view = weights(client, path), client.get(path)

    answer = client.patch(path, json={"optimizer": {"learning_rate": 0.01}}, headers={"If-Match": view.headers["etag"]})
    stale = client.patch(path, json={"optimizer": {"learning_rate": 5}}, headers={"If-Match": view.headers["etag"]})
    said = client.post(f"{path}/steps", json=BODY).json()

    assert answer.status_code == 200, answer.text
    assert answer.json()["optimizer"] == client.get(path).json()["optimizer"] == {"type": "sgd", "learning_rate": 0.01}
    assert answer.headers["etag"] != view.headers["etag"]
    problem(stale, 412, "precondition-failed")
    assert (said["learning_rate"], said["compiled"]) == (0.01, False)
    np.testing.assert_allclose(weights(client, path)[0], before[0] - 0.01 * gradient(*before)[0], rtol=1e-12)


def test_a_patch_is_a_merge_patch_of_the_optimizer(client, path):
    patches = [{"weight_decay": 0.5}, {"groups": [{"match": "b"}]}, {"groups": None, "learning_rate": 0.2}]
    for patch in patches:
        kind = {"Content-Type": "application/merge-patch+json"}
        body = client.build_request("PATCH", path, json={"optimizer": patch}).content
        assert client.patch(path, content=body, headers=kind).status_code == 200

    client.post(f"{path}/steps", json=BODY)

    assert client.get(path).json()["optimizer"] == {"type": "sgd", "weight_decay": 0.5, "learning_rate": 0.2}
    np.testing.assert_allclose(weights(client, path)[0], W - 0.2 * (gradient(W, np.zeros(1))[0] + 0.5 * W), rtol=1e-12)


@pytest.mark.parametrize("patch", [{"type": "adam"}, {"groups": [{"match": "w", "type": "adam"}]}, {"groups": [{"match": "v"}]}, {"lr": 1}, {"learning_rate": {"schedule": "one_cycle", "learning_rate": 0.1, "total_steps": 1}}])  # fmt: skip # noqa: E501
def test_a_patch_that_does_not_fit_changes_nothing(client, path, patch):
    problem(client.patch(path, json={"optimizer": patch}), 422, "invalid-request")

    assert client.get(path).json()["optimizer"] == SGD
    assert client.post(f"{path}/steps", json=BODY).json()["learning_rate"] == 0.1


@pytest.mark.parametrize("rate", ["fast", True, [0.1], {"default": "0.1"}, {"nobody": 0.1}])
def test_a_wrong_rate_of_a_step_is_refused_in_one_sentence(client, path, rate):
    found = problem(client.post(f"{path}/steps", json={**BODY, "learning_rate": rate}), 422, "invalid-request")
    assert len(found.get("errors", [])) <= 1


@pytest.mark.parametrize("binary", [False, True])
def test_several_batches_in_one_call_are_that_many_steps(client, path, binary):
    asked = {"batches": 4, "fetch": ["prediction"]}
    if binary:
        said, arrays = read_file(client.post(f"{path}/steps", **file_of({"x": X, "y": Y}, **asked)))
        losses, predictions = arrays["loss"], arrays["fetch/prediction"]
    else:
        said = client.post(f"{path}/steps", json={"feeds": tensors({"x": X, "y": Y}), **asked}).json()
        losses, predictions = array(said["loss"]), array(said["fetched"]["prediction"])

    w, b, wanted = W, np.zeros(1), []
    for i in range(4):
        wanted.append(((X[i] @ w + b - Y[i]) ** 2).mean())
        np.testing.assert_allclose(predictions[i], X[i] @ w + b, rtol=1e-12)
        gw, gb = gradient(w, b, i)
        w, b = w - 0.1 * gw, b - 0.1 * gb
    np.testing.assert_allclose(losses, wanted, rtol=1e-12)
    np.testing.assert_allclose(weights(client, path)[0], w, rtol=1e-12)
    assert (said["applied"], said["step"], said["next_seq"], said["learning_rate"]) == (4, 4, 2, [0.1] * 4)


def test_a_repeated_accumulating_call_adds_its_gradient_once(client, path):
    asked = {"seq": 1, **BODY, "accumulate": True}
    first = client.post(f"{path}/gradients", json=asked)
    again = client.post(f"{path}/gradients", json=asked)
    client.post(f"{path}/gradients", json={"seq": 2, "feeds": tensors({"x": X[1], "y": Y[1]}), "accumulate": True})

    assert first.json()["gradients"] == {}
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == first.json()
    assert client.get(path).json()["accumulated"] == 2
    said = client.post(f"{path}/updates", json={"seq": 3}).json()
    total = gradient(W, np.zeros(1), 0)[0] + gradient(W, np.zeros(1), 1)[0]
    np.testing.assert_allclose(weights(client, path)[0], W - 0.1 * total, rtol=1e-12)
    assert (said["accumulated"], said["step"], said["learning_rate"]) == (0, 1, 0.1)


def test_accumulated_gradients_can_be_discarded(client, path):
    client.post(f"{path}/gradients", json={**BODY, "accumulate": True})

    assert client.delete(f"{path}/gradients").status_code == 204
    assert client.delete(f"{path}/gradients").status_code == 204

    assert client.get(path).json()["accumulated"] == 0
    found = problem(client.post(f"{path}/updates", json={}), 422, "invalid-request")
    assert "none is accumulated" in found["detail"]


@pytest.mark.parametrize(
    ("asked", "headers"),
    [({"seq": 1}, {}), ({"accumulate": True}, {"Accept": "application/x-ndjson"})],
)
def test_gradients_refuse_a_number_without_a_change_and_a_stream_with_one(client, path, asked, headers):
    problem(client.post(f"{path}/gradients", json={**BODY, **asked}, headers=headers), 422, "invalid-request")


def test_a_session_trains_targets_with_cotangents_from_the_client(client):
    """The cotangent of the mean square error, sent as a target gradient, trains as the loss does."""
    settings = {"loss": None, "targets": ["prediction"], "optimizer": SGD}
    with opened(client, sketch(), **settings) as path:
        cotangent = 2 * (X[0] @ W - Y[0]) / 3
        asked = {"feeds": tensors({"x": X[0]}), "target_gradients": [tensor(cotangent)]}
        found = client.post(f"{path}/gradients", json=asked).json()
        ones = client.post(f"{path}/gradients", json={"feeds": tensors({"x": X[0]})}).json()
        said = client.post(f"{path}/steps", json={**asked, "fetch": ["prediction"]}).json()
        gw, gb = gradient(W, np.zeros(1))
        np.testing.assert_allclose(array(found["gradients"]["w"]), gw, rtol=1e-12)
        np.testing.assert_allclose(array(ones["gradients"]["w"]), X[0].sum(0)[:, None], rtol=1e-12)
        np.testing.assert_allclose(array(said["fetched"]["prediction"]), X[0] @ W, rtol=1e-12)
        w, b = weights(client, path)
        np.testing.assert_allclose(w, W - 0.1 * gw, rtol=1e-12)
        np.testing.assert_allclose(b, -0.1 * gb, rtol=1e-12)
        shown = client.get(path).json()
        assert (shown["loss"], shown["targets"]) == (None, ["prediction"])
        value = client.post(f"{path}/evaluations", json={"feeds": tensors({"x": X[0]})}).json()
        np.testing.assert_allclose(array(value["fetched"]["prediction"]), X[0] @ w + b, rtol=1e-12)
        problem(client.post(f"{path}/steps", json={**asked, "target_gradients": [None, None]}), 422, "invalid-request")


def test_inputs_of_targets_may_be_feeds_which_get_gradients_and_no_update(client):
    """A model in two parts: the gradient of the second part's feed is the cotangent of the first part's output."""
    with opened(client, sketch(), loss=None, targets=["prediction"], inputs=["x", "w"], optimizer=SGD) as path:
        cotangents = np.stack([np.full((3, 1), 2.0), np.full((3, 1), -1.0)])
        asked = {"feeds": tensors({"x": X[:2]}), "target_gradients": [tensor(cotangents)], "batches": 2}
        said = client.post(f"{path}/steps", json={**asked, "return_gradients": "all"}).json()
        w = W - 0.1 * X[0].T @ cotangents[0]
        np.testing.assert_allclose(array(said["gradients"]["x"])[0], cotangents[0] @ W.T, rtol=1e-12)
        np.testing.assert_allclose(array(said["gradients"]["x"])[1], cotangents[1] @ w.T, rtol=1e-12)
        found = weights(client, path)
        np.testing.assert_allclose(found[0], w - 0.1 * X[1].T @ cotangents[1], rtol=1e-12)
        assert not found[1].any()


@pytest.mark.parametrize("settings", [{"loss": "loss", "targets": ["prediction"]}, {"loss": None}, {"loss": None, "targets": ["prediction"], "inputs": ["x"]}])  # fmt: skip # noqa: E501
def test_a_session_needs_a_loss_or_targets_of_a_parameter(client, settings):
    problem(client.post("/v1/sessions", json={"program": sketch().document, **settings}), 422, "invalid-request")


def test_gradients_that_are_exactly_zero_are_warned_about(client):
    s = Sketch()
    s.feed("x", X[0])
    s.param("scale", np.zeros((2, 1)))
    s.param("w", W)
    s.op("matmul", s.op("relu", s.op("scale", s.op("abs", "x"), scale=-1.0)), "w", out="y")
    s.op("mean", s.op("add", "y", s.op("matmul", "x", "scale")), out="loss")
    with opened(client, s, optimizer=SGD) as path:
        first = client.post(f"{path}/steps", json={"feeds": tensors({"x": X[0]})}).json()
        later = client.post(f"{path}/steps", json={"feeds": tensors({"x": X[0]}), "return_gradients": "norms"}).json()
        asked = {"feeds": tensors({"x": 0 * X[0]}), "return_gradients": "norms"}
        dead = client.post(f"{path}/gradients", json=asked).json()
    assert [each["parameters"] for each in first["warnings"]] == [["w"]]
    assert "1 of 2 gradients are exactly zero" in first["warnings"][0]["detail"]
    assert later.get("warnings", []) == []
    assert [each["parameters"] for each in dead["warnings"]] == [["scale", "w"]]


@pytest.mark.parametrize(
    "optimizer",
    [
        {"type": "sgd"},
        {"type": "adam", "learning_rate": {"schedule": "cosine_decay", "learning_rate": 0.1, "decay_steps": 10}},
        {"type": "momentum", "groups": [{"match": "w", "learning_rate": 0.5}]},
    ],
)
def test_a_session_shows_its_optimizer_as_it_was_sent_wherever_it_is_shown(client, optimizer):
    with opened(client, sketch(), optimizer=optimizer) as path:
        id = path.rpartition("/")[2]
        complete = client.get(f"{path}/optimizer").json()["optimizer"]
        saved = client.post(f"{path}/checkpoints", json={}).json()
        content = client.get(f"/v1/checkpoints/{saved['id']}/content").content
        uploaded = client.post("/v1/checkpoints", content=content, headers={"content-type": FILE}).json()
        again = client.post("/v1/sessions", json={"from_checkpoint": uploaded["id"]}).json()
        other = client.post("/v1/sessions", json={"from_checkpoint": saved["id"], "init": {"seed": 3}}).json()
        fork = client.post(f"{path}/fork").json()
        listed = client.get("/v1/sessions?page_size=200").json()["sessions"]

        shown = [client.get(path).json(), *(each for each in listed if each["id"] == id), saved, uploaded]
        shown += [client.get(f"/v1/sessions/{each['id']}").json() for each in (again, other, fork)]
        assert [each["optimizer"] for each in (*shown, again, other, fork)] == [optimizer] * 10
        assert complete.items() >= {"type": optimizer["type"], "weight_decay": 0.0}.items()
        for each in (again, other, fork):
            client.delete(f"/v1/sessions/{each['id']}")


def test_reading_the_optimizer_does_not_settle_what_a_group_takes_from_all(client):
    optimizer = {"type": "sgd", "groups": [{"match": "w", "learning_rate": 0.5}]}
    for reads in (False, True):
        with opened(client, sketch(), optimizer=optimizer) as path:
            if reads:
                client.get(f"{path}/optimizer")
            client.patch(path, json={"optimizer": {"weight_decay": 0.1}})

            assert client.get(f"{path}/optimizer").json()["optimizer"]["groups"][0]["weight_decay"] == 0.1
