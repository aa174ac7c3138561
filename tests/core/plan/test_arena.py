"""Arrays that are alive at the same time never share a byte, for any number of arrays."""

from __future__ import annotations

import random

import pytest

from core.codegen.cpu_target import CPU_TARGET
from core.plan import arena
from core.plan.memory import Root


@pytest.mark.sampled(1)
@pytest.mark.parametrize("many", [0, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_arrays_alive_at_the_same_time_share_no_byte(monkeypatch, many, seed):
    monkeypatch.setattr(arena, "MANY", many)
    draw = random.Random(seed)
    spans = {}
    for _ in range(200):
        first = draw.randrange(100)
        spans[Root(draw.choice([4, 64, 100, 4096]))] = [first, first + draw.randrange(12)]
    offsets: dict[Root, int] = {}

    end = arena.fit(spans, 0, offsets, CPU_TARGET)

    roots = list(spans)
    for i, a in enumerate(roots):
        assert offsets[a] % 64 == 0 and offsets[a] + a.nbytes <= end
        for b in roots[:i]:
            together = spans[a][0] <= spans[b][1] and spans[b][0] <= spans[a][1]
            apart = offsets[a] + a.nbytes <= offsets[b] or offsets[b] + b.nbytes <= offsets[a]
            assert apart or not together
