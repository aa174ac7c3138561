"""Requests that offer another protocol, which this service ignores (RFC 9110, section 7.8).

The HTTP client of Java offers HTTP/2 in this way with each first request of a connection, also with a body. The parser
stops behind such a head, and leaves its body and later requests to another protocol. Here a second parser reads them.
"""

from __future__ import annotations

from typing import Any

import httptools

__all__ = ["parser_behind"]


def parser_behind(protocol: Any, body_bytes: int) -> httptools.HttpRequestParser:
    """A parser of `protocol` for the bytes behind a head. body_bytes: 0 without a body, negative if it is chunked."""
    callbacks = _Callbacks(protocol)
    parser = httptools.HttpRequestParser(callbacks)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    if body_bytes:
        framing = b"content-length: %d" % body_bytes if body_bytes > 0 else b"transfer-encoding: chunked"
        parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
    callbacks.reports = True
    return parser


class _Callbacks:
    """The callbacks of the protocol, called from the time that `reports` is set: the protocol has seen the head."""

    def __init__(self, protocol: Any) -> None:
        self.reports = False
        self._protocol = protocol
        self.on_body, self.on_message_complete = protocol.on_body, protocol.on_message_complete

    def on_message_begin(self) -> None:
        if self.reports:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self.reports:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.reports:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.reports:
            self._protocol.on_headers_complete()
