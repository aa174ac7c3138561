"""The upload of a checkpoint: a safetensors file that a service wrote, or any of parameters.

The header is checked before a byte is stored, the digest before the file appears. Nothing holds the file in memory.
"""

from __future__ import annotations

import asyncio
import re
import struct
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from core.ir.errors import ProgramError, escaped
from core.optim.optimizers import Optimizer
from service.checkpoints.checkpoints import PROGRAM
from service.engine import RemoteError
from service.formats.safetensors import Entries, read_header
from service.formats.strict_json import parse_json
from service.http.worker_calls import Calls
from service.objects import Objects, Written
from service.objects.tensor_file import MAX_HEADER
from service.problems import FieldError, HttpProblem, from_remote
from service.settings import Settings
from service.store.program_text import ProgramText
from service.worker.checkpoint_state import STATE, CheckpointState, decode

__all__ = ["Header", "checked_header", "digest_in", "store"]

LENGTH = struct.Struct("<Q")
DIGEST = re.compile(r"(?:^|,)\s*sha-256\s*=\s*:([A-Za-z0-9+/=]*):")
ONE_DIGEST = r"\s*[a-z0-9*_.-]+\s*=\s*:[A-Za-z0-9+/=]*:\s*"
DIGESTS = re.compile(f"{ONE_DIGEST}(,{ONE_DIGEST})*")
METADATA = "__metadata__"
Chunks = AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class Header:
    """The checked header of a file.

    raw:     its bytes, those of the length included, and the beginning of the data.
    entries: the tensors. data: where they begin in the file. size: of the whole file in bytes.
    state:   of the session, None for a file of parameters. program: None for a file of parameters.
    """

    raw: bytes
    entries: Entries
    data: int
    size: int
    state: CheckpointState | None
    program: ProgramText | None


def digest_in(headers: Mapping[str, str]) -> str | None:
    """The SHA-256 in Repr-Digest or Content-Digest, in hexadecimal; None if there is none. Raises HttpProblem 422."""
    found = None
    for name in ("repr-digest", "content-digest"):
        given = headers.get(name)
        if given is None:
            continue
        match = DIGEST.search(given)
        if match is None:
            if DIGESTS.fullmatch(given):  # other algorithms may be left out
                continue
            detail = "is not a list of digests such as sha-256=:<base64>:"
            raise HttpProblem("invalid-request", f"{name} {detail}", errors=[_in_header(name, detail)])
        try:
            digest = b64decode(match.group(1), validate=True)
        except Base64Error:
            digest = b""
        if len(digest) != 32 or found not in (None, digest.hex()):
            detail = "is not the SHA-256 of one file"
            raise HttpProblem("invalid-request", f"{name} {detail}", errors=[_in_header(name, detail)])
        found = digest.hex()
    return found


async def checked_header(chunks: Chunks, settings: Settings, calls: Calls) -> Header:
    """Read and check the header at the beginning of `chunks`, the bytes of a file.

    Raises HttpProblem: 400 invalid-tensor-file; 422 with the place of every wrong tensor, or of the wrong metadata.
    """
    raw = bytearray()
    wanted = LENGTH.size
    async for chunk in chunks:
        raw += chunk
        if len(raw) >= LENGTH.size and wanted == LENGTH.size:
            wanted += LENGTH.unpack_from(raw)[0]
            if wanted > MAX_HEADER:
                detail = f"the header of the file exceeds the limit of {MAX_HEADER} bytes"
                raise HttpProblem("limit-exceeded", detail, status=400)
        if len(raw) >= wanted and wanted > LENGTH.size:
            break
    else:
        raise HttpProblem("invalid-tensor-file", "the file ends inside of its header")
    text = bytes(raw[LENGTH.size : wanted])
    entries, metadata, size = await asyncio.to_thread(_read, text, settings)
    size += wanted
    if STATE not in metadata:
        return Header(bytes(raw), entries, wanted, size, None, None)
    state = _state(metadata[STATE])
    program = await asyncio.to_thread(_program, metadata.get(PROGRAM), settings)
    if program.id != state.program_id:
        detail = f"the program of the file is {program.id}, but its state names another one"
        raise _wrong(f"/{STATE}/program_id", detail)
    await _fits(program, metadata[STATE], entries, calls, settings)
    return Header(bytes(raw), entries, wanted, size, state, program)


def _read(text: bytes, settings: Settings) -> tuple[Entries, dict[str, str], int]:
    """The tensors, the metadata, and the bytes of the data that the header announces."""
    header = parse_json(text, max_depth=settings.json_depth)
    places = [each.get("data_offsets") for name, each in header.items() if name != METADATA and type(each) is dict]
    size = max((end for each in places if type(each) is list for end in each if type(end) is int), default=0)
    _, entries = read_header(text, size, key="", limits=settings.tensor_limits, max_depth=settings.json_depth)
    return entries, header.get(METADATA, {}), size


def _state(text: str) -> CheckpointState:
    try:
        state = decode(text)
        Optimizer(state.optimizer.type, state.optimizer.attrs)
    except ProgramError as error:
        raise _wrong(f"/{STATE}/optimizer", error.message) from None
    except msgspec.DecodeError as error:
        message, _, path = str(error).partition(" - at ")
        pointer = re.sub(r"[.\[]+", "/", path.strip("`$]")).replace("]", "") if path else ""
        raise _wrong(f"/{STATE}{pointer}", message) from None
    return state


def _program(text: str | None, settings: Settings) -> ProgramText:
    if text is None:
        raise _wrong(f"/{PROGRAM}", "the program is missing, although the file has the state of a session")
    try:
        return ProgramText.of(parse_json(text.encode(), max_depth=settings.json_depth))
    except HttpProblem as problem:
        raise _wrong(f"/{PROGRAM}", problem.detail) from None


async def _fits(program: ProgramText, state: str, entries: Entries, calls: Calls, settings: Settings) -> None:
    """Raises HttpProblem 422 unless the tensors are those of a session with this state and program."""
    kinds = {name: [str(dtype), list(shape)] for name, (dtype, shape, _, _) in entries.items()}
    args = {"state": state, "kinds": kinds}
    try:
        await calls.with_program("session.check_file", program.id, program.text, args, deadline=settings.step_deadline)
    except RemoteError as error:
        if error.kind != "program":
            raise
        problem = from_remote(error, prefix=f"/{METADATA}/{PROGRAM}")
        elsewhere = "" if problem.code == "invalid-program" else f"/{METADATA}/{STATE}"
        errors = [
            FieldError(
                elsewhere + each.pointer if own.get("value") is None else f"/{escaped(own['value'])}",
                each.code,
                each.detail,
                each.location,
            )
            for each, own in zip(problem.errors, error.problem.get("problems", ()), strict=True)
        ]
        raise HttpProblem(problem.code, problem.detail, status=problem.status, errors=errors) from error


async def store(objects: Objects, key: str, header: Header, chunks: Chunks, sha256: str | None) -> Written:
    """Write the file: the bytes of the header and the rest of `chunks`.

    sha256: the digest that the client announced. If anything is wrong, no file appears.
    Raises HttpProblem 422 for another digest and for a bool that is neither 0 nor 1; OSError.
    """
    loop = asyncio.get_running_loop()

    def parts() -> Iterator[bytes]:
        checked = _Bools(header)
        part: bytes | None = header.raw
        while part is not None:
            checked(part)
            yield part
            part = asyncio.run_coroutine_threadsafe(anext_or_none(chunks), loop).result()

    def compare(written: Written) -> None:
        if written.size != header.size:
            detail = f"the file has {written.size} bytes, but its header describes {header.size}"
            raise HttpProblem("invalid-tensor-file", detail)
        if sha256 is not None and written.sha256 != sha256:
            detail = "the digest in the header is not that of the received file"
            raise HttpProblem("invalid-request", detail, errors=[_in_header("repr-digest", detail)])

    return await asyncio.to_thread(objects.write, key, parts(), compare)


async def anext_or_none(chunks: Chunks) -> bytes | None:
    async for chunk in chunks:
        return chunk
    return None


class _Bools:
    """Checks the bytes of all bool tensors of a file as its parts pass."""

    def __init__(self, header: Header) -> None:
        self._at = 0
        self._spans = sorted(
            (header.data + begin, header.data + end, name)
            for name, (dtype, _, begin, end) in header.entries.items()
            if dtype == np.bool_ and end > begin
        )

    def __call__(self, part: bytes) -> None:
        """Raises HttpProblem 422 for a byte that is neither 0 nor 1."""
        begin, end = self._at, self._at + len(part)
        self._at = end
        for first, last, name in self._spans:
            if first < end and last > begin:
                own = np.frombuffer(part, np.uint8)[max(0, first - begin) : last - begin]
                if own.size and int(own.max()) > 1:
                    detail = f"a byte of the bool tensor {name!r} is neither 0 nor 1"
                    place = FieldError(f"/{escaped(name)}", "dtype-mismatch", detail)
                    raise HttpProblem("dtype-mismatch", detail, errors=[place])


def _wrong(place: str, detail: str) -> HttpProblem:
    """The refusal of a part of the metadata."""
    return HttpProblem(
        "invalid-request",
        f"the metadata of the file is wrong: {detail}",
        errors=[FieldError(f"/{METADATA}{place}", "invalid-metadata", detail)],
    )


def _in_header(name: str, detail: str) -> FieldError:
    return FieldError("", "wrong_digest", detail, parameter=f"header: {name}")
