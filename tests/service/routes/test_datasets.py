"""Datasets over HTTP: storing, reading, changing and deleting them."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load
from sqlalchemy import Executable
from starlette.testclient import TestClient

from service.app import create_app
from service.schemas.examples import SAMPLE_COLUMNS, SAMPLE_CSV, SAMPLE_DATASET, SAMPLE_UPLOAD
from service.settings import Settings
from service.store import tables
from tests.service.conftest import Served, serve
from tests.service.datasets.tables import as_csv, as_jsonl, as_npz, as_parquet, as_safetensors
from tests.service.http.test_worker_calls import FullQueue
from tests.service.store.rows import row_of

TYPES = {
    "csv": "text/csv",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "npz": "application/x-npz",
    "safetensors": "application/x-safetensors",
}
COLUMNS = {"x": np.arange(12, dtype=np.float32).reshape(6, 2), "n": np.arange(6)}


def post(client: httpx.Client, data: bytes, format: str = "safetensors", **query: Any) -> httpx.Response:
    return client.post("/v1/datasets", content=data, headers={"content-type": TYPES[format]}, params=query)


@pytest.fixture
def stored(client) -> Iterator[dict[str, Any]]:
    """A dataset with content of its own."""
    columns = {**COLUMNS, "own": np.full(6, time.monotonic_ns())}
    answer = post(client, as_safetensors(columns), name="mine")
    assert answer.status_code == 201, answer.text
    yield answer.json()
    client.delete(f"/v1/datasets/{answer.json()['id']}")


@pytest.mark.parametrize("format", TYPES)
def test_a_file_of_each_format_becomes_a_dataset(client, format):
    writers = {"csv": as_csv, "jsonl": as_jsonl, "parquet": as_parquet, "npz": as_npz, "safetensors": as_safetensors}
    table = {"x": np.array([0.5, 1.5, -2.5], np.float32), "n": np.array([3, 2, len(format)])}

    answer = post(client, writers[format](table), format, name=f"a {format} file")

    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert answer.headers["location"] == f"/v1/datasets/{found['id']}"
    assert (found["name"], found["rows"]) == (f"a {format} file", 3)
    assert {each["name"]: each["dtype"] for each in found["columns"]} == {"x": "float32", "n": "int64"}
    x = next(each for each in found["columns"] if each["name"] == "x")
    assert x["statistics"] == {"nan": 0, "infinite": 0, "min": -2.5, "max": 1.5, "mean": pytest.approx(-0.5 / 3)}
    assert client.get(answer.headers["location"]).json() == found
    content = client.get(f"{answer.headers['location']}/content").content
    np.testing.assert_array_equal(load(content)["x"], table["x"])
    assert hashlib.sha256(content).hexdigest() == found["sha256"]
    assert client.delete(answer.headers["location"]).status_code == 204
    assert client.get(answer.headers["location"]).status_code == 404


def test_the_same_content_has_one_id_and_is_stored_once(client, stored):
    content = client.get(f"/v1/datasets/{stored['id']}/content").content

    again = post(client, content, name="another name")

    assert again.status_code == 200
    assert again.json() == stored


def test_options_of_the_query_reach_the_reader(client):
    data = b"a;b;kind;t\n1;0.5;u;7\n2;;v;8\n3;1.5;u;9\n"
    query = {
        "delimiter": ";", "missing": "drop", "types": ["t:uint8", "kind:text"], "stack": ["x:a,b"], "floats": "float64",
    }  # fmt: skip

    found = post(client, data, "csv", **query).json()

    assert {each["name"]: (each["dtype"], each["shape"]) for each in found["columns"]} == {
        "x": ("float64", [2]), "kind": ("int64", []), "t": ("uint8", [])
    }  # fmt: skip
    preview = client.get(f"/v1/datasets/{found['id']}/preview").json()
    assert preview == {
        "first": 0,
        "rows": [{"x": [1.0, 0.5], "kind": "u", "t": 7}, {"x": [3.0, 1.5], "kind": "u", "t": 9}],
        "total": 2,
    }


@pytest.mark.parametrize(
    ("headers", "query", "body", "status", "code"),
    [
        ({"content-type": "text/csv"}, {}, b"a,b\n1\n", 422, "invalid-dataset"),
        ({"content-type": "text/html"}, {}, b"a\n1\n", 415, "unsupported-media-type"),
        ({"content-type": "application/octet-stream"}, {}, b"a\n1\n", 422, "invalid-request"),
        ({"content-type": "text/csv", "content-encoding": "gzip"}, {}, b"a\n1\n", 415, "unsupported-encoding"),
        ({"content-type": "text/csv"}, {"types": "a"}, b"a\n1\n", 422, "invalid-request"),
        ({"content-type": "text/csv"}, {"types": "a:int7"}, b"a\n1\n", 422, "invalid-request"),
        ({"content-type": "text/csv"}, {"missing": "maybe"}, b"a\n1\n", 422, "invalid-request"),
        ({"content-type": "text/csv"}, {"delimiter": "ab"}, b"a\n1\n", 422, "invalid-request"),
        ({"content-type": "text/csv"}, {"name": "\x00"}, b"a\n1\n", 422, "invalid-request"),
        ({"content-type": "text/csv"}, {"unknown": "1"}, b"a\n1\n", 422, "invalid-request"),
        ({"content-type": "application/json"}, {"name": "x"}, b"{}", 422, "invalid-request"),
        ({"content-type": "application/json"}, {}, b"{}", 422, "invalid-request"),
        ({"content-type": "application/json"}, {}, b'{"columns":{}}', 422, "invalid-dataset"),
        ({"content-type": "application/json"}, {}, b'{"columns":{"a":{"dtype":"int8","shape":[2],"data":[1]}}}', 422,
         "shape-mismatch"),
        ({"content-type": "application/json"}, {}, b'{"upload":"upl_aaaaaaaaaaaaaaaaaaaaaaaaaa"}', 422,
         "invalid-request"),
        ({"content-type": "application/json"}, {}, b'{"upload":"upl_aaaaaaaaaaaaaaaaaaaaaaaaaa","format":"csv"}', 404,
         "not-found"),
    ],
)  # fmt: skip
def test_wrong_requests_get_problem_documents(client, headers, query, body, status, code):
    answer = client.post("/v1/datasets", content=body, headers=headers, params=query)

    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_mistakes_of_a_file_are_told_with_row_and_column(client):
    answer = post(client, b"a,b\n1,2\nx,\n3\n", "csv", types=["a:int64"])

    assert answer.status_code == 422
    assert [(e["pointer"], e.get("location")) for e in answer.json()["errors"]] == [
        ("", {"row": 3}),
        ("/b", {"row": 2, "column": "b"}),
    ]


def test_a_preview_shows_rows_columns_and_missing_numbers(client):
    table = {"x": np.array([1.5, np.nan, np.inf], np.float32), "ok": np.array([True, False, True])}
    found = post(client, as_npz(table), "npz").json()
    path = f"/v1/datasets/{found['id']}/preview"

    assert client.get(path, params={"rows": 2}).json()["rows"] == [{"x": 1.5, "ok": True}, {"x": None, "ok": False}]
    assert client.get(path, params={"first": 2, "columns": "ok"}).json()["rows"] == [{"ok": True}]
    assert client.get(path, params={"first": 5}).json()["rows"] == []
    assert client.get(path, params={"columns": "z"}).json()["code"] == "invalid-request"


def test_a_download_can_be_resumed(client, stored):
    path = f"/v1/datasets/{stored['id']}/content"
    whole = client.get(path)
    tag = whole.headers["etag"]
    digest = base64.b64encode(hashlib.sha256(whole.content).digest()).decode()

    assert whole.headers["repr-digest"] == f"sha-256=:{digest}:"
    part = client.get(path, headers={"range": "bytes=10-99", "if-range": tag})
    assert (part.status_code, part.content) == (206, whole.content[10:100])
    assert part.headers["content-range"] == f"bytes 10-99/{len(whole.content)}"
    assert client.get(path, headers={"range": "bytes=-7"}).content == whole.content[-7:]
    assert client.get(path, headers={"range": "bytes=50-"}).content == whole.content[50:]
    assert client.get(path, headers={"range": "bytes=10-20", "if-range": '"other"'}).status_code == 200
    beyond = client.get(path, headers={"range": f"bytes={len(whole.content)}-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(whole.content)}")
    assert client.get(path, headers={"if-none-match": tag}).status_code == 304


def test_name_labels_and_expiry_can_be_changed(client, stored):
    path = f"/v1/datasets/{stored['id']}"

    client.patch(path, json={"name": "new", "labels": {"a": "1", "b": "2"}, "expires_at": 4e9})
    answer = client.patch(path, json={"labels": {"a": None}})

    found = answer.json()
    assert (found["name"], found["labels"], found["expires_at"]) == ("new", {"b": "2"}, 4e9)
    assert client.patch(path, json={"expires_at": None}).json()["expires_at"] is None
    assert client.patch(path, json={"rows": 3}).status_code == 422
    assert client.patch("/v1/datasets/dst_aaaaaaaaaaaaaaaaaaaaaaaaaa", json={}).status_code == 404


def test_an_expiry_that_has_passed_is_refused_and_the_dataset_stays(client, stored):
    path = f"/v1/datasets/{stored['id']}"

    for passed in (1, time.time() - 1):
        refused = client.patch(path, json={"expires_at": passed})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/expires_at")
        assert "in the future in seconds since 1970" in refused.json()["errors"][0]["detail"]

    assert client.get(path).json()["expires_at"] is None


def test_a_file_or_columns_with_an_expiry_that_has_passed_are_refused(client):
    file = post(client, as_safetensors(COLUMNS), expires_at=5)
    tensor = {"dtype": "int64", "shape": [1], "data": [3]}
    columns = client.post("/v1/datasets", json={"columns": {"x": tensor}, "expires_at": 5})

    assert (file.status_code, file.json()["errors"][0]["parameter"]) == (422, "query: expires_at")
    assert (columns.status_code, columns.json()["errors"][0]["pointer"]) == (422, "/expires_at")
    assert "in the future in seconds since 1970" in file.json()["errors"][0]["detail"]


def test_the_list_has_pages(client, stored):
    client.get(f"/v1/datasets/{SAMPLE_DATASET}")
    found, token = [], ""
    while token is not None:
        page = client.get("/v1/datasets", params={"page_size": 1, "page_token": token}).json()
        assert len(page["datasets"]) <= 1
        found += page["datasets"]
        token = page["next_page_token"]

    ids = [each["id"] for each in found]
    assert {stored["id"], SAMPLE_DATASET} <= set(ids)
    assert len(ids) == len(set(ids))
    times = [each["created"] for each in found]
    assert times == sorted(times, reverse=True)


def test_a_dataset_of_a_running_job_cannot_be_deleted(tmp_path):
    app = create_app(Settings(data_dir=tmp_path), FullQueue())  # type: ignore[arg-type]
    with TestClient(app) as client:
        stored = client.post("/v1/datasets", json={"columns": SAMPLE_COLUMNS}).json()
        spec = json.dumps({"dataset_id": stored["id"]})
        given = {"id": "job_aaaaaaaaaaaaaaaaaaaaaaaaaa", "tenant": "local", "state": "running", "spec": spec}
        job = row_of(tables.jobs) | given | {"ended": None}

        def write(statement: Executable, *values: dict[str, Any]) -> None:
            assert client.portal is not None
            client.portal.call(app.state.store.write, lambda c: c.execute(statement, *values) and None)

        write(tables.jobs.insert(), job)
        refused = client.delete(f"/v1/datasets/{stored['id']}")
        assert (refused.status_code, refused.json()["code"]) == (409, "in-use")
        assert refused.json()["jobs"] == [job["id"]]

        write(tables.jobs.delete())
        assert client.delete(f"/v1/datasets/{stored['id']}").status_code == 204


def test_the_sample_dataset_is_the_example_of_the_documentation(client):
    client.delete(f"/v1/datasets/{SAMPLE_DATASET}")

    by_example = client.post("/v1/datasets", json={"columns": SAMPLE_COLUMNS})

    assert by_example.json()["id"] == SAMPLE_DATASET
    assert client.get(f"/v1/datasets/{SAMPLE_DATASET}").json()["rows"] == 8


# --- uploads


OCTETS = {"content-type": "application/offset+octet-stream"}


def patch(client: httpx.Client, path: str, offset: int, data: bytes) -> httpx.Response:
    return client.patch(path, content=data, headers={**OCTETS, "upload-offset": str(offset)})


def test_an_upload_in_parts_becomes_the_dataset_of_the_whole_file(client):
    data = as_npz({"x": np.random.default_rng(3).normal(size=(500, 7))})
    asked = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    started = client.post("/v1/uploads", json=asked)
    path = started.headers["location"]
    assert started.status_code == 201
    for begin in range(0, len(data), 10_000):
        answer = patch(client, path, begin, data[begin : begin + 10_000])
        assert answer.status_code == 204, answer.text
    assert answer.headers["upload-offset"] == str(len(data))

    body = {"upload": started.json()["id"], "format": "npz", "name": "in parts"}
    made = client.post("/v1/datasets", json=body)

    assert made.status_code == 201, made.text
    assert post(client, data, "npz").json()["id"] == made.json()["id"]
    assert client.get(path).json()["dataset"] == made.json()["id"]
    again = client.post("/v1/datasets", json=body)
    assert (again.status_code, again.json()) == (200, made.json())
    assert client.post("/v1/datasets", json={**body, "stack": {"y": ["x"]}}).json()["code"] == "invalid-state"
    assert client.delete(path).status_code == 204
    assert client.head(path).status_code == 404


def test_an_upload_continues_only_at_its_offset(client):
    path = client.post("/v1/uploads", json={"size": 10}).headers["location"]
    assert patch(client, path, 0, b"12345").status_code == 204

    wrong = patch(client, path, 3, b"45678")
    assert (wrong.status_code, wrong.json()["code"], wrong.json()["offset"]) == (409, "invalid-state", 5)
    assert patch(client, path, 5, b"123456").status_code in (413, 422)
    assert client.head(path).headers["upload-offset"] == "5"
    incomplete = client.post("/v1/datasets", json={"upload": path.rpartition("/")[2], "format": "csv"})
    assert (incomplete.status_code, incomplete.json()["offset"]) == (409, 5)
    no_offset = client.patch(path, content=b"x", headers=OCTETS)
    assert no_offset.status_code == 422
    assert client.patch(path, content=b"x", headers={"upload-offset": "5"}).status_code == 415


@pytest.mark.parametrize(
    ("lines", "status", "code"),
    [
        ([("content-encoding", "gzip")], 415, "unsupported-encoding"),
        ([("content-encoding", "identity"), ("content-encoding", "gzip")], 415, "unsupported-encoding"),
        ([("content-type", "application/json")], 415, "unsupported-media-type"),
        ([("upload-offset", "3")], 422, "invalid-request"),
    ],
)
def test_bytes_that_a_proxy_may_have_read_otherwise_are_not_added_to_an_upload(client, lines, status, code):
    path = client.post("/v1/uploads", json={"size": 10}).headers["location"]
    headers = [*OCTETS.items(), ("upload-offset", "0"), *lines]

    answer = client.patch(path, content=b"12345", headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert client.head(path).headers["upload-offset"] == "0"
    client.delete(path)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([("content-type", "text/csv"), ("content-type", "application/json")], 415),
        ([("content-type", "text/csv"), ("content-encoding", "identity"), ("content-encoding", "gzip")], 415),
        ([("content-type", "text/csv"), ("content-encoding", "identity")], 201),
    ],
)
def test_several_lines_of_a_header_of_a_file_are_one_list(client, lines, status):
    answer = client.post("/v1/datasets", content=b"listed\n1\n", headers=lines)

    assert answer.status_code == status, answer.text
    if status == 201:
        client.delete(answer.headers["location"])


def test_mistakes_in_options_point_into_the_request_and_those_of_values_to_a_column(client):
    wrong = {"stack": {"x": ["a", "b"]}, "types": {"c": "int8"}}
    query = {"stack": "x:a,b"}
    upload = client.post("/v1/uploads", json={"size": 4}).headers["location"]
    patch(client, upload, 0, b"a\n1\n")
    of_upload = {"upload": upload.rpartition("/")[2], "format": "csv"}
    columns = {"a": {"dtype": "int8", "shape": [1], "data": [1]}, "d": {"dtype": "int8", "shape": [2], "data": [1, 2]}}

    def places(answer: Any) -> set[tuple[str, str | None]]:
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-dataset"), answer.text
        return {(each["pointer"], each.get("parameter")) for each in answer.json()["errors"]}

    assert places(post(client, b"a\n1\n", "csv", **query)) == {("", "query: stack")}
    assert places(post(client, b"a\n1\n", "csv", types="c:int8")) == {("", "query: types")}
    assert places(post(client, b"a,b\n1,2\n1,\n", "csv", **query)) == {("/b", None)}
    for member, pointer in {"stack": "/stack/x/1", "types": "/types/c"}.items():
        assert places(client.post("/v1/datasets", json={**of_upload, member: wrong[member]})) == {(pointer, None)}
    assert places(client.post("/v1/datasets", json={"columns": columns})) == {("/columns/d", None)}
    del columns["d"]
    assert places(client.post("/v1/datasets", json={"columns": columns, "stack": wrong["stack"]})) == {
        ("/stack/x/1", None)
    }
    assert client.delete(upload).status_code == 204


def test_the_list_of_uploads_has_pages_and_shows_where_each_goes_on(client):
    paths = [client.post("/v1/uploads", json={"size": 10}).headers["location"] for _ in range(3)]
    patch(client, paths[1], 0, b"12345")
    found, token = {}, ""
    while token is not None:
        page = client.get("/v1/uploads", params={"page_size": 2, "page_token": token}).json()
        found |= {f"/v1/uploads/{each['id']}": each for each in page["uploads"]}
        token = page["next_page_token"]

    assert [found[path]["offset"] for path in paths] == [0, 5, 0]
    assert [path for path in found if path in paths] == paths[::-1]
    assert all(client.get(path).json() == found[path] for path in paths)
    for path in paths:
        client.delete(path)
    assert not {each["id"] for each in client.get("/v1/uploads").json()["uploads"]} & {path[12:] for path in paths}


def test_an_upload_with_another_digest_is_refused(client):
    path = client.post("/v1/uploads", json={"size": 6, "sha256": "0" * 64}).headers["location"]
    patch(client, path, 0, b"a\n1\n2\n")

    answer = client.post("/v1/datasets", json={"upload": path.rpartition("/")[2], "format": "csv"})

    assert answer.status_code == 422
    assert "SHA-256" in answer.json()["detail"]


def test_bytes_that_arrived_before_the_connection_broke_stay(service, client):
    path = client.post("/v1/uploads", json={"size": 3_000_000}).headers["location"]
    url = httpx.URL(service.url)
    with socket.create_connection((url.host, url.port)) as raw:
        head = f"PATCH {path} HTTP/1.1\r\nHost: {url.host}\r\nUpload-Offset: 0\r\nContent-Length: 3000000\r\n"
        raw.sendall(head.encode() + b"Content-Type: application/offset+octet-stream\r\n\r\n" + b"7" * 2_000_000)
        time.sleep(0.3)
    end = time.monotonic() + 60
    while (offset := int(client.head(path).headers["upload-offset"])) == 0 and time.monotonic() < end:
        time.sleep(0.05)

    assert 0 < offset <= 2_000_000
    assert patch(client, path, offset, b"7" * (3_000_000 - offset)).status_code == 204


def test_the_sample_upload_is_the_sample_table(client):
    body = {"upload": SAMPLE_UPLOAD, "format": "csv", "stack": {"x": ["a", "b"], "y": ["y"]}}
    client.delete(f"/v1/uploads/{SAMPLE_UPLOAD}")

    made = client.post("/v1/datasets", json=body)

    assert made.status_code in (200, 201), made.text
    assert client.head(f"/v1/uploads/{SAMPLE_UPLOAD}").headers["upload-offset"] == str(len(SAMPLE_CSV))
    rows = client.get(f"/v1/datasets/{made.json()['id']}/preview", params={"rows": 1}).json()["rows"]
    assert rows == [{"x": [0, 0], "y": [1]}]


def test_datasets_and_uploads_survive_a_restart_and_limits_hold(tmp_path: Path):
    limits: dict[str, Any] = {"dataset_bytes": 100_000, "datasets": 2, "uploads": 2, "workers": 1}
    data = as_csv({"a": np.arange(100), "b": np.arange(100)})
    with serve(tmp_path, **limits) as served:
        id = post(served.client, data, "csv").json()["id"]
        path = served.client.post("/v1/uploads", json={"size": len(data)}).headers["location"]
        patch(served.client, path, 0, data[:100])
        too_large = post(served.client, bytes(100_001), "csv")
        assert (too_large.status_code, too_large.json()["limit"]) == (413, 100_000)
        grown = post(served.client, as_npz({"a": np.zeros(200_000)}), "npz")
        assert (grown.status_code, grown.json()["code"]) == (422, "limit-exceeded")
        assert served.client.post("/v1/uploads", json={"size": 100_001}).json()["code"] == "limit-exceeded"
        crash(served)
    (tmp_path / "spool" / "left").mkdir(parents=True, exist_ok=True)
    (tmp_path / "objects" / "datasets" / ("0" * 64)).write_bytes(b"without a row")

    with serve(tmp_path, **limits) as served:
        assert served.client.get(f"/v1/datasets/{id}").json()["rows"] == 100
        assert served.client.head(path).headers["upload-offset"] == "100"
        patch(served.client, path, 100, data[100:])
        body = {"upload": path.rpartition("/")[2], "format": "csv"}
        assert served.client.post("/v1/datasets", json=body).json()["id"] == id
        assert not any((tmp_path / "spool").iterdir())
        assert [each.name for each in (tmp_path / "objects" / "datasets").iterdir()] == [
            served.client.get(f"/v1/datasets/{id}").json()["sha256"]
        ]
        assert not list((tmp_path / "objects" / "uploads").rglob("*.*"))
        assert post(served.client, b"a\n1\n", "csv").status_code == 201
        assert post(served.client, b"a\n2\n", "csv").json()["code"] == "quota-exceeded"
        for _ in range(2):
            assert served.client.post("/v1/uploads", json={"size": 5}).status_code == 201
        assert served.client.post("/v1/uploads", json={"size": 5}).json()["code"] == "quota-exceeded"


def crash(served: Served) -> None:
    served.process.kill()
    served.process.wait()


def test_arrays_saved_by_numpy_are_read_from_a_stream_without_a_length(client):
    data = as_npz({"a": np.arange(100_000)})

    answer = client.post(
        "/v1/datasets",
        content=(data[begin : begin + 10_000] for begin in range(0, len(data), 10_000)),
        headers={"content-type": "application/zip"},
    )

    assert answer.status_code in (200, 201), answer.text
    assert answer.json()["rows"] == 100_000


def test_a_dataset_can_be_stored_in_the_background_and_with_an_idempotency_key(client):
    data = as_csv({"a": np.arange(1000), "b": np.full(1000, time.monotonic_ns())})
    headers = {"content-type": "text/csv", "prefer": "respond-async", "idempotency-key": f"k{time.monotonic_ns()}"}

    started = client.post("/v1/datasets", content=data, headers=headers)
    assert started.status_code in (201, 202), started.text
    if started.status_code == 202:
        operation = client.get(started.headers["location"], headers={"prefer": "wait=30"}).json()
        assert (operation["state"], operation["status"]) == ("succeeded", 201)
    again = client.post("/v1/datasets", content=data, headers={"content-type": "text/csv"})
    assert again.status_code == 200


def test_a_header_that_declares_too_much_is_refused_before_the_body(service):
    url = httpx.URL(service.url)
    with socket.create_connection((url.host, url.port)) as raw:
        head = f"POST /v1/datasets HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: {2**60}\r\n"
        raw.sendall(head.encode() + b"Content-Type: text/csv\r\n\r\n")
        answer = raw.recv(4096).decode()

    assert answer.startswith("HTTP/1.1 413")
    assert str(2**32) in answer
