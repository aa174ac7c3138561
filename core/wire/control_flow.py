"""Control flow in the open form: loops and branches whose inner blocks share the names around them.

Each construct finds the outer names that its blocks read and overwrite, and turns them into the operands and results of
a closed `loop` or `if_else`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from core.ir import INTEGERS, Block, Op, TensorType, Type
from core.ir.attr_values import BlockIndex
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import ProgramError
from core.ir.registry import Slot, construct
from core.ops import control
from core.ops.common.types import joined_type, widened_sizes
from core.ops.control.inner_blocks import BranchMemory, LoopMemory, empty
from core.wire.reader import LoopTypes, Reader
from core.wire.site import KEY, AlreadyReported, Site

__all__ = ["overwritten", "read_loop_body"]

FAMILY = control.FAMILY

CONDITION = Slot("condition")
LISTED = Slot("x", optional=True, variadic=True)
INDEX = "@INDEX"


@construct(inputs=(CONDITION, LISTED))
def while_(
    r: Reader,
    at: Site,
    *,
    sub_block: BlockIndex,
    is_test: bool = False,
    memory: LoopMemory = "store",
    checkpoints: tuple[str, ...] = (),
) -> None:
    """Run the inner block `sub_block` repeatedly while `condition` (one bool) is true.

    The block may read and overwrite outer variables, and it must write the condition. A variable that it overwrites is
    carried from trip to trip. No trip at all is legal. The gradient replays the trips of the forward pass from last to
    first.

    - `x`, `out`: optional lists of the variables that the block reads and writes; the service checks them.
    - `memory`: the residuals to store for the backward pass, as in `loop`.

    In an answer this op becomes a `loop` with explicit operands and results.
    """
    condition = r.operand(at, "condition")
    if condition.type.dtype != "bool":
        raise ProgramError(f"the condition must be one bool, not {condition.type}", "bad_condition")
    body = r.raw.blocks[sub_block]
    touched = r.scopes.touched(body.idx)
    condition_name = at.raw.inputs["condition"][0]
    carried = [condition_name, *(n for n in overwritten(r, at, touched.writes) if n != condition_name)]
    if condition_name not in touched.writes:
        raise ProgramError(f"the body does not write the condition {condition_name!r}", "condition_not_updated")
    if touched.draws:
        carried.append(KEY)
    captured = [n for n in touched.reads if n in at.env and n not in carried]
    _check_listed(at, [*carried, *captured], carried)
    operands = at.current([*carried, *captured])
    types = {n: v.type for n, v in zip((*carried, *captured), operands, strict=True)}
    inner = read_loop_body(r, body.idx, types, carried, carried)
    op = at.b.make(
        "loop",
        *operands,
        sub_block=inner,
        carried=len(carried),
        captured=len(captured),
        condition=True,
        is_test=is_test,
        memory=memory,
        checkpoints=checkpoints,
    )
    r.define(at, at.b.typed(op), carried)


def overwritten(r: Reader, at: Site, writes: Iterable[str]) -> list[str]:
    """The outer names among `writes`, the names that an inner block writes. Raises ProgramError (write_to_feed) for a
    feed.
    """
    found = [n for n in writes if n in at.env]
    for name in found:
        r.check_no_feed(at, name)
    return found


def read_loop_body(
    r: Reader,
    index: int,
    types: dict[str, Type],
    carried: Sequence[str],
    results: Sequence[str],
    local: Collection[str] = (),
) -> Block:
    """The body of a loop, read with types of the carried values that hold before and after every trip.

    A size that a trip changes becomes unknown, and the body is read again. `results` begins with the new values of the
    carried names. local: see `Reader.open_block`.

    An outer loop reads its body again with wider types. A loop inside then begins with the types that it ended with at
    the last reading, which are part of the answer: else each level would double the readings of the levels inside.
    """
    given, types = dict(types), dict(types)
    last = r.loops.get(index)
    if (
        last is not None
        and list(last.given) == list(given)
        and widened_sizes([*last.given.values()], [*given.values()])
    ):
        types |= {n: joined_type(types[n], last.found[n], "carry_dtype_changed", n) for n in carried}
    while True:
        inner, names = r.open_block(r.raw.blocks[index], types, results, local=local)
        inner = replace(inner, results=tuple(names[n] for n in results))
        joined = {
            n: joined_type(types[n], t, "carry_dtype_changed", f"{n!r} changes its type in the body of the loop")
            for n, t in zip(carried, inner.result_types, strict=False)
        }
        if all(joined[n] == types[n] for n in carried):
            r.loops[index] = LoopTypes(given, types)
            return inner
        types |= joined


# --- branches --------------------------------------------------------------------------------------------------


@construct(inputs=(CONDITION, LISTED))
def if_else(
    r: Reader,
    at: Site,
    *,
    true_block: BlockIndex | None = None,
    false_block: BlockIndex | None = None,
    memory: BranchMemory = "store",
    checkpoints: tuple[str, ...] = (),
) -> None:
    """Run the inner block `true_block` if `condition` (one bool) is true, else `false_block`. Either may be null.

    A name is visible afterwards if both blocks write it, or if it existed before. The branch not taken runs neither
    forward nor backward, and contributes a gradient of exactly 0.

    - `x`, `out`: optional lists of the variables that the blocks read and write; the service checks them.
    - `memory`: the residuals to store for the backward pass.
    """
    condition = r.operand(at, "condition")
    merged = _merge(r, at, [true_block, false_block])
    _check_listed(at, merged.read, None)
    op = at.b.make(
        "if_else",
        condition,
        *at.current(merged.read),
        true_block=merged.blocks[0],
        false_block=merged.blocks[1],
        memory=memory,
        checkpoints=checkpoints,
    )
    r.define(at, at.b.typed(op), merged.visible)


@construct(inputs=(Slot("condition", variadic=True), LISTED))
def conditional_block(r: Reader, at: Site, *, sub_block: BlockIndex, is_scalar_condition: bool = True) -> None:
    """Run the inner block `sub_block` if `condition` is true: an `if_else` with one branch.

    - `is_scalar_condition`: if false, the conditions are arrays of any dtype, and the block runs if none of them is
      empty.

    Only variables that existed before are visible afterwards. If the block does not run, they keep their values.
    """
    if is_scalar_condition:
        condition = r.operand(at, "condition")
    else:
        condition = at.b.constant(True, "bool")
        for each in r.operands(at, "condition"):
            nonempty = at.b.emit("greater_than", at.b.emit("size", each), at.b.constant(0, "int64"))
            condition = at.b.emit("logical_and", condition, nonempty)
    merged = _merge(r, at, [sub_block, None])
    _check_listed(at, merged.read, None)
    op = at.b.make(
        "if_else", condition, *at.current(merged.read), true_block=merged.blocks[0], false_block=merged.blocks[1]
    )
    r.define(at, at.b.typed(op), merged.visible)


@construct(inputs=(Slot("index"), LISTED))
def switch_case(
    r: Reader, at: Site, *, branches: tuple[BlockIndex, ...], default_block: BlockIndex | None = None
) -> None:
    """Run the inner block `branches[index]`.

    For any other index `default_block` runs, or the last branch if that is null. A name is visible afterwards if all
    blocks write it, or if it existed before.
    """
    index = r.operand(at, "index")
    if not isinstance(index.type, TensorType) or index.dtype not in INTEGERS or any(n != 1 for n in index.shape):
        raise ProgramError(f"the index must be one integer, not {index.type}", "bad_condition")
    if not branches:
        raise at.refuse("switch_case needs at least one branch", "bad_attr", "attrs/branches")
    index = at.b.emit("cast", at.b.emit("reshape", index, shape=()), dtype="int64")
    _select(r, at, index, [*branches] if default_block is None else [*branches, default_block])


@construct(inputs=(Slot("conditions", variadic=True), LISTED))
def case(r: Reader, at: Site, *, branches: tuple[BlockIndex, ...], default_block: BlockIndex | None = None) -> None:
    """Run the block of `branches` whose condition is the first true one.

    If no condition is true, `default_block` runs, or the last branch if that is null. A name is visible afterwards if
    all blocks write it, or if it existed before.
    """
    conditions = r.operands(at, "conditions")
    if not branches or len(conditions) != len(branches):
        raise at.refuse(
            f"case needs one condition per branch, not {len(conditions)} conditions for {len(branches)} branches",
            "bad_attr",
            "attrs/branches",
        )
    index = at.b.constant(len(branches), "int64")
    for i, each in reversed(list(enumerate(conditions))):
        if not isinstance(each.type, TensorType) or each.dtype != "bool" or any(n != 1 for n in each.shape):
            raise ProgramError(f"each condition must be one bool, not {each.type}", "bad_condition")
        index = at.b.emit("where", at.b.emit("reshape", each, shape=()), at.b.constant(i, "int64"), index)
    _select(r, at, index, [*branches] if default_block is None else [*branches, default_block])


def _select(r: Reader, at: Site, index: Value, branches: Sequence[BlockIndex | None]) -> None:
    """Run branch number `index` (int64). An index out of range selects the last branch."""
    merged = _merge(r, at, branches)
    _check_listed(at, merged.read, None)
    if len(merged.blocks) == 1:
        (only,) = merged.blocks
        unreachable = _unreachable(only, [merged.read.index(n) if n in merged.read else None for n in merged.visible])
        always = at.b.constant(True, "bool")
        op = at.b.make("if_else", always, *at.current(merged.read), true_block=only, false_block=unreachable)
        r.define(at, at.b.typed(op), merged.visible)
        return
    last = at.b.constant(len(branches) - 1, "int64")
    zero = at.b.constant(0, "int64")
    inside = at.b.emit("logical_and", at.b.emit("greater_equal", index, zero), at.b.emit("less_than", index, last))
    index = at.b.emit("where", inside, index, last)
    op = _bisect(at.b, index, at.current(merged.read), merged.blocks, 0)
    r.define(at, at.b.typed(op), merged.visible)


def _unreachable(like: Block, passed: Sequence[int | None]) -> Block:
    """A block with the signature of `like` that never runs. Using `like` twice would double nested blocks per level.

    passed: for each result the number of the parameter to return, or None for a value without a parameter.
    """
    b = BlockBuilder()
    params = [b.param(t, n) for n, t in zip(like.params, like.param_types, strict=True)]
    results = zip(passed, like.result_types, strict=True)
    return b.build([empty(b, t) if i is None else params[i] for i, t in results])


def _bisect(b: BlockBuilder, index: Value, operands: Sequence[Value], blocks: Sequence[Block], first: int) -> Op:
    """An `if_else` that selects block number `index` by bisection. `first` is the number of ``blocks[0]``."""
    half = len(blocks) // 2
    lower = b.emit("less_than", index, b.constant(first + half, "int64"))
    sides = (_bisected_block(blocks[:half], first), _bisected_block(blocks[half:], first + half))
    return b.make("if_else", lower, index, *operands, true_block=sides[0], false_block=sides[1])


def _bisected_block(blocks: Sequence[Block], first: int) -> Block:
    """A block with the parameters of `blocks` and the index, which runs the block with that index."""
    if len(blocks) == 1:
        only = blocks[0]
        return replace(only, params=(INDEX, *only.params), types={INDEX: TensorType((), "int64"), **only.types})
    b = BlockBuilder()
    index = b.param(TensorType((), "int64"), INDEX)
    operands = [b.param(t, n) for n, t in zip(blocks[0].params, blocks[0].param_types, strict=True)]
    return b.build(b.append(_bisect(b, index, operands, blocks, first)))


@dataclass(frozen=True, slots=True)
class _Merged:
    """Branches read with one signature: the names that they read, and the names visible afterwards."""

    read: list[str]
    visible: list[str]
    blocks: list[Block]


def _merge(r: Reader, at: Site, branches: Sequence[BlockIndex | None]) -> _Merged:
    """Read the branches with one signature. Visible afterwards: overwritten outer names, and new names that all
    branches write.
    """
    bodies = [None if i is None else r.raw.blocks[i] for i in branches]
    touched = [r.scopes.touched(x.idx) for x in bodies if x is not None]
    written = list(dict.fromkeys(n for t in touched for n in t.writes))
    merged = overwritten(r, at, written)
    read = dict.fromkeys([*merged, *(n for t in touched for n in t.reads if n in at.env)])
    if any(t.draws for t in touched):
        read[KEY] = None
    types = {n: v.type for n, v in zip(read, at.current(list(read)), strict=True)}
    new_names = [n for n in written if n not in at.env and all(n in t.writes for t in touched) and None not in bodies]
    requested = at.raw.outputs.get("out")
    before = len(r.problems.found)
    closed = []
    for body in bodies:  # read every branch, so that the mistakes of all are reported
        try:
            closed.append(r.open_block(body, types, [*merged, *new_names], optional=new_names))
        except AlreadyReported:
            continue
    if len(r.problems.found) > before or len(closed) < len(bodies):
        raise AlreadyReported
    shared = [n for n in new_names if all(n in names for _, names in closed)]
    agreed = [n for n in shared if _joinable([block.types[names[n]] for block, names in closed])]
    visible = [*merged, *agreed]
    if requested is not None:
        _check_out(at, requested, merged, agreed, [n for n in shared if n not in agreed])
        visible = [*merged, *(n for n in agreed if n in requested)]
    return _Merged(list(read), visible, [replace(x, results=tuple(names[n] for n in visible)) for x, names in closed])


def _joinable(types: Sequence[Type]) -> bool:
    try:
        for each in types[1:]:
            joined_type(types[0], each, "branch_mismatch", "")
    except ProgramError:
        return False
    return True


def _check_listed(at: Site, needed: list[str], written: list[str] | None) -> None:
    """Check that the lists of the client cover the names that the blocks read and write."""
    given_elsewhere = {n for slot, names in at.raw.inputs.items() if slot != "x" for n in names} | {KEY}
    for place, given, real in (
        ("inputs/x", at.raw.inputs.get("x"), needed),
        ("outputs/out", at.raw.outputs.get("out"), written),
    ):
        for name in real if given is not None and real is not None else ():
            if name not in (given or ()) and name not in given_elsewhere:
                verb = "reads" if place == "inputs/x" else "writes"
                raise at.refuse(
                    f"the block {verb} {name!r}, but the op does not list it in {place[place.index('/') + 1 :]}",
                    "bad_slot",
                    place,
                    "leave the list out: the service finds the names itself",
                )


def _check_out(
    at: Site, requested: Iterable[str], merged: list[str], agreed: list[str], conflicting: list[str]
) -> None:
    for name in requested:
        if name in conflicting:
            raise at.refuse(f"the branches give {name!r} different dtypes or ranks", "branch_mismatch", "outputs/out")
        if name not in merged and name not in agreed:
            raise at.refuse(
                f"{name!r} is not written by both branches and has no value before", "branch_mismatch", "outputs/out"
            )


# --- inlined blocks --------------------------------------------------------------------------------------------


@construct(inputs=(LISTED,))
def net(r: Reader, at: Site, *, sub_block: BlockIndex) -> None:
    """Run the ops of the inner block `sub_block` once, as if they stood in place of this op.

    Variables that the block declares are local to it. Any other name that it writes is visible afterwards.
    """
    r.inline_block(at.versions, at.env, r.raw.blocks[sub_block])
