"""The stored answers of a session: a request that arrives twice is executed once and answered twice."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from service.http.tensor_payloads import Answer

__all__ = ["Answered", "History"]

MAX_ANSWERS = 64
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that took effect. answer: None if it was lost, or dropped to save memory."""

    digest: str
    answer: Answer | None


class History:
    """The last answers by sequence number: at most 64 answers and 64 MiB. The newest answer is always kept."""

    def __init__(self) -> None:
        self._answered: OrderedDict[int, Answered] = OrderedDict()
        self._bytes = 0

    def add(self, seq: int, digest: str, answer: Answer | None) -> None:
        self._answered[seq] = Answered(digest, answer)
        self._bytes += _size(self._answered[seq])
        while len(self._answered) > MAX_ANSWERS:
            _, dropped = self._answered.popitem(last=False)
            self._bytes -= _size(dropped)
        if self._bytes <= MAX_BYTES:
            return
        for old, each in list(self._answered.items())[:-1]:
            self._bytes -= _size(each)
            self._answered[old] = Answered(each.digest, None)
            if self._bytes <= MAX_BYTES:
                return

    def get(self, seq: int) -> Answered | None:
        return self._answered.get(seq)


def _size(answered: Answered) -> int:
    return len(answered.answer.content) if answered.answer is not None else 0
