"""The stored answers of a session: a request that arrives twice is executed once and answered twice."""

from __future__ import annotations

from dataclasses import dataclass

from core.ir.lru import LRU
from service.http.tensor_payloads import Answer

__all__ = ["MAX_ANSWERS", "MAX_BYTES_OF_ALL", "Answered", "History", "stored_answers"]

MAX_ANSWERS = 64
MAX_BYTES = 64 * 2**20
MAX_BYTES_OF_ALL = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that took effect. answer: None if it was lost, or dropped to save memory."""

    digest: str
    answer: Answer | None


def stored_answers(limit: int = MAX_BYTES) -> LRU[Answer]:
    """A store for answers of any number of sessions: at most `limit` bytes. The newest answer is always kept."""
    return LRU(limit, lambda answer: max(1, answer.size), at_least=1)


class History:
    """The last 64 requests of a session by sequence number, and those of their answers that the store still holds."""

    def __init__(self, stored: LRU[Answer] | None = None) -> None:
        """stored: the store, which sessions may share."""
        self._digests: LRU[str] = LRU(MAX_ANSWERS)
        self._answers = stored_answers() if stored is None else stored

    def add(self, seq: int, digest: str, answer: Answer | None) -> None:
        """Keep the answer to the call `seq`, which is one more than that of the last call added."""
        self._digests.put(seq, digest)
        self._answers.pop((self, seq - MAX_ANSWERS))
        if answer is not None:
            self._answers.put((self, seq), answer)

    def get(self, seq: int) -> Answered | None:
        digest = self._digests.get(seq)
        return None if digest is None else Answered(digest, self._answers.get((self, seq)))

    def items(self) -> list[tuple[int, Answered]]:
        """The requests by number, in order."""
        seqs = sorted(seq for seq in self._digests if isinstance(seq, int))
        found = [(seq, self.get(seq)) for seq in seqs]
        return [(seq, each) for seq, each in found if each is not None]

    def clear(self) -> None:
        """Forget all requests."""
        for seq in self._digests:
            self._answers.pop((self, seq))
        self._digests.clear()
