"""What the client gives to its HTTP library."""

from __future__ import annotations

import os

import httpx
import pytest

from backpass_client import Refused, Service

PIECE = 2**20


@pytest.mark.parametrize("size", [10, PIECE, PIECE + 1, 3 * PIECE + 7])
def test_large_content_is_sent_in_pieces_with_its_length_as_often_as_needed(size):
    """The HTTP library copies the rest of a piece after each packet, so that one large piece takes quadratic time."""
    content, kind, seen = os.urandom(size), {"content-type": "application/x-onnx"}, []

    class Transport(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            seen.append([bytes(each) for each in request.stream])
            assert request.headers["content-length"] == str(size) and "transfer-encoding" not in request.headers
            assert request.headers["content-type"] == kind["content-type"]
            return httpx.Response(200 if len(seen) == 2 else 503, json={"retryable": True, "status": 503})

    with Service("http://service") as service:
        service._http = httpx.Client(base_url=service.url, transport=Transport(), timeout=60)
        service.send("POST", "/v1/programs", repeat=True, content=content, headers=kind)

    assert [b"".join(pieces) for pieces in seen] == [content, content]
    assert max(len(each) for pieces in seen for each in pieces) <= PIECE


@pytest.mark.parametrize("lost", ["the connection", "an answer 503"])
def test_a_delete_whose_first_answer_was_lost_succeeds_when_the_second_finds_nothing(lost):
    seen = []

    class Transport(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            seen.append(request.url.path)
            if len(seen) == 1 and lost == "the connection":
                raise httpx.ReadError("reset by peer")
            status = 503 if len(seen) == 1 else 404
            return httpx.Response(status, json={"retryable": status == 503, "status": status, "code": "", "detail": ""})

    with Service("http://service") as service:
        service._http = httpx.Client(base_url=service.url, transport=Transport(), timeout=60)
        service.call("DELETE", "/v1/sessions/ses_1")
        assert len(seen) == 2

        with pytest.raises(Refused) as refused:  # sent once, it names nothing
            service.call("DELETE", "/v1/sessions/ses_2")
    assert refused.value.status == 404 and len(seen) == 3
