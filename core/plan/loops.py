"""Loops: the lowering of `loop`, an instruction that holds the instructions of one trip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from core.ir import Block, Op, StackType, TensorType, Type
from core.ops.control.loop import loop_roles
from core.plan.array_elements import element_type, held_type
from core.plan.array_memory import begun, carry, change, do
from core.plan.flow import Element, Growing, Loop, Pending, Recorded, Source, State, Vacant, filled_roots, outer_roots
from core.plan.hoist import hoist_products, hoist_rows
from core.plan.instructions import Instructions
from core.plan.lowering import Lowering, lowers
from core.plan.meeting_sizes import Axes
from core.plan.memory import Root, View, bytes_of, contiguous
from core.plan.nested_sizes import Room, body_types, put, room
from core.plan.panels import with_panels
from core.plan.sized import adopt
from core.plan.sizes import Size, element_of_all, is_open, open_axes
from core.plan.stacks import captured, common_length, elements_of, record, sizes_recorded, slot_of
from core.plan.unsupported import Unsupported
from core.plan.walk import lower_ops, undoing

__all__: list[str] = []


class Unsteady(Unsupported):
    """A carried array has other open sizes after a trip."""


@lowers("loop")
def lower_loop(low: Lowering, op: Op) -> None:
    """Carried arrays keep their open sizes; if the body does not show that, the loop carries the sizes, too."""
    unsteady = low.shared.unsteady  # else nested loops would be lowered twice for each loop around them
    if id(op) not in unsteady:
        try:
            with undoing(low, op):
                _lower_loop(low, op, True)
            return
        except Unsteady:
            unsteady.add(id(op))
    _lower_loop(low, op, False)


def _lower_loop(low: Lowering, op: Op, steady: bool) -> None:
    body: Block = op.attrs["sub_block"]
    roles = loop_roles(op)
    n = len(roles.carried)
    fixed, arrays, moving = _kinds_of_carried(op, n)

    inner = Lowering(body, low.shared, outer=low, loop=op)
    taken = {name: held_type(low, name) for name in op.inputs}
    largest = body_types(op, taken, low.shared.expected, low.shared.known)
    inner.types |= {name: type for name, type in largest.items() if isinstance(type, TensorType)}
    carried = _carried_states(low, inner, op, moving, steady)
    grown = {i: _array_of(low, op, inner, i, largest.get(body.params[i])) for i in arrays}
    for i in (*fixed, *roles.captured):
        adopt(low, inner, op.inputs[i], body.params[i])
        inner.define(body.params[i], captured(low, op.inputs[i]))
    over = [each for i in roles.elements for each in elements_of(low, inner, op.inputs[i], body.params[i])]
    length = common_length(low, [stack for stack, _ in over])
    slots = [slot_of(inner, name) for name in body.results[n:]]

    lower_ops(inner)
    for name, sizes in carried.kept.items():
        _check_kept(inner, name, sizes)
    made = [
        record(low, inner, output, name, root, length, [stack for stack, _ in over])
        for output, name, root in zip(op.outputs[n:], body.results[n:], slots, strict=True)
    ]
    records = [*made, *sizes_recorded(inner)]
    for i, each in carried.rooms.items():
        put(inner, body.results[i], each)
    carry(inner, [(body.results[i], array) for i, array in grown.items()])
    _add_loop(low, inner, op, carried, over, records)

    for i, state in carried.state_of.items():
        low.define(op.outputs[i], state.final)
    for i, array in grown.items():
        low.define(op.outputs[i], array)
    for i in fixed:
        adopt(low, low, op.inputs[i], op.outputs[i])
        grows = isinstance(low.entry(op.inputs[i]), Growing | Pending)
        low.define(op.outputs[i], change(low, op, op.inputs[i]) if grows else low.entry(op.inputs[i]))
    for name, (recording, _) in zip(op.outputs[n:], made, strict=True):
        low.define(name, recording)


def _add_loop(
    low: Lowering,
    inner: Lowering,
    op: Op,
    carried: _Carried,
    over: Sequence[tuple[Source, Element]],
    records: Sequence[tuple[Recorded, Element]],
) -> None:
    """Append the loop, with the instructions of `inner` as its body, and with its products for several trips."""
    body: Block = op.attrs["sub_block"]
    instructions = Instructions(inner.finish())
    limits = (
        low.shared.check("too_many_trips", "the loop reached the limit of trips without ending", op.location),
        low.shared.check("too_many_ops", "the run exceeded the limit of executed ops", op.location),
    )
    loop = Loop(
        instructions,
        tuple(carried.states),
        op.attrs["condition"],
        tuple(over),
        tuple(records),
        op.attrs["reverse"],
        ops=len(body.ops),
        limits=limits,
        counter=carried.state_of.get(op.attrs["counter"]),
        outside=outer_roots(instructions, inner.own),
        filled=filled_roots(instructions, inner.own),
        location=op.location,
    )
    counters = {s.now for i, s in carried.state_of.items() if _counts(inner, body.params[i], body.results[i])}
    terms = low.target.products.terms
    loop = hoist_rows(hoist_products(loop, inner.own, terms), counters, inner.own, terms)
    low.add(with_panels(low, loop, inner.own))


# --- carried values ---------------------------------------------------------------------------------------------


def _kinds_of_carried(op: Op, n: int) -> tuple[list[int], list[int], list[int]]:
    """The carried values that no trip changes, the tensor arrays among the others, and the arrays. n: how many in all.

    Raises Unsupported for a loop that generated code cannot run.
    """
    body: Block = op.attrs["sub_block"]
    if op.attrs["condition"] and op.attrs["reverse"]:
        raise Unsupported("a loop with a condition that runs in reverse")
    fixed = [i for i in range(n) if body.results[i] == body.params[i]]
    arrays = [i for i in range(n) if i not in fixed and isinstance(body.types[body.params[i]], StackType)]
    moving = [i for i in range(n) if i not in fixed and i not in arrays]
    if op.attrs["condition"] and 0 in fixed:
        raise Unsupported("a loop whose condition is constant")
    if op.attrs["counter"] in fixed:
        raise Unsupported("a trip counter that never changes")
    return fixed, arrays, moving


@dataclass(slots=True)
class _Carried:
    """The states of the arrays that trips change.

    states:   of all, and of their open sizes that change, in the order of the loop.
    state_of: carried value -> its state.
    rooms:    carried value with open sizes that change -> the memory that a trip writes.
    kept:     result of the body -> the open sizes that it has before the first trip, and must have after each.
    """

    states: list[State] = field(default_factory=list)
    state_of: dict[int, State] = field(default_factory=dict)
    rooms: dict[int, Room] = field(default_factory=dict)
    kept: dict[str, Axes] = field(default_factory=dict)


def _carried_states(low: Lowering, inner: Lowering, op: Op, moving: list[int], steady: bool) -> _Carried:
    """The states of the carried values `moving`. steady: whether those with open sizes keep them, where they may."""
    body, found = inner.block, _Carried()
    for i in moving:
        if steady and _keeps_sizes(low, inner, op, i):
            sizes = dict(low.sizes[op.inputs[i]])
            low.types[op.outputs[i]] = inner.type(body.params[i])
            low.sizes[op.outputs[i]] = inner.sizes[body.params[i]] = found.kept[body.results[i]] = sizes
        elif is_open(body.types[body.params[i]]):
            found.state_of[i], lengths, found.rooms[i] = _open_state(low, inner, op, i)
            found.states += [found.state_of[i], *lengths]
            continue
        elif is_open(body.types[body.results[i]]):
            raise Unsupported("a carried array whose size only the run tells")
        found.state_of[i] = _state(low, inner, op, i)
        found.states.append(found.state_of[i])
    return found


def _keeps_sizes(low: Lowering, inner: Lowering, op: Op, i: int) -> bool:
    """Whether the carried value `i` may keep the open sizes that it has before the first trip."""
    param, own = inner.block.params[i], low.sizes.get(op.inputs[i], {})
    declared = inner.block.types[param]
    if not own or own.keys() != set(open_axes(declared)):
        return False
    return inner.type(param) == low.type(op.inputs[i]) and is_open(low.types[op.outputs[i]])


def _check_kept(inner: Lowering, result: str, sizes: Axes) -> None:
    """Raises Unsteady unless a result of the body has these sizes, in each run that the code covers."""
    own = inner.sizes.get(result, {})
    if own.keys() != sizes.keys() or not all(own[i] is s or _are_compared(inner, own[i], s) for i, s in sizes.items()):
        raise Unsteady("a carried array whose size changes")


def _are_compared(low: Lowering | None, one: Size, other: Size) -> bool:
    while low is not None:
        if frozenset((one, other)) in low.derived.compared:
            return True
        low = low.outer
    return False


def _state(low: Lowering, inner: Lowering, op: Op, i: int) -> State:
    """The state of carried value `i`. A sum of products has one buffer, which each trip adds to; others have two."""
    param, result = inner.block.params[i], inner.block.results[i]
    type = inner.type(param)
    nbytes = bytes_of(type.shape, type.dtype)
    now = following = Root(nbytes, "carried", param)
    here = View(now, type.dtype, type.shape, contiguous(type.shape))
    inner.define(param, here)
    product = _sum_of_products(inner, param, result)
    buffers = [low.root(nbytes)]
    if product is not None:
        inner.destinations.accumulate(product, result, here)
    else:
        following = Root(nbytes, "carried", f"{param}'")
        inner.destinations.want(result, replace(here, root=following))
        buffers.append(low.root(nbytes))
    initial = low.dense(low.entry(op.inputs[i]))
    return State(now, following, tuple(buffers), initial, low.destination(op.outputs[i]))


def _open_state(low: Lowering, inner: Lowering, op: Op, i: int) -> tuple[State, list[State], Room]:
    """The state of carried value `i`, whose sizes the run tells, the states of its sizes, and what a trip writes."""
    param, out = inner.block.params[i], op.outputs[i]
    type, declared = inner.type(param), inner.block.types[param]
    if not is_open(low.types[out]):
        raise Unsupported("a carried array whose size only the run tells")
    low.types[out] = type
    final = low.destination(out)
    sized = room(low, low.allocate(type.shape, type.dtype), declared)
    put(low, op.inputs[i], sized)

    def state(initial: View, final: View, name: str) -> State:
        nbytes = bytes_of(initial.shape, initial.dtype)
        now, following = Root(nbytes, "carried", name), Root(nbytes, "carried", f"{name}'")
        return State(now, following, (low.root(nbytes), low.root(nbytes)), initial, final)

    def within(root: Root, like: View) -> View:
        return View(root, like.dtype, like.shape, contiguous(like.shape))

    array = state(sized.view, final, param)
    lengths = {axis: state(n, low.allocate((), "int64", "length"), "length") for axis, n in sized.lengths.items()}
    inner.define(param, within(array.now, final))
    inner.sizes[param] = {axis: Size(type.shape[axis], within(each.now, each.final)) for axis, each in lengths.items()}
    low.sizes[out] = {axis: Size(type.shape[axis], each.final) for axis, each in lengths.items()}
    after = Room(
        within(array.following, final), {axis: within(each.following, each.final) for axis, each in lengths.items()}
    )
    return array, list(lengths.values()), after


def _array_of(low: Lowering, op: Op, inner: Lowering, i: int, largest: Type | None) -> Growing:
    """A carried tensor array: the memory that all trips change, which holds the value of operand `i` before the first.

    The body returns its value in other memory if it reads the old value later; `carry` copies it then.

    largest: its type with the largest sizes of elements of open sizes, if there are any.
    """
    operand, param = op.inputs[i], inner.block.params[i]
    declared = inner.block.types[param]
    wanted = element_type(inner, largest or declared)
    if is_open(element_of_all(declared)) and isinstance(low.entry(operand), Vacant):
        array = begun(low, StackType(wanted), declared)
        do(low, "clear", array)
    elif element_type(low, held_type(low, operand)) == wanted:
        array = change(low, op, operand)
    else:
        raise Unsupported("tensor arrays of different elements")
    if [axis for axis, _, _ in array.sizes] != open_axes(element_of_all(declared)):
        raise Unsupported("tensor arrays of different elements")
    inner.define(param, array)
    return array


def _counts(inner: Lowering, param: str, result: str) -> bool:
    """Whether a state is an int64 scalar that grows by one in each trip."""
    op = inner.uses.producers.get(result)
    counts = op is not None and op.type == "increment" and op.inputs == (param,) and op.attrs["step"] == 1
    return counts and inner.types[param] == TensorType((), "int64")


def _sum_of_products(inner: Lowering, param: str, result: str) -> str | None:
    """The variable of the matrix product, if each trip only adds a product to a state and does nothing else with it."""
    op = inner.uses.producers.get(result)
    if op is None or op.type not in ("sum", "add") or len(op.inputs) != 2 or op.inputs[0] != param:
        return None
    if inner.uses.readers(param) != [op] or inner.uses.readers(result) != [None]:
        return None
    product = inner.uses.producers.get(op.inputs[1])
    if product is None or product.type not in ("matmul", "einsum") or inner.uses.readers(op.inputs[1]) != [op]:
        return None
    same = inner.types[op.inputs[1]] == inner.types[param]
    return op.inputs[1] if same else None
