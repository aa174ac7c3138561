"""The stored answers of a session: a request that arrives twice is executed once and answered twice."""

from __future__ import annotations

from dataclasses import dataclass

from core.ir.lru import LRU
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
        self._digests: LRU[str] = LRU(MAX_ANSWERS)
        self._answers: LRU[Answer] = LRU(MAX_BYTES, lambda answer: max(1, answer.size), at_least=1)

    def add(self, seq: int, digest: str, answer: Answer | None) -> None:
        """Keep the answer to the call `seq`, which is one more than that of the last call added."""
        self._digests.put(seq, digest)
        self._answers.pop(seq - MAX_ANSWERS)
        if answer is not None:
            self._answers.put(seq, answer)

    def get(self, seq: int) -> Answered | None:
        digest = self._digests.get(seq)
        return None if digest is None else Answered(digest, self._answers.get(seq))
