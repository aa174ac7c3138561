"""Every op with inner blocks has an example program, and the program gives its stated loss and gradient."""

from __future__ import annotations

import json

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.registry import CONSTRUCTS, REGISTRY
from core.wire import read, write
from core.wire.samples import SAMPLES


def test_every_op_with_inner_blocks_has_a_sample() -> None:
    catalogue = REGISTRY | CONSTRUCTS
    assert SAMPLES.keys() == {name for name, spec in catalogue.items() if spec.kind in ("control", "construct")}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_sample_gives_its_stated_loss_and_gradient(name: str) -> None:
    sample = SAMPLES[name]
    used = {op["type"] for block in sample.document["blocks"] for op in block["ops"]}
    assert name in used

    program = read(json.loads(json.dumps(sample.document)))
    for each in (program, read(write(program))):
        values = {v.name: np.array(sample.feeds.get(v.name, sample.w), v.type.dtype) for v in each.variables}
        values = {name: value.reshape(each.block.types[name].shape) for name, value in values.items()}
        found = compile_gradient(each, GradientQuery(loss="loss")).step(values)
        np.testing.assert_allclose(found.loss, sample.loss, rtol=1e-12)
        np.testing.assert_allclose(found.gradients["w"].reshape(-1), sample.gradient, rtol=1e-12)
