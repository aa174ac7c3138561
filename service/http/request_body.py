"""Request bodies: limits of size and time, media types, decoding."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from core.ir.errors import escaped
from service.formats.json_tensors import DTYPES, TensorError
from service.formats.safetensors import header_size, unpack, views
from service.formats.strict_json import parse_json
from service.http.codec import CODEC
from service.http.entity_tags import VARIES
from service.http.worker_calls import ANSWER_BYTES
from service.problems import FieldError, HttpProblem, from_validation
from service.settings import Settings

__all__ = [
    "JSON",
    "NDJSON",
    "ONNX",
    "SAFETENSORS",
    "Body",
    "accepts_onnx",
    "body_chunks",
    "check_accepted",
    "check_encoding",
    "decoded",
    "header_of",
    "media_type",
    "parse_json",
    "prefers_onnx",
    "read_body",
    "wanted_form",
    "wants_tensorfile",
]

JSON = "application/json"
SAFETENSORS = "application/x-safetensors"
ONNX = "application/x-onnx"
NDJSON = "application/x-ndjson"
Asked = TypeVar("Asked", bound=BaseModel)
JSON_ALIASES = (JSON, "application/merge-patch+json")  # a merge patch is the body of every PATCH
BINARY_ALIASES = (SAFETENSORS, "application/octet-stream")
ONNX_ALIASES = (ONNX, "application/onnx")

INLINE_BYTES = 64 * 2**10
"""Longer JSON is parsed in another process: the parser holds the interpreter lock until it has finished."""

DRAIN_BYTES = 16 * 2**20
DRAIN_S = 2.0
LENGTH_BYTES = 8  # of a safetensors file, before its header
WORTH_S = 0.05  # seconds that a body must earn before its deadline moves


@dataclass(frozen=True)
class Body:
    """The decoded body of a request.

    document:   the JSON object; of a safetensors body, the one in its metadata.
    tensors:    the arrays of a safetensors body, read-only; empty for JSON.
    media_type: JSON or SAFETENSORS.
    flaws:      tensors of a safetensors body that break a limit or are inconsistent, with their errors.
    """

    document: dict[str, Any]
    tensors: dict[str, np.ndarray]
    media_type: str
    raw: bytes | bytearray | memoryview
    flaws: Mapping[str, TensorError] = field(default_factory=dict)

    def read_as(self, model: type[Asked]) -> Asked:
        """The document as a `model`. Raises HttpProblem 422."""
        try:
            return model.model_validate(self.document)
        except ValidationError as error:
            problem = from_validation(error, self.document, model)
            flaws = [FieldError(f"/{escaped(name)}{e.pointer}", e.code, e.detail) for name, e in self.flaws.items()]
            problem.errors = (*problem.errors, *flaws)
            raise problem from None

    @cached_property
    def digest(self) -> str:
        """A digest of the body, which later processes of the service compare with that of a repeated request."""
        return f"{self.media_type} {hashlib.sha256(self.raw).hexdigest()}"


async def read_body(request: Request, settings: Settings, *, binary: bool = True, optional: bool = False) -> Body:
    """The body of `request`.

    binary:   whether safetensors is accepted in addition to JSON.
    optional: whether a request without a body counts as an empty object.
    Raises HttpProblem: 400 invalid-json, invalid-tensor-file or limit-exceeded, 408, 413, 415, 422 for tensors.
    """
    if optional and _has_no_body(request):
        return Body({}, {}, JSON, b"")
    form = media_type(request, binary)
    limit = settings.json_body_bytes if form == JSON else settings.binary_body_bytes
    raw = await _read(request, limit, settings)
    if len(raw) <= INLINE_BYTES:
        return _parse(raw, form, settings)
    if CODEC.get() is not None:
        return await _parse_elsewhere(memoryview(raw), form, settings)
    return await asyncio.to_thread(_parse, raw, form, settings)


async def _parse_elsewhere(raw: memoryview, media_type: str, settings: Settings) -> Body:
    """Decode a large body in a codec process. Tensors of a file stay here, as views."""
    codec = CODEC.get()
    assert codec is not None
    whole = np.frombuffer(raw, np.uint8)
    if media_type == JSON:
        return Body(await codec.document(whole), {}, media_type, raw)
    start = header_size(raw)
    if start <= INLINE_BYTES:
        return await asyncio.to_thread(_parse, raw, media_type, settings)
    document, plain, flaws = await codec.header(whole[LENGTH_BYTES:start], len(raw) - start)
    entries = {name: (DTYPES[dtype], tuple(shape), begin, end) for name, dtype, shape, begin, end in plain}
    tensors = await asyncio.to_thread(views, raw.toreadonly()[start:], entries, flaws)
    return Body(document, tensors, media_type, raw, flaws)


async def decoded(text: np.ndarray, settings: Settings) -> dict[str, Any]:
    """The document in the JSON text of a worker. A large one has its program in packed form, as in a body."""
    codec = CODEC.get()
    if len(text) > INLINE_BYTES and codec is not None:
        return await codec.document(text)
    return parse_json(text.tobytes(), max_depth=settings.json_depth)


def _parse(raw: bytes | bytearray | memoryview, media_type: str, settings: Settings) -> Body:
    if media_type == JSON:
        text = bytes(raw) if isinstance(raw, memoryview) else raw
        return Body(parse_json(text, max_depth=settings.json_depth), {}, media_type, raw)
    flaws: dict[str, TensorError] = {}
    document, tensors = unpack(raw, limits=settings.tensor_limits, max_depth=settings.json_depth, flaws=flaws)
    return Body(document, tensors, media_type, raw, flaws)


READABLE = re.compile(r"[\w.+-]{1,40}/[\w.+-]{1,40}", re.ASCII)
"""A media type that an error may quote."""


def _has_no_body(request: Request) -> bool:
    return "transfer-encoding" not in request.headers and request.headers.get("content-length", "0") == "0"


def media_type(request: Request, binary: bool, *more: str) -> str:
    """JSON, SAFETENSORS if `binary`, or one of `more`. Raises HttpProblem 415."""
    check_encoding(request)
    header = header_of(request, b"content-type")
    found = _known(header)
    if found == JSON or (binary and found == SAFETENSORS) or (found is not None and found in more):
        return found
    types = [JSON, *([SAFETENSORS] if binary else []), *more]
    words = " or ".join([", ".join(types[:-1]), types[-1]] if len(types) > 1 else types)
    is_json = header.partition(";")[0].strip().lower() in JSON_ALIASES
    detail = f"the Content-Type must be {words}{', with no other parameter than charset=utf-8' if is_json else ''}"
    if not is_json:
        given = header.partition(";")[0].strip()
        detail += f", not {given}" if READABLE.fullmatch(given) else "; the request has none" if not given else ""
    raise HttpProblem("unsupported-media-type", detail, headers={"Accept": ", ".join(types)})


def check_encoding(request: Request) -> None:
    """Raises HttpProblem 415 for an encoded body."""
    if header_of(request, b"content-encoding", "identity").strip().lower() != "identity":
        raise HttpProblem("unsupported-encoding", "bodies with a Content-Encoding are not supported")


@lru_cache(256)
def _known(header: str) -> str | None:
    """The media type of a Content-Type header, if it is JSON, SAFETENSORS or ONNX."""
    media_type, _, parameters = header.partition(";")
    media_type = media_type.strip().lower()
    if media_type in BINARY_ALIASES:
        return SAFETENSORS
    if media_type in ONNX_ALIASES:
        return ONNX
    charset = parameters.strip().lower().replace('"', "")
    return JSON if media_type in JSON_ALIASES and charset in ("", "charset=utf-8") else None


def header_of(request: Request, name: bytes, otherwise: str = "") -> str:
    """The value of the header; several lines are one list. Starlette's `headers` takes microseconds for a look-up."""
    values = [value for found, value in request.scope["headers"] if found == name]
    return b", ".join(values).decode("latin-1") if values else otherwise


def _accept(request: Request) -> str:
    """The header Accept; one that is missing or empty asks for nothing."""
    return header_of(request, b"accept").strip() or "*/*"


async def _read(request: Request, limit: int, settings: Settings) -> bytes | bytearray | memoryview:
    """All bytes of the body. Raises HttpProblem for more than `limit` bytes, or for missing the deadline."""
    declared = header_of(request, b"content-length")
    size = int(declared) if declared.isdecimal() and len(declared) < 20 else None
    if size is not None and size > limit:
        raise await _too_large(request, limit, "expect" not in request.headers)
    received = _Received(size)
    granted = 0.0
    started = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(started + settings.body_deadline) as timer:
            chunk, more = await _chunk(request)
            if not more and len(chunk) <= limit:
                return chunk  # the usual case of a small body
            received.add(chunk)
            while more and received.size <= limit:
                earned = received.size / settings.body_bytes_per_second
                if earned > granted + WORTH_S:
                    granted = earned
                    timer.reschedule(started + settings.body_deadline + earned)
                chunk, more = await _chunk(request)
                received.add(chunk)
    except TimeoutError:
        detail = f"only {received.size} bytes of the body arrived before the deadline"
        raise HttpProblem("body-timeout", detail, headers={"Connection": "close"}) from None
    if received.size > limit:
        raise await _too_large(request, limit, more)
    return received.whole()


class _Received:
    """The bytes of a body so far: in one array of the declared size, or growing if the size is unknown.

    An array, because growing by chunks moves the bytes again and again.
    """

    def __init__(self, declared: int | None) -> None:
        self.size = 0
        self._array = None if declared is None else np.empty(declared, np.uint8).data
        self._grown = bytearray()

    def add(self, chunk: bytes) -> None:
        if self._array is None:
            self._grown += chunk
        else:
            self._array[self.size : self.size + len(chunk)] = chunk  # the protocol delivers no more than declared
        self.size += len(chunk)

    def whole(self) -> bytearray | memoryview:
        return self._grown if self._array is None else self._array[: self.size]


async def body_chunks(request: Request, limit: int, settings: Settings) -> AsyncIterator[bytes]:
    """The body of `request` in parts, for a reader that does not keep them.

    Raises HttpProblem for more than `limit` bytes, or for a client that sends too slowly; ClientDisconnect.
    """
    declared = header_of(request, b"content-length")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > limit:
        raise await _too_large(request, limit, "expect" not in request.headers)
    size, waited, more = 0, 0.0, True
    clock = asyncio.get_running_loop().time
    while more:
        started = clock()
        try:
            async with asyncio.timeout(settings.body_deadline + size / settings.body_bytes_per_second - waited):
                chunk, more = await _chunk(request)
        except TimeoutError:
            detail = f"only {size} bytes of the body arrived before the deadline"
            raise HttpProblem("body-timeout", detail, headers={"Connection": "close"}) from None
        waited += clock() - started  # the time that the reader takes does not count
        size += len(chunk)
        if size > limit:
            raise await _too_large(request, limit, more)
        if chunk:
            yield chunk


async def _chunk(request: Request) -> tuple[bytes, bool]:
    """The next part of the body, and whether more may follow. Raises ClientDisconnect."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


async def _too_large(request: Request, limit: int, more: bool) -> HttpProblem:
    """The refusal, after reading some `more` of the body: a client that is still writing when the connection closes
    sees a reset instead of the answer."""
    left = DRAIN_BYTES
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(DRAIN_S):
            while more and left > 0:
                chunk, more = await _chunk(request)
                left -= len(chunk)
    return HttpProblem(
        "body-too-large",
        f"the body is larger than the limit of {limit} bytes",
        headers={"Connection": "close"},
        limit=limit,
    )


def wants_tensorfile(request: Request) -> bool:
    """Whether the Accept header prefers safetensors (True) or JSON (False). Raises HttpProblem 406 for neither."""
    return wanted_form(request) == SAFETENSORS


def wanted_form(request: Request, *more: str) -> str:
    """The media type that the Accept header prefers of JSON, SAFETENSORS and `more`; of equal ones the first.

    Raises HttpProblem 406 when none is accepted.
    """
    best = _best(_accept(request), more)
    if best is None:
        forms = " or ".join((JSON, SAFETENSORS, *more))
        raise HttpProblem("not-acceptable", f"the answer can be {forms}", headers=VARIES)
    codec = CODEC.get()
    if codec is not None:
        limits = codec.settings
        ANSWER_BYTES.set(limits.json_answer_bytes if best == JSON else limits.binary_answer_bytes)
    return best


def prefers_onnx(request: Request) -> bool:
    """Whether the Accept header prefers an ONNX model to JSON. Otherwise JSON is sent, whatever it says."""
    if _best(_accept(request), (ONNX,)) != ONNX:
        return False
    _allow_files()
    return True


def accepts_onnx(request: Request) -> None:
    """Raises HttpProblem 406 unless the Accept header accepts an ONNX model."""
    if _quality(_accept(request), ONNX_ALIASES) <= 0:
        raise HttpProblem("not-acceptable", f"the answer is {ONNX}")
    _allow_files()


def check_accepted(request: Request, form: str) -> None:
    """Raises HttpProblem 406 unless the Accept header accepts `form`, the media type of a stored answer."""
    names = BINARY_ALIASES if form == SAFETENSORS else (form,)
    if _quality(_accept(request), names) <= 0:
        raise HttpProblem("not-acceptable", f"the request took effect before; its stored answer is {form}")


def _allow_files() -> None:
    codec = CODEC.get()
    if codec is not None:
        ANSWER_BYTES.set(codec.settings.binary_answer_bytes)


@lru_cache(256)
def _best(header: str, more: tuple[str, ...]) -> str | None:
    """The media type that `header` prefers, None if it accepts none."""
    names = {JSON: (JSON,), SAFETENSORS: BINARY_ALIASES} | {
        name: ONNX_ALIASES if name == ONNX else (name,) for name in more
    }
    quality = {form: _quality(header, aliases) for form, aliases in names.items()}
    best = max(quality, key=quality.__getitem__)
    return best if quality[best] > 0 else None


def _quality(header: str, names: tuple[str, ...]) -> float:
    """The quality, from 0 to 1, that `header` gives the media types `names`; the most specific range counts."""
    found = (-1, 0.0)
    for item in header.split(","):
        media_range, *parameters = (part.strip().lower() for part in item.split(";"))
        if media_range in names:
            specific = 2
        elif media_range == "application/*":
            specific = 1
        elif media_range == "*/*":
            specific = 0
        else:
            continue
        found = max(found, (specific, _weight(parameters)))
    return found[1]


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return min(1.0, max(0.0, float(parameter[2:])))
            except ValueError:
                return 0.0
    return 1.0
