"""Documents of programs in a worker: their limits, and whether reading takes long."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from core.ir import Program
from core.wire import Limits, read

__all__ = ["SHORT_OPS", "digest", "has_derivatives", "is_short", "read_program", "wire_limits"]

SHORT_OPS = 200
"""The most ops of a program whose backward pass and plan take only milliseconds, so that parking costs more.

In a program of nested blocks an op counts once for each level: with the memory policy "recompute" the backward pass of
a block contains the forward pass of all blocks inside.
"""


SHORT_BYTES = 2**16
"""The longest JSON text that is parsed to find out whether its program is short."""


def read_program(settings: Mapping[str, Any], document: Any, for_test: bool = False) -> Program:
    """`document` as a program, within the limits of the settings. Raises ProgramError with all its mistakes.

    document: plain data, or its JSON text.
    for_test: as of `core.read`.
    """
    return read(_plain(document), wire_limits(settings), for_test)


def has_derivatives(document: Any) -> bool:
    """Whether `document` contains the op `gradients`: only then reading it `for_test` differs from a clone."""
    if isinstance(document, bytes) and b'"gradients"' not in document:
        return False
    plain = _plain(document)
    functions = [each["program"] for each in (plain.get("functions") or {}).values()]
    ops = (op for each in (plain, *functions) for block in each["blocks"] for op in block["ops"])
    return any(op["type"] == "gradients" for op in ops)


def _plain(document: Any) -> Any:
    return orjson.loads(document) if isinstance(document, bytes) else document


def wire_limits(s: Mapping[str, Any]) -> Limits:
    """The limits on documents in the settings."""
    return Limits(
        max_blocks=s["blocks"],
        max_depth=s["block_nesting"],
        max_ops=s["ops"],
        max_vars=s["variables"],
        max_name=s["name_length"],
        max_rank=s["tensor_rank"],
        max_elements=s["tensor_elements"],
        max_bytes=s["tensor_bytes"],
    )


def is_short(document: Any) -> bool:
    """Whether `document`, or its JSON text, takes only milliseconds to read. A document of the wrong form does."""
    if isinstance(document, bytes) and len(document) > SHORT_BYTES:
        return False
    document = _plain(document)
    if not isinstance(document, dict) or document.get("functions"):
        return False
    blocks = document.get("blocks")
    if not isinstance(blocks, list) or len(blocks) > SHORT_OPS:
        return not isinstance(blocks, list)
    lists = [each.get("ops") for each in blocks if isinstance(each, dict)]
    return len(blocks) * sum(len(ops) for ops in lists if isinstance(ops, list)) <= SHORT_OPS


def digest(document: Any) -> str:
    """A key of the content of `document`."""
    text = document if isinstance(document, bytes) else msgspec.msgpack.encode(document)
    return hashlib.sha256(text).hexdigest()
