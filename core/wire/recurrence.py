"""Recurrence in the open form: `scan` and `recurrent` run an inner block once per element of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from core.ir import StackType, TensorType
from core.ir.attr_values import BlockIndex, LocalName
from core.ir.builder import Value
from core.ir.errors import ProgramError
from core.ir.registry import Slot, construct
from core.ops import control
from core.ops.common.types import same_size
from core.ops.control.inner_blocks import LoopMemory
from core.wire.control_flow import overwritten, read_loop_body
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

    - `elements`: names of the sequence elements inside the block.
    - `states`: names of the states inside the block. They start as `initial`; after each step a state has the value
      that the block last wrote under its name.
    - `outputs`: names of the results of each step. `stacked` holds them along a new first axis, and `final` holds the
      last states.
    - `length`: number of steps of a scan without sequences.
    - `reverse`: start with the last element. The stacked results keep the order of the sequences.
    - `memory`: the residuals to store for the backward pass, as in `loop`.

    No step at all is legal.
    """
    names = _Names(states, states, elements, outputs)
    slots = _Slots("initial", "sequences", "final", "stacked")
    _read(r, at, sub_block, names, slots, length, reverse=reverse, memory=memory, checkpoints=checkpoints)


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

    - `step_inputs`: names of the elements inside the block.
    - `ex_states`, `states`: names of the states before and after the step, in the same order; both start as
      `initial_states`. A state that is never updated has the same name in both lists.
    - `step_outputs`: names of the results of each step. `outputs` holds them along a new first axis, and `final_states`
      holds the last states.
    - `length`: number of steps of a recurrence without inputs.
    - `is_train`: if false, no residuals are stored and there is no gradient.
    """
    if len(states) != len(ex_states):
        raise at.refuse(
            f"ex_states and states must have the same length, not {len(ex_states)} and {len(states)}",
            "bad_attr",
            "attrs/states",
        )
    names = _Names(ex_states, states, step_inputs, step_outputs)
    slots = _Slots("initial_states", "inputs", "final_states", "outputs")
    how = {"reverse": reverse, "memory": memory, "checkpoints": checkpoints, "is_test": not is_train}
    _read(r, at, sub_block, names, slots, length, **how)


@dataclass(frozen=True, slots=True)
class _Names:
    """The names inside the block: states before and after a step, elements, and results of a step."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    elements: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Slots:
    """The names of a construct's slots."""

    initial: str
    sequences: str
    final: str
    stacked: str


def _read(
    r: Reader, at: Site, index: BlockIndex, names: _Names, slots: _Slots, length: int | None, **attrs: Any
) -> None:
    """Emit the loop over stacks. attrs: attributes of the loop: reverse, memory, checkpoints, is_test."""
    initial, sequences = r.operands(at, slots.initial), r.operands(at, slots.sequences)
    final, stacked = at.raw.outputs.get(slots.final, ()), at.raw.outputs.get(slots.stacked, ())
    _check_count(at, f"inputs/{slots.initial}", initial, names.before)
    _check_count(at, f"inputs/{slots.sequences}", sequences, names.elements)
    _check_count(at, f"outputs/{slots.final}", final or names.before, names.before)
    _check_count(at, f"outputs/{slots.stacked}", stacked or names.outputs, names.outputs)
    if len({*final, *stacked}) < len(final) + len(stacked):
        raise at.refuse("an output is named twice", "bad_slot", "outputs")
    if len({*names.before, *names.elements}) < len(names.before) + len(names.elements):
        raise at.refuse("a state or element is named twice", "bad_attr", "attrs")
    steps = _steps(at, sequences, length)

    local = local_names(at.raw)
    touched = r.scopes.touched(index)
    outer_carried = overwritten(r, at, [n for n in touched.writes if n not in local])
    outer_carried += [KEY] if touched.draws else []
    carried = [*names.before, *outer_carried]
    captured = [n for n in touched.reads if n in at.env and n not in carried and n not in local]
    stacks = [at.b.emit("array_unstack", each) for each in sequences]
    elements = list(names.elements)
    if not stacks:
        stacks = [at.b.emit("array_unstack", at.b.constant(0, "int64", (max(steps, 0),)))]
        elements = ["@STEP"]
    operands = [*initial, *at.current(outer_carried), *at.current(captured), *stacks]
    element_types = [v.type.element for v in stacks if isinstance(v.type, StackType)]
    given_types = [*(v.type for v in operands[: len(operands) - len(stacks)]), *element_types]
    types = dict(zip([*carried, *captured, *elements], given_types, strict=True))
    inner = read_loop_body(r, index, types, carried, [*names.after, *outer_carried, *names.outputs], local)
    op = at.b.make(
        "loop",
        *operands,
        sub_block=inner,
        carried=len(carried),
        captured=len(captured),
        condition=False,
        **attrs,
    )
    op = at.b.typed(op)
    # a name in `final` overrides the carried variable of that name
    outer_names = [None if n in final else n for n in outer_carried]
    r.define(at, op, [*(final or [None] * len(initial)), *outer_names, *[None] * len(names.outputs)])
    _join(r, at, at.b.ops[-1].outputs[len(carried) :], stacked, steps)


def _check_count(at: Site, slot: str, given: Sequence[Any], listed: Sequence[str]) -> None:
    """Raises ProgramError (bad_slot) unless a slot has one value for each of the names that the block lists."""
    if len(given) != len(listed):
        raise at.refuse(f"{slot} lists {len(given)} names, but the block needs {len(listed)}", "bad_slot", slot)


def _join(r: Reader, at: Site, recorded: Sequence[str], stacked: Sequence[str], steps: int) -> None:
    """Emit the arrays `stacked` of the stacks that the loop has recorded."""
    for stack, name in zip(recorded, stacked, strict=False):
        type = at.b.types[stack]
        if not isinstance(type, StackType) or not isinstance(type.element, TensorType):
            raise ProgramError(f"{name!r} cannot stack {type}: only arrays can be stacked", "type_mismatch")
        element = type.element
        join = at.b.make("array_join", at.b.value(stack), shape=element.shape, dtype=element.dtype, count=steps)
        r.define(at, at.b.typed(join), [name])


def _steps(at: Site, sequences: Sequence[Value], length: int | None) -> int:
    """The number of steps, or -1 if it is known only in the run. Raises ProgramError if the sequences disagree."""
    if length is not None and length < 0:
        raise at.refuse(f"length must be at least 0, not {length}", "bad_attr", "attrs/length")
    steps = -1 if length is None else length
    for each in sequences:
        if not isinstance(each.type, TensorType) or each.rank == 0:
            raise ProgramError(f"a sequence must be an array with at least one axis, not {each.type}", "shape_mismatch")
        steps = same_size(steps, each.shape[0], "sequences differ in length")
    if not sequences and length is None:
        raise at.refuse("a recurrence needs a sequence or a length", "bad_attr", "attrs")
    if length is not None and any(each.shape[0] == -1 for each in sequences):
        raise at.refuse("length needs sequences of known size", "bad_attr", "attrs/length")
    return steps
