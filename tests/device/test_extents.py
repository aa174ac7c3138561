"""Sets of extents: the same answers as a comparison of all pairs."""

from __future__ import annotations

import random

import pytest

from core.device.extents import ANYWHERE, Extent, Extents, overlap


def by_pairs(some: list[Extent], others: list[Extent]) -> bool:
    if ANYWHERE in some or ANYWHERE in others:
        return bool(some) and bool(others)
    return any(one == other and a < d and c < b for one, a, b in some for other, c, d in others)


def drawn(rng: random.Random, most: int) -> list[Extent]:
    found: list[Extent] = []
    for _ in range(rng.randrange(most)):
        start = rng.randrange(60)
        found.append((rng.choice("ab"), start, start + rng.randrange(1, 9)))
    return [*found, ANYWHERE] if rng.random() < 0.05 else found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_two_sets_overlap_if_a_pair_of_their_extents_does(seed):
    rng = random.Random(seed)
    answers = set()
    for _ in range(2000):
        some, others = drawn(rng, 12), drawn(rng, 5)
        answers.add(by_pairs(some, others))
        assert overlap(some, others) == overlap(others, some) == by_pairs(some, others), (some, others)
        assert Extents(Extents(some)).meets(others) == by_pairs(some, others)
        assert bool(Extents(some)) == bool(some)
    assert answers == {False, True}
