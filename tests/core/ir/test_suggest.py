"""Suggestions for misspelt names, also among many names."""

from __future__ import annotations

import difflib

import pytest

from core.ir.suggest import COMPARED, closest, near

MANY = [f"layer{i}.{part}" for i in range(2000) for part in ("weight", "bias", "running_mean")]


@pytest.mark.parametrize(
    "name, found",
    [
        ("layer1999.wieght", "layer1999.weight"),
        ("Layer_7_bias", "layer7.bias"),
        ("layer41.runing_mean", "layer41.running_mean"),
        ("layer5.weights", "layer5.weight"),
    ],
)
def test_the_name_that_was_meant_is_found_among_thousands(name, found):
    assert closest(name, MANY)[0] == found


@pytest.mark.parametrize("name, known", [("frist", "first"), ("ab", "abc"), ("lables", "labels"), ("x_1", "x1")])
def test_a_short_name_is_found(name, known):
    assert near(name, [known, "something", "else"]) == f"did you mean {known}?"


def test_nothing_is_suggested_for_a_name_like_no_other():
    assert near("zzzz", MANY) is None


def test_the_first_of_names_that_differ_in_separators_alone_is_suggested():
    assert closest("a-b", ["a_b", "a.b", "ab"]) == ["a_b"]


def test_few_of_many_long_names_are_compared_letter_by_letter(monkeypatch):
    """That takes time in proportion to the product of the lengths."""
    compared = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda name, forms, **more: compared.append(len(forms)) or [])

    assert closest("u" * 128, [f"v{i:06}".ljust(128, "u") for i in range(20_000)]) == []
    assert compared == [COMPARED]
