"""Datasets and streams of the Python client with a real service, and failures of the network."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file

import backpass_client as bp
from examples.models import line
from tests.service.datasets.tables import as_csv

FEEDS = {"x": np.array([[1.0, 2.0], [3.0, 4.0]]), "y": np.array([1.0, 0.0])}
W = np.array([0.5, -0.25])


def test_arrays_are_uploaded_previewed_listed_downloaded_and_deleted(service, tmp_path):
    x = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)

    made = service.datasets.upload({"x": x, "n": np.arange(5)}, name="five rows")

    assert (made.name, made.rows) == ("five rows", 5)
    assert service.datasets.upload({"x": x, "n": np.arange(5)}).id == made.id
    assert "five rows" in [each.name for each in service.datasets.list()]
    assert service.datasets.preview(made, rows=2, columns=["n"]) == [{"n": 0}, {"n": 1}]
    assert service.datasets.get(made.id) == made
    service.datasets.download(made, tmp_path / "copy.safetensors")
    np.testing.assert_array_equal(load_file(tmp_path / "copy.safetensors")["x"], x)
    service.datasets.delete(made)
    with pytest.raises(bp.Refused, match="not-found"):
        service.datasets.get(made.id)


def test_a_csv_file_is_uploaded_with_options(service, tmp_path):
    path = tmp_path / "iris.csv"
    path.write_text("a,b,kind\n1,0.5,u\n2,1.5,v\n")

    made = service.datasets.upload(path, stack={"x": ["a", "b"]}, types={"kind": "text"}, labels={"from": "test"})

    assert made.name == "iris.csv"
    assert made.said["labels"] == {"from": "test"}
    assert service.datasets.preview(made) == [{"x": [1, 0.5], "kind": "u"}, {"x": [2, 1.5], "kind": "v"}]
    path.write_text("a,b\n1\n")
    with pytest.raises(bp.Refused, match="row 1: 1 cells"):
        service.datasets.upload(path)


class Breaking(httpx.BaseTransport):
    """Breaks every third part of an upload, some of them after the service has received it."""

    def __init__(self) -> None:
        self._inner, self.parts = httpx.HTTPTransport(), 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method != "PATCH":
            return self._inner.handle_request(request)
        self.parts += 1
        if self.parts % 6 == 2:
            raise httpx.ReadError("broken before")
        answer = self._inner.handle_request(request)
        if self.parts % 6 == 5:
            raise httpx.ReadError("broken after")
        return answer


def test_a_large_upload_goes_on_after_broken_connections(url, tmp_path, monkeypatch):
    monkeypatch.setattr("backpass_client.datasets.SMALL", 1000)
    path = tmp_path / "table.csv"
    path.write_bytes(as_csv({"a": np.arange(30_000), "b": np.arange(30_000)}))
    with bp.Service(url) as service:
        service._http = httpx.Client(base_url=url, transport=Breaking(), timeout=60)

        made = service.datasets.upload(path, part_bytes=20_000, progress=True)

        assert made.rows == 30_000
        assert service.datasets.preview(made, first=29_999) == [{"a": 29_999, "b": 29_999}]


def test_an_interrupted_upload_is_continued_by_its_id(service, tmp_path, monkeypatch):
    monkeypatch.setattr("backpass_client.datasets.SMALL", 1000)
    path = tmp_path / "table.csv"
    path.write_bytes(as_csv({"a": np.arange(30_000, 60_000)}))
    send, sent = service.send, []

    def interrupted(method: str, path: str, **more: Any) -> Any:
        if method == "PATCH":
            sent.append(more["headers"]["upload-offset"])
            if sent.count("100000") == 1 and sent[-1] == "100000":
                raise KeyboardInterrupt
        return send(method, path, **more)

    monkeypatch.setattr(service, "send", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        service.datasets.upload(path, part_bytes=50_000)
    (note,) = stopped.value.__notes__
    id = note.split("'")[1]

    made = service.datasets.upload(path, part_bytes=50_000, resume=id)

    assert made.rows == 30_000
    assert list(dict.fromkeys(sent))[:3] == ["0", "50000", "100000"]  # a part may be sent twice
    assert sent.count("100000") > 1


def test_gradients_are_streamed_by_programs_and_sessions(service):
    program = bp.Program(service, line())

    once = program.stream_gradients("loss", FEEDS, {"w": W}, fetch=["error"])
    assert {name: each.tolist() for name, each in once} == {"w": [0.5, 0.0]}
    assert (once.result.loss.item(), once.result.fetched["error"].tolist()) == (0.625, [-1.0, 0.5])

    with program.session("loss", {"w": W}, optimizer={"type": "sgd", "learning_rate": 0.5}) as session:
        stream = session.stream_gradients(FEEDS)
        assert [(name, each.tolist()) for name, each in stream] == [("w", [0.5, 0.0])]
        step = session.stream_step(FEEDS)
        assert dict(step)["w"].tolist() == [0.5, 0.0]
        assert (step.result.loss.item(), step.result.said["step"], session.next_seq) == (0.625, 1, 2)
        assert session.parameters()["w"].tolist() == [0.25, -0.25]
        with session.stream_step(FEEDS):
            pass  # the step takes effect, although its stream is not read
        session.step(FEEDS)
        with pytest.raises(bp.Refused):
            [*session.stream_step({})]


class Cut(httpx.SyncByteStream):
    """A body that breaks after its first line."""

    def __init__(self, body: httpx.SyncByteStream) -> None:
        self._body = body

    def __iter__(self) -> Any:
        for data in self._body:
            yield data[: data.index(b"\n") + 1]
            raise httpx.ReadError("broken")


class Cutting(httpx.BaseTransport):
    """Breaks the first stream after its first line."""

    def __init__(self) -> None:
        self._inner, self.streams = httpx.HTTPTransport(), 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._inner.handle_request(request)
        if "ndjson" in request.headers.get("accept", ""):
            self.streams += 1
            if self.streams == 1:
                assert isinstance(answer.stream, httpx.SyncByteStream)
                answer.stream = Cut(answer.stream)
        return answer


def test_a_broken_stream_of_a_step_is_read_again_and_the_step_is_done_once(url):
    from service.schemas.examples import REGRESSION, REGRESSION_FEEDS

    feeds = {n: np.array(t["data"], t["dtype"]).reshape(t["shape"]) for n, t in REGRESSION_FEEDS.items()}
    settings = {"optimizer": {"type": "sgd", "learning_rate": 0.1}}
    with bp.Service(url) as service, bp.Program(service, REGRESSION).session("loss", **settings) as session:
        transport = Cutting()
        service._http = httpx.Client(base_url=url, transport=transport, timeout=60)

        stream = session.stream_step(feeds)

        assert [name for name, _ in stream] == ["b", "w"]
        assert stream.result.said["step"] == session.view()["step"] == 1
        assert transport.streams == 2


def test_a_table_with_tabs_is_read_by_its_suffix(url, tmp_path):
    path = tmp_path / "table.tsv"
    path.write_text("a\tkind\n1.5\tu\n2\tv\n")
    with bp.Service(url) as service:
        made = service.datasets.upload(path)
        assert service.datasets.preview(made) == [{"a": 1.5, "kind": "u"}, {"a": 2, "kind": "v"}]


@pytest.mark.parametrize("source", [[[1, 2]], np.ones(3), [{"a": 1}], None])
def test_the_client_refuses_a_wrong_source_and_names_the_cure(source):
    with pytest.raises(TypeError, match=r"a dataset comes from a file, or from arrays by name, not from a \w+: upload"):
        bp.Service("http://service").datasets.upload(source)


def test_a_file_of_an_unknown_format_names_the_formats(tmp_path):
    path = tmp_path / "table.xlsx"
    path.write_bytes(b"PK")
    with pytest.raises(bp.BackpassError, match=r"'table.xlsx' is not known: name it, format='safetensors' or another"):
        bp.Service("http://service").datasets.upload(path)


def test_a_dataset_names_the_calls_about_it():
    made = bp.Dataset("dst_1", "d", 1, None, {})
    with pytest.raises(AttributeError, match=r"write service.datasets.delete\(dataset\)"):
        made.delete  # noqa: B018
