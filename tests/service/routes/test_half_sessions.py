"""Sessions with 16-bit floats."""

from __future__ import annotations

import json

import httpx
import numpy as np
import pytest

from tests.paths import ROOT
from tests.programs import Sketch
from tests.service.wire import array, opened, tensors

SGD = {"type": "sgd", "learning_rate": 1.0}


def product(dtype: str) -> Sketch:
    """loss = sum(w * x), so that the gradient is x."""
    s = Sketch()
    s.param("w", [1000.0], dtype)
    s.feed("x", [0.1], dtype)
    s.total(s.op("mul", "w", "x"))
    return s


def weight(client: httpx.Client, path: str) -> float:
    return float(array(client.get(f"{path}/parameters").json()["parameters"]["w"])[0])


def stepped(client: httpx.Client, path: str, dtype: str, x: float) -> None:
    answer = client.post(f"{path}/steps", json={"feeds": tensors({"x": np.array([x], np.dtype(dtype))})})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_updates_of_16_bit_parameters_accumulate(client, dtype):
    with opened(client, product(dtype), optimizer=SGD) as path:
        for _ in range(64):
            stepped(client, path, dtype, 0.125)  # the spacing of float16 at 1000 is 0.5, that of bfloat16 is 4

        assert weight(client, path) == 992.0


def test_replacing_a_parameter_drops_its_rounding_remainder(client):
    with opened(client, product("float16"), optimizer=SGD) as path:
        stepped(client, path, "float16", 0.2)  # the session stores 999.8 as 1000 and the remainder -0.2
        new = {"parameters": tensors({"w": np.array([0.5], "float16")})}
        assert client.put(f"{path}/parameters", json=new, headers={"if-match": "*"}).status_code == 200
        stepped(client, path, "float16", 0.0)

        assert weight(client, path) == 0.5


# Loss scaling


def tiny(loss_dtype: str = "float32") -> Sketch:
    """loss = sum(float16(w) * x * y), whose gradient x * y float16 rounds to zero."""
    s = Sketch()
    s.param("w", [1.0, 2.0], "float32")
    s.feed("x", [2.0**-13, 2.0**-14], "float16")
    s.feed("y", [2.0**-13, 2.0**-13], "float16")
    weighted = s.op("mul", s.op("mul", s.op("cast", "w", dtype="float16", out="half"), "x"), "y")
    s.total(s.op("cast", weighted, dtype=loss_dtype))
    return s


TRUE = np.array([2.0**-26, 2.0**-27], "float32")


def feeds_of(sketch: Sketch, **changed: np.ndarray) -> dict[str, dict[str, object]]:
    return {"feeds": tensors({name: changed.get(name, sketch.values[name]) for name in "xy"})}


@pytest.mark.parametrize(("scale", "first"), [(4096, 4096.0), ("dynamic", 32768.0), ({"initial": 512}, 512.0)])
def test_a_session_with_a_loss_scale_keeps_small_gradients(client, scale, first):
    s = tiny()
    with opened(client, s, optimizer=SGD, loss_scale=scale) as path:
        before = client.post(f"{path}/gradients", json=feeds_of(s)).json()
        said = client.post(f"{path}/steps", json={"return_gradients": "all", **feeds_of(s)}).json()

        for answer in (before, said):
            np.testing.assert_array_equal(array(answer["gradients"]["w"]), TRUE)
        assert (said["loss_scale"], said["skipped"], said["finite"]) == (first, False, True)
    with opened(client, s, optimizer=SGD) as path:
        said = client.post(f"{path}/steps", json={"return_gradients": "all", **feeds_of(s)}).json()
        assert not array(said["gradients"]["w"]).any()
        assert "loss_scale" not in said


def test_a_session_skips_an_overflowing_step_and_halves_the_scale(client):
    s = tiny()
    large = feeds_of(s, x=np.array([60000.0, 1.0], "float16"), y=np.array([1.0, 1.0], "float16"))
    dynamic = {"initial": 8.0, "interval": 2}
    with opened(client, s, optimizer=SGD, loss_scale=dynamic) as path:
        for seq, (body, scale, skipped) in enumerate(
            [(large, 8.0, True), (large, 4.0, True), (feeds_of(s), 2.0, False), (feeds_of(s), 2.0, False),
             (feeds_of(s), 4.0, False)], start=1,
        ):  # fmt: skip
            said = client.post(f"{path}/steps", json={"seq": seq, "require_finite": True, **body}).json()
            assert (said["loss_scale"], said["skipped"], said["step"]) == (scale, skipped, seq)
            if skipped:
                held = array(client.get(f"{path}/parameters").json()["parameters"]["w"])
                np.testing.assert_array_equal(held, s.values["w"])


@pytest.mark.parametrize("scale", [0, -2.0, "static", {"growth": 1.0}, {"initial": 4, "most": 2}, {"factor": 2}])
def test_a_wrong_loss_scale_is_refused(client, scale):
    s = tiny()
    body = {"program": s.document, "loss": "loss", "loss_scale": scale}
    assert client.post("/v1/sessions", json=body).status_code == 422


def by_hooks(factor: float) -> Sketch:
    """The same with the scale in the program; a hook divides by it."""
    s = tiny()
    s.op("scale", "loss", scale=factor, out="scaled")
    return s


CHECKED = [
    {"match": {"role": "parameter"}, "do": "check_finite"},
    {"match": {"role": "parameter"}, "do": "scale", "factor": 2.0**-12},
]


def test_hooks_undo_a_loss_scale_in_one_shot_gradients(client):
    s = by_hooks(2.0**12)
    ask = {"program": s.document, "loss": "scaled", "hooks": CHECKED, "parameters": tensors({"w": s.values["w"]})}

    said = client.post("/v1/gradients", json={**ask, **feeds_of(s)})
    np.testing.assert_array_equal(array(said.json()["gradients"]["w"]), TRUE)

    large = feeds_of(s, x=np.array([60000.0, 1.0], "float16"), y=np.array([1.0, 1.0], "float16"))
    refused = client.post("/v1/gradients", json={**ask, **large})
    assert (refused.status_code, refused.json()["code"]) == (422, "numeric-error")


def test_hooks_undo_a_loss_scale_in_a_session_and_a_refused_step_changes_nothing(client):
    s = by_hooks(2.0**12)
    large = feeds_of(s, x=np.array([60000.0, 1.0], "float16"), y=np.array([1.0, 1.0], "float16"))
    with opened(client, s, loss="scaled", optimizer={"type": "sgd", "learning_rate": 2.0**20}, hooks=CHECKED) as path:
        refused = client.post(f"{path}/steps", json={"seq": 1, **large})
        assert (refused.status_code, refused.json()["code"]) == (422, "numeric-error")
        assert client.post(f"{path}/steps", json={"seq": 1, **feeds_of(s)}).status_code == 200

        held = array(client.get(f"{path}/parameters").json()["parameters"]["w"])
        np.testing.assert_array_equal(held, s.values["w"] - TRUE * 2.0**20)


def test_the_request_of_the_documentation_gives_the_gradient_of_the_loss_itself(client):
    text = (ROOT / "docs" / "precision.md").read_text()
    request = json.loads(text.split("```json")[-1].split("```")[0])

    said = client.post("/v1/gradients", json=request).json()

    np.testing.assert_array_equal(array(said["gradients"]["w"]), array(request["feeds"]["x"]) / np.float32(2))
