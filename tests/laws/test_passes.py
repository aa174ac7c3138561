"""Every pass, run alone on random programs with their backward passes, keeps the results of the block.

The pipeline runs its passes one after the other. Its tests would not detect a pass that relies on the previous one or
repairs its defects.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.backward.append_backward import Options, gradients
from core.backward.backward_program import Backward
from core.ir import Block, Program, TensorType, inner_blocks
from core.ir.builder import BlockBuilder
from core.passes import expand_composites, share_common
from core.passes.bind import bind
from core.passes.chunk import chunk_loops
from core.passes.pipeline import PIPELINE
from core.passes.recompute import recompute
from core.runtime.reference import execute
from core.wire import read
from tests.laws.random_programs import Document, first_order, leaves
from tests.oracle import NearKink, unrolled
from tests.strategies import LEAVES, written

EXAMPLES = int(os.environ.get("BACKPASS_TEST_PROGRAMS", "200"))
SLICES = 4
OPEN = ("xs", "nothing", "ids", "some", "every")
"""Feeds of random programs whose first size can be left open."""


def seeds(part: int) -> range:
    """The programs of one slice: each slice has its own."""
    return range(part, EXAMPLES // 2, SLICES)


def differentiated(document: Document, order: int) -> Backward:
    """The program with its backward pass; of order 2, also with the backward pass of its gradients."""
    backward = gradients(read(document), ["loss"], list(LEAVES), options=Options(unconnected="zeros"))
    if order == 2:
        targets = list(dict.fromkeys(backward.gradients.values()))
        backward = gradients(backward.program, targets, list(LEAVES), options=Options(unconnected="zeros"))
    return backward


def with_results(block: Block, names: Sequence[str], draw: random.Random) -> Block:
    """`block` with the results `names` and some other arrays that it computes."""
    arrays = [n for op in block.ops for n in op.outputs if isinstance(block.types[n], TensorType)]
    return replace(block, results=tuple(dict.fromkeys([*names, *draw.sample(arrays, min(3, len(arrays)))])))


def results(program: Program, block: Block, seed: int) -> list[np.ndarray]:
    """The results of `block`; each of them fits the type that the block declares for it."""
    values = leaves(seed) | {v.name: np.asarray(20_022, "int64") for v in program.variables if v.role == "key"}
    found = [np.asarray(each) for each in execute(block, [values[name] for name in block.params])]
    for array, type in zip(found, block.result_types, strict=True):
        assert isinstance(type, TensorType) and array.dtype == type.dtype and array.ndim == type.rank
        assert all(size in (-1, n) for size, n in zip(type.shape, array.shape, strict=True))
    return found


def same(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    """Equal to the bit: no pass changes the order of additions."""
    for each, expected in zip(found, wanted, strict=True):
        assert (each.dtype, each.shape) == (expected.dtype, expected.shape)
        assert each.tobytes() == expected.tobytes(), f"{each} is not {expected}"


def closed(block: Block) -> bool:
    """Whether a block, and every block inside, reads only its parameters and its earlier ops, each written once."""
    known = {"", *block.params}
    for op in block.ops:
        if not known.issuperset(op.inputs) or not known.isdisjoint(op.outputs):
            return False
        known.update(op.outputs)
        if not all(closed(inner) for _, inner in inner_blocks(op)):
            return False
    return known.issuperset(block.results) and known - {""} <= block.types.keys()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.parametrize("transform", [each for each in dict.fromkeys(PIPELINE) if each is not expand_composites])
def test_each_pass_alone_keeps_the_results(transform: Callable[[Block], Block], part: int) -> None:
    for seed in seeds(part):
        draw = random.Random(seed)
        backward = differentiated(written(seed, depth=3, random_ops=draw.random() < 0.3), draw.choice((1, 1, 2)))
        names = ["loss", *backward.gradients.values()]
        block = with_results(backward.program.block, names, draw)
        block = expand_composites(block) if draw.random() < 0.7 else block

        changed = transform(block)

        assert closed(changed) and changed.params == block.params
        same(results(backward.program, changed, seed), results(backward.program, block, seed))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(SLICES))
def test_merged_loops_alone_keep_the_results(part: int) -> None:
    """A forward program next to its backward pass has its loops twice; the second ones record residuals."""
    merged = 0
    for seed in seeds(part):
        draw = random.Random(seed)
        program = read(written(seed, depth=3))
        backward = gradients(program, ["loss"], list(LEAVES), options=Options(unconnected="zeros"))
        second = expand_composites(replace(backward.program.block, results=tuple(backward.gradients.values())))
        first = expand_composites(with_results(program.block, ["loss"], draw))
        b = BlockBuilder.like(first)
        block = b.build([*first.results, *b.inline(second, map(b.value, second.params))])

        shared = share_common(block)

        assert closed(shared)
        merged += loops(block) - loops(shared)
        same(results(program, shared, seed), results(program, block, seed))
    assert merged or len(seeds(part)) < 10  # a few programs may have no loop


def loops(block: Block) -> int:
    return sum(op.type == "loop" for op in block.ops)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(SLICES))
def test_expansion_alone_gives_the_values_of_the_unrolled_program(part: int) -> None:
    for seed in seeds(part):
        document, values = written(seed, depth=3), leaves(seed)
        try:
            straight, loss = unrolled(document, values)
        except NearKink:
            continue
        backward = differentiated(document, 1)
        block = replace(backward.program.block, results=("loss", *(backward.gradients[n] for n in LEAVES)))

        expanded = expand_composites(block)
        found_loss, *found = results(backward.program, expanded, seed)

        assert closed(expanded)
        assert expand_composites(expanded) == expanded
        np.testing.assert_allclose(found_loss, loss, rtol=1e-12, atol=1e-12)
        unrolled_gradients = first_order(read(straight)).step(values).gradients
        np.testing.assert_allclose(
            np.concatenate(found), np.concatenate([unrolled_gradients[n] for n in LEAVES]), rtol=1e-9, atol=1e-11
        )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.parametrize("policy", ["sqrt", "binomial"])
def test_chunked_loops_alone_keep_the_results(policy: Any, part: int) -> None:
    for seed in seeds(part):
        draw = random.Random(seed)
        program = read(written(seed, depth=3, random_ops=draw.random() < 0.3))
        block = with_results(program.block, ["loss"], draw)

        chunked = chunk_loops(block, policy)

        assert closed(chunked)
        same(results(program, chunked, seed), results(program, block, seed))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(SLICES))
def test_recomputation_alone_keeps_the_results(part: int) -> None:
    for seed in seeds(part):
        draw = random.Random(seed)
        backward = differentiated(written(seed, depth=3, random_ops=draw.random() < 0.3), draw.choice((1, 1, 2)))
        block = backward.program.block
        n = sum(role in (0, 256) for role in backward.roles)
        forward = with_results(replace(block, ops=block.ops[:n]), ["loss"], draw)
        wanted = (*forward.results, *dict.fromkeys(backward.gradients.values()))
        cuts = sorted(draw.sample(range(n), min(n, draw.randint(1, 4))))
        names = [name for op in forward.ops for name in op.outputs]

        made = recompute(forward, block.ops[n:], cuts, draw.sample(names, min(2, len(names))))

        changed = replace(block, ops=(*forward.ops, *made.ops), types={**block.types, **made.types}, results=wanted)
        assert closed(changed)
        same(results(backward.program, changed, seed), results(backward.program, replace(block, results=wanted), seed))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(SLICES))
def test_bound_sizes_alone_keep_the_results(part: int) -> None:
    for seed in seeds(part):
        draw = random.Random(seed)
        document, values = written(seed, depth=3), leaves(seed)
        for variable in document["blocks"][0]["vars"]:
            if variable["name"] in OPEN and draw.random() < 0.7:
                variable["shape"][0] = -1
        backward = differentiated(document, 1)
        block = with_results(backward.program.block, ["loss", *backward.gradients.values()], draw)

        sized = bind(block, {v.name: values[v.name].shape for v in backward.program.variables if v.role == "feed"})

        assert closed(sized)
        assert all(type.is_static for type in sized.param_types)
        same(results(backward.program, sized, seed), results(backward.program, block, seed))
