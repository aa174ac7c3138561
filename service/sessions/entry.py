"""One entry of the journal: a call that changed a session, with all that a worker needs to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from service.objects import Objects, tensor_file

__all__ = [
    "INLINE_BYTES",
    "Entry",
    "Form",
    "ended_as",
    "mark_in",
    "packed",
    "position_after",
    "unpacked",
    "with_outcome",
]

INLINE_BYTES = 2**20
"""Tensors of more bytes in all are stored in a file, not in the database."""

Form = Mapping[str, Any]
"""How an answer is written: `as_file`, and `members`, the defaults of its JSON members."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


@dataclass(frozen=True, slots=True)
class Entry:
    """A call that changes a session.

    seq:     its number, 0 for a call without one. digest: of the request.
    form:    of the answer, to write it again; None if it need not be repeated.
    limit_s: time that the call had, in seconds.
    stopped: the outcome of a call of several steps of which only the first ones were taken: the members `applied` and
             `stopped` of its result.
    after:   version and accumulated gradients of the session after the call; None in an entry of an earlier version.
    mark:    of the call; empty in an entry of an earlier version.
    """

    op: str
    args: dict[str, Any]
    tensors: Mapping[str, np.ndarray]
    seq: int = 0
    digest: str = ""
    form: Form | None = None
    limit_s: float = 60.0
    stopped: dict[str, Any] | None = None
    after: tuple[int, int] | None = None
    mark: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum([array.nbytes for array in self.tensors.values()])

    @property
    def repeated_args(self) -> dict[str, Any]:
        """The arguments that repeat exactly the steps that were taken."""
        return self.args if self.stopped is None else {**self.args, "only": self.stopped["applied"]}


def ended_as(entry: Entry, result: Mapping[str, Any]) -> Entry:
    """The entry with the outcome and the position of its call. result: of the worker."""
    stopped = entry.stopped
    if result.get("stopped") is not None:
        stopped = {name: result[name] for name in ("applied", "stopped")}
    return replace(entry, stopped=stopped, after=(result["version"], result.get("accumulated", 0)))


def packed(entry: Entry, file: str | None = None) -> bytes:
    """The entry as bytes. file: the key of the file that holds its tensors; None to hold them in the bytes."""
    held: Any = file
    if file is None:
        held = [[name, _name_of(array.dtype), array.shape, _bytes_of(array)] for name, array in entry.tensors.items()]
    form = None if entry.form is None else dict(entry.form)
    written = [entry.op, entry.args, held, entry.seq, entry.digest, form, entry.limit_s, entry.stopped]
    return _encoder.encode([*written, entry.after, entry.mark])


def with_outcome(data: bytes, entry: Entry) -> bytes:
    """The packed entry with the outcome and the position of `entry`; its tensors stay where they are."""
    return _encoder.encode([*_decoder.decode(data)[:7], entry.stopped, entry.after, entry.mark])


def mark_in(data: bytes) -> str:
    """The mark of a packed entry."""
    return "".join(_decoder.decode(data)[9:10])


def position_after(data: bytes) -> tuple[int, int] | None:
    """The member `after` of the packed entry, whose tensors are not read."""
    after = _decoder.decode(data)[8:9]
    return tuple(after[0]) if after and after[0] is not None else None


def unpacked(data: bytes, objects: Objects | None) -> Entry:
    """The entry that `packed` has written; its arrays are read-only. Raises OSError if its file cannot be read."""
    op, args, held, seq, digest, form, limit_s, stopped, *rest = _decoder.decode(data)
    if isinstance(held, str):
        assert objects is not None, "tensors are in files only where there is a place for them"
        with objects.open(held) as file:
            content = file.read()
        tensors = tensor_file.read(BytesIO(content), len(content))[0]
    else:
        tensors = {
            name: np.frombuffer(raw, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).reshape(shape)
            for name, dtype, shape, raw in held
        }
    after, mark = rest if rest else (None, "")
    return Entry(op, args, tensors, seq, digest, form, limit_s, stopped, None if after is None else tuple(after), mark)


@cache
def _name_of(dtype: np.dtype) -> str:
    return dtype.name  # numpy builds it at each access


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
