"""The batches of a job depend on its seed and their position alone."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest

from service.sampling import Sampling, order

CASES = list(itertools.product((1, 7, 32, 101), (1, 4, 7, 40), (False, True), (False, True), (0, 3)))


def rows_of(sampling: Sampling, epoch: int) -> list[list[int]]:
    rows = sampling.epoch(epoch)
    whole = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()
    found, at = [], 0
    for position in range(epoch * sampling.batches, (epoch + 1) * sampling.batches):
        found.append(whole[at : at + sampling.size(position)])
        at += sampling.size(position)
    return found


@pytest.mark.parametrize(("rows", "size", "drop", "shuffle", "holdout"), CASES)
def test_an_epoch_has_each_training_row_once_and_no_row_of_the_validation(rows, size, drop, shuffle, holdout):
    if holdout >= rows:
        return
    sampling = Sampling(rows, size, drop, shuffle, 5, holdout)
    kept = sampling.validation() if holdout else slice(0, 0)
    validation = set(range(kept.start, kept.stop) if isinstance(kept, slice) else kept.tolist())
    for epoch in range(2):
        batches = rows_of(sampling, epoch)
        seen = [row for batch in batches for row in batch]
        assert len(seen) == len(set(seen))
        assert validation.isdisjoint(seen)
        full = [len(batch) == size for batch in batches]
        assert all(full) if drop else all(full[:-1])
        missing = set(range(rows)) - validation - set(seen)
        assert len(missing) < size if drop else not missing
    assert len(validation) == holdout


@pytest.mark.parametrize("drop", [False, True])
def test_runs_cover_an_epoch_without_crossing_its_end_or_mixing_sizes(drop):
    sampling = Sampling(50, 8, drop, True, 1)
    for most in (1, 3, 100):
        position = 0
        while position < 3 * sampling.batches:
            count = sampling.run(position, most)
            assert 1 <= count <= most
            covered = range(position, position + count)
            assert len({at // sampling.batches for at in covered}) == 1
            assert len({sampling.size(at) for at in covered}) == 1
            position += count
        assert position == 3 * sampling.batches


def test_the_order_is_that_of_every_machine_and_differs_between_epochs_and_seeds():
    digest = hashlib.sha256(order(1000, 42, 1).astype("<i8").tobytes()).hexdigest()
    assert digest == "faed8bb9b3a1f5aab0d342ed5c787f581a58576813dd863e7fa65ee416c25ef9"
    orders = {order(50, seed, stream).tobytes() for seed in (0, 1, 2**63) for stream in range(3)}
    assert len(orders) == 9
    means = [np.corrcoef(np.arange(10_000), order(10_000, 7, stream))[0, 1] for stream in range(5)]
    assert np.abs(means).max() < 0.05


@pytest.mark.parametrize("holdout", [0, 9])
def test_each_epoch_has_an_order_of_its_own_and_the_same_validation_rows(holdout):
    sampling = Sampling(50, 8, False, True, 1, holdout)
    epochs = [np.asarray(sampling.epoch(number)) for number in range(4)]
    assert len({rows.tobytes() for rows in epochs}) == 4
    assert len({np.sort(rows).tobytes() for rows in epochs}) == 1


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3, 8, 20])
def test_the_total_of_batches_is_the_sum_of_their_sizes(batch_size, drop_last):
    sampling = Sampling(23, batch_size, drop_last, True, 0, holdout=3)
    for count in range(60):
        assert sampling.total(count) == sum(sampling.size(position) for position in range(count))
    assert sampling.total(2**40) > 2**40 - 1  # without a loop over the batches
