"""The package as tools of Python see it: attributes, signatures, pickles and mocks."""

from __future__ import annotations

import copy
import inspect
import pickle
from unittest import mock

import pytest

import backpass_client as bp
from backpass_client.op_table import op_table
from service.routes.ops import CATALOGUE, attributes_of


def test_the_package_has_the_ops_of_the_catalogue_and_no_other_names():
    assert set(op_table()["ops"]) == set(CATALOGUE)
    assert set(CATALOGUE) | set(bp.__all__) <= set(dir(bp))
    assert set(CATALOGUE) <= {name for name, _ in inspect.getmembers(bp)}
    for name in ("sofmax", "Conv2d", "float32", "pytest_plugins", "_repr_html_", "__wrapped__"):
        assert not hasattr(bp, name)
        with pytest.raises(AttributeError), mock.patch(f"backpass_client.{name}"):
            pass


@pytest.mark.parametrize(
    ("of", "name", "hint"),
    [
        (bp, "arange", "did you mean range?"),
        (bp, "float32", "did you mean f32?"),
        (bp, "linalg", "its functions are ops of this package"),
        (bp, "tensor", "did you mean constant?"),
        (bp, "fori_loop", "did you mean while_loop or scan?"),
        (bp, "Sesion", "did you mean Session"),
        (bp.nn, "Conv2d", "did you mean Conv?"),
        (bp.nn, "ReLU", "layers without parameters are ops: did you mean relu?"),
        (bp.nn, "MaxPool2d", "layers without parameters are ops: did you mean max_pool2d"),
        (bp.nn, "Module", "did you mean Layer?"),
        (bp.nn, "Sequential", "call one layer after the other"),
    ],
)
def test_a_name_of_another_library_leads_to_the_name_here(of, name: str, hint: str):
    with pytest.raises(AttributeError) as caught:
        getattr(of, name)
    assert str(caught.value).startswith(f"module {of.__name__!r} has no attribute {name!r}; {hint}")


def test_a_method_of_another_library_leads_to_the_op():
    def f(x: bp.f32[2]):
        for method, hint in (("exp", "write bp.exp(x)"), ("permute", "did you mean transpose?"), ("astype", "cast")):
            with pytest.raises(AttributeError, match="'Symbol' object has no attribute") as caught:
                getattr(x, method)
            assert hint in str(caught.value)
        assert not hasattr(x, "__array_interface__")
        return copy.copy(x).sum()

    assert bp.program(f).loss == "loss"


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_op_has_a_signature_and_survives_a_pickle(name: str):
    op = bp.function(name)
    found = inspect.signature(op).parameters
    ordered = [each.name for each in found.values() if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    keywords = {each.name for each in found.values()} - set(ordered)

    slots = [slot.name for slot in CATALOGUE[name].inputs]
    assert ordered == slots[: len(ordered)]
    assert keywords - set(slots) == {attr.name for attr in attributes_of(CATALOGUE[name])}
    if name not in bp.__all__:
        assert op is getattr(bp, name) and pickle.dumps(op)  # which looks the name up
    assert (op.__doc__ or "").startswith(CATALOGUE[name].doc.split("\n")[0])
