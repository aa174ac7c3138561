"""Checkpoints of the Python client with a real service, and downloads over a broken connection."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import numpy as np
import pytest

import backpass_client as bp
from examples.models import line
from tests.programs import Sketch

FEEDS = {"x": np.array([[1.0, 2.0], [3.0, 4.0]]), "y": np.array([1.0, 0.0])}
W = np.array([0.5, -0.25])
ADAM = {"type": "adam", "learning_rate": 0.1}


@pytest.fixture
def session(service) -> Iterator[bp.Session]:
    with bp.Program(service, line()).session("loss", {"w": W}, optimizer=ADAM) as session:
        for _ in range(3):
            session.step(FEEDS)
        yield session


def losses(session: bp.Session) -> list[float]:
    return [session.step(FEEDS).loss.item() for _ in range(3)]


def test_a_checkpoint_goes_through_a_file_and_continues_to_the_bit(service, session, tmp_path):
    made = session.checkpoint("three", labels={"run": "1"})
    path = made.download(tmp_path / "three.safetensors")
    made.delete()
    copy = bp.Checkpoint.upload(service, path, name="copy", ttl=3600)

    assert [each.name for each in tmp_path.iterdir()] == ["three.safetensors"]
    assert (copy.said["name"], copy.said["step"], copy.said["sha256"]) == ("copy", 3, made.said["sha256"])
    with bp.Session.from_checkpoint(service, copy) as again:
        assert again.next_seq == session.next_seq == 4
        assert losses(again) == losses(session)
    assert copy.arrays()["w"].dtype == np.float64 and "w/first" in copy.arrays()


def test_checkpoints_are_listed_changed_and_deleted(service, session):
    made = [session.checkpoint(str(i)) for i in range(3)]

    assert {each.id for each in session.checkpoints()} == {each.id for each in made}
    assert {each.id for each in made} <= {each.id for each in bp.Checkpoint.all(service)}
    made[0].change(name="best", labels={"a": "b"})
    assert bp.Checkpoint.get(service, made[0].id).said == made[0].said
    assert (made[0].said["name"], made[0].said["labels"]) == ("best", {"a": "b"})
    for each in made:
        each.delete()
        each.delete()
    assert list(session.checkpoints()) == []


def test_a_fork_continues_to_the_bit_and_moved_optimizer_state_with_the_same_numbers(service, session):
    other = bp.Program(service, line()).session("loss", session.parameters(), optimizer=ADAM)
    other.load_optimizer_state(session.optimizer_state())
    with session.fork() as fork, other:
        wanted = losses(session)

        assert losses(fork) == wanted
        assert losses(other) == pytest.approx(wanted, rel=1e-12)  # its first step is not yet machine code
    assert session.optimizer_state(["w"]).slots.keys() == {"w/first", "w/second", "w/step"}
    assert session.optimizer_state(["w/step"]).slots["w/step"] == session.optimizer_state().step == 6


def test_arrays_start_another_program(service):
    s = Sketch()
    s.feed("x", np.ones((2, 2)))
    s.param("w", W)
    s.param("b", 0.0)
    s.op("reduce_sum", s.op("add", s.op("matmul", "x", "w"), "b"), out="loss")
    start = bp.Checkpoint.upload(service, {"w": W, "old": np.ones(3)})
    program = bp.Program(service, s.document)

    with pytest.raises(bp.Refused) as refused:
        program.session("loss", from_checkpoint=start.id)
    told = str(refused.value)
    assert "'b'" in told and "'old'" in told
    with program.session("loss", from_checkpoint=start.id, missing="initialize", extra="ignore") as session:
        assert session.parameters()["w"].tolist() == W.tolist()
        assert session.step({"x": np.ones((2, 2))}).loss.item() == 0.5


class Cut(httpx.SyncByteStream):
    """`data`, whose connection breaks after it if it is not whole."""

    def __init__(self, data: bytes, whole: bool) -> None:
        self.data, self.whole = data, whole

    def __iter__(self) -> Iterator[bytes]:
        yield self.data
        if not self.whole:
            raise httpx.ReadError("cut")


def downloads(content: bytes, digest: str, ranges: list[str | None], changed: bool = False) -> bp.Service:
    """A service whose answers break after a third of the rest. ranges: receives the Range of each request."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked = request.headers.get("range")
        ranges.append(asked)
        begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked and not changed else 0
        rest = content[begin:]
        sent = rest if len(ranges) > 3 else rest[: len(rest) // 3]
        headers = {"etag": '"a"', "repr-digest": digest, "content-length": str(len(rest))}
        return httpx.Response(206 if begin else 200, headers=headers, stream=Cut(sent, sent == rest))

    service = bp.Service("http://example.org")
    service._http = httpx.Client(base_url="http://example.org", transport=httpx.MockTransport(answer))
    return service


DIGEST = "sha-256=:nrqpUizhUHMzYOBx1rsXtVOeMTTpspo5Otp/3QvVNs0=:"


@pytest.mark.parametrize("changed", [False, True])
def test_a_broken_download_goes_on_where_it_broke(tmp_path, changed):
    from base64 import b64encode
    from hashlib import sha256

    content, ranges = bytes(range(256)) * 40, []
    digest = f"sha-256=:{b64encode(sha256(content).digest()).decode()}:"
    with (tmp_path / "file").open("wb") as file:
        downloads(content, digest, ranges, changed).receive_file("/v1/x", file)

    assert (tmp_path / "file").read_bytes() == content
    assert len(ranges) == 4 and ranges[0] is None and ranges[1] == f"bytes={len(content) // 3}-"


def test_a_download_with_a_wrong_digest_leaves_no_file(tmp_path):
    service = downloads(b"abcdef", DIGEST, [])
    checkpoint = bp.Checkpoint(service, {"id": "ckp_a", "step": 1})

    with pytest.raises(bp.BackpassError, match="digest"):
        checkpoint.download(tmp_path / "file")

    assert list(tmp_path.iterdir()) == []
