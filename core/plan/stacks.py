"""Stacks: the values that loops record and run over, and the ops that convert between stacks and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.ir import Op, StackType
from core.plan.array_elements import common_sizes, element_type, held_type, set_common
from core.plan.array_memory import RECORD_BYTES, WORD_BYTES, kept, moved
from core.plan.array_runs import kept_runs
from core.plan.entries import Pattern, Uniform
from core.plan.flow import Element, Elements, Growing, Pending, Recorded, Recording, Source, Span, Vacant
from core.plan.growing import ArrayOp
from core.plan.lowering import Division, Lowering, lowers
from core.plan.meeting_sizes import known_size
from core.plan.memory import Root, Stack, View, bytes_of, contiguous
from core.plan.sizes import Size, element_of_all, is_open, open_axes
from core.plan.unsupported import Unsupported

__all__ = ["captured", "common_length", "elements_of", "record", "sizes_recorded", "slot_of"]

MOST_SLOT = 1 << 20
"""Bytes of a slot for an array of open sizes. The reference executor records what each trip has, which may be less."""


def captured(low: Lowering, name: str) -> Uniform | Pattern | View | Source | Vacant:
    """The value of a variable for an inner block, which cannot extend the fusions of this one or change its arrays."""
    entry = low.entry(name)
    if isinstance(entry, Vacant):
        return entry
    if isinstance(entry, Growing | Pending):
        source = moved(low, name)
        return replace(source, owned=False) if isinstance(source, Growing) else source
    if isinstance(entry, Uniform | Pattern | Recording | Elements | Span):
        return entry
    return low.stored(entry)


def elements_of(low: Lowering, inner: Lowering, stack: str, param: str) -> list[tuple[Source, Element]]:
    """The stacks that a loop runs over for one of its operands: that operand, and the recordings of its sizes.

    Each with its element in the body; that of the operand becomes `param`.
    """
    common, array = common_sizes(low, stack), low.types[stack]
    if common and isinstance(array, StackType):
        inner.types[param], inner.sizes[param] = array.element, dict(common)
    if common or not is_open(element_of_all(inner.block.types[param])):
        return [element_of(low, inner, stack, param)]
    entry = low.entry(stack)
    if isinstance(entry, Pending):
        entry = moved(low, stack)
    if not isinstance(entry, Growing | Recording) or not entry.sizes:
        raise Unsupported("tensor arrays whose elements have unknown or no sizes")
    if isinstance(entry, Growing) or not isinstance(entry.element, Recording):
        found, sizes, own = [element_of(low, inner, stack, param)], {}, inner.sizes_taken
        for axis, bound, lengths in entry.sizes:
            if lengths not in own:
                root = Root(WORD_BYTES, "element", "length")
                own[lengths] = Size(bound, View(root, "int64", (), ()))
                found.append((lengths, root))
            sizes[axis] = own[lengths]
        inner.sizes[param] = sizes
        return found
    taken = element_of(low, inner, stack, param)
    inside = taken[1]
    assert isinstance(inside, Recording), inside
    nested = [(axis, bound, lengths, _inside(lengths)) for axis, bound, lengths in entry.sizes]
    sized = replace(inside, sizes=tuple((axis, bound, each) for axis, bound, _, each in nested))
    inner.define(param, sized)
    return [(entry, sized), *((lengths, each) for _, _, lengths, each in nested)]


def _inside(lengths: Recording) -> Recording:
    assert isinstance(lengths.element, Recording), lengths
    return replace(lengths.element)


def element_of(low: Lowering, inner: Lowering, stack: str, param: str) -> tuple[Source, Element]:
    """A stack that a loop runs over, and its element in the body, which becomes `param`."""
    entry = low.entry(stack)
    if isinstance(entry, Growing | Pending):
        element = element_type(low, held_type(low, stack))
        if inner.type(param) != element:
            raise Unsupported("tensor arrays whose elements have unknown or no sizes")
        return moved(low, stack), _open(inner, param, element.shape, element.dtype)
    if isinstance(entry, Elements | Span):
        view = entry.view
        return entry, _open(inner, param, view.shape[1:], view.dtype)
    assert isinstance(entry, Recording), entry
    if isinstance(entry.element, Recording):
        loose = entry.loose or entry.element.loose
        inside: Recording | Span = replace(entry.element, loose=loose, source=None, whole=False)
        inner.define(param, inside)
        return entry, inside
    if isinstance(entry.element, Span):
        inside = Span(entry.element.view)
        if entry.source is not None:
            low.shared.divided[inside] = Division(low, entry)
        inner.define(param, inside)
        return entry, inside
    if isinstance(entry.element, Elements):
        return entry, _open(inner, param, entry.element.view.shape, entry.element.view.dtype)
    type = inner.type(param)
    return entry, _open(inner, param, type.shape, type.dtype)


def record(
    low: Lowering,
    inner: Lowering,
    output: str,
    name: str,
    root: Root | None,
    length: int | None,
    over: Sequence[Source],
) -> tuple[Recorded, Element]:
    """The stack that the loop makes of `name`, a result of its body, and the element that a trip writes.

    output: the variable of the stack.
    root:   from `slot_of`.
    length: number of trips, if known.
    over:   the stacks that the loop runs over.
    """
    own = inner.sizes.get(name, {})
    if is_open(inner.block.types[name]):
        every = own.keys() == set(open_axes(inner.block.types[name]))
        if not every or not all(_is_outer(low, size) for size in own.values()):
            return _record_open(low, inner, name, length)
        type = inner.type(name)
        low.types[output] = StackType(type)
        set_common(low, output, own)
        root = Root(bytes_of(type.shape, type.dtype), "element", name)
        inner.write(inner.entry(name), View(root, type.dtype, type.shape, contiguous(type.shape)))
    if root is not None:
        type = inner.type(name)
        shape, dtype, element = type.shape, type.dtype, None
    else:
        _keep_common(low, inner, output, name)
        element = inner.entry(name)
        if isinstance(element, Growing | Pending) or (isinstance(element, Span) and _is_own(inner, element)):
            element = kept(inner, name)
        elif isinstance(element, Recording) and element.source is not None and _is_own(inner, element.element):
            element = kept_runs(inner, element)
        elif isinstance(element, Recording):
            _check_lasts(inner, element)
        if isinstance(element, Recording | Span):
            if isinstance(element, Recording):
                element.stack.kept = True
            recording = Recording(_stack(low, RECORD_BYTES), element, length)
            if isinstance(element, Recording) and element.sizes:
                kept_sizes = [(axis, bound, _record_lengths(low, inner, n, length)) for axis, bound, n in element.sizes]
                return replace(recording, sizes=tuple(kept_sizes)), element
            return _with_source(low, recording), element
        shape, dtype = element.view.shape, element.view.dtype
        root = Root(bytes_of(shape, dtype), "element", name)
        inner.write(element.view, View(root, dtype, shape, contiguous(shape)))
    beside = next((each for each in over if isinstance(each, Span) and each.places in low.shared.divided), None)
    home = _home(low, beside) if beside is not None else low
    if beside is not None and _is_flattened(low, output, home):
        return Span(home.allocate((beside.view.shape[0], *shape), dtype, output), beside.places), root
    if length is None or output in low.block.results:
        return Recording(_stack(low, root.nbytes), element, length), root
    return Elements(low.allocate((length, *shape), dtype, output)), root


def _keep_common(low: Lowering, inner: Lowering, output: str, name: str) -> None:
    """Set the common sizes of the arrays inside the tensor array `output`, which a loop makes of its array `name`."""
    sizes = common_sizes(inner, name)
    if not all(_is_outer(low, size) for size in sizes.values()):
        raise Unsupported("records of tensor arrays whose elements have other sizes in each trip")
    if sizes:
        low.types[output] = StackType(inner.types[name])
        set_common(low, output, sizes)


def _is_outer(low: Lowering | None, size: Size) -> bool:
    """Whether a block or one around it has a variable of this size, so that a loop in it does not change the size."""
    while low is not None:
        if any(size in own.values() for own in low.sizes.values()):
            return True
        low = low.outer
    return False


def _record_open(low: Lowering, inner: Lowering, name: str, length: int | None) -> tuple[Recording, Root]:
    """The stack of an array of open sizes, whose slots have the largest ones."""
    type, own = inner.type(name), inner.sizes.get(name, {})
    nbytes = bytes_of(type.shape, type.dtype)
    if nbytes > MOST_SLOT:
        raise Unsupported(f"records of {nbytes} bytes, of which a trip may need few")
    slot = Root(nbytes, "element", name)
    inner.write(inner.entry(name), View(slot, type.dtype, type.shape, contiguous(type.shape)))
    sizes = []
    for axis, n in enumerate(inner.block.types[name].shape):  # type: ignore[union-attr]
        if n != -1:
            continue
        size = own.get(axis)
        if size is None:
            size = known_size(inner, type.shape[axis])
        if size not in inner.sizes_kept:
            root = Root(WORD_BYTES, "element", "length")
            inner.write(size.length, View(root, "int64", (), ()))
            inner.sizes_kept[size] = Recording(_stack(low, WORD_BYTES), None, length), root
        sizes.append((axis, type.shape[axis], inner.sizes_kept[size][0]))
    if own.keys() - {axis for axis, _, _ in sizes}:
        raise Unsupported(f"the size of {name} is known only when it runs")
    return Recording(_stack(low, nbytes), None, length, sizes=tuple(sizes)), slot


def _record_lengths(low: Lowering, inner: Lowering, lengths: Recording, length: int | None) -> Recording:
    """The stack of the recordings of one size of an inner loop."""
    if lengths not in inner.sizes_kept:
        lengths.stack.kept = True
        inner.sizes_kept[lengths] = Recording(_stack(low, RECORD_BYTES), lengths, length), lengths
    return inner.sizes_kept[lengths][0]


def sizes_recorded(inner: Lowering) -> list[tuple[Recording, Root | Recording]]:
    """The stacks of the sizes of what a loop records, each with the element that a trip writes."""
    return list(inner.sizes_kept.values())


def slot_of(inner: Lowering, name: str) -> Root | None:
    """The slot that a trip writes the recorded value `name` to; None for a stack, and for an array of open sizes."""
    if isinstance(inner.types[name], StackType) or is_open(inner.block.types[name]):
        return None
    type = inner.type(name)
    root = Root(bytes_of(type.shape, type.dtype), "element", name)
    inner.destinations.want(name, View(root, type.dtype, type.shape, contiguous(type.shape)))
    return root


def common_length(low: Lowering, stacks: Sequence[Source]) -> int | None:
    """The length of the stacks that a loop runs over; None if it is known only at run time.

    A tensor array that grows, and one of runs, is compared with another stack when the code runs.
    """
    lengths = {stack.length for stack in stacks if not _is_loose(stack)}
    for stack in stacks:
        other = next((each for each in stacks if each is not stack), None)
        if _is_loose(stack) and other is not None:
            message = "the stacks of a loop must have the same length"
            check = low.shared.check("shape_mismatch", message, low.location)
            low.add(ArrayOp(None, stack, "same", other=other, check=check, location=low.location))
    if len(lengths) > 1:
        raise Unsupported("stacks of different lengths")
    return next(iter(lengths), None)


def _is_loose(stack: Source) -> bool:
    """Whether nothing says that another stack of the same loop is as long as this one."""
    return isinstance(stack, Growing | Span) or (isinstance(stack, Recording) and stack.loose)


def _is_own(inner: Lowering, element: object) -> bool:
    """Whether the elements of a stack lie in memory that each trip fills anew."""
    if isinstance(element, Recording):
        return element.stack in inner.shared.stacks[inner.first_stack :]
    return isinstance(element, Span) and element.view.root in inner.own


def _is_flattened(low: Lowering, array: str, home: Lowering) -> bool:
    """Whether the loops around a block, up to `home`, record an array, and all their runs become one array there."""
    while low is not home:
        if low.outer is None or low.loop is None:
            return False
        first = low.loop.attrs["carried"]
        if array not in low.block.results[first:]:
            return False
        runs = low.loop.outputs[low.block.results.index(array, first)]
        low = low.outer
        readers = low.uses.readers(runs)
        flat = [op for op in readers if op is not None and op.type == "array_flatten"]
        if not flat or len(flat) < len(readers):
            return False
        array = flat[0].outputs[0]
    return True


def _home(low: Lowering, span: Span) -> Lowering:
    """The block of the outermost loop over runs of the array that `span` is a run of."""
    outer = low.shared.divided[span.places]
    source = outer.runs.source
    again = isinstance(source, Span) and source.places in low.shared.divided
    return _home(low, source) if again else outer.low  # type: ignore[arg-type]


def _with_source(low: Lowering, runs: Recording) -> Recording:
    """The runs that the trips of a loop record; if each is at the place of its element, all are one array in memory."""
    run = runs.element
    over = low.shared.divided.get(run.of) if isinstance(run, Span) and run.of is not None else None
    if over is None or over.low is not low:
        return runs
    assert isinstance(run, Span)
    source = over.runs.source
    whole = Span(run.view, source.places) if isinstance(source, Span) else Elements(run.view)
    return replace(runs, source=whole, order=over.runs.order, whole=over.runs.whole)


def _check_lasts(inner: Lowering, element: Recorded | None) -> None:
    """Raise Unsupported if the elements of runs inside a stack do not outlive the trip that records it."""
    while isinstance(element, Recording):
        if (element.lent or isinstance(element.element, Span)) and _is_own(inner, element.element):
            raise Unsupported("records of runs of an array that each trip makes")
        element = element.element


def _open(inner: Lowering, param: str, shape: tuple[int, ...], dtype: str) -> Root:
    """A root for `param` in the body: an array, or the elements of one if `param` is a stack."""
    root = Root(bytes_of(shape, dtype), "element", param)
    view = View(root, dtype, shape, contiguous(shape))
    inner.define(param, Elements(view) if isinstance(inner.types[param], StackType) else view)
    return root


def _stack(low: Lowering, slot_bytes: int) -> Stack:
    low.shared.stacks.append(Stack(slot_bytes))
    return low.shared.stacks[-1]


@lowers("array_unstack")
def lower_unstack(low: Lowering, op: Op) -> None:
    low.type(op.inputs[0])
    low.define(op.outputs[0], Elements(low.dense(low.entry(op.inputs[0]))))
