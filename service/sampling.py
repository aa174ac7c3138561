"""The batches of a training job: which rows of a dataset each one has, in every epoch, on every machine.

The order comes from a Philox generator (Salmon et al. 2011) whose key is the job's seed and the number of the epoch.
Rows are sorted by its raw 64-bit numbers, which no version of numpy changes. A batch therefore depends on its position
alone, and not on the batches before it: a job can go on anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Rows", "Sampling", "order"]

Rows = slice | np.ndarray
"""Rows of a dataset: a range, or their numbers."""

SPLIT = 0  # the stream that chooses the rows of the validation; epoch e has the stream e + 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """The batches of one pass after another over a dataset.

    rows:      of the dataset.
    holdout:   number of rows that are kept for validation: drawn by the seed, or the last ones without shuffling.
    drop_last: leave out the rows of an epoch that do not fill a batch; otherwise its last batch may be smaller.
    Positions count batches from 0 over all epochs.
    """

    rows: int
    batch_size: int
    drop_last: bool
    shuffle: bool
    seed: int
    holdout: int = 0

    @property
    def training_rows(self) -> int:
        return self.rows - self.holdout

    @property
    def batches(self) -> int:
        """The number of batches in an epoch."""
        full, rest = divmod(self.training_rows, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def size(self, position: int) -> int:
        """The number of rows in the batch at `position`."""
        return min(self.batch_size, self.training_rows - position % self.batches * self.batch_size)

    def total(self, count: int) -> int:
        """The number of rows in the first `count` batches."""
        epochs, index = divmod(count, self.batches)
        of_epoch = min(self.training_rows, self.batches * self.batch_size)
        return epochs * of_epoch + min(of_epoch, index * self.batch_size)

    def run(self, position: int, most: int) -> int:
        """The number of batches from `position` on, at most `most`, that have one size and lie in one epoch."""
        index, full = position % self.batches, self.training_rows // self.batch_size
        return min(most, max(1, full - index))

    def training(self) -> Rows:
        """The rows to train on."""
        if not self.holdout or not self.shuffle:
            return slice(0, self.training_rows)
        return np.sort(order(self.rows, self.seed, SPLIT)[self.holdout :])

    def validation(self) -> Rows:
        """The rows kept for validation."""
        if not self.shuffle:
            return slice(self.training_rows, self.rows)
        return np.sort(order(self.rows, self.seed, SPLIT)[: self.holdout])

    def epoch(self, number: int) -> Rows:
        """The rows of the epoch `number`, from 0, in the order of its batches."""
        rows = self.training()
        if not self.shuffle:
            return rows
        shuffled = order(self.training_rows, self.seed, number + 1)
        return shuffled if isinstance(rows, slice) else rows[shuffled]


def order(count: int, seed: int, stream: int) -> np.ndarray:
    """A permutation [count] of 0 ... count - 1, int64. seed, stream: at least 0 and below 2**64."""
    drawn = np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(count)
    return np.argsort(drawn, kind="stable")
