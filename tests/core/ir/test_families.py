"""The family of an op is declared by its module or by its folder."""

from __future__ import annotations

import sys

import pytest

from core.ir.registry import CONSTRUCTS, REGISTRY, Family, op
from core.ops import control, elementwise


def declared(xp, x):
    """An op that only these tests declare."""
    return x


def test_an_op_has_the_family_of_its_folder():
    assert REGISTRY["relu"].family is elementwise.FAMILY
    assert REGISTRY["loop"].family is control.FAMILY


def test_a_module_may_declare_another_family_than_its_folder():
    assert CONSTRUCTS["while"].family is control.FAMILY
    assert REGISTRY["cosine_decay"].family.name == "schedules"


def test_every_family_has_one_declaration():
    families = {spec.family for spec in (*REGISTRY.values(), *CONSTRUCTS.values())}
    assert len({family.name for family in families}) == len(families)


def test_an_op_without_a_family_is_refused():
    with pytest.raises(ValueError, match=r"'declared' has no family: declare FAMILY in tests\.core\.ir\.test_families"):
        op(declared)
    assert "declared" not in REGISTRY


def test_an_op_outside_the_folders_of_ops_takes_the_family_of_its_module(monkeypatch):
    family = Family("tests", "Ops of tests")
    monkeypatch.setattr(sys.modules[__name__], "FAMILY", family, raising=False)
    spec = op(declared)
    del REGISTRY["declared"]
    assert spec.family is family
