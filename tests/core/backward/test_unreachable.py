"""The reasons for missing gradients are those of a walk from each variable alone."""

from __future__ import annotations

import random
from collections.abc import Collection

from core.autodiff.activity import Activity
from core.backward.unreachable import Unreachable
from core.ir import Block
from core.wire import read
from tests.programs import Sketch


def drawn(seed: int) -> Sketch:
    """Ops on earlier variables, of which some stop gradients; many paths part and meet again."""
    rng, s = random.Random(seed), Sketch()
    names = [s.param(f"w{i}", [0.5, 0.7]) for i in range(4)]
    for _ in range(rng.randrange(4, 25)):
        latest = [rng.choice(names[-3:]) if rng.random() < 0.7 else rng.choice(names) for _ in range(2)]
        kind = rng.choice(["tanh", "tanh", "mul", "mul", "add", "floor", "stop_gradient", "branch", "select"])
        if kind == "select":
            names.append(s.op("where", s.op("less_than", *latest), *latest))
        elif kind == "branch":
            out = s.op("assign", latest[0])
            condition = s.op("less_than", s.op("reduce_sum", latest[1]), s.const(0.5))
            with s.block() as yes:
                s.op(rng.choice(["tanh", "floor"]), out, out=out)
            with s.block() as no:
                s.op("scale", out, out=out, scale=0.5)
            s.branch(condition, yes, no)
            names.append(out)
        else:
            names.append(s.op(kind, *latest[: 2 if kind in ("mul", "add") else 1]))
    s.total(names[-1])
    return s


def walked(block: Block, variable: str, targets: Collection[str], cut: Collection[str]) -> tuple[str, str] | None:
    """("cut" or "ends", the variable where differentiation ends), by a walk over all ops; None if it never ends."""
    useful, activity = set(targets), Activity()
    for op in reversed(block.ops):
        if not useful.isdisjoint(op.outputs):
            useful.update(op.inputs)
    active = {variable}
    for op in block.ops:
        if active.isdisjoint(op.inputs):
            continue
        for name, depends in zip(op.outputs, activity.op(op), strict=True):
            if name not in useful:
                continue
            if name in cut:
                return "cut", name
            if not any(depends >> i & 1 and each in active for i, each in enumerate(op.inputs)):
                return "ends", name
            active.add(name)
    return None


def test_the_reason_is_the_first_op_on_a_path_that_ends_differentiation():
    compared = 0
    for seed in range(60):
        rng = random.Random(seed)
        program = read(drawn(seed).document)
        block, every = program.block, [name for op in program.block.ops for name in op.outputs]
        cut, targets = {name for name in every if rng.random() < 0.2}, [every[-1]]
        unreachable = Unreachable(program, block, targets, cut, Activity())
        for variable in rng.sample([*block.params, *every], len(every)):
            if not block.types[variable].is_float or variable in cut or variable in block.stopped:
                continue
            why, place = unreachable.reason(variable)
            wanted = walked(block, variable, targets, cut)
            if wanted is None or why in ("unused", "not_on_path_to_loss"):
                continue
            ends = {name for op in block.ops if op.location == place for name in op.outputs}
            assert ("cut" if why == "in_no_grad_set" else "ends", wanted[1] in ends) == (wanted[0], True), variable
            compared += 1
    assert compared > 300
