"""The checks that consist of many small ones, each with a name: other processes run them, many at a time.

A unit is right if it has the results of the reference executor (of the machine code of the processor, for steps of the
bench), and the same bits again.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from core.autodiff.adjoint import vjp
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.device.rules import Rules, cluster_of
from core.ir import Block
from core.ir.errors import ExecutionError
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.reference import execute, interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.array_programs import array_program
from tests.device.agreement import DRAWN, SCOPES, orders, random_steps
from tests.device.test_emulated_programs import PARTS
from tests.gpu.measured import rates, times
from tests.gpu.rig import Rig
from tests.gpu.steps import REPEATS, Step, difference
from tests.laws.agreement import in_dtype
from tests.laws.examples import OPS, examples_of
from tests.laws.test_cupy import on_device, programs
from tests.mixtures import mixture

__all__ = ["UNITS", "Unit", "Wrong"]

Line = dict[str, Any]

UNHURRIED: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


class Wrong(Exception):
    """A result that is not right."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A kind of units. names: of all of them. run: runs one and gives its line. Raises anything if it is wrong.

    told: whether the line of a unit is written when it is right.
    """

    names: Callable[[Rig], Iterable[str]]
    run: Callable[[Rig, str], Line]
    told: bool = False


def step(rig: Rig, name: str) -> Line:
    """A step of the bench: the worst difference from the processor, and the bits."""
    made = Step.of(rig, rig.workloads[name]())
    runs = [made.run() for _ in range(REPEATS)]
    worst = max(map(difference, runs[0], made.wanted()), default=0.0)
    same = all(one.tobytes() == other.tobytes() for each in runs[1:] for one, other in zip(runs[0], each, strict=True))
    allowed = made.workload.tolerance
    ok = worst <= allowed and same
    return {"ok": ok, "worst": worst, "allowed": allowed, "same_bits": same, "whole": made.native.region is not None}


def op(rig: Rig, name: str) -> Line:
    """All examples of an op and their gradients, op by op, in float64."""
    worst, count = 0.0, 0
    for i in range(len(examples_of(OPS[name]))):
        for order, (block, args) in enumerate(programs(name, i, "float64")):
            count += 1
            with np.errstate(all="ignore"):
                wanted = execute(block, args)
                with rig.arrays() as xp:
                    found = execute(block, on_device(xp, args), xp=xp)
                    pairs = list(_leaves(rig.host, found, wanted))
            differs = max((difference(f, w, least=1.0) for f, w in pairs), default=0.0)
            if not differs <= 1e-9:
                raise Wrong(f"example {i}, {'the gradient' if order else 'the result'}: differs by {differs}")
            worst = max(worst, differs)
    return {"ok": True, "worst": worst, "count": count}


def native(rig: Rig, name: str) -> Line:
    """Examples of an op in one of two dtypes, their gradients and second gradients, as machine code."""
    worst, count = 0.0, 0
    for i in range(min(rig.examples, len(examples_of(OPS[name])))):
        drawn = zlib.crc32(f"{name} {i}".encode())
        dtype = "float32" if drawn % 2 and in_dtype(name, i, "float32") is not None else "float64"
        scope = SCOPES[drawn % len(SCOPES)]
        for block, values in orders(name, i, dtype):
            count += 1
            allowed = 1e-9 if dtype == "float64" else 1e-4
            worst = max(worst, compared(rig, block, values, scope, allowed, f"example {i} in {dtype}"))
    return {"ok": True, "worst": worst, "count": count}


def program(rig: Rig, name: str) -> Line:
    """Random programs with loops and branches, their gradients, and the gradients of these."""
    found = {"worst": 0.0, "count": 0}

    @seeded(int(name))
    @settings(max_examples=rig.programs, phases=[Phase.generate], database=None, **UNHURRIED)
    @given(**DRAWN)
    def check(document: Any, seed: int, width: int, dtype: str) -> None:
        allowed, told = 1e-8 if dtype == "float64" else 1e-3, f"seed {seed}, width {width}, {dtype}"
        for block, args, scope in random_steps(document, seed, width, dtype):
            found["worst"] = max(found["worst"], compared(rig, block, args, scope, allowed, told))
            found["count"] += 1

    check()
    return {"ok": True, **found}


def mixed(rig: Rig, name: str) -> Line:
    """A random mixture of attention, recurrent cells, convolutions and lookups, and its gradients."""
    seed = int(name)
    draw = random.Random(seed * 11 + 5)
    dtype = draw.choice(("float64", "float32", "float32", "bfloat16", "float16"))
    block, values, wrt = mixture(seed, dtype, draw.choice((1, 2, 2, 3)), seed % 2 == 1)
    rng = np.random.default_rng(seed)
    values += [rng.standard_normal(block.types[n].shape).astype(as_dtype(dtype)) for n in block.results]
    block = optimize(vjp(block, wrt))
    worst = compared(rig, block, values, draw.choice(SCOPES), PARTS[dtype], dtype)
    return {"ok": True, "worst": worst, "count": 1}


def arrays(rig: Rig, name: str) -> Line:
    """A random program on tensor arrays that it writes in loops and branches, and its gradients."""
    seed = int(name)
    draw = random.Random(seed)
    dtype, width = draw.choice(("float64", "float32")), draw.choice((2, 17, 600))
    sketch = array_program(seed, dtype, width, rooms=1 + seed % 2)
    executable = compile_gradient(read(sketch.document), GradientQuery(loss="loss"))
    values = [np.asarray(sketch.values[v.name]) for v in executable.inputs]
    allowed = 1e-8 if dtype == "float64" else 1e-3
    worst = compared(rig, executable.interpreter.block, values, draw.choice(SCOPES), allowed, dtype)
    return {"ok": True, "worst": worst, "count": 1}


def compared(rig: Rig, block: Block, values: list[Any], scope: Rules, allowed: float, told: str) -> float:
    """The largest difference of a step on the GPU from the reference executor. Raises Wrong beyond `allowed`.

    Differences are parts of the largest wanted number, or of 1 if that is smaller. An error must be that of the
    reference executor.
    """
    cluster = min(scope.cluster, cluster_of(rig.driver.properties.architecture))
    backend = rig.backend(replace(scope, library=rig.driver.multiplies, cluster=cluster))
    run = lambda: Run(rig.driver.xp)
    with np.errstate(all="ignore"):
        try:
            wanted = interpreter_of(block)(Run(), *values)
        except ExecutionError as refused:
            try:
                native_interpreter(block, backend)(run(), *given_to(rig, values))
            except ExecutionError as error:
                if (error.code, error.location) == (refused.code, refused.location):
                    return 0.0
                raise Wrong(f"{told}: {error.code} at {error.location}, not {refused.code}") from error
            raise Wrong(f"{told}: no error, but {refused.code} was expected") from None
        compiled = native_interpreter(block, backend)
        runs = [compiled(run(), *given_to(rig, values)) for _ in range(2)]
    worst = 0.0
    for (found, want), (again, _) in zip(*(_leaves(rig.to_host, each, wanted) for each in runs), strict=True):
        if found.tobytes() != again.tobytes():
            raise Wrong(f"{told}: a second run gives other bits")
        worst = max(worst, difference(found, want, least=1.0))
    if not worst <= allowed:
        raise Wrong(f"{told}: differs by {worst}")
    return worst


def _leaves(host: Callable[[Any], Any], found: Any, wanted: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of results, those in lists as well."""
    for f, w in zip(found, wanted, strict=True):
        if isinstance(w, list):
            yield from _leaves(host, f, w)
        else:
            yield np.asarray(host(f)), np.asarray(w)


def given_to(rig: Rig, values: list[Any]) -> list[Any]:
    """`values` on the GPU, lists as well."""
    return [given_to(rig, each) if isinstance(each, list) else rig.to_device(np.asarray(each)) for each in values]


def _seeds(rig: Rig) -> Iterable[str]:
    return map(str, range(rig.seeds))


UNITS: dict[str, Unit] = {
    "steps": Unit(lambda rig: rig.workloads, step, told=True),
    "native": Unit(lambda rig: rig.ops or sorted(OPS), native),
    "programs": Unit(_seeds, program),
    "mixtures": Unit(_seeds, mixed),
    "arrays": Unit(_seeds, arrays),
    "ops": Unit(lambda rig: rig.ops or sorted(OPS), op),
    "times": Unit(lambda rig: rig.workloads, times, told=True),
    "rates": Unit(lambda rig: rig.workloads, rates, told=True),
}
"""Kind of units -> what it is."""
