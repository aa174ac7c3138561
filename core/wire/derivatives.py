"""The construct `gradients`: derivatives inside a program, as values that the program goes on computing with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.autodiff.adjoint import Adjoint
from core.ir import HOLE, OF_FUNCTION, Block, TensorType, live, with_inner
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import Location
from core.ir.registry import Slot, construct
from core.ops import control
from core.wire.reader import Reader
from core.wire.site import Site

__all__: list[str] = []

FAMILY = control.FAMILY

COPIED = 100
"""Ops that are copied in the time in which one op is read."""


@construct(inputs=(Slot("targets", variadic=True), Slot("inputs", variadic=True)))
def gradients(r: Reader, at: Site) -> None:
    """The gradients of the sum of all elements of `targets` with respect to each of `inputs`, one in `out` for each.

    They are values like any other: a loss may read them, and they can be differentiated again. For other cotangents
    than ones, multiply a target with them.

    Counted is every path from an input to a target through ops before this one in the same block, with the values that
    these ops have computed: random ops draw no new numbers. Inside a loop, branch or other inner block an input must be
    a variable that an op of this block has written, such as a copy made by `assign`. An input on which no target
    depends has a gradient of zeros.
    """
    targets, inputs = r.operands(at, "targets"), r.operands(at, "inputs")
    _check(at, targets, inputs)
    written = at.versions.written
    among = written.before([each.name for each in targets], [x.name for x in inputs])
    r.ops_left -= len(among) + len(at.b.ops) // COPIED
    a = Adjoint(at.b.build([]))
    found = a.run([(each.name, a.ones(each.name)) for each in targets], [x.name for x in inputs], among)
    for i in among:  # a loop or branch also returns what its adjoint reads
        op = a.primal[i]
        if op is not at.b.ops[i]:
            written.replace(i, op)
            at.b.types.update((name, a.b.types[name]) for name in op.outputs)
    names = [name for name in dict.fromkeys(x.name for x in inputs) if name in found]
    cotangents = dict(zip(names, _appended(at.b, a, [found[name].name for name in names]), strict=True))
    for name, x in zip(at.raw.outputs.get("out", ()), inputs, strict=True):
        value = cotangents.get(x.name) or at.b.zeros_like(x)
        r.define(at, at.b.typed(at.b.make("assign", value)), [name])
    written.check_size()


def _check(at: Site, targets: Sequence[Value], inputs: Sequence[Value]) -> None:
    for slot, given in (("targets", targets), ("inputs", inputs)):
        if not given:
            raise at.refuse(f"gradients needs {slot}", "bad_slot", "inputs")
        for each in given:
            if not isinstance(each.type, TensorType) or not each.type.is_float:
                message = f"{each.name!r} is {each.type}: only floating-point arrays have gradients"
                raise at.refuse(message, "type_mismatch", f"inputs/{slot}")
    if len(names := at.raw.outputs.get("out", ())) != len(inputs):
        raise at.refuse(f"gradients has {len(inputs)} inputs, but out lists {len(names)} names", "bad_slot", "outputs")
    if len(set(names)) < len(names):
        raise at.refuse("gradients writes the same name twice", "bad_slot", "outputs")
    outer = () if at.versions.index == 0 else at.b.params
    for each in inputs:
        if each.name in outer:
            raise at.refuse(
                f"{each.name!r} enters this block from outside: other values that enter it may depend on it",
                "bad_slot",
                "inputs/inputs",
                "copy it with assign in this block, and compute the targets from the copy",
            )
        if each.name in at.b.stopped:
            message = f"{each.name!r} has stop_gradient set, so it has no gradient"
            raise at.refuse(message, "no_gradient", "inputs/inputs")


def _appended(b: BlockBuilder, a: Adjoint, results: Sequence[str]) -> tuple[Value, ...]:
    """Append to `b` the ops of `a` that compute `results`, under names of their own."""
    results = [a.final(name) for name in results]
    ops = live(a.ops(), results)
    written = {name for op in ops for name in op.outputs}
    read = dict.fromkeys([*(name for op in ops for name in op.inputs if name != HOLE), *results])
    block = a.part(ops, [name for name in read if name not in written], results)
    assert b.location is not None
    return b.inline(_placed(block, b.location), [b.value(name) for name in block.params])


def _placed(block: Block, location: Location) -> Block:
    """`block` with all ops at `location`: they belong to the forward pass, of the op that asked for them."""

    def inner(each: Block) -> Block:
        return replace(_placed(each, location), index=OF_FUNCTION)  # its variables have no name in the program

    return replace(block, ops=tuple(replace(with_inner(op, inner), location=location) for op in block.ops))
