"""Mixtures of attention, recurrent cells, convolutions and lookups, and small forms of the steps of the bench, agree on
an emulated GPU with the reference executor, with the same bits in any order of threads.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from bench.indexed_workloads import dropout_mlp, graph_net, masked_attention
from bench.indexed_workloads import mixture as mixture_of_experts
from bench.workload import OPTIMIZERS, Workload
from bench.workloads import branch, convnet, deep_graph, elementwise, mixed, mlp, rnn_while, transformer, tree_rnn
from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.compiler.compile import Executable, GradientQuery, Optimizer, compile_training, key_of, optimize
from core.device.gpu import DEVICE_TARGET
from core.ir import Block
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.device.agreement import SCOPES
from tests.device.emulator import EmulatedBackend, compiler
from tests.mixtures import mixture

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

PARTS = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 0.1, "float16": 0.05}
"""Largest errors as parts of the largest element."""

STEPS = {
    "mlp": lambda: mlp("mlp", 33, (9, 35, 5)),
    "rnn_while": lambda: rnn_while(3, batch=5, inputs=7, hidden=33),
    "transformer": lambda: transformer(blocks=1, batch=2, length=17, width=8, heads=2, inner=33, vocab=19),
    "elementwise": lambda: elementwise(301),
    "convnet": lambda: convnet(batch=1),
    "deep_graph": lambda: deep_graph(depth=40),
    "branch": lambda: branch(trips=3, batch=5, width=33),
    "tree_rnn": lambda: tree_rnn(leaves=5, hidden=17, vocabulary=11),
    "dropout_mlp": lambda: Workload("dropout_mlp", *dropout_mlp(batch=9, sizes=(33, 18, 5))),
    "mixture": lambda: Workload("mixture", *mixture_of_experts(tokens=37, width=8, inner=12, experts=4)),
    "masked_attention": lambda: Workload("masked_attention", *masked_attention(2, 17, 8, 2)),
    "graph_net": lambda: Workload("graph_net", *graph_net(nodes=70, edges=150, width=9, classes=3)),
    "mlp_bf16": lambda: mixed("mlp_bf16", mlp("", 37, (19, 40, 10))),
    "transformer_bf16": lambda: mixed("transformer_bf16", transformer(1, 2, 17, 8, 2, 33, 19)),
}
QUICK = ("mlp", "branch")


def agree(block: Block, values: list[np.ndarray], backends: list[EmulatedBackend], part: float) -> None:
    """All backends have the same bits, and the reference executor's results up to a part of the largest element."""
    with np.errstate(all="ignore"):
        wanted = interpreter_of(block)(Run(), *values)
        found = [native_interpreter(block, each)(Run(), *values) for each in backends]
    for want, *each in zip(wanted, *found, strict=True):
        want = np.asarray(want)
        assert all((f.dtype, f.shape) == (want.dtype, want.shape) for f in each)
        assert len({f.tobytes() for f in each}) == 1
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(each[0], want)
            continue
        large = want.astype("f8")
        largest = np.abs(large[np.isfinite(large)]).max(initial=1.0)
        np.testing.assert_allclose(each[0].astype("f8"), large, rtol=0, atol=part * largest)


def emulated(draw: random.Random, **stripes: int) -> list[EmulatedBackend]:
    """The same launches in two orders of threads."""
    blocks, block, rules = draw.choice((1, 2, 3)), draw.choice((32, 64, 96)), draw.choice(SCOPES)
    backends = [EmulatedBackend(blocks, block, seed=draw.getrandbits(16), rules=rules) for _ in range(2)]
    if stripes:
        target = replace(DEVICE_TARGET, stripes=replace(DEVICE_TARGET.stripes, **stripes))
        for each in backends:
            each.target = target
    return backends


def compiled(workload: Workload) -> Executable:
    """A training step of a workload."""
    return compile_training(
        read(workload.program),
        GradientQuery(loss="loss"),
        Optimizer(workload.optimizer, dict(OPTIMIZERS[workload.optimizer])),
        shapes={name: value.shape for name, value in workload.feeds.items()},
    )


def inputs(executable: Executable, workload: Workload) -> list[np.ndarray]:
    given = {**executable.initial_state(), **workload.feeds, **workload.parameters}
    return [key_of(0, 0) if v.role == "key" else np.asarray(given[v.name]) for v in executable.inputs]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in STEPS])
def test_a_small_step_of_the_bench_agrees_with_the_reference_executor(name):
    workload = STEPS[name]()
    executable = compiled(workload)
    dtype = "bfloat16" if "bf16" in name else "float32"
    agree(executable.interpreter.block, inputs(executable, workload), emulated(random.Random(name)), PARTS[dtype])


def compare(seed: int, scored: bool = False) -> None:
    """Compare a mixture, its gradients, and sometimes the gradients of these."""
    draw = random.Random(seed * 11 + 5)
    dtype = draw.choice(("float64", "float32", "float32", ("bfloat16", "float16")[seed % 2]))
    block, values, wrt = mixture(seed, dtype, draw.choice((1, 2, 2, 3)), scored)
    rng = np.random.default_rng(seed)
    small = {"nbytes": 0, "least": draw.choice((1, 2, 16)), "stripe": draw.choice((400, 2**16)), "batch": 1}
    for order in range(1, 3 if dtype == "float64" and draw.random() < 0.5 else 2):
        values += [rng.standard_normal(block.types[n].shape).astype(as_dtype(dtype)) for n in block.results]
        count = len(block.params)
        block = vjp(block, wrt)
        limits = small if draw.random() < 0.6 else {}
        agree(optimize(block), values, emulated(draw, **limits), PARTS[dtype] * order)
        wrt = [*wrt, *block.params[count:]]


@pytest.mark.parametrize("seed", [2])
def test_a_mixture_agrees_with_the_reference_executor(seed):
    compare(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_mixtures_agree_with_the_reference_executor(seed):
    compare(seed, scored=seed % 2 == 1)


def test_elementwise_results_have_the_bits_of_the_machine_code_of_the_cpu():
    workload = STEPS["elementwise"]()
    executable = compiled(workload)
    block, values = executable.interpreter.block, inputs(executable, workload)
    found = native_interpreter(block, EmulatedBackend())(Run(), *values)
    wanted = native_interpreter(block, CPU)(Run(), *values)
    compared = [(f, w) for f, w in zip(found, wanted, strict=True) if np.shape(f)]
    assert compared
    assert all(f.tobytes() == w.tobytes() for f, w in compared)
