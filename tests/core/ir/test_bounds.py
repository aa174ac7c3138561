"""Ranges of attributes: declared in the annotation, enforced when an op is read, named in the error."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from core.ir.attr_values import Extended
from core.ir.bounds import Bounds
from core.ir.errors import ProgramError
from core.ir.registry import REGISTRY, Family, OpSpec, op

FAMILY = Family("tests", "Ops of tests")

Half = Annotated[float, Bounds(gt=0, le=0.5)]
Pair = Annotated[tuple[Annotated[int, Bounds(ge=-1)], ...], Bounds(min_length=2, max_length=2)]


@pytest.fixture
def ranged() -> Iterator[OpSpec]:
    @op
    def ranged(
        xp,
        x,
        *,
        half: Half = 0.5,
        plain: float = 0.0,
        any: Extended = 0.0,
        divisor: Annotated[int, Bounds(nonzero=True)] = 1,
        pair: Pair = (1, 2),
        word: Annotated[str, Bounds(max_length=3)] = "",
        perhaps: Half | None = None,
    ):
        """An op whose attributes have ranges."""
        return x

    try:
        yield ranged
    finally:
        del REGISTRY["ranged"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"half": 0.0}, "attribute 'half' of ranged must be above 0, not 0.0"),
        ({"half": 0.75}, "attribute 'half' of ranged must be at most 0.5, not 0.75"),
        ({"half": math.nan}, "attribute 'half' of ranged must be finite, not nan"),
        ({"half": "little"}, "attribute 'half' of ranged must be a number, not text"),
        ({"plain": math.inf}, "attribute 'plain' of ranged must be finite, not inf"),
        ({"plain": "inf"}, "attribute 'plain' of ranged must be a number, not text"),
        ({"any": math.nan}, "attribute 'any' of ranged must be a number, not nan"),
        ({"divisor": 0}, "attribute 'divisor' of ranged must not be 0"),
        ({"divisor": True}, "attribute 'divisor' of ranged must be an integer, not a boolean"),
        ({"pair": [1]}, "attribute 'pair' of ranged must have a length of at least 2, not 1"),
        ({"pair": [1, 2, 3]}, "attribute 'pair' of ranged must have a length of at most 2, not 3"),
        ({"pair": [1, -2]}, "attribute 'pair' of ranged must be at least -1, not -2"),
        ({"pair": 7}, "attribute 'pair' of ranged must be a list of integers"),
        ({"word": "four"}, "attribute 'word' of ranged must have a length of at most 3, not 4"),
        ({"perhaps": -1}, "attribute 'perhaps' of ranged must be above 0, not -1.0"),
    ],
)
def test_a_value_outside_its_range_is_refused_with_the_range_and_the_value(ranged, given, message):
    with pytest.raises(ProgramError) as error:
        ranged.complete(given)

    assert (error.value.code, error.value.message) == ("bad_attr", message)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"half": 5e-324}, 5e-324),
        ({"half": 0.5}, 0.5),
        ({"plain": -0.0}, 0.0),
        ({"any": "-inf"}, -math.inf),
        ({"any": math.inf}, math.inf),
        ({"divisor": -(2**63)}, -(2**63)),
        ({"pair": [-1, 2**63 - 1]}, (-1, 2**63 - 1)),
        ({"word": "any"}, "any"),
        ({"perhaps": None}, None),
        ({"perhaps": 0.25}, 0.25),
    ],
)
def test_a_value_on_the_edge_of_its_range_is_accepted(ranged, given, kept: Any):
    (name,) = given
    assert ranged.complete(given)[name] == kept
