"""Ids of stored things: a prefix that names the kind, and 26 characters that no path or log line can misread. And the
names that people give to them."""

from __future__ import annotations

import hashlib
import re
import secrets
from base64 import b32encode
from collections import Counter
from contextvars import ContextVar

__all__ = ["ONE_LINE", "REPEATABLE", "Repeatable", "new_id", "random_id"]

ONE_LINE = re.compile(r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*$")
"""A name in one line: without control characters, which terminals obey, without ends of lines, and without characters
that change the direction of the text behind the name."""


class Repeatable:
    """Makes the same ids whenever one request is executed again, so that its second execution finds what the first
    one created."""

    def __init__(self, request: bytes) -> None:
        """request: names the request, such as its tenant and its Idempotency-Key."""
        self._request = request
        self._made: Counter[str] = Counter()

    def id(self, prefix: str) -> str:
        """The next id with this prefix."""
        self._made[prefix] += 1
        return self.made(prefix, self._made[prefix])

    def made(self, prefix: str, number: int = 1) -> str:
        """The id of call `number` of `id` with this prefix."""
        text = b"\0".join((self._request, prefix.encode(), str(number).encode()))
        return prefix + _text(hashlib.sha256(text).digest())


REPEATABLE: ContextVar[Repeatable | None] = ContextVar("repeatable", default=None)
"""The source of ids for the current request; None for random ids."""


def new_id(prefix: str) -> str:
    """An id for something new: `prefix`, such as ``ckp_``, and 26 characters with 128 bits.

    They are random, except that a request with an Idempotency-Key gets the same ids each time.
    """
    source = REPEATABLE.get()
    return source.id(prefix) if source is not None else prefix + random_id()


def random_id() -> str:
    """26 random characters, also in a request that is executed again: for things that two executions must not share,
    such as files, because one of them may delete or replace them while the other one has ended."""
    return _text(secrets.token_bytes(17))


def _text(data: bytes) -> str:
    return b32encode(data).decode().lower()[:26]
