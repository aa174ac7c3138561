"""Checkpoints over HTTP: saving, downloading, uploading, continuing, fine-tuning, and every refusal with its place."""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import time
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from service.formats import safetensors as tensorfile
from service.schemas.examples import REGRESSION, REGRESSION_FEEDS, REGRESSION_ID
from tests.service.conftest import serve
from tests.service.problems.test_fuzz import check, mutated

FILE = {"Content-Type": "application/x-safetensors"}
BINARY = {"Accept": "application/x-safetensors"}
STEP = {"feeds": REGRESSION_FEEDS, "return_gradients": "all"}
ADAM = {"type": "adam", "learning_rate": 0.05}


@pytest.fixture
def opened(client) -> Iterator[Any]:
    """Opens sessions, which are closed at the end."""
    paths = []

    def open(**asked: Any) -> str:
        answer = client.post("/v1/sessions", json=asked)
        assert answer.status_code == 201, answer.text
        paths.append(f"/v1/sessions/{answer.json()['id']}")
        return paths[-1]

    yield open
    for path in paths:
        client.delete(path)


@pytest.fixture
def trained(client, opened) -> str:
    """The path of a session after three steps and an accumulating call."""
    path = opened(program=REGRESSION, loss="loss", optimizer=ADAM, init={"seed": 3})
    for _ in range(3):
        assert client.post(f"{path}/steps", json=STEP).status_code == 200
    assert client.post(f"{path}/gradients", json={"feeds": REGRESSION_FEEDS, "accumulate": True}).status_code == 200
    return path


def saved(client: httpx.Client, path: str, **asked: Any) -> dict[str, Any]:
    answer = client.post(f"{path}/checkpoints", json=asked)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/checkpoints/{answer.json()['id']}"
    return answer.json()


def content(client: httpx.Client, made: dict[str, Any], **headers: str) -> httpx.Response:
    return client.get(f"/v1/checkpoints/{made['id']}/content", headers=headers)


def steps(client: httpx.Client, path: str, count: int = 3) -> list[bytes]:
    """The losses and gradients of the next steps of a session, and its optimizer state, as bytes."""
    found = [client.post(f"{path}/updates", json={}).json()["step"].to_bytes(8, "little")]
    for _ in range(count):
        answer = client.post(f"{path}/steps", json=STEP, headers=BINARY)
        assert answer.status_code == 200, answer.text
        tensors = tensorfile.unpack(answer.content)[1]
        found.append(b"".join(tensors[name].tobytes() for name in sorted(tensors)))
    state = tensorfile.unpack(client.get(f"{path}/optimizer", headers=BINARY).content)[1]
    return [*found, b"".join(state[name].tobytes() for name in sorted(state))]


def view(client: httpx.Client, path: str) -> dict[str, Any]:
    found = client.get(path).json()
    return {n: found[n] for n in ("step", "next_seq", "accumulated", "loss", "targets", "optimizer", "program_id")}


# --- continuing ---------------------------------------------------------------------------------------------------


def test_a_session_from_a_checkpoint_continues_to_the_bit(client, trained, opened):
    made = saved(client, trained, name="three steps", labels={"run": "7"})
    again = opened(from_checkpoint=made["id"])

    assert view(client, again) == view(client, trained)
    assert view(client, again)["next_seq"] == 5
    assert steps(client, again) == steps(client, trained)
    assert (made["step"], made["session"], made["program_id"]) == (3, trained.rsplit("/")[-1], REGRESSION_ID)
    assert (made["name"], made["labels"], made["expires"], made["resumable"]) == (
        "three steps",
        {"run": "7"},
        None,
        True,
    )


def test_a_fork_continues_to_the_bit(client, trained):
    forked = client.post(f"{trained}/fork", json={})
    assert forked.status_code == 201, forked.text
    path = forked.headers["location"]

    assert path != trained and view(client, path) == view(client, trained)
    assert steps(client, path) == steps(client, trained)
    client.delete(path)


def test_a_changed_optimizer_belongs_to_checkpoint_and_fork(client, trained, opened):
    client.patch(trained, json={"optimizer": {"learning_rate": 0.5}})
    made = saved(client, trained)
    fork = client.post(f"{trained}/fork").headers["location"]

    wanted = {"type": "adam", "learning_rate": 0.5}
    again = opened(from_checkpoint=made["id"])
    assert [view(client, path)["optimizer"] for path in (again, fork)] == [wanted, wanted]
    assert made["optimizer"] == wanted
    assert steps(client, again) == steps(client, trained) == steps(client, fork)
    client.delete(fork)


def test_an_uploaded_copy_continues_to_the_bit(client, trained, opened):
    """Also without the registered program: the file has it."""
    made = saved(client, trained)
    file = content(client, made)
    answer = client.post("/v1/checkpoints?name=copy&ttl_s=60", content=file.content, headers=FILE)

    copy = answer.json()
    assert answer.status_code == 201, answer.text
    assert (copy["sha256"], copy["size"], copy["name"]) == (made["sha256"], made["size"], "copy")
    assert (
        copy["id"] != made["id"]
        and copy["session"] is None
        and copy["expires"] == pytest.approx(time.time() + 60, abs=30)
    )
    same = ("step", "loss", "targets", "program_id", "resumable")
    assert {name: copy[name] for name in same} == {name: made[name] for name in same}
    assert steps(client, opened(from_checkpoint=copy["id"])) == steps(client, trained)


def test_a_session_from_a_checkpoint_may_have_another_learning_rate(client, trained, opened):
    made = saved(client, trained)

    faster = opened(from_checkpoint=made["id"], optimizer={"learning_rate": 0.5})
    assert view(client, faster)["optimizer"] == {"type": "adam", "learning_rate": 0.5}
    assert view(client, faster)["step"] == 3


def test_another_optimizer_takes_the_parameters_of_a_checkpoint_without_its_optimizer_state(client, trained, opened):
    made = saved(client, trained)

    answer = client.post("/v1/sessions", json={"from_checkpoint": made["id"], "optimizer": {"type": "sgd"}})
    assert answer.status_code == 422 and {e["pointer"] for e in answer.json()["errors"]} == {"/from_checkpoint"}
    assert "send optimizer_state: false" in answer.json()["detail"]
    fresh = opened(from_checkpoint=made["id"], optimizer={"type": "sgd"}, optimizer_state=False)
    assert view(client, fresh)["step"] == 0
    assert parameters(client, fresh) == parameters(client, trained)


def parameters(client: httpx.Client, path: str) -> dict[str, Any]:
    return {name: each["data"] for name, each in client.get(f"{path}/parameters").json()["parameters"].items()}


def test_another_program_may_start_from_a_checkpoint(client, trained, opened):
    made = saved(client, trained)
    other = json.loads(json.dumps(REGRESSION).replace('"b"', '"bias"'))

    refused = client.post("/v1/sessions", json={"from_checkpoint": made["id"], "program": other})
    told = [(error["pointer"], error["detail"].partition(";")[0]) for error in refused.json()["errors"]]
    assert told == [
        ("/from_checkpoint", "the checkpoint has no value of parameter 'bias'"),
        ("/from_checkpoint", "the program has no parameter or state 'b'"),
    ]
    tuned = opened(from_checkpoint=made["id"], program=other, missing="initialize", extra="ignore")
    assert view(client, tuned)["step"] == 0 and view(client, tuned)["loss"] == "loss"
    assert parameters(client, tuned) == {"w": parameters(client, trained)["w"], "bias": [0.0]}
    given = {"parameters": {"bias": {"dtype": "float32", "shape": [1], "data": [0.25]}}}
    own = opened(from_checkpoint=made["id"], program=other, extra="ignore", init=given)
    assert parameters(client, own)["bias"] == [0.25]


def test_a_plain_file_of_parameters_starts_a_session(client, opened):
    values = {"w": np.array([[1.5], [2.5]], np.float32), "b": np.array([3.5], np.float32)}
    made = client.post("/v1/checkpoints", content=save(values), headers=FILE).json()

    assert (made["resumable"], made["program_id"], made["step"]) == (False, None, 0)
    path = opened(from_checkpoint=made["id"], program=REGRESSION, loss="loss", optimizer=ADAM)
    assert parameters(client, path) == {"w": [1.5, 2.5], "b": [3.5]}
    for missing, place in (({"loss": "loss"}, "/program_id"), ({"program": REGRESSION}, "/loss")):
        answer = client.post("/v1/sessions", json={"from_checkpoint": made["id"], **missing})
        assert answer.status_code == 422 and [e["pointer"] for e in answer.json()["errors"]] == [place], answer.text


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ({"from_checkpoint": "ckp_aaaaaaaaaaaaaaaaaaaaaaaaaa"}, "/from_checkpoint"),
        ({"program": REGRESSION, "loss": "loss", "missing": "initialize"}, "/missing"),
        ({"from_checkpoint": "ckp_aaaaaaaaaaaaaaaaaaaaaaaaaa", "extra": "drop"}, "/extra"),
    ],
)
def test_wrong_settings_of_a_new_session_have_their_place(client, asked, place):
    answer = client.post("/v1/sessions", json=asked)

    assert answer.status_code in (404, 422) and answer.json()["errors"][0]["pointer"] == place, answer.text


# --- the content --------------------------------------------------------------------------------------------------


def test_the_content_has_digest_etag_and_public_names(client, trained):
    made = saved(client, trained)
    answer = content(client, made)

    assert sha256(answer.content).hexdigest() == made["sha256"]
    digest = b64encode(bytes.fromhex(made["sha256"])).decode()
    assert answer.headers["repr-digest"] == f"sha-256=:{digest}:"
    assert answer.headers["etag"] == f'"{made["sha256"]}"'
    assert (answer.headers["content-type"], answer.headers["accept-ranges"]) == ("application/x-safetensors", "bytes")
    assert {"w", "b", "w/first", "b/step", "w@GRAD"} <= load(answer.content).keys()
    head = client.head(f"/v1/checkpoints/{made['id']}/content")
    assert head.content == b"" and head.headers["content-length"] == str(made["size"]) == str(len(answer.content))
    assert head.headers["etag"] == answer.headers["etag"]
    unchanged = content(client, made, **{"If-None-Match": answer.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert content(client, made, **{"If-Match": '"other"'}).status_code == 412


def test_a_range_of_the_content_is_answered_with_its_bytes(client, trained):
    made = saved(client, trained)
    whole, size = content(client, made).content, made["size"]
    etag = f'"{made["sha256"]}"'

    for asked, begin, end in (("0-9", 0, 10), ("10-", 10, size), ("-7", size - 7, size), (f"5-{size * 2}", 5, size)):
        part = content(client, made, Range=f"bytes={asked}", **{"If-Range": etag})
        assert (part.status_code, part.content) == (206, whole[begin:end])
        assert part.headers["content-range"] == f"bytes {begin}-{end - 1}/{size}"
    for asked in ("bytes=0-1,4-5", "items=0-1", "bytes=5-4", "bytes=-", "bytes=x-"):
        assert content(client, made, Range=asked).content == whole, asked
    assert content(client, made, Range="bytes=0-9", **{"If-Range": '"other"'}).content == whole
    for asked in (f"bytes={size}-", "bytes=-0"):
        beyond = content(client, made, Range=asked)
        assert (beyond.status_code, beyond.json()["code"]) == (416, "range-not-satisfiable")
        assert beyond.headers["content-range"] == f"bytes */{size}"


# --- the list and the description ---------------------------------------------------------------------------------


def test_checkpoints_are_listed_in_pages_and_outlive_their_session(client, opened):
    path = opened(program=REGRESSION, loss="loss")
    made = [saved(client, path)["id"] for _ in range(5)]
    client.delete(path)

    found, token = [], ""
    while token is not None:
        page = client.get(f"{path}/checkpoints?page_size=2&page_token={token}").json()
        assert len(page["checkpoints"]) <= 2
        found += [each["id"] for each in page["checkpoints"]]
        token = page["next_page_token"]
    assert found == made[::-1]
    everything = client.get("/v1/checkpoints?page_size=200").json()["checkpoints"]
    assert set(made) <= {each["id"] for each in everything}
    for id in made:
        assert client.delete(f"/v1/checkpoints/{id}").status_code == 204
        assert client.delete(f"/v1/checkpoints/{id}").status_code == 404
        assert client.get(f"/v1/checkpoints/{id}").status_code == 404
        assert client.get(f"/v1/checkpoints/{id}/content").status_code == 404
    assert client.get(f"{path}/checkpoints").json()["code"] == "gone"
    unknown = client.get("/v1/sessions/ses_aaaaaaaaaaaaaaaaaaaaaaaaaa/checkpoints")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not-found")


def test_an_end_that_has_passed_is_refused_and_the_checkpoint_stays(client, trained):
    path = f"/v1/checkpoints/{saved(client, trained)['id']}"

    for passed in (86400, time.time() - 1):
        refused = client.patch(path, json={"expires": passed})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/expires")
        assert "in the future in seconds since 1970" in refused.json()["errors"][0]["detail"]

    assert client.get(path).json()["expires"] is None


def test_name_labels_and_end_can_change_but_not_the_content(client, trained):
    made = saved(client, trained, name="a", labels={"x": "1", "y": "2"})
    path = f"/v1/checkpoints/{made['id']}"
    etag = client.get(path).headers["etag"]

    patched = client.patch(path, json={"labels": {"x": None, "z": "3"}}, headers={"If-Match": etag})
    assert patched.json() == {**made, "labels": {"y": "2", "z": "3"}}
    assert client.patch(path, json={"name": "b"}, headers={"If-Match": etag}).status_code == 412
    assert client.patch(path, json={"name": None, "labels": None, "expires_at": 4e9}).json() == {
        **made, "name": "", "labels": {}, "expires_at": 4e9, "expires": 4e9
    }  # fmt: skip
    assert client.patch(path, json={"expires_at": None}).json()["expires_at"] is None
    assert client.patch(path, json={"expires": 5e9}).json()["expires_at"] == 5e9
    assert client.patch(path, json={"expires": 5e9, "expires_at": 4e9}).status_code == 422
    assert client.patch(path, json={"name": "a\u0000b"}).status_code == 422
    assert client.patch(path, json={"size": 1}).status_code == 422
    assert client.patch(path, json={"labels": {str(i): "" for i in range(60)}}).status_code == 200
    assert client.patch(path, json={"labels": {f"more{i}": "" for i in range(60)}}).json()["code"] == "limit-exceeded"


def test_expired_checkpoints_are_gone(client, trained):
    before = time.time()
    made = saved(client, trained, ttl_s=0.2)
    assert before <= made["expires"] - 0.2 <= time.time()
    time.sleep(0.25)

    assert client.get(f"/v1/checkpoints/{made['id']}").status_code == 404
    assert client.post("/v1/sessions", json={"from_checkpoint": made["id"]}).status_code == 404


# --- wrong files --------------------------------------------------------------------------------------------------


def forged(file: bytes, change: Any) -> bytes:
    """`file` with a changed header: `change` takes it as a document."""
    (size,) = struct.unpack_from("<Q", file)
    header = json.loads(file[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + file[8 + size :]


def in_state(**members: Any) -> Any:
    def change(header: dict[str, Any]) -> None:
        state = json.loads(header["__metadata__"]["backpass"])
        for name, value in members.items():
            state[name] = value
        header["__metadata__"]["backpass"] = json.dumps(state)

    return change


def renamed(old: str, new: str) -> Any:
    return lambda header: header.update({new: header.pop(old)})


def without(member: str) -> Any:
    return lambda header: header["__metadata__"].pop(member)


WRONG = [
    (in_state(step=-1), 422, "/__metadata__/backpass/step"),
    (in_state(optimizer={"type": 3, "attrs": {}}), 422, "/__metadata__/backpass/optimizer/type"),
    (in_state(optimizer={"type": "adamm", "attrs": {}}), 422, "/__metadata__/backpass/optimizer"),
    (in_state(format=99), 422, "/__metadata__/backpass/format"),
    (in_state(surprise=1), 422, "/__metadata__/backpass"),
    (in_state(slots=["w/first", "w/velocity"]), 422, "/w~1velocity"),
    (in_state(layouts={"w": [0, 0]}), 422, "/w"),
    (in_state(gradients={}), 422, "/b@GRAD"),
    (in_state(program_id="prg_aaaaaaaaaaaaaaaaaaaaaaaaaa"), 422, "/__metadata__/backpass/program_id"),
    (in_state(query={"loss": "losss"}), 422, None),
    (in_state(query={"loss": "loss", "hooks": 3}), 422, "/__metadata__/backpass/hooks"),
    (without("program"), 422, "/__metadata__/program"),
    (lambda header: header["__metadata__"].update(program="{"), 422, "/__metadata__/program"),
    (lambda header: header["__metadata__"].update(backpass="["), 422, "/__metadata__/backpass"),
    (lambda header: header["__metadata__"].update(backpass=3), 400, None),
    (renamed("w", "v"), 422, "/w"),
    (renamed("w/first", "other"), 422, "/w~1first"),
    (lambda header: header["w"].update(dtype="I32"), 422, "/w"),
    (lambda header: header["w"].update(dtype="F99"), 422, "/w/dtype"),
    (lambda header: header["w"].update(shape=[2**40, 1]), 422, None),
    (lambda header: header["w"].update(shape=[1, 2]), 422, "/w"),
    (lambda header: header["w"].update(data_offsets=[0, 8]), None, None),
    (lambda header: header["w"].pop("shape"), 400, None),
    (lambda header: header.update(w=3), 400, None),
]  # fmt: skip


@pytest.mark.parametrize(("change", "status", "place"), WRONG)
def test_wrong_headers_are_refused_with_their_place(client, trained, change, status, place):
    file = content(client, saved(client, trained)).content
    before = len(client.get("/v1/checkpoints?page_size=200").json()["checkpoints"])
    answer = client.post("/v1/checkpoints", content=forged(file, change), headers=FILE)

    assert answer.status_code == status or (status is None and answer.status_code in (400, 422)), answer.text
    if place is not None:
        assert place in [error["pointer"] for error in answer.json().get("errors", [{"pointer": ""}])], answer.text
    assert len(client.get("/v1/checkpoints?page_size=200").json()["checkpoints"]) == before


def test_cut_and_extended_files_and_wrong_digests_are_refused(client, trained):
    file = content(client, saved(client, trained)).content
    for wrong in (b"", file[:5], file[:100], file[:-1], file + b"\0", struct.pack("<Q", 2**60) + file[8:]):
        answer = client.post("/v1/checkpoints", content=wrong, headers=FILE)
        assert answer.status_code == 400, (len(wrong), answer.text)
    digest = b64encode(sha256(file).digest()).decode()
    for name in ("Repr-Digest", "Content-Digest"):
        sent = {**FILE, name: f"sha-256=:{digest}:"}
        assert client.post("/v1/checkpoints", content=file, headers=sent).status_code == 201
        changed = file[:-1] + bytes([file[-1] ^ 1])
        refused = client.post("/v1/checkpoints", content=changed, headers=sent)
        assert refused.status_code == 422 and refused.json()["errors"][0]["code"] == "wrong-digest"
        for wrong in ("sha-256=:x:", "xx", "", f"sha-256={digest}"):
            assert client.post("/v1/checkpoints", content=file, headers=FILE | {name: wrong}).status_code == 422
        assert client.post("/v1/checkpoints", content=file, headers=FILE | {name: "sha-512=:eA==:"}).status_code == 201


def test_uploads_without_a_length_are_accepted(client, trained):
    file = content(client, saved(client, trained)).content
    parts = (file[i : i + 100] for i in range(0, len(file), 100))
    answer = client.post("/v1/checkpoints", content=parts, headers=FILE)

    assert answer.status_code == 201 and answer.json()["sha256"] == sha256(file).hexdigest()


def test_a_bool_that_is_neither_0_nor_1_is_refused(client):
    file = save({"mask": np.array([True, False]), "w": np.ones(2, np.float32)})
    assert client.post("/v1/checkpoints", content=file, headers=FILE).status_code == 201
    begin = 8 + struct.unpack_from("<Q", file)[0]
    at = begin + json.loads(file[8:begin])["mask"]["data_offsets"][0]
    answer = client.post("/v1/checkpoints", content=file[:at] + b"\2" + file[at + 1 :], headers=FILE)

    assert answer.status_code == 422 and answer.json()["errors"][0]["pointer"] == "/mask"


def test_a_missing_or_damaged_file_is_told(tmp_path_factory, client, trained):
    bias = {"dtype": "float32", "shape": [1], "data": [time.time() % 1]}  # no other file of this service has it
    client.put(f"{trained}/parameters", json={"parameters": {"b": bias}}, headers={"If-Match": "*"})
    made = saved(client, trained)
    folder = tmp_path_factory.getbasetemp()
    (file,) = [p for p in folder.rglob("*.safetensors") if p.stat().st_size == made["size"] and _is(p, made["sha256"])]
    raw = file.read_bytes()

    file.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    changed = client.post("/v1/sessions", json={"from_checkpoint": made["id"]})
    file.write_bytes(raw[:-1])
    short = content(client, made)
    file.unlink()
    gone = [client.post("/v1/sessions", json={"from_checkpoint": made["id"]}), content(client, made)]

    for answer in (changed, short, *gone):
        assert (answer.status_code, answer.json()["code"]) == (409, "checkpoint-damaged"), answer.text
    assert client.delete(f"/v1/checkpoints/{made['id']}").status_code == 204


def _is(path: Any, digest: str) -> bool:
    return sha256(path.read_bytes()).hexdigest() == digest


# --- optimizer state ----------------------------------------------------------------------------------------------


def test_optimizer_state_as_json_and_as_a_file(client, trained, opened):
    said = client.get(f"{trained}/optimizer").json()
    assert said["slots"].keys() == {f"{p}/{slot}" for p in ("w", "b") for slot in ("first", "second", "step")}
    assert (said["step"], said["optimizer"]["type"], said["optimizer"]["beta1"]) == (3, "adam", 0.9)
    answer = client.get(f"{trained}/optimizer?names=w", headers=BINARY)
    document, tensors = tensorfile.unpack(answer.content, key="response")
    assert tensors.keys() == {"w/first", "w/second", "w/step"} and document["step"] == 3
    same = client.get(f"{trained}/optimizer", headers={**BINARY, "If-None-Match": answer.headers["etag"]})
    assert same.status_code == 304
    wrong = client.get(f"{trained}/optimizer?names=w&names=w/thrid")
    assert wrong.status_code == 422 and wrong.json()["errors"][0]["parameter"] == "query: names/1"

    other = opened(program=REGRESSION, loss="loss", optimizer=ADAM)
    assert client.put(f"{other}/optimizer", json={"slots": said["slots"]}).status_code == 428
    stale = client.put(f"{other}/optimizer", json={}, headers={"If-Match": '"e1.v7"'})
    assert stale.status_code == 412
    put = client.put(f"{other}/optimizer", json={"slots": said["slots"], "step": 3}, headers={"If-Match": "*"})
    assert put.status_code == 200 and put.json()["step"] == 3
    assert client.get(f"{other}/optimizer").json()["slots"] == said["slots"]
    body = tensorfile.pack({"w/first": np.ones((2, 1), np.float32)}, {"step": 9}, key="request")
    put = client.put(f"{other}/optimizer", content=body, headers={**FILE, "If-Match": put.headers["etag"]})
    assert put.json()["step"] == 9
    assert client.get(f"{other}/optimizer?names=w/first").json()["slots"]["w/first"]["data"] == [1, 1]


def test_wrong_optimizer_state_is_told_at_once(client, trained):
    wrong = {
        "w/first": {"dtype": "float32", "shape": [1, 2], "data": [1, 2]},
        "w/second": {"dtype": "float32", "shape": [2, 1], "data": [1]},
        "w/velocity": {"dtype": "float32", "shape": [], "data": [1]},
    }
    before = client.get(f"{trained}/optimizer").json()["slots"]
    answer = client.put(f"{trained}/optimizer", json={"slots": wrong}, headers={"If-Match": "*"})

    assert answer.status_code == 422
    assert {error["pointer"] for error in answer.json()["errors"]} == {
        "/slots/w~1first/shape",
        "/slots/w~1second/data",
        "/slots/w~1velocity",
    }
    assert client.get(f"{trained}/optimizer").json()["slots"] == before


def test_sessions_from_a_deleted_checkpoint_survive_their_worker(tmp_path):
    """Their own first checkpoint is made before they are acknowledged."""
    with serve(tmp_path, workers=1) as served:
        client = served.client
        old = client.post("/v1/sessions", json={"program": REGRESSION, "loss": "loss", "optimizer": ADAM}).headers
        assert client.post(f"{old['location']}/steps", json=STEP).status_code == 200
        made = saved(client, old["location"])
        again = client.post("/v1/sessions", json={"from_checkpoint": made["id"]}).headers["location"]
        sgd = {"from_checkpoint": made["id"], "optimizer": {"type": "sgd"}, "optimizer_state": False}
        tuned = client.post("/v1/sessions", json=sgd).headers["location"]
        fork = client.post(f"{old['location']}/fork").headers["location"]
        client.delete(f"/v1/checkpoints/{made['id']}")
        tuned_twin = client.post(f"{tuned}/fork").headers["location"]
        for path in (again, tuned):
            assert client.post(f"{path}/steps", json=STEP).status_code == 200
        os.kill(client.get("/v1/workers").json()["workers"][0]["pid"], signal.SIGKILL)
        served.wait_until_ready()

        for path in (fork, tuned_twin, old["location"]):
            assert client.post(f"{path}/steps", json=STEP).status_code == 200
        for found, wanted in ((again, old["location"]), (fork, old["location"]), (tuned, tuned_twin)):
            assert values(client, found) == values(client, wanted)


def values(client: httpx.Client, path: str) -> dict[str, bytes]:
    """Parameters and optimizer state of a session, as bytes."""
    found = {}
    for member in ("parameters", "optimizer"):
        tensors = tensorfile.unpack(client.get(f"{path}/{member}", headers=BINARY).content)[1]
        found |= {name: value.tobytes() for name, value in tensors.items()}
    return found


def test_forged_files_are_refused_or_open_as_sessions(client, trained):
    """Every upload gets a problem or a checkpoint, and every checkpoint a problem or a session."""
    file = content(client, saved(client, trained)).content
    (size,) = struct.unpack_from("<Q", file)
    header = json.loads(file[8 : 8 + size])
    state = json.loads(header["__metadata__"]["backpass"])
    draw = random.Random(0)
    accepted = 0
    for _ in range(150):
        forged_header = json.loads(json.dumps(header))
        if draw.random() < 0.6:
            forged_header["__metadata__"]["backpass"] = json.dumps(mutated(state, draw))
        else:
            forged_header = mutated(forged_header, draw)
        text = json.dumps(forged_header).encode()
        whole = struct.pack("<Q", len(text)) + text + file[8 + size :]
        answer = client.post("/v1/checkpoints", content=whole, headers=FILE)
        check(answer)
        if answer.status_code == 201:
            accepted += 1
            opened = client.post("/v1/sessions", json={"from_checkpoint": answer.json()["id"]})
            check(opened)
            if opened.status_code == 201:
                check(client.post(f"{opened.headers['location']}/steps", json=STEP))
                client.delete(opened.headers["location"])
            client.delete(answer.headers["location"])
    assert 0 < accepted < 100
