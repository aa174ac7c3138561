"""Texts as numbers: a column of texts is stored as codes into the sorted list of its different texts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from service.datasets.scratch import row_blocks
from service.problems import HttpProblem

__all__ = ["Vocabulary"]

TEXTS = 10_000
TEXT_BYTES = 2**20


class Vocabulary:
    """The different texts of one column, in the order in which they came."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._codes: dict[str, int] = {}
        self._bytes = 0

    def codes(self, texts: Iterable[str]) -> np.ndarray:
        """The code of each text; a new text gets the next one. Raises HttpProblem 422 for too many different texts."""
        found = []
        for text in texts:
            code = self._codes.get(text)
            if code is None:
                code = self._codes[text] = len(self._codes)
                self._bytes += len(text.encode("utf-8", "surrogatepass"))
                if code >= TEXTS or self._bytes > TEXT_BYTES:
                    raise HttpProblem(
                        "limit-exceeded",
                        f"column {self._column!r} has more than {TEXTS} different texts, or more than {TEXT_BYTES} "
                        "bytes of them; leave it out, or set its type if it has numbers",
                    )
            found.append(code)
        return np.array(found, np.int64)

    def sort(self, codes: np.ndarray) -> list[str]:
        """The texts in order. Changes `codes`, the column, in place, so that its numbers index them."""
        texts = sorted(self._codes)
        renumbered = np.empty(len(texts), np.int64)
        for new, text in enumerate(texts):
            renumbered[self._codes[text]] = new
        for rows in row_blocks(codes):
            codes[rows] = renumbered[codes[rows]]
        return texts
