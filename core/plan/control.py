"""Loops and branches, lists of instructions inside an instruction; and the stacks that loops run over and record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from core.ir import Block, Op, StackType, TensorType
from core.plan.data import Instruction, Root, Sequence, Stack, View, bytes_of, contiguous
from core.plan.flow import Branch, Elements, Loop, Recording, State
from core.plan.hoist import hoist_products, hoist_rows
from core.plan.lowering import Lowering, Uniform, Unsupported, lowers

__all__ = ["RECORD_BYTES"]

RECORD_BYTES = 16
"""Of a slot that holds a recording: where it starts, and how long it is."""


@lowers("loop")
def lower_loop(low: Lowering, op: Op) -> None:
    body: Block = op.attrs["sub_block"]
    n, m = op.attrs["carried"], op.attrs["captured"]
    if op.attrs["condition"] and op.attrs["reverse"]:
        raise Unsupported("a loop that runs backwards until a condition fails")
    fixed = [i for i in range(n) if body.results[i] == body.params[i]]
    moving = [i for i in range(n) if i not in fixed]
    if op.attrs["condition"] and 0 in fixed:
        raise Unsupported("a loop whose condition never changes")
    if op.attrs["counter"] in fixed:
        raise Unsupported("a counter of trips that never changes")

    inner = Lowering(body, low.shared)
    inner.outer = low
    states = []
    for i in moving:
        type = inner.type(body.params[i])
        nbytes = bytes_of(type.shape, type.dtype)
        now = following = Root(nbytes, "carried", body.params[i])
        here = View(now, type.dtype, type.shape, contiguous(type.shape))
        inner.define(body.params[i], here)
        product = _sum_of_products(inner, body.params[i], body.results[i])
        if product is not None:
            inner.added[product] = here
            inner.placed.add(body.results[i])
            inner.want(body.results[i], here)
            buffers: tuple[Root, ...] = (low.root(nbytes),)
        else:
            following = Root(nbytes, "carried", f"{body.params[i]}'")
            inner.want(body.results[i], View(following, type.dtype, type.shape, contiguous(type.shape)))
            buffers = (low.root(nbytes), low.root(nbytes))
        initial = low.dense(low.entry(op.inputs[i]))
        states.append(State(now, following, buffers, initial, low.place(op.outputs[i])))
    for i in (*fixed, *range(n, n + m)):
        inner.define(body.params[i], _operand(low, op.inputs[i]))
    over = [_element(low, inner, op.inputs[i], body.params[i]) for i in range(n + m, len(op.inputs))]
    length = _common_length([stack for stack, _ in over])
    slots = [_slot(inner, name) for name in body.results[n:]]

    inner.run()
    records = [
        _record(low, inner, output, name, root, length)
        for output, name, root in zip(op.outputs[n:], body.results[n:], slots, strict=True)
    ]
    sequence = Sequence(inner.finish())
    limits = (
        low.shared.check("too_many_trips", "the loop made as many trips as are allowed without ending", op.location),
        low.shared.check("too_many_ops", "the run executed more ops than are allowed", op.location),
    )
    by_number = dict(zip(moving, states, strict=True))
    loop = Loop(
        sequence,
        tuple(states),
        op.attrs["condition"],
        tuple(over),
        tuple(records),
        op.attrs["reverse"],
        len(body.ops),
        limits,
        by_number.get(op.attrs["counter"]),
        tuple(outside(sequence, inner.own)),
        location=op.location,
    )
    counters = {s.now for s, i in zip(states, moving, strict=True) if _counts(inner, body.params[i], body.results[i])}
    low.add(hoist_rows(hoist_products(loop), counters, inner.own))
    for i, state in zip(moving, states, strict=True):
        low.define(op.outputs[i], state.final)
    for i in fixed:
        low.define(op.outputs[i], low.entry(op.inputs[i]))
    for name, (recording, _) in zip(op.outputs[n:], records, strict=True):
        low.define(name, recording)


def _counts(inner: Lowering, param: str, result: str) -> bool:
    """Whether a state is a whole number that grows by one in each trip."""
    op = inner.producers.get(result)
    counts = op is not None and op.type == "increment" and op.inputs == (param,) and op.attrs["step"] == 1
    return counts and inner.types[param] == TensorType((), "int64")


def _sum_of_products(inner: Lowering, param: str, result: str) -> str | None:
    """The matrix product, if a trip does nothing with a state but add one to it."""
    op = inner.producers.get(result)
    if op is None or op.type not in ("sum", "add") or len(op.inputs) != 2 or op.inputs[0] != param:
        return None
    if inner.readers(param) != [op] or inner.readers(result) != [None]:
        return None
    product = inner.producers.get(op.inputs[1])
    if product is None or product.type not in ("matmul", "einsum") or inner.readers(op.inputs[1]) != [op]:
        return None
    same = inner.types[op.inputs[1]] == inner.types[param]
    return op.inputs[1] if same else None


def _operand(low: Lowering, name: str) -> Uniform | View | Recording | Elements:
    """A variable as an inner block sees it: in memory, or a number, or a stack."""
    entry = low.entry(name)
    if isinstance(entry, Uniform | Recording | Elements):
        return entry
    return low.stored(entry)


def _element(low: Lowering, inner: Lowering, stack: str, param: str) -> tuple[Recording | Elements, Root | Recording]:
    """One stack that a loop runs over, and its element in the body."""
    entry = low.entry(stack)
    if isinstance(entry, Elements):
        view = entry.view
        return entry, _open(inner, param, view.shape[1:], view.dtype)
    assert isinstance(entry, Recording), entry
    if isinstance(entry.element, Recording):
        element = Recording(entry.element.stack, entry.element.element, entry.element.length)
        inner.define(param, element)
        return entry, element
    if isinstance(entry.element, Elements):
        return entry, _open(inner, param, entry.element.view.shape, entry.element.view.dtype)
    type = inner.type(param)
    return entry, _open(inner, param, type.shape, type.dtype)


def _open(inner: Lowering, param: str, shape: tuple[int, ...], dtype: str) -> Root:
    """Memory that is `param` in the body: an array, or the elements of one."""
    root = Root(bytes_of(shape, dtype), "element", param)
    view = View(root, dtype, shape, contiguous(shape))
    inner.define(param, Elements(view) if isinstance(inner.types[param], StackType) else view)
    return root


def _record(
    low: Lowering, inner: Lowering, output: str, name: str, root: Root | None, length: int | None
) -> tuple[Recording | Elements, Root | Recording]:
    """Where what a trip leaves as `name` is kept. root: where it leaves an array, None for a stack."""
    if root is not None:
        type = inner.type(name)
        shape, dtype, element = type.shape, type.dtype, None
    else:
        element = inner.entry(name)
        if isinstance(element, Recording):
            element.stack.kept = True
            return Recording(_stack(low, RECORD_BYTES), element, length), element
        shape, dtype = element.view.shape, element.view.dtype
        root = Root(bytes_of(shape, dtype), "element", name)
        inner.leave(element.view, View(root, dtype, shape, contiguous(shape)))
    if length is None or output in low.block.results:
        return Recording(_stack(low, root.nbytes), element, length), root
    return Elements(low.room((length, *shape), dtype, output)), root


def _common_length(stacks: list[Recording | Elements]) -> int | None:
    """The length of stacks that a loop runs over; None if only a run tells, and they were recorded by one loop."""
    lengths = {stack.length for stack in stacks}
    if len(lengths) > 1:
        raise Unsupported("stacks of different lengths")
    return next(iter(lengths), None)


def _slot(inner: Lowering, name: str) -> Root | None:
    """Where a trip leaves a value that is recorded; None for one that is a recording itself."""
    if isinstance(inner.types[name], StackType):
        return None
    type = inner.type(name)
    root = Root(bytes_of(type.shape, type.dtype), "element", name)
    inner.want(name, View(root, type.dtype, type.shape, contiguous(type.shape)))
    return root


def _stack(low: Lowering, slot_bytes: int) -> Stack:
    low.shared.stacks.append(Stack(slot_bytes))
    return low.shared.stacks[-1]


@lowers("array_unstack")
def lower_unstack(low: Lowering, op: Op) -> None:
    low.type(op.inputs[0])
    low.define(op.outputs[0], Elements(low.dense(low.entry(op.inputs[0]))))


@lowers("array_join")
def lower_join(low: Lowering, op: Op) -> None:
    """Nothing, where the elements lie in an array already."""
    stack = low.entry(op.inputs[0])
    if not isinstance(stack, Elements) or stack.view.shape != low.type(op.outputs[0]).shape:
        raise Unsupported("an array of as many elements as a run makes")
    low.define(op.outputs[0], stack.view)


@lowers("if_else")
def lower_if_else(low: Lowering, op: Op) -> None:
    if any(isinstance(low.types[n], StackType) for n in op.outputs):
        raise Unsupported("a branch that returns stacks")
    condition = low.stored(low.entry(op.inputs[0]))
    operands = [_operand(low, n) for n in op.inputs[1:]]
    targets = [low.place(n) for n in op.outputs]
    sides = []
    own: set[Root] = set()
    for block in (op.attrs["true_block"], op.attrs["false_block"]):
        inner = Lowering(block, low.shared)
        for name, operand in zip(block.params, operands, strict=True):
            inner.define(name, operand)
        for name, target in zip(block.results, targets, strict=True):
            inner.want(name, target)
        inner.run()
        sides.append(Sequence(inner.finish()))
        own |= inner.own
    results = tuple(t.root for t in targets)
    reached = [r for side in sides for r in outside(side, own)]
    yes, no = sides
    low.add(Branch(condition, yes, no, results, tuple(dict.fromkeys(reached)), location=op.location))
    for name, target in zip(op.outputs, targets, strict=True):
        low.define(name, target)


def outside(body: Sequence, own: set[Root]) -> Iterator[Root]:
    """The roots that `body` touches and that are not its own."""
    return iter(dict.fromkeys(r for r in _touched(body.instructions) if r not in own))


def _touched(instructions: Iterable[Instruction]) -> Iterator[Root]:
    for each in instructions:
        yield from each.reads()
        yield from each.writes()
