"""Laws of the client's type rules: each agrees with the rule of the service, for every example of every op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from backpass_client.arguments import as_json
from backpass_client.builder.inference import output_types
from backpass_client.builder.inference.rules import RULES
from backpass_client.builder.signatures import signature_of
from backpass_client.builder.types import InvalidOp, Type
from core.ir import StackType, TensorType
from core.ir.builder import output_types as core_types
from core.ir.errors import CoreError
from core.ir.registry import REGISTRY, OpSpec

INFERRED = {
    name: spec
    for name, spec in sorted(REGISTRY.items())
    if spec.example_rule and (name in RULES or (spec.elementwise and spec.family.name != "optimizers"))
}
LESS = {
    "equation": "einsum with an ellipsis",
    "ceil_mode": "poolings with ceil_mode",
}
"""Attributes with which a rule gives no type, and why."""


def type_of(value: Any) -> TensorType | StackType:
    if isinstance(value, list):
        return StackType(type_of(value[0]))
    array = np.asarray(value)
    return TensorType(array.shape, array.dtype.name)


def cases(spec: OpSpec) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(slot -> type of the core or a list of them, attributes) of each example that takes arrays only."""
    assert spec.example_rule is not None
    for example in spec.example_rule():
        if any(isinstance(x, list) for x in example.inputs):
            continue
        types = [None if x is None else type_of(x) for x in example.inputs]
        given: dict[str, Any] = {}
        for i, slot in enumerate(spec.inputs):
            if slot.variadic:
                given[slot.name] = types[i:]
            elif i < len(types) and types[i] is not None:
                given[slot.name] = types[i]
        yield given, dict(example.attrs)


def in_core(spec: OpSpec, given: dict[str, Any], attrs: dict[str, Any]) -> tuple[Any, ...]:
    flat = []
    for slot in spec.inputs:
        flat += given[slot.name] if slot.variadic else [given.get(slot.name)]
    return core_types(spec, tuple(flat), spec.complete(attrs))


def in_client(spec: OpSpec, given: dict[str, Any], attrs: dict[str, Any]) -> list[Type]:
    def ours(type: TensorType) -> Type:
        return Type(type.dtype, tuple(None if n == -1 else n for n in type.shape))

    types = {slot: [ours(t) for t in each] if isinstance(each, list) else ours(each) for slot, each in given.items()}
    return output_types(signature_of(spec.name), types, {k: as_json(v) for k, v in attrs.items()})[0]


def opened(given: dict[str, Any], at: int) -> dict[str, Any]:
    """`given` with axis `at` of every array open."""

    def without(type: TensorType) -> TensorType:
        return TensorType(tuple(-1 if i == at else n for i, n in enumerate(type.shape)), type.dtype)

    return {
        slot: [without(t) for t in each] if isinstance(each, list) else without(each) for slot, each in given.items()
    }


@pytest.mark.parametrize("name", INFERRED)
def test_a_rule_of_the_client_finds_the_type_that_the_service_finds(name: str):
    for given, attrs in cases(INFERRED[name]):
        expected = in_core(INFERRED[name], given, attrs)
        found = in_client(INFERRED[name], given, attrs)
        if any(attrs.get(each) not in (None, False, "explicit") for each in LESS) and not all(
            t.is_known for t in found
        ):
            continue
        assert [(t.dtype, t.shape) for t in found] == [
            (t.dtype, tuple(None if n == -1 else n for n in t.shape)) for t in expected
        ], (name, given, attrs)


@pytest.mark.parametrize("name", INFERRED)
def test_a_rule_never_contradicts_the_service_where_sizes_are_open(name: str):
    for given, attrs in cases(INFERRED[name]):
        for at in range(
            max((len(t.shape) for each in given.values() if not isinstance(each, list) for t in [each]), default=0)
        ):
            open_given = opened(given, at)
            try:
                expected = in_core(INFERRED[name], open_given, attrs)
            except CoreError:
                continue
            closed = in_core(INFERRED[name], given, attrs)
            for ours, *theirs in zip(in_client(INFERRED[name], open_given, attrs), expected, closed, strict=True):
                for each in theirs if ours.shape is not None else []:
                    assert ours.dtype == each.dtype
                    assert len(ours.shape) == len(each.shape)
                    sizes = zip(ours.shape, each.shape, strict=True)
                    assert all(m is None or n == -1 or m == n for m, n in sizes), (open_given, attrs, ours, each)


@pytest.mark.parametrize("name", INFERRED)
def test_operands_that_the_client_refuses_are_refused_by_the_service(name: str):
    """Every operand in turn gets another dtype, one axis less, one axis more, or a first size that fits nothing."""
    spec = INFERRED[name]
    for given, attrs in list(cases(spec))[:2]:
        for slot, type in given.items():
            if isinstance(type, list):
                continue
            for wrong in wrong_types(type):
                changed = {**given, slot: wrong}
                try:
                    in_client(spec, changed, attrs)
                except InvalidOp as error:
                    with pytest.raises(CoreError):
                        in_core(spec, changed, attrs)
                        pytest.fail(f"the service takes {changed} {attrs}, the client does not: {error}")


def wrong_types(type: TensorType) -> Iterator[TensorType]:
    yield TensorType(type.shape, "float32" if type.dtype == "int64" else "int64")
    yield TensorType((*type.shape, 2), type.dtype)
    if type.shape:
        yield TensorType(type.shape[1:], type.dtype)
        yield TensorType((type.shape[0] + 7, *type.shape[1:]), type.dtype)
        yield TensorType((*type.shape[:-1], type.shape[-1] + 7), type.dtype)


def test_four_of_five_differentiable_ops_have_a_rule():
    wanted = [
        n
        for n, s in REGISTRY.items()
        if s.differentiable and s.family.name not in ("control", "optimizers", "schedules")
    ]

    assert sum(n in INFERRED for n in wanted) >= 0.8 * len(wanted)
