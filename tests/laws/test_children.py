"""Every kernel gives the same in a child process as in this one: the same bits, dtypes and shapes."""

from __future__ import annotations

import numpy as np
import pytest

from core.ir.registry import REGISTRY, as_tuple
from core.runtime.forked import call_in_child
from core.runtime.run import Run

FAMILIES = sorted({spec.family.name for spec in REGISTRY.values() if spec.kind == "primitive"})


def results(family: str) -> tuple[np.ndarray, ...]:
    """The results of the first example of each kernel that takes and returns arrays alone."""
    found: list[np.ndarray] = []
    for spec in REGISTRY.values():
        if spec.kind != "primitive" or spec.family.name != family or spec.stacks or spec.example_rule is None:
            continue
        example = next(iter(spec.example_rule()))
        inputs = [None if x is None else np.asarray(x) for x in example.inputs]
        found += map(np.asarray, as_tuple(spec.body(np, *inputs, **spec.complete(example.attrs))))
    return tuple(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_give_the_same_in_a_child(family: str):
    with np.errstate(all="ignore"):
        here, there = results(family), call_in_child(Run(np), results, family)

    assert [(x.dtype, x.shape, x.tobytes()) for x in here] == [(x.dtype, x.shape, x.tobytes()) for x in there]
