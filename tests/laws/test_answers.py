"""A backward program sent back in is the same program, has short names, and can be differentiated again.

`test_random_programs` has the law of the first sentence for random programs, `test_documents` for each op.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from core.autodiff.hooks import Hook
from core.backward.append_backward import Options, gradients
from core.compiler.compile import GradientQuery, compile_forward, compile_gradient
from core.ir import Program, blocks_inside
from core.ir.errors import InvalidProgram
from core.ir.generated import GENERATED, client_part, generated_length, numbered, prefixed, residual, tagged
from core.ir.recursion import headroom
from core.ir.registry import CONSTRUCTS, REGISTRY
from core.ops.control.inner_blocks import LoopMemory
from core.wire import Limits, read, write
from core.wire.document import OP_NAME
from core.wire.samples import SAMPLES
from tests.core.autodiff.test_hooks import EXAMPLES as ACTIONS
from tests.nests import MEMORY, NESTS, nest
from tests.paths import ROOT
from tests.programs import Sketch, close

POLICIES = get_args(LoopMemory)


def sent_back(program: Program) -> Program:
    again = read(json.loads(json.dumps(write(program), allow_nan=False)))
    with headroom():
        assert again == program
    return again


def orders(program: Program, count: int, wrt: str = "w", **options: Any) -> Iterator[Program]:
    """The backward programs of orders 1 to `count`; each order differentiates the one before, sent back in."""
    targets = ["loss"]
    for _ in range(count):
        backward = gradients(program, targets, [wrt], options=Options(unconnected="zeros", **options))
        program, targets = sent_back(backward.program), list(backward.gradients.values())
        yield program


def names(program: Program) -> set[str]:
    return {name for block in (program.block, *blocks_inside(program.block.ops)) for name in block.types}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_backward_programs_of_three_orders_can_be_sent_back(name):
    program = sent_back(read(SAMPLES[name].document))
    assert len(list(orders(program, 3))) == 3


@pytest.mark.parametrize("role", ["parameter", "feed", "state"])
def test_programs_with_random_ops_and_frozen_variables_can_be_sent_back(role):
    s = Sketch()
    s.param("w", [0.5, 0.9])
    s._leaf(role, "k", [1.0, 2.0], "float64", trainable=False)
    with s.repeat(2):
        s.op("mul", s.op("dropout", "w", out=["d", "mask"])[0], "k", out="h")
    s.total(s.op("dropout", "w", out=["e", "mask2"])[0])
    program = sent_back(read(s.document))
    assert len(list(orders(program, 2))) == 2


@pytest.mark.parametrize("path", sorted((ROOT / "examples/programs").glob("*.json")), ids=lambda path: path.stem)
def test_backward_programs_of_the_examples_can_be_sent_back(path: Path):
    program = read(json.loads(path.read_text())["program"])
    assert list(orders(program, 1, program.parameters[0].name))


@pytest.mark.sampled(2, each="policy")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", MEMORY)
def test_nests_under_each_memory_policy_can_be_sent_back(kind, policy):
    if kind == "if_else" and policy not in ("store", "recompute"):
        pytest.skip("branches have two policies")
    assert len(list(orders(read(nest(kind, 2, memory=policy).document), 3))) == 3


@pytest.mark.parametrize("checkpoints", ["auto", ("h",)])
def test_recomputed_ops_of_each_order_have_names_of_their_own(checkpoints):
    document = {
        "blocks": [
            {
                "vars": [{"name": "w", "dtype": "float64", "shape": [2], "role": "parameter"}],
                "ops": [
                    {"type": "tanh", "inputs": {"x": ["w"]}, "outputs": {"out": ["g"]}},
                    {"type": "tanh", "inputs": {"x": ["g"]}, "outputs": {"out": ["h"]}},
                    {"type": "tanh", "inputs": {"x": ["h"]}, "outputs": {"out": ["y"]}},
                    {"type": "square", "inputs": {"x": ["y"]}, "outputs": {"out": ["z"]}},
                    {"type": "reduce_sum", "inputs": {"x": ["z"]}, "outputs": {"out": ["loss"]}},
                ],
            }
        ]
    }
    for program in orders(read(document), 3, checkpoints=checkpoints):
        written = [name for op in program.block.ops for name in op.outputs]
        assert len(written) == len(set(written))


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_backward_programs_with_hooks_can_be_sent_back(action):
    match = {"variable": "1:h"}
    hooks = (Hook.read({"match": match, "do": action, **ACTIONS[action]}),) * 2
    assert list(orders(read(nest("while", 2).document), 1, hooks=hooks))


def test_each_order_has_its_seed_and_the_final_gradient_of_each_variable_in_its_tables():
    program, targets = read(nest("net", 1).document), ["loss"]
    for order in range(3):
        backward = gradients(program, targets, ["w"])
        seeds = [
            op.outputs[0] for op, role in zip(backward.program.block.ops, backward.roles, strict=True) if role == 257
        ]
        assert [backward.grad_to_var[name] for name in seeds] == targets
        for name, grad in backward.gradients.items():
            assert backward.grad_info_map[name] == (grad, 0)
        renamed = [v for v in backward.grad_to_var.values() if "@RENAME@" in v]
        assert set(renamed) <= backward.grad_info_map.keys()
        assert renamed or order == 0
        program, targets = backward.program, list(backward.gradients.values())


# --- deep nests ------------------------------------------------------------------------------------------------


def test_each_construct_has_a_nest():
    constructs = {name for name, spec in CONSTRUCTS.items() if spec.kind == "construct"}
    assert constructs - {"call", "gradients"} == NESTS.keys() - {"switch_case of one branch"}


@pytest.mark.parametrize("kind", NESTS)
def test_deep_nests_have_short_names_and_can_be_sent_back(kind):
    """28 levels: names that grew with each level passed 128 characters at level 22 of a `while`."""
    document = nest(kind, 28).document
    (program,) = orders(read(document), 1)

    assert max(map(generated_length, names(program))) <= 25
    assert len(json.dumps(write(program))) < 60 * len(json.dumps(document))


@pytest.mark.parametrize("kind", ["while", "if_else"])
def test_a_backward_program_of_a_deep_nest_gives_the_same_numbers_and_its_own_gradient(kind):
    s = nest(kind, 6)
    program = read(s.document)
    backward = gradients(program, ["loss"], ["w"])
    again = sent_back(backward.program)
    grad = backward.gradients["w"]

    wanted = compile_gradient(program, GradientQuery(loss="loss")).step(s.values).gradients["w"]
    run = compile_forward(again, [grad])
    close(run.step(s.values).fetched[grad], wanted, 1e-14)
    second = compile_gradient(again, GradientQuery(targets=(grad,), inputs=("w",))).step(s.values).gradients["w"]
    up, down = (run.step(s.values | {"w": s.values["w"] + by}).fetched[grad] for by in (1e-6, -1e-6))
    close(second, (up - down) / 2e-6, 1e-6)  # elementwise: each gradient depends on its own element only


def test_answers_of_120_nested_branches_stay_below_two_megabytes():
    backward = gradients(read(nest("if_else", 120).document), ["loss"], ["w"])
    assert len(json.dumps(backward.as_document())) < 2_000_000


def test_a_switch_of_one_branch_keeps_one_copy_of_its_block():
    program = read(nest("switch_case of one branch", 30).document)
    assert len(blocks_inside(program.block.ops)) == 60


# --- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [123, 124, 128])
@pytest.mark.parametrize("kind", ["while", "if_else"])
def test_a_name_of_the_greatest_length_has_a_gradient_that_can_be_sent_back(kind, length):
    weight = "w" * length
    first, second = orders(read(nest(kind, 2, weight).document), 2, weight)
    assert f"{weight}@GRAD" in first.block.types
    assert first.block.types.keys() <= second.block.types.keys()


def test_names_stay_short_at_any_order():
    s = nest("net", 1)
    *_, last = orders(read(s.document), 5)
    assert max(map(generated_length, names(last))) <= GENERATED


def test_each_derived_name_is_short_and_new():
    name, taken = "h" * 128, set()
    last: dict[str, int] = {}
    for number in range(400):
        tag = ("GRAD", "RENAME@12", "STACK", "KEPT", "AGAIN3", "HOOK@49")[number % 6]
        derived = residual(name, tag) if tag in ("STACK", "KEPT") else tagged(name, tag)
        derived = prefixed(derived, taken, last) if number % 2 else numbered(derived, taken, last)
        assert derived not in taken
        assert client_part(derived) == "h" * 128
        assert generated_length(derived) <= GENERATED
        taken.add(derived)
        name = derived


def test_no_op_has_a_longer_name_than_generated_names_may_start_with():
    assert max(map(len, REGISTRY)) <= OP_NAME


@pytest.mark.parametrize("name", ["v" * 129, "v" * 129 + "@GRAD", "v@" + "G" * 200])
def test_longer_names_are_refused_in_the_closed_form_too(name):
    closed = write(read(nest("net", 1).document))
    text = json.dumps(closed).replace('"loss"', json.dumps(name))
    with pytest.raises(InvalidProgram) as error:
        read(json.loads(text))
    assert {each.code for each in error.value.problems} == {"bad_name"}


def test_a_closed_program_may_be_larger_than_a_client_s_own_but_not_without_limit():
    document = nest("if_else", 10).document
    limits = Limits(max_blocks=11, max_ops=sum(len(each["ops"]) for each in document["blocks"]), max_depth=11)
    program = read(document, limits)
    backward = gradients(program, ["loss"], ["w"]).program

    assert read(write(backward), limits) == backward
    with pytest.raises(InvalidProgram, match="41 blocks, more than the limit of 32"):
        read(write(backward), Limits(max_blocks=2))
