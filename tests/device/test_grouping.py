"""Instructions that share a launch without waiting for each other, and the order in which they come to do so."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.device import schedule, step
from core.device.gpu import DEVICE_TARGET
from core.device.grouping import MOST_INSTRUCTIONS, Level, grouped
from core.device.rules import Rules
from core.device.schedule import batched
from core.device.segments import Segment
from core.device.spread import SPREAD, wanted_blocks
from core.device.step import write_device_step, write_timed_step
from core.device.threads import Threads
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block
from core.plan.arena import arrange
from core.plan.instructions import Instruction
from core.plan.memory import Root
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.device.agreement import SCOPES
from tests.device.emulator import EmulatedBackend, EmulatorFault, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

APART: Rules = SCOPES[1]


@dataclass(frozen=True, slots=True, eq=False)
class Fake(Instruction):
    """An instruction of which only the arrays matter."""

    read: tuple[Root, ...] = ()
    written: tuple[Root, ...] = ()
    level: Level = Level.ALONE
    late: bool = False

    def reads(self):
        return iter(self.read)

    def writes(self):
        return iter(self.written)


def drawn_units(seed: int) -> list[tuple[Segment, ...]]:
    """Instructions on few arrays, which several of them write."""
    draw = random.Random(seed)
    roots = [Root(8) for _ in range(draw.choice((3, 10, 40)))]
    some = lambda most: tuple(draw.sample(roots, draw.randint(0, most)))
    return [
        (Segment("wide", (Fake(some(3), some(2), draw.choice([*Level]), draw.random() < 0.3),), 4),)
        for _ in range(draw.choice((1, 5, 60)))
    ]  # fmt: skip


def instruction(unit: tuple[Segment, ...]) -> Fake:
    ((only,),) = (each.instructions for each in unit)
    assert isinstance(only, Fake)
    return only


@pytest.mark.sampled(1)
@pytest.mark.parametrize("window", [0, 1, 8, 1000])
def test_batches_hold_every_unit_behind_those_that_it_depends_on(window):
    for seed in range(60):
        units = drawn_units(seed)
        batches = list(batched(units, lambda unit: (instruction(unit).late, instruction(unit).level), window))

        place = {unit: i for i, batch in enumerate(batches) for unit in batch}
        assert sorted(map(units.index, place)) == list(range(len(units)))
        assert all(
            len(batch) == 1 or len({(instruction(unit).late, instruction(unit).level or unit) for unit in batch}) == 1
            for batch in batches
        )
        for i, one in enumerate(units):
            for other in units[i + 1 :]:
                a, b = instruction(one), instruction(other)
                conflict = {*a.written} & {*b.read, *b.written} or {*a.read} & {*b.written}
                assert not conflict or place[one] < place[other]
        done: set[int] = set()
        for batch in batches:
            first = min(set(range(len(units))) - done)
            assert all(units.index(unit) <= first + window for unit in batch)
            done |= {units.index(unit) for unit in batch}


def test_light_units_that_do_not_depend_on_each_other_are_one_batch():
    a, b, c, d = (Root(8) for _ in range(4))
    chain = [
        Fake((a,), (b,)),
        Fake((a,), (c,), Level.LIGHT),
        Fake((b,), (d,)),
        Fake((a,), (Root(8),), Level.LIGHT),
        Fake((c, d)),
    ]
    units = [(Segment("wide", (each,), 4),) for each in chain]

    found = [
        [chain.index(instruction(unit)) for unit in batch]
        for batch in batched(units, lambda u: (instruction(u).late, instruction(u).level), 9)
    ]

    assert found == [[0], [2], [1, 3], [4]]


def test_units_that_need_a_sort_wait_for_all_others():
    a, b, c = (Root(8) for _ in range(3))
    chain = [
        Fake((a,), (b,), late=True),
        Fake((a,), (Root(8),), Level.LIGHT, late=True),
        Fake((a,), (c,)),
        Fake((c,), (Root(8),), Level.LIGHT),
        Fake((b,), (Root(8),), Level.LARGE),
    ]
    units = [(Segment("wide", (each,), 4),) for each in chain]
    key = lambda unit: (instruction(unit).late, instruction(unit).level)

    assert [[units.index(unit) for unit in batch] for batch in batched(units, key, 9)] == [[2], [3], [0], [4], [1]]


def towers(count: int, rows: int, depth: int = 2, multiplies: bool = False) -> tuple[Block, list[np.ndarray]]:
    """Functions of arrays of their own, one after the other: of the rows of each, and of these in another order.

    multiplies: whether each tower has products with a matrix of its own.
    """
    rng, b, values, results = np.random.default_rng(count), BlockBuilder(), [], []
    for i in range(count):
        size = rows * (i + 1)
        values += [rng.standard_normal((size, 5)).astype("float32"), rng.permutation(size)]
        made, order = b.param(TensorType((size, 5), "float32")), b.param(TensorType((size,), "int64"))
        if multiplies:
            w = b.param(TensorType((5, 5), "float32"))
            values.append(rng.standard_normal((5, 5)).astype("float32"))
        for _ in range(depth):
            made = b.emit("softmax", made)
            made = b.emit("gather", b.emit("matmul", made, w) if multiplies else made, order)
        results.append(made)
    return optimize(b.build(results)), values


def code_of(block: Block, blocks: int = 4, rules: Rules = APART):
    return write_device_step(plan_block(block, DEVICE_TARGET), blocks, 64, rules)


@pytest.mark.sampled(1, each="multiplies")
@pytest.mark.parametrize("multiplies", [False, True])
@pytest.mark.parametrize(("rows", "blocks"), [(3, 4), (40, 4), (2000, 3), (40, 1)])
def test_independent_instructions_share_a_launch_and_have_the_results_of_launches_of_their_own(
    rows, blocks, multiplies, monkeypatch
):
    block, values = towers(3, rows, multiplies=multiplies)
    shared = code_of(block, blocks)
    found = native_interpreter(block, EmulatedBackend(blocks, 64, rules=APART))(Run(), *values)

    monkeypatch.setattr(step, "grouped", lambda segments, *_: segments)
    alone = code_of(block, blocks)
    apart = native_interpreter(block, EmulatedBackend(blocks, 64, rules=APART))(Run(), *values)

    assert len(shared.work) <= (4 + 2 * multiplies) < len(alone.work) or blocks == 1
    for one, other, wanted in zip(found, apart, interpreter_of(block)(Run(), *values), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def test_small_instructions_of_a_launch_have_blocks_of_their_own_and_large_ones_all(monkeypatch):
    made: list[Segment] = []
    monkeypatch.setattr(step, "grouped", lambda *args: made.extend(grouped(*args)) or made)
    for rows in (40, 5000):
        made.clear()
        softmax, gather = write_device_step(
            plan_block(towers(3, rows, depth=1)[0], DEVICE_TARGET), 16, 64, APART
        ).launches
        wanted = [[wanted_blocks(one, 16, Threads(1, 64)) for one in each.instructions] for each in made]

        assert [each.kind for each in made] == ["group", "group"] and not softmax.cooperative | gather.cooperative
        assert (softmax.grid, gather.grid) == tuple(min(sum(each), 16 * SPREAD) for each in wanted)
        assert [each.firsts for each in made] == [
            (0, a % each.blocks, (a + b) % each.blocks) for each, (a, b, _) in zip(made, wanted, strict=True)
        ]


def layers(count: int, terms: int, dtype: str = "float32") -> tuple[Block, list[np.ndarray]]:
    """Products of matrices, and convolutions, with their adjoints. None of them depends on another one."""
    rng, b, values, results = np.random.default_rng(terms), BlockBuilder(), [], []

    def array(*shape: int) -> str:
        values.append(rng.standard_normal(shape).astype(dtype))
        return b.param(TensorType(shape, dtype))

    for i in range(count):
        results.append(b.emit("matmul", array(24 + i, terms), array(terms, 17)))
        results.append(b.emit("conv2d", array(2, 8, 9, terms // 8), array(8, 8, 3, 3), paddings=(1, 1)))
    given = [*range(len(values))]
    forward = b.build(results)
    block = vjp(forward, [forward.params[i] for i in given])
    values += [rng.standard_normal(block.types[n].shape).astype(dtype) for n in block.params[len(given) :]]
    return optimize(block), values


@pytest.mark.sampled(1)
@pytest.mark.parametrize("terms", [40, 300])
def test_products_and_convolutions_share_a_launch_and_one_for_the_parts_of_their_sums(terms):
    block, values = layers(2, terms)
    backend = EmulatedBackend(24, 64, rules=APART)
    found = native_interpreter(block, backend)(Run(), *values)

    for one, wanted in zip(found, interpreter_of(block)(Run(), *values), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=2e-5, atol=2e-4)
    launches = backend.compiled[0].emulated.code.launches
    assert any(each.kernel.endswith("_sums") for each in launches) == (terms > 128) and not any(
        each.cooperative for each in launches
    )
    assert len(launches) < len(block.ops)
    assert not launches[0].early  # a group of products


def test_equal_groups_share_a_kernel():
    b = BlockBuilder()
    x = [b.param(TensorType((64, 64), "float32")) for _ in range(2)]
    for _ in range(3):
        x = [b.emit("matmul", one, other) for one, other in zip(x, reversed(x), strict=True)]
        x = [b.emit("softmax", b.emit("tanh", each)) for each in x]
    launches = code_of(optimize(b.build(x))).launches

    assert len({each.kernel for each in launches}) <= len(launches) - 4


def test_a_dependence_that_is_overlooked_is_a_race(monkeypatch):
    block, values = towers(2, 300)
    monkeypatch.setattr(step.DeviceStep, "depend", lambda self, one, other: False)
    monkeypatch.setattr(step.DeviceStep, "_order", lambda self, each: None)

    with pytest.raises(EmulatorFault, match="a race"):
        native_interpreter(block, EmulatedBackend(3, 64, rules=APART))(Run(), *values)


@pytest.mark.parametrize("pair", [None, (0, 1), (1, 2), (0, 2)])
def test_no_two_instructions_of_a_group_depend_on_each_other(pair):
    gathers = plan_block(towers(3, 40, depth=1)[0], DEVICE_TARGET).body.instructions[1::2]
    segments = [Segment("together", tuple(gathers[:2]), 1), Segment("wide", tuple(gathers[2:]), 4)]
    depend = lambda one, other: pair is not None and (one, other) == (gathers[pair[0]], gathers[pair[1]])

    found = list(grouped(segments, 4, Threads(1, 64), APART, depend))

    assert [each.kind for each in found] == (["group"] if pair is None else ["together", "wide"])


def test_a_group_has_few_instructions():
    gathers = plan_block(towers(3, 40, depth=1)[0], DEVICE_TARGET).body.instructions[1::2]
    segments = [Segment("wide", (gathers[0],), 4)] * (MOST_INSTRUCTIONS + 3)

    found = list(grouped(segments, 4, Threads(1, 64), APART, lambda one, other: False))

    assert [len(each.instructions) for each in found] == [MOST_INSTRUCTIONS, 3]


def test_an_order_that_needs_much_more_memory_is_not_taken(monkeypatch):
    plan = plan_block(towers(4, 600)[0], DEVICE_TARGET)
    given, least = write_device_step(plan, 4, 64, APART), arrange(plan).size
    monkeypatch.setattr(schedule, "LITTLE_MEMORY", 0)
    small = write_device_step(plan, 4, 64, APART)

    assert given.arena_bytes > 1.1 * least >= small.arena_bytes
    assert len(given.work) < len(small.work)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("of", [lambda: towers(3, 300, multiplies=True), lambda: layers(2, 300)])
def test_a_step_whose_times_are_measured_has_launches_for_each_instruction_and_the_same_bits(of):
    block, values = of()
    plan = plan_block(block, DEVICE_TARGET)
    code, parts = write_timed_step(plan, 24, 64, APART)

    assert {*parts} == {(each,) for each in plan.body.instructions} and len(code.work) == len(parts)
    native = native_interpreter(block, backend := EmulatedBackend(24, 64, rules=APART))
    shared = native(Run(), *values)
    (region,) = backend.compiled
    region.emulated = type(region.emulated)(code, watches=True)
    for one, other in zip(shared, native(Run(), *values), strict=True):
        assert one.tobytes() == other.tobytes()
