"""Large bodies and answers pass through codec processes, with the same results and the same errors as small ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson
import pytest
from safetensors.numpy import save
from starlette.requests import Request

from service.engine import Reply
from service.formats import json_tensors
from service.formats.packed import as_text
from service.http import request_body
from service.http.codec import CODEC, Codec
from service.http.given_values import read_values
from service.http.pieces import PIECE_BYTES, PiecedResponse
from service.http.request_body import INLINE_BYTES, JSON, SAFETENSORS, read_body
from service.http.tensor_payloads import render
from service.problems import HttpProblem
from service.settings import Settings
from service.store.program_text import ProgramText
from tests.service.wire import regression, tensor

pytestmark = pytest.mark.anyio
SETTINGS = Settings(codecs=1)
X = np.linspace(-3, 7, 30_000, dtype=np.float32)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def codec() -> AsyncIterator[Codec]:
    made = Codec(SETTINGS)
    yield made
    await made.stop()


@pytest.fixture
def no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every attempt to parse or write more than INLINE_BYTES in this process fail."""
    parse, dumps = request_body.parse_json, json_tensors.dumps

    def parse_small(data: bytes, **options: Any) -> Any:
        assert len(data) <= INLINE_BYTES, "the API process parses a large body"
        return parse(data, **options)

    def dump_small(document: Any) -> bytes:
        text = dumps(document)
        assert len(text) <= INLINE_BYTES, "the API process writes a large answer"
        return text

    monkeypatch.setattr(request_body, "parse_json", parse_small)
    monkeypatch.setattr(json_tensors, "dumps", dump_small)


def request(body: bytes, kind: str = JSON) -> Request:
    messages = [
        {"type": "http.request", "body": body[i : i + 50_000], "more_body": True} for i in range(0, len(body), 50_000)
    ]
    messages[-1]["more_body"] = False
    waiting = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(waiting)

    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b""}, receive)


async def read(codec: Codec | None, body: bytes, kind: str = JSON) -> request_body.Body:
    CODEC.set(codec)
    return await read_body(request(body, kind), SETTINGS)


def padded(document: dict[str, Any]) -> bytes:
    """The document with a tensor that makes it large."""
    return json.dumps({**document, "feeds": {"big": tensor(X), **document.get("feeds", {})}}).encode()


async def test_a_large_json_body_is_decoded_in_another_process(codec: Codec, no_parser: None):
    body = await read(
        codec, padded({"loss": "loss", "gradients": {"E": {"rows": tensor([1]), "values": tensor([2.0])}}})
    )

    assert body.document["loss"] == "loss"
    values = await read_values(body, SETTINGS, {"/feeds": body.document["feeds"]})
    np.testing.assert_array_equal(values.tensors["big"], X)
    table = body.document["gradients"]["E"]
    assert json_tensors.decode(table["values"], pointer="").tolist() == [2.0]


WRONG: dict[str, Any] = {
    "dtype": {"dtype": "float31", "shape": [1], "data": [1]},
    "count": {"dtype": "float32", "shape": [2], "data": [1]},
    "element": {"dtype": "int32", "shape": [1], "data": [0.5]},
    "member": {"dtype": "int32", "shape": [1], "data": [1], "extra": 1},
    "neither": {"dtype": "int32", "shape": [1]},
    "base64": {"dtype": "int32", "shape": [1], "b64": "?"},
    "number": 7,
}


async def test_wrong_tensors_get_the_same_errors_as_in_a_small_body(codec: Codec):
    body = padded({"feeds": WRONG})
    found = []
    for each in (codec, None):
        received = await read(each, body)
        values = await read_values(received, SETTINGS, {"/feeds": received.document["feeds"]})
        flaws = {name: [(e.code, e.detail, e.pointer) for e in errors] for name, errors in values.flaws.items()}
        found.append((flaws, values.places, list(values.tensors)))
    assert found[0] == found[1]
    assert found[0][0].keys() == WRONG.keys()
    assert found[0][2] == ["big"]


@pytest.mark.parametrize(
    "body",
    [
        padded({})[:-1],
        padded({"a": float("nan")}),
        padded({})[:-1] + b',"feeds":{}}',
        b"[" + padded({}) + b"]",
        b'{"a":' + b"[" * 70 + b"]" * 70 + b"," + padded({})[1:],
        padded({})[:-1] + b',"\xff":1}',
    ],
    ids=["cut", "nan", "repeated", "list", "deep", "encoding"],
)
async def test_wrong_json_gets_the_same_problem_as_in_a_small_body(codec: Codec, body: bytes):
    found = []
    for each in (codec, None):
        with pytest.raises(HttpProblem) as raised:
            await read(each, body)
        found.append((raised.value.code, raised.value.status, raised.value.detail, raised.value.extensions))
    assert found[0] == found[1]


async def test_the_program_of_a_large_body_stays_text(codec: Codec, no_parser: None):
    program = regression().document
    body = await read(codec, padded({"program": program}))

    found = as_text(body.document["program"])

    assert found.id == ProgramText.of(program).id
    assert orjson.loads(found.text) == program


async def test_a_client_cannot_forge_a_decoded_part():
    body = await read(None, b'{"program": {"": "text"}, "feeds": {"x": {"extracted": 1}}}')
    assert orjson.loads(as_text(body.document["program"]).text) == {"": "text"}
    assert (await read_values(body, SETTINGS, {"/feeds": body.document["feeds"]})).flaws.keys() == {"x"}


async def test_a_body_of_options_alone_has_a_limit(codec: Codec):
    with pytest.raises(HttpProblem, match="without its tensors"):
        await read(codec, json.dumps({"fetch": ["x" * 100] * 50_000}).encode())


async def test_the_header_of_a_file_with_many_tensors_is_decoded_in_another_process(codec: Codec, no_parser: None):
    arrays = {f"t{i}": np.full(2, i, np.float32) for i in range(2000)}
    body = await read(codec, save(arrays, metadata={"request": '{"loss":"loss"}'}), SAFETENSORS)

    assert body.document == {"loss": "loss"}
    assert {name: value.tolist() for name, value in body.tensors.items()} == {n: a.tolist() for n, a in arrays.items()}


@pytest.mark.parametrize("size", [10, 40_000])
async def test_an_answer_has_the_same_content_wherever_it_is_written(codec: Codec, size: int, monkeypatch):
    arrays = {
        "loss": np.float32(1.5).reshape(()),
        "grad/w": np.arange(size, dtype=np.float64),
        "grad/n": np.full(3, np.nan),
    }
    arrays |= {"grad/E": np.ones((2, 3), np.float32), "rows/E": np.array([1, 4])}
    reply = Reply({}, arrays, {"total": 1.0}, "w")
    document = {"finite": False, "sparse": {"E": [9, 3]}, "missing": {"a": "b"}}
    texts = []
    for each in (codec, None):
        CODEC.set(each)
        answer = await render(reply, document, as_file=False, members={"fetched": {}})
        texts.append(b"".join(answer.parts))
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["gradients"]["E"]["shape"] == [9, 3]


async def test_a_large_answer_is_written_in_another_process(codec: Codec, no_parser: None):
    CODEC.set(codec)
    answer = await render(Reply({}, {"value/x": X}, {}, "w"), {}, as_file=False)
    assert json.loads(b"".join(answer.parts))["values"]["x"]["data"] == pytest.approx(X.tolist())


async def test_a_large_answer_is_sent_in_pieces_between_which_others_run(codec: Codec):
    CODEC.set(codec)
    turns, sizes = 0, []

    async def send(message: dict[str, Any]) -> None:
        sizes.append((len(message.get("body", b"")), turns))

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    content = bytes(range(256)) * 4096 * 3
    await PiecedResponse([b"ab", memoryview(content), b"cd"])({"type": "http", "method": "GET"}, None, send)
    running.cancel()

    assert sum(size for size, _ in sizes) == len(content) + 4
    assert max(size for size, _ in sizes) <= PIECE_BYTES
    assert sizes[-1][1] >= len(content) // PIECE_BYTES
