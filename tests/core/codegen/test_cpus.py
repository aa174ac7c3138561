"""Machine code for other CPUs: with fewer features it gives the same results, and no CPU needs a library for it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

import llvmlite.binding as llvm
import pytest

from bench.coverage import step_of
from core.codegen.backend import CPU, write_plan
from core.codegen.cpus import NAMED, cpu, generating_for
from core.ir.errors import ProgramError
from core.plan.partition import plan_parts
from tests.laws import test_native
from tests.laws.examples import CASES, OPS, examples_of

OLDER = [name for name, each in NAMED.items() if each.triple == cpu().triple and each.vector_bytes < cpu().vector_bytes]
"""CPUs whose code this process can run, other than its own."""

SHARE = 24
"""One of so many ops is not slow."""

FROM_LIBC = {"memcpy", "memset", "memmove", "fma", "fmaf"}
"""What every process has. Only a CPU without AVX2 calls the last two."""


def sampled(dtypes: tuple[str, ...]) -> Iterator[object]:
    """(op, dtype); its first example is run."""
    for name in sorted({name for name, _ in CASES}):
        for dtype in dtypes:
            fast = zlib.crc32(f"{name} {dtype}".encode()) % SHARE == 0
            yield pytest.param(name, dtype, marks=[] if fast else [pytest.mark.slow])


@pytest.mark.skipif(not OLDER, reason="this CPU is the least of its kind")
@pytest.mark.parametrize("named", OLDER)
@pytest.mark.parametrize(("name", "dtype"), list(sampled(("float64", "float32"))))
def test_an_op_and_its_gradient_agree_with_the_reference_executor_on_a_cpu_with_fewer_features(name, dtype, named):
    if test_native.in_dtype(name, 0, dtype) is None:
        pytest.skip("has no floats")
    with generating_for(NAMED[named]):
        test_native.test_an_op_and_its_gradient_agree_with_the_reference_executor(name, 0, dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("named", ["armv8", "x86-64-v2"])
@pytest.mark.parametrize(("name", "dtype"), list(sampled(("float64", "float32", "bfloat16", "float16"))))
def test_an_op_and_its_gradient_call_only_functions_that_their_code_declares(name, dtype, named):
    spec = OPS[name]
    example = examples_of(spec)[0]
    try:
        block = step_of(spec, example, dtype, gradient=True) or step_of(spec, example, dtype, gradient=False)
    except ProgramError:
        block = None
    if block is None:
        pytest.skip(f"no example in {dtype}")

    with generating_for(NAMED[named]):
        for plan in plan_parts(block, CPU.target).regions:
            assert undeclared(write_plan(plan)[0].text()) <= FROM_LIBC


def undeclared(text: str) -> set[str]:
    """The functions that the machine code of a module calls by name, other than those that its text declares."""
    target = llvm.Target.from_triple(cpu().triple).create_target_machine(
        cpu=cpu().name, features=cpu().features, opt=2, codemodel="small"
    )
    written = target.emit_assembly(llvm.parse_assembly(text))
    calls = re.findall(r"^\t(?:bl|b|callq|jmp)\t([A-Za-z_]\w*)", written, re.MULTILINE)
    return {*calls} - {*re.findall(r"^(?:define|declare)[^@]*@([\w.]+)\(", text, re.MULTILINE)}
