"""The code of one plan as one module or several, and its straight code as one function or several."""

from __future__ import annotations

import numpy as np
import pytest

import backpass_client as bp
from bench.workloads import WORKLOADS
from core.codegen import backend, machine, module, step
from core.codegen.compilers import Compilers
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, Optimizer, compile_gradient, compile_training
from core.plan import plan_block
from core.plan.instructions import Rows
from core.runtime.times import Times
from core.wire import read
from tests.programs import Sketch


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["mlp_small", "rnn_while_10", "branch"])
def test_several_modules_give_the_bits_of_one(name, monkeypatch):
    workload = WORKLOADS[name]()
    executable = compile_gradient(read(workload.program), GradientQuery(loss="loss"))
    values = {**workload.feeds, **workload.parameters}
    loaded: list[int] = []

    def load(*texts, symbols):
        loaded.append(len(texts))
        return original(*texts, symbols=symbols)

    original = backend.load
    monkeypatch.setattr(backend, "load", load)
    one = executable.compiled().step(values)
    monkeypatch.setattr(backend, "parallel_modules", lambda: 5)
    monkeypatch.setattr(module, "SHARE", 1)
    several = executable.compiled().step(values)

    assert loaded == [1, 5]
    for wanted, found in zip(one.gradients.values(), several.gradients.values(), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("name", ["mlp_small", "rnn_while_10", "branch", "convnet"])
def test_several_functions_of_straight_code_give_the_bits_of_one(name, timed, monkeypatch):
    workload = WORKLOADS[name]()
    executable = compile_gradient(read(workload.program), GradientQuery(loss="loss"))
    values = {**workload.feeds, **workload.parameters}
    whole = Times()
    wanted = executable.compiled(timed).step(values, times=whole).gradients
    for length in (1, 3):
        monkeypatch.setattr(step, "OUTLINED_KERNELS", length)
        pieces = Times()
        found = executable.compiled(timed).step(values, times=pieces).gradients
        for each in wanted:
            np.testing.assert_array_equal(found[each], wanted[each])
        assert [spent.calls for spent in pieces.kernels.values()] == [spent.calls for spent in whole.kernels.values()]


def longest_function(layers):
    sketch = Sketch()
    sketch.param("w", np.eye(4))
    h = "w"
    for _ in range(layers):
        h = sketch.op("tanh", sketch.op("matmul", h, "w"))
    sketch.total(h)
    executable = compile_gradient(read(sketch.document), GradientQuery(loss="loss"))
    written, _ = backend.write_plan(plan_block(executable.interpreter.block, CPU_TARGET))
    return max(len(f.text()) for f in written.functions)


def test_functions_do_not_grow_with_the_program():
    assert longest_function(400) < 1.2 * longest_function(200)


def test_a_short_module_is_not_split_and_a_long_one_is_split_evenly():
    whole = module.Module()
    lengths = [100, 2_000, 30_000, 31_000, 40_000, 60_000, 70_000]
    for i, length in enumerate(lengths):
        f = step.Function(f"f{i}", [])
        f.do("; " + "x" * length)
        whole.functions.append(f)

    texts = whole.texts(8)

    assert len(texts) == sum(lengths) // module.SHARE
    assert max(map(len, texts)) < 1.1 * max(lengths)
    assert all(sum(f"define void @f{i}()" in text for text in texts) == 1 for i in range(len(lengths)))
    whole.functions = whole.functions[:3]
    assert whole.texts(8) == [whole.text()]


def test_equal_updates_of_many_arrays_share_their_code():
    rng = np.random.default_rng(0)
    s = Sketch()
    for i in range(60):
        s.total(s.op("square", s.param(f"w{i}", rng.standard_normal((5, 7)))), out=f"loss{i}")
    s.op("sum", [f"loss{i}" for i in range(60)], out="loss")
    executable = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer("adam", {}))

    plan = plan_block(executable.interpreter.block, CPU_TARGET)
    kernels = [each.kernel for each in plan.body.instructions if isinstance(each, Rows)]

    assert len(kernels) > 10
    assert len({repr(each) for each in kernels}) < len(kernels) / 2


def test_tables_of_other_numbers_have_other_names():
    one = module.Module()
    tables = [(0,), tuple(range(9)), (1,), (2,), tuple(range(12)), (0, 1), (1, 0), (-1,), tuple(range(9))]
    names = [one.table(each).name for each in tables]

    assert len(set(names)) == len(set(tables)) == len(one.globals)
    assert all(one.globals[n].count("i64 ") == len(t) for n, t in zip(names, tables, strict=True))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_llvm_survives_the_adjoints_of_transposed_tables(rows, monkeypatch):
    """LLVM's pass NewGVN ended the compiler process for two rows."""

    @bp.program
    def distances():
        x, y, v = (bp.parameter(n, bp.f64[shape]) for n, shape in (("x", (rows, 9)), ("y", (9, 9)), ("v", (rows, 9))))
        w, u = bp.parameter("w", bp.f64[9, rows]), bp.parameter("u", bp.f64[rows, 9])
        near = (bp.transpose(bp.cdist(x, y), axes=(1, 0)) * w).sum()
        far = (bp.transpose(bp.einsum(x, v, equation="ab,ab->ba") * 2.0, axes=(1, 0)) * u).sum()
        return {"loss": near + far}

    compilers = Compilers()
    monkeypatch.setattr(machine.STATE, "process", compilers)
    try:
        executable = compile_gradient(read(distances.document()), GradientQuery(loss="loss"))
        rng = np.random.default_rng(rows)
        values = {v.name: rng.normal(size=v.type.shape) for v in executable.inputs}
        found = executable.compiled().step(values).gradients
    finally:
        compilers.close()
    for name, wanted in executable.step(values).gradients.items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-12, atol=1e-12)
