"""Wrong sizes: inference refuses what the reference executor refuses, and so does machine code, inside of its arrays.

Each case is an example of an op with one size of one input changed, or one integer among its attributes. What inference
then takes must run as the reference executor runs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, OpSpec, as_tuple
from core.plan.sized import RULES
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run, RunLimits
from tests.laws.agreement import same
from tests.laws.examples import CASES, OPS, block_for, examples_of, type_of
from tests.laws.guards import Guarded, guards

__all__ = ["guards"]

BY_VALUES = {
    "array_cut", "context_rows", "crf_decoding", "crf_moves", "crf_partition", "crf_score", "ctc_lattice", "ctc_loss",
    "dynamic_expand", "dynamic_reshape", "dynamic_slice_into", "expanded_rows", "interleaved_rows", "linear_chain_crf",
    "merge_by_mask", "padded_rows", "roi_positions", "sequence_concat", "sequence_conv", "sequence_expand",
    "sequence_ids", "sequence_pad", "sequence_pool", "sequence_reset_lengths", "sequence_reverse", "sequence_rows",
    "sequence_slice", "sequence_slice_rows", "sequence_slots", "sequence_softmax", "sequence_to_array",
    "sequence_unpad", "step_rows", "steps_within", "unpadded_positions", "viterbi_decode",
}  # fmt: skip
"""Ops with an input whose values tell sizes of others: lengths, a mask, a shape. Only a run can compare them."""

UNSPECIFIED = {"eigh", "qr", "qr_factor", "svd"}
"""Ops whose results are not compared: a matrix with repeated rows has several decompositions."""

MOST_BYTES = 2**26
"""Bytes of the largest array of a case."""

FAR = 2**40
"""Larger than each size, and than each int32."""

WITHOUT_BOUNDS = (int, int | None, tuple[int, ...], tuple[int, ...] | None)
"""Types of attributes that are no sizes, and may be far from them."""

TAKEN = [
    (name, i)
    for name, i in CASES
    if name != "print" and not any(isinstance(x, list) or x is None for x in examples_of(OPS[name])[i].inputs)
]
"""(op, number of its example) whose inputs are arrays."""


def of_other_sizes(example: Example) -> Iterator[Example]:
    """The example with one size of one input changed to each of some others. The values repeat."""
    for k, x in enumerate(example.inputs):
        for axis, size in enumerate(np.shape(x)):
            for other in sorted({0, 1, size - 1, size + 1, 2 * size} - {size}) if size else ():
                given = list(example.inputs)
                given[k] = np.ascontiguousarray(np.take(x, np.arange(other) % size, axis))
                yield Example(tuple(given), (), example.attrs)


def of_other_attributes(spec: OpSpec, example: Example) -> Iterator[Example]:
    """The example with one integer among its attributes changed, once with each integer input as int32."""
    types = {attr.name: attr.type for attr in spec.attrs}
    short = tuple(np.asarray(x, "int32") if np.asarray(x).dtype == "int64" else x for x in example.inputs)
    for name, value in example.attrs.items():
        numbers = value if isinstance(value, tuple) else (value,)
        for at, number in enumerate(numbers):
            if not isinstance(number, int) or isinstance(number, bool):
                continue
            far = {FAR, -FAR} if types[name] in WITHOUT_BOUNDS else set()
            for other in sorted({-1, 0, 1, number - 1, number + 1, 2 * number, *far} - {number}):
                changed = (*numbers[:at], other, *numbers[at + 1 :]) if isinstance(value, tuple) else other
                for inputs in (example.inputs, short):
                    yield Example(inputs, (), {**example.attrs, name: changed})


def accepted(name: str, example: Example) -> Block | None:
    """The block of the op; None if inference refuses it, or if an array is large."""
    try:
        block = block_for(OPS[name], example)
        if _has_large(block):
            return None
        block = optimize(block)
    except ProgramError:
        return None
    return None if _has_large(block) else block


def _has_large(block: Block) -> bool:
    types = (type for type in block.types.values() if isinstance(type, TensorType))
    return any(math.prod(type.shape) * 8 > MOST_BYTES for type in types)


def outcome(run: Any, args: Any) -> Any:
    """The results of a run, or the code of its error."""
    with np.errstate(all="ignore"):
        try:
            return run(Run(limits=RunLimits(max_bytes=MOST_BYTES)), *args)
        except ExecutionError as error:
            return error.code


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted({name for name, _ in TAKEN}))
def test_inference_refuses_the_wrong_sizes_that_the_reference_executor_refuses(name):
    found = []
    for i in (i for each, i in TAKEN if each == name and i < 3):
        for changed in of_other_sizes(examples_of(OPS[name])[i]):
            block = accepted(name, changed)
            if block is not None and outcome(interpreter_of(block), changed.inputs) == "shape_mismatch":
                found.append([np.shape(x) for x in changed.inputs])

    assert name in BY_VALUES or not found


WITHOUT_ELEMENTS = {
    "group_norm": "without channels there is nothing to normalise",
    "label_smooth": "without classes there is nothing to smooth",
    "nanquantile": "the result is empty, too",
    "hierarchical_sigmoid": "with a custom tree, only the rank of the label is read",
    **dict.fromkeys(("gru", "lstm", "rnn"), "a loop of no steps reads no weights"),
}
"""Ops that take a wrong size where it is open and changes nothing -> why."""


def in_the_run(name: str, changed: Example) -> Iterator[Any]:
    """The outcomes of the op where the run alone tells all sizes, or those of one operand."""
    values = [np.asarray(x) for x in changed.inputs]
    for opened in (range(len(values)), *([i] for i in range(len(values)))):
        types = [type_of(x) for x in values]
        for i in opened:
            types[i] = TensorType((-1,) * types[i].rank, types[i].dtype)
        try:
            block = optimize(block_for(OPS[name], changed, types))
        except ProgramError:
            continue
        yield outcome(interpreter_of(block), values)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted({name for name, _ in TAKEN} - set(WITHOUT_ELEMENTS)))
def test_the_run_refuses_the_open_sizes_that_inference_refuses_where_it_knows_them(name):
    for i in (i for each, i in TAKEN if each == name and i < 3):
        for changed in of_other_sizes(examples_of(OPS[name])[i]):
            try:
                block_for(OPS[name], changed)
            except ProgramError:
                found = list(in_the_run(name, changed))
                assert all(isinstance(each, str) for each in found), [np.shape(x) for x in changed.inputs]


def on_chosen_rows(name: str, changed: Example, k: int, axis: int) -> Block:
    """A block of the op on the parameters, of which operand k goes through a choice of slices along `axis`.

    A last parameter, a mask, chooses them. So code for known sizes has an operand of an open size.
    """
    b = BlockBuilder()
    operands = [b.param(type_of(x)) for x in changed.inputs]
    x = operands[k]
    mask = b.param(TensorType((x.shape[axis],), "bool"))
    order = (axis, *(i for i in range(x.rank) if i != axis))
    rows, _ = b.emit("split_by_mask", b.emit("transpose", x, axes=order), mask)
    operands[k] = b.emit("transpose", rows, axes=tuple(order.index(i) for i in range(x.rank)))
    return optimize(b.build(as_tuple(b.emit(name, *operands, **changed.attrs))))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted({name for name, _ in TAKEN} & RULES.keys() | {"bmm", "prelu", "topk"}))
def test_machine_code_refuses_the_open_sizes_that_inference_refuses_where_it_knows_them(name):
    example, *_ = examples_of(OPS[name])
    for changed in of_other_sizes(example):
        try:
            block_for(OPS[name], changed)
            continue
        except ProgramError:
            pairs = list(zip(map(np.shape, changed.inputs), map(np.shape, example.inputs), strict=True))
        (k,) = (i for i, (one, other) in enumerate(pairs) if one != other)
        (axis,) = (i for i, (m, n) in enumerate(zip(*pairs[k], strict=True)) if m != n)
        try:
            block = on_chosen_rows(name, changed, k, axis)
        except ProgramError:
            continue
        values = [*map(np.asarray, changed.inputs), np.ones(pairs[k][0][axis], bool)]
        assert outcome(native_interpreter(block, CPU), values) == outcome(interpreter_of(block), values), pairs


def agrees(name: str, changed: Example, guards: list[Guarded]) -> None:
    """Check that machine code gives what the reference executor gives, and touches only its arrays."""
    block = accepted(name, changed)
    if block is None:
        return
    values, given = [np.asarray(x) for x in changed.inputs], []
    for value in values:
        guards.append(Guarded(value.shape, value.dtype))
        guards[-1].array[...] = value
        given.append(guards[-1].array)

    wanted = outcome(interpreter_of(block), values)
    found = outcome(native_interpreter(block, CPU), given)

    place = f"{[np.shape(x) for x in values]} {changed.attrs}"
    assert isinstance(found, str) == isinstance(wanted, str), f"{place}: {found} is not {wanted}"
    if isinstance(wanted, str):
        assert found == wanted, place
    elif name not in UNSPECIFIED:
        for f, w in zip(found, wanted, strict=True):
            same(f, w)
    assert all(each.intact for each in guards), place
    guards.clear()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", sorted(BY_VALUES))
def test_machine_code_refuses_wrong_sizes_that_only_a_run_can_compare(name, guards):
    (example, *_) = examples_of(OPS[name])
    for changed in of_other_sizes(example):
        block = accepted(name, changed)
        if block is not None and outcome(interpreter_of(block), changed.inputs) == "shape_mismatch":
            agrees(name, changed, guards)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "i"), TAKEN)
def test_machine_code_gives_what_the_reference_executor_gives_for_other_sizes(name, i, guards):
    for changed in of_other_sizes(examples_of(OPS[name])[i]):
        agrees(name, changed, guards)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "i"), TAKEN)
def test_machine_code_gives_what_the_reference_executor_gives_for_other_attributes(name, i, guards):
    for changed in of_other_attributes(OPS[name], examples_of(OPS[name])[i]):
        agrees(name, changed, guards)
