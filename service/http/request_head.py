"""The checks of a request's head: its version, host and framing (RFC 9112, sections 2.3, 3.2 and 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httptools

from service.problems import HttpProblem

__all__ = ["declared_bytes"]

WRONG_HOST = (
    "the Host header names another host than this service; its operator can allow more names with "
    "BACKPASS_ALLOWED_HOSTS"
)
CHUNKED = -1


def declared_bytes(
    version: str, url: bytes, headers: Sequence[tuple[bytes, bytes]], knows: Callable[[bytes], bool]
) -> int:
    """The size of the body in bytes, 0 without one; CHUNKED if the head does not declare it.

    url: as sent. headers: with names in lower case. knows: whether a name is one of this service.
    Raises HttpProblem for a head that does not name this service, or whose body a proxy may delimit in another way.
    """
    hosts, codings, declared = [], [], 0
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"content-length":
            declared = int(value) if value.isdigit() and len(value) < 20 else 2**63
        elif name == b"transfer-encoding":
            codings.append(value.lower())
            declared = CHUNKED
    if version not in ("1.0", "1.1"):
        raise _malformed("the version of HTTP must be 1.1 or 1.0")
    if len(hosts) > 1 or (not hosts and version != "1.0"):
        raise _malformed("a request must have exactly one Host header")
    if not url.startswith((b"/", b"*")) and (target := httptools.parse_url(url).host) is not None:
        hosts = [target]  # it takes the place of the header (section 3.2.2)
    if hosts and not knows(hosts[0]):
        raise HttpProblem("wrong-host", WRONG_HOST)
    if codings and codings != [b"chunked"]:
        raise _malformed("the only Transfer-Encoding of a request can be chunked")
    if codings and version == "1.0":
        raise _malformed("a request of HTTP/1.0 cannot have a Transfer-Encoding")
    return declared


def _malformed(detail: str) -> HttpProblem:
    return HttpProblem("malformed-request", detail)
