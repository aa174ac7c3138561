"""Numbers that are no positions, lengths or counts end in errors, never in addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.errors import ExecutionError
from core.plan import plan_block
from core.plan.unsupported import Unsupported
from core.runtime.run import Run, RunLimits
from tests.core.codegen.forked_runs import survives
from tests.core.codegen.stepwise import block_of
from tests.laws.agreement import in_dtype, step_of
from tests.laws.examples import OPS, arrays, block_for, leaves
from tests.rounding import ROUNDING

EXTREMES = (-(2**63), -(2**40), -(2**31), -1, 2**20, 2**31 - 1, 2**40, 2**62, 2**63 - 1)


def spoiled(args: Sequence[Any]) -> Iterator[list[Any]]:
    """The arguments with wrong numbers among their integers: all of an array, or one."""
    for at, value in enumerate(args):
        if not isinstance(value, np.ndarray) or value.dtype.kind != "i" or not value.size:
            continue
        limits = np.iinfo(value.dtype)
        for number in EXTREMES:
            if limits.min <= number <= limits.max:
                for place in (slice(None), 0, value.size - 1):
                    wrong = value.copy()
                    wrong.reshape(-1)[place] = number
                    yield [*args[:at], wrong, *args[at + 1 :]]


def run_all(region: Any, args: Sequence[Any]) -> None:
    def left(*_: Any, **__: Any) -> None:
        """In place of the reference executor, which would take the memory that a wrong count asks for."""
        raise ExecutionError("the run left the code", "left")

    region._reference = left
    for given in spoiled(args):
        try:
            region(Run(limits=RunLimits(max_bytes=1 << 26, max_trips=100)), *given)
        except (ExecutionError, MemoryError):
            continue


@pytest.mark.parametrize("image", [2, -3, 2**40, -(2**63), 2**63 - 1])
def test_the_image_of_a_region_is_checked_before_it_is_read(image):
    x, boxes = np.ones((2, 2, 4, 5), "float32"), np.array([[0, 0, 3, 3]], "float32")
    block = block_of("roi_pool", x, boxes, np.array([1]), output_size=(2, 2))
    region = ROUNDING.compile(plan_block(block, ROUNDING.target))

    def run() -> None:
        with pytest.raises(ExecutionError) as caught:
            region(Run(), x, boxes, np.array([image]))
        assert caught.value.code == "index_out_of_range"

    fine, said = survives(run)
    assert fine, said


FAST = ("embedding", "gather", "gather_nd", "index_put", "roi_align", "roi_pool", "scatter_nd_add", "segment_sum")


def with_integers() -> Iterator[Any]:
    for name in sorted(OPS):
        example = in_dtype(name, 0, "float64")
        if example is not None and any(each.dtype.kind == "i" for each in leaves(example.inputs)):
            yield name if name in FAST else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", list(with_integers()))
def test_wrong_integers_of_an_op_are_no_addresses(name):
    example = in_dtype(name, 0, "float64")
    assert example is not None
    for block, args in ((optimize(block_for(OPS[name], example)), arrays(example)), step_of(name, 0, "float64")):
        if not all(isinstance(block.types[n], TensorType) for n in block.params):
            continue
        try:
            region = ROUNDING.compile(plan_block(block, ROUNDING.target))
        except Unsupported:
            continue
        fine, said = survives(partial(run_all, region, args))
        assert fine, said
