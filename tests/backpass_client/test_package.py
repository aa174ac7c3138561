"""The package as tools of Python see it: attributes, signatures, pickles and mocks."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from operator import attrgetter
from unittest import mock

import pytest

import backpass_client as bp
from backpass_client.foreign_names import FOREIGN_NAMES
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
        (bp, "lax", "its functions are functions of this package"),
        (bp, "Adam", "optimizers are settings of a session"),
        (bp, "custom_vjp", "did you mean function?"),
        (bp, "double", "did you mean f64?"),
        (bp, "Conv2d", "did you mean nn.Conv?"),
        (bp, "Linear", "did you mean nn.Linear?"),
        (bp.nn, "init", "first values are texts or arrays"),
        (bp.nn, "Transformer", "did you mean TransformerBlock?"),
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


def meant(hint: str) -> list[str]:
    """The names that a hint suggests."""
    found = re.search(r"did you mean ([^?]*)\?", hint)
    return [] if found is None else re.findall(r"[a-zA-Z][\w.]*", re.sub(r"\b(and|or|a|several|times)\b", "", found[1]))


@pytest.mark.parametrize("name", [*FOREIGN_NAMES, *bp.nn.OTHER_NAMES])
def test_a_hint_names_only_what_the_package_has(name: str):
    for each in meant(FOREIGN_NAMES.get(name) or bp.nn.OTHER_NAMES[name]):
        path = each.removeprefix("backpass_client.").split(".")
        holder = bp if hasattr(bp, path[0]) else bp.nn
        assert attrgetter(".".join(path))(holder) is not None


@pytest.mark.parametrize("name", ["lax", "metrics", "foobar", "xyz", "train", "q1"])
def test_a_name_with_no_near_one_has_no_misleading_hint(name: str):
    with pytest.raises(AttributeError) as caught:
        getattr(bp, name)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("kind", [bp.Session, bp.Program, bp.Service, bp.Job])
def test_a_method_of_another_library_has_a_hint_that_names_methods_of_the_class(kind: type):
    made = object.__new__(kind)
    for names, meaning in kind._elsewhere.items():
        for name in names.split():
            assert not hasattr(kind, name)
            with pytest.raises(AttributeError, match=f"has no attribute '{name}'") as caught:
                getattr(made, name)
            assert str(caught.value).endswith(meaning)
        own = set(re.findall(r"(?<![\w.])([a-z_]+)\(", meaning))
        assert all(hasattr(kind, each) or hasattr(bp.Session, each) for each in own), meaning
    assert not hasattr(made, "__wrapped__") and not hasattr(made, "_repr_html_")
    with pytest.raises(AttributeError, match=r"has no attribute 'q_q'$"):
        getattr(made, "q" + "_q")


def test_a_misspelt_method_leads_to_the_right_one():
    with pytest.raises(AttributeError, match=r"did you mean parameters"):
        getattr(object.__new__(bp.Session), "paramters".strip())


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
