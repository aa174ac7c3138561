"""The code of one plan, as one module or as several."""

from __future__ import annotations

import numpy as np
import pytest

from bench.workloads import WORKLOADS
from core.codegen import step
from core.compile import GradientQuery, compile_gradient
from core.runtime import native
from core.wire import read


@pytest.mark.parametrize("name", ["mlp_small", "rnn_while_10", "branch"])
def test_several_modules_give_the_bits_of_one(name, monkeypatch):
    workload = WORKLOADS[name]()
    executable = compile_gradient(read(workload.program), GradientQuery(loss="loss"))
    values = {**workload.feeds, **workload.parameters}
    loaded: list[int] = []

    def load(*texts, symbols):
        loaded.append(len(texts))
        return original(*texts, symbols=symbols)

    original = native.load
    monkeypatch.setattr(native, "load", load)
    one = executable.compiled().step(values)
    monkeypatch.setattr(native, "abreast", lambda: 5)
    monkeypatch.setattr(step, "SHARE", 1)
    several = executable.compiled().step(values)

    assert loaded == [1, 5]
    for wanted, found in zip(one.gradients.values(), several.gradients.values(), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_short_module_stays_one_and_a_long_one_is_shared_evenly():
    module = step.Module()
    lengths = [100, 2_000, 30_000, 31_000, 40_000, 60_000, 70_000]
    for i, length in enumerate(lengths):
        f = step.Function(f"f{i}", [])
        f.do("; " + "x" * length)
        module.functions.append(f)

    texts = module.texts(8)

    assert len(texts) == sum(lengths) // step.SHARE
    assert max(map(len, texts)) < 1.1 * max(lengths)
    assert all(sum(f"define void @f{i}()" in text for text in texts) == 1 for i in range(len(lengths)))
    module.functions = module.functions[:3]
    assert module.texts(8) == [module.text()]
