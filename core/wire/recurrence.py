"""Recurrence on the wire: `scan` and `recurrent` run an inner block over the steps of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.ir import StackType, TensorType
from core.ir.builder import Value
from core.ir.errors import ProgramError
from core.ir.registry import BlockIndex, LocalName, Slot, construct
from core.ops import control
from core.ops.common.types import same_size
from core.ops.control.inner_blocks import LoopMemory
from core.wire.control import carry_types, overwritten
from core.wire.reader import Reader
from core.wire.scope import local_names
from core.wire.site import KEY, Site

__all__: list[str] = []

FAMILY = control.FAMILY


@construct(
    inputs=(Slot("initial", optional=True, variadic=True), Slot("sequences", optional=True, variadic=True)),
    outputs=("final", "stacked"),
)
def scan(
    r: Reader,
    at: Site,
    *,
    sub_block: BlockIndex,
    states: tuple[LocalName, ...] = (),
    elements: tuple[LocalName, ...] = (),
    outputs: tuple[LocalName, ...] = (),
    length: int | None = None,
    reverse: bool = False,
    memory: LoopMemory = "store",
    checkpoints: tuple[str, ...] = (),
) -> None:
    """Run the inner block `sub_block` once for each element of `sequences` along their first axis.

    Inside, `elements` name the element of each sequence, and `states` the values that go from step to step: they start
    as `initial` and are what the block last wrote under those names. Afterwards `final` holds the last states, and
    `stacked` what each step left in `outputs`, along a new first axis. With `reverse` the last element comes first;
    what is stacked still lines up with the sequences. A scan without sequences makes `length` steps. No step is legal.
    """
    names = _Names(states, states, elements, outputs)
    _read(r, at, sub_block, names, ("initial", "sequences"), ("final", "stacked"), length, reverse, memory, checkpoints)


@construct(
    inputs=(Slot("inputs", optional=True, variadic=True), Slot("initial_states", optional=True, variadic=True)),
    outputs=("outputs", "final_states"),
)
def recurrent(
    r: Reader,
    at: Site,
    *,
    sub_block: BlockIndex,
    ex_states: tuple[LocalName, ...] = (),
    states: tuple[LocalName, ...] = (),
    step_inputs: tuple[LocalName, ...] = (),
    step_outputs: tuple[LocalName, ...] = (),
    length: int | None = None,
    reverse: bool = False,
    is_train: bool = True,
    memory: LoopMemory = "store",
    checkpoints: tuple[str, ...] = (),
) -> None:
    """Run the inner block `sub_block` once for each element of `inputs` along their first axis: a static RNN.

    Inside, `step_inputs` name the element of each input, `ex_states` the states before the step and `states`, in the
    same order, the states after it; both begin as `initial_states`. A state that nobody updates has its own name in
    both lists. Afterwards `outputs` holds what each step left in `step_outputs`, along a new first axis, and
    `final_states` the last states. A recurrence with `is_train` false keeps nothing and has no gradient.
    """
    if len(states) != len(ex_states):
        raise at.refuse(f"{len(ex_states)} ex_states, but {len(states)} states", "bad_attr", "attrs/states")
    names = _Names(ex_states, states, step_inputs, step_outputs)
    slots = (("initial_states", "inputs"), ("final_states", "outputs"))
    _read(r, at, sub_block, names, *slots, length, reverse, memory, checkpoints, is_test=not is_train)


@dataclass(frozen=True, slots=True)
class _Names:
    """What the inner block calls its states before and after a step, its elements, and what it gives each step."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    elements: tuple[str, ...]
    outputs: tuple[str, ...]


def _read(
    r: Reader,
    at: Site,
    index: BlockIndex,
    names: _Names,
    inputs: tuple[str, str],
    outputs: tuple[str, str],
    length: int | None,
    reverse: bool,
    memory: LoopMemory,
    checkpoints: tuple[str, ...],
    is_test: bool = False,
) -> None:
    """Emit the loop over stacks. `inputs` and `outputs` name the slots for states and for sequences."""
    initial, sequences = (r.operands(at, slot) for slot in inputs)
    final, stacked = (at.raw.outputs.get(slot, ()) for slot in outputs)
    for given, listed, slot in (
        (initial, names.before, f"inputs/{inputs[0]}"),
        (sequences, names.elements, f"inputs/{inputs[1]}"),
        (final or names.before, names.before, f"outputs/{outputs[0]}"),
        (stacked or names.outputs, names.outputs, f"outputs/{outputs[1]}"),
    ):
        if len(given) != len(listed):
            raise at.refuse(f"{len(given)} names in {slot}, but the block has {len(listed)}", "bad_slot", slot)
    if len({*final, *stacked}) < len(final) + len(stacked):
        raise at.refuse("an output is named twice", "bad_slot", "outputs")
    if len({*names.before, *names.elements}) < len(names.before) + len(names.elements):
        raise at.refuse("a state or element is named twice", "bad_attr", "attrs")
    steps = _steps(at, sequences, length)

    local = local_names(at.raw)
    touched = r.scopes.touched(index)
    more = [n for n in overwritten(r, at, touched.writes) if n not in local]
    more += [KEY] if touched.draws else []
    carried = [*names.before, *more]
    captured = [n for n in touched.reads if n in at.env and n not in carried and n not in local]
    stacks = [at.b.emit("array_unstack", each) for each in sequences]
    elements = list(names.elements)
    if not stacks:
        stacks = [at.b.emit("array_unstack", at.b.constant(0, "int64", (max(steps, 0),)))]
        elements = ["@STEP"]
    operands = [*initial, *at.known(more), *at.known(captured), *stacks]
    given_types = [v.type.element if isinstance(v.type, StackType) else v.type for v in operands]
    types = dict(zip([*carried, *captured, *elements], given_types, strict=True))
    inner = carry_types(r, index, types, carried, [*names.after, *more, *names.outputs])
    op = at.b.make(
        "loop",
        *operands,
        sub_block=inner,
        carried=len(carried),
        captured=len(captured),
        condition=False,
        reverse=reverse,
        is_test=is_test,
        memory=memory,
        checkpoints=checkpoints,
    )
    op = at.b.typed(op)
    # what the block itself wrote under a name of `final` came before
    overwritten_again = [None if n in final else n for n in more]
    r.define(at, op, [*(final or [None] * len(initial)), *overwritten_again, *[None] * len(names.outputs)])
    recorded = at.b.ops[-1].outputs[len(carried) :]
    for stack, name in zip(recorded, stacked, strict=False):
        type = at.b.types[stack]
        if not isinstance(type, StackType) or not isinstance(type.element, TensorType):
            raise ProgramError(f"{name!r} would stack {type}: only plain arrays can be stacked", "type_mismatch")
        element = type.element
        join = at.b.make("array_join", at.b.value(stack), shape=element.shape, dtype=element.dtype, count=steps)
        r.define(at, at.b.typed(join), [name])


def _steps(at: Site, sequences: Sequence[Value], length: int | None) -> int:
    """The number of steps, -1 where only a run can tell. Raises ProgramError where the sequences disagree."""
    if length is not None and length < 0:
        raise at.refuse(f"length must be at least 0, not {length}", "bad_attr", "attrs/length")
    steps = -1 if length is None else length
    for each in sequences:
        if not isinstance(each.type, TensorType) or each.rank == 0:
            raise ProgramError(f"a sequence is an array with at least one axis, not {each.type}", "shape_mismatch")
        steps = same_size(steps, each.shape[0], "sequences of different lengths")
    if not sequences and length is None:
        raise at.refuse("a recurrence needs a sequence or a length", "bad_attr", "attrs")
    if length is not None and any(each.shape[0] == -1 for each in sequences):
        raise at.refuse("length goes with sequences of known size only", "bad_attr", "attrs/length")
    return steps
