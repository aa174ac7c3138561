"""Attributes that several ops share are declared once, as a group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from core.ir.attr_groups import AttrGroup
from core.ir.builder import BlockBuilder
from core.ir.errors import ProgramError
from core.ir.program import TensorType
from core.ir.registry import REGISTRY, Family, OpSpec, op
from core.runtime.reference import execute

FAMILY = Family("tests", "Ops of tests")


@dataclass(frozen=True, slots=True)
class Line(AttrGroup):
    slope: float = 1.0
    offset: float = 0.0


STEEP = Line(slope=3.0)


@pytest.fixture
def grouped() -> Iterator[OpSpec]:
    @op
    def grouped(xp, x, *, before: int = 0, line: Line = STEEP, after: bool = False):
        """An op with a group among its attributes."""
        return x * line.slope + line.offset

    grouped.infer(lambda x, *, before, slope, offset, after: x)
    try:
        yield grouped
    finally:
        del REGISTRY["grouped"]


def test_a_group_stands_for_its_attributes_in_their_order(grouped):
    assert [a.name for a in grouped.attrs] == ["before", "slope", "offset", "after"]
    assert [a.type for a in grouped.attrs] == [int, float, float, bool]


def test_the_default_of_the_parameter_replaces_those_of_the_fields(grouped):
    assert grouped.complete({}) == {"before": 0, "slope": 3.0, "offset": 0.0, "after": False}


def test_an_attribute_of_a_group_is_checked_as_any_other(grouped):
    with pytest.raises(ProgramError, match="'slope' of grouped must be a number"):
        grouped.complete({"slope": "steep"})
    with pytest.raises(ProgramError, match="no attribute 'line'"):
        grouped.complete({"line": 1.0})


def test_a_kernel_gets_the_group_as_one_object(grouped):
    b = BlockBuilder()
    x = b.param(TensorType((2,), "float64"))
    block = b.build([b.emit("grouped", x, offset=0.5)])

    assert execute(block, [np.array([1.0, 2.0])])[0].tolist() == [3.5, 6.5]
