"""All mistakes of one op are found that can be found without each other, and each mistake is one problem."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from core.ir.errors import InvalidProgram
from core.ir.registry import CONSTRUCTS, REGISTRY
from core.wire import read

OPS = {name: spec for name, spec in {**REGISTRY, **CONSTRUCTS}.items() if spec.kind != "control"}


def told(op: dict[str, Any]) -> dict[str, str]:
    """The problems of a program with this op alone: pointer inside the op -> sentence."""
    document = {
        "blocks": [{"vars": [{"name": "w", "role": "parameter", "dtype": "float32", "shape": [2]}], "ops": [op]}]
    }
    with pytest.raises(InvalidProgram) as error:
        read(document)
    return {each.pointer.removeprefix("/blocks/0/ops/0"): each.message for each in error.value.problems}


def test_every_unknown_attribute_and_slot_of_every_op_is_told():
    assert len(OPS) > 300
    for name, spec in OPS.items():
        wrong = {f"/attrs/{n}" for n in ("yy", "zz")} | {
            f"/{which}/{n}" for which in ("inputs", "outputs") for n in "YZ"
        }
        inputs, outputs = ({n: [f"{which}{n}"] for n in "YZ"} for which in "io")
        found = told({"type": name, "inputs": inputs, "outputs": outputs, "attrs": {"yy": 1, "zz": 2}})

        assert wrong <= found.keys(), name
        missing = [f"/attrs/{a.name}" for a in spec.attrs if a.required]
        assert set(missing) <= found.keys(), name


def test_every_unknown_operand_of_every_op_is_told_with_its_wrong_attributes():
    for name, spec in OPS.items():
        if spec.kind == "construct":
            continue
        inputs = {slot.name: [f"no_{slot.name}"] for slot in spec.inputs}
        found = told({"type": name, "inputs": inputs, "outputs": {spec.outputs[0]: ["y"]}, "attrs": {"zz": 1}})

        assert {f"/inputs/{slot.name}/0" for slot in spec.inputs} | {"/attrs/zz"} <= found.keys(), name


@pytest.mark.parametrize("name", ["absent", "no name"])
def test_the_pointer_to_a_name_has_a_position_only_in_a_list(name):
    op = {"type": "tanh", "outputs": {"out": "y"}}

    alone, listed = (told({**op, "inputs": {"x": value}}) for value in (name, [name]))

    assert "/inputs/x" in alone
    assert "/inputs/x/0" in listed
    assert [pointer for pointer in alone if pointer.startswith("/inputs/x/")] == []


def test_the_first_problem_is_an_unknown_attribute_or_the_first_wrong_one():
    found = told({
        "type": "dropout", "inputs": {"x": ["w"]}, "outputs": {"out": ["y"]},
        "attrs": {"dropout_probability": 0.5, "is_test": "no", "seed": "one"},
    })  # fmt: skip

    assert next(iter(found)) == "/attrs/dropout_probability"
    assert "/attrs/is_test" in found


def test_a_complete_op_has_no_mistakes():
    spec = REGISTRY["softmax"]

    assert spec.mistakes({}) == spec.mistakes(spec.complete({})) == []


def test_an_attribute_that_resembles_none_is_refused_with_those_that_the_op_has():
    (refused,) = REGISTRY["adam"].mistakes({"lr": 0.1})

    assert refused.suggestion == f"it has {', '.join(attr.name for attr in REGISTRY['adam'].attrs)}"
    assert REGISTRY["tanh"].mistakes({"approximate": True})[0].suggestion == "it has none"


def test_a_misspelt_part_is_one_mistake():
    named = {"type": "tanh", "inputs": {"X": ["w"]}, "outputs": {"out": ["y"]}}
    assert list(told(named)) == ["/inputs/X"]

    spelt = {"type": "reshape", "inputs": {"x": ["w"]}, "outputs": {"out": ["y"]}, "attrs": {"shap": [1, 2]}}
    assert list(told(spelt)) == ["/attrs/shap"]


PROGRAM = {"blocks": [
    {"idx": 0, "parent_idx": -1,
     "vars": [{"name": "w", "role": "parameter", "dtype": "float32", "shape": [2]}],
     "ops": [
         {"type": "reduce_sum", "inputs": {"x": ["w"]}, "outputs": {"out": ["n"]}, "attrs": {"axes": [0]}},
         {"type": "isfinite", "inputs": {"x": "n"}, "outputs": {"out": "go"}},
         {"type": "conditional_block", "inputs": {"condition": ["go"]}, "attrs": {"sub_block": 1}}]},
    {"idx": 1, "parent_idx": 0, "vars": [],
     "ops": [{"type": "tanh", "inputs": {"x": ["n"]}, "outputs": {"out": ["m"]}}]}]}  # fmt: skip


def places(document: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, each in inner:
        yield from places(each, (*place, key))


def test_the_program_without_mistakes_is_read():
    assert len(read(PROGRAM).block.ops) == 3


PLACES = [place for place in places(PROGRAM) if place]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: "/".join(map(str, place)))
@pytest.mark.parametrize("value", ["absent", None, 2.5])
def test_a_value_of_a_wrong_type_is_at_most_one_problem_at_its_place(place: tuple[Any, ...], value: Any):
    document: Any = copy.deepcopy(PROGRAM)
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    if value == "absent":
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    try:
        read(document)
    except InvalidProgram as error:
        pointer = "".join(f"/{key}" for key in (place[:-1] if value == "absent" else place))
        found = [
            each.message for each in error.problems if each.pointer == pointer or each.pointer.startswith(f"{pointer}/")
        ]
        about = [each for each in found if "visible" not in each] if value == "absent" else found

        assert len(about) <= 1, found
