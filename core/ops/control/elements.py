"""Whether the cotangent of a recorded stack has an element for each trip.

The gradient of a loop runs over the cotangents of its stacks. The cotangent of a tensor array may have fewer elements
than the array, or more (`core.ops.control.tensor_arrays`); `array_fill` makes it equally long. Most stacks are read by
loops that run over them, so their cotangents need no such op, which would keep the stack until then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from core.autodiff.adjoint import Adjoint
from core.ir import HOLE, Block, Op, StackType
from core.ir.registry import is_loop

__all__ = ["has_every_element", "recorded_arrays", "returned_arrays"]

PASSES_ON = frozenset({"assign", "sum", "array_flatten", "array_regroup", "array_chunks"})
"""Ops that give their array a cotangent with every element if the cotangent of their result has every element."""

READS_LENGTHS = {"array_fill": 1, "array_flatten": 1, "array_regroup": 1, "array_split_as": 1, "array_length": 0}
"""Ops that read the lengths of an array and pass it no cotangent -> the position of that operand."""


def has_every_element(a: Adjoint, array: str) -> bool:
    """Whether the cotangent of `array`, a variable of the block of `a`, has every element, of inner arrays too."""
    return _Scope(a.block, a.whole.__contains__, a.readers).whole(array)


def returned_arrays(a: Adjoint, op: Op, block: Block) -> set[str]:
    """The results of a branch of `op` whose cotangents have every element."""
    outer = _Scope(a.block, a.whole.__contains__, a.readers, condition=op.inputs[0])
    stacks = {name for name in block.results if isinstance(block.types[name], StackType)}
    return {name for name in stacks if _returned(outer, op, block, 0, name)}


def recorded_arrays(op: Op, body: Block) -> set[str]:
    """The results of the body of a loop that it only records: each trip gets whole elements of their cotangents."""
    n = op.attrs["carried"]
    return set(body.results[n:]).difference(body.results[:n])


class _Scope:
    """A block under the question which of its arrays have cotangents with every element. Each answer is kept.

    returns:   whether the cotangent of a result has every element.
    readers:   the ops that read a variable.
    condition: of the branch that returns the array; another branch on it takes the side that reads the array.
    inside:    whether the array is an element of a stack. A branch that reads it on one side only is the gradient of a
               branch that recorded it there, and returned an empty array on the other side.
    """

    def __init__(
        self,
        block: Block,
        returns: Callable[[str], bool],
        readers: Callable[[str], Sequence[Op]] | None = None,
        condition: str | None = None,
        inside: bool = False,
    ) -> None:
        self.block, self.condition, self.inside = block, condition, inside
        self.readers = readers or _readers(block)
        self._returns = returns
        self._answers: dict[str, bool] = {}
        self._inner: dict[tuple[int, int], _Scope] = {}

    def whole(self, array: str) -> bool:
        """Whether the cotangent of `array` has every element."""
        if array not in self._answers:
            returned = array not in self.block.results or self._returns(array)
            self._answers[array] = returned and all(_reads_all(self, op, array) for op in self.readers(array))
        return self._answers[array]

    def within(self, op: Op, block: Block, first: int, inside: bool) -> _Scope:
        """An inner block of `op`, an op of this block. first: as in `_returned`."""
        key = id(op), id(block)  # equal blocks of several ops return to different variables
        if key not in self._inner:
            self._inner[key] = _Scope(block, partial(_returned, self, op, block, first), inside=inside)
        return self._inner[key]


def _readers(block: Block) -> Callable[[str], Sequence[Op]]:
    found = defaultdict[str, list[Op]](list)
    for op in block.ops:
        for name in {*op.inputs}:
            found[name].append(op)
    return lambda name: found.get(name, [])


def _returned(outer: _Scope, op: Op, block: Block, first: int, name: str) -> bool:
    """Whether the cotangent of a result of an inner block has every element. A result may be returned several times.

    first: the first position whose output has the cotangent of the result.
    """
    at = [i for i, each in enumerate(block.results) if each == name]
    return at[0] >= first and all(outer.whole(op.outputs[i]) for i in at)


def _reads_all(scope: _Scope, op: Op, array: str) -> bool:
    """Whether the contribution of `op` to the cotangent of `array` has every element."""
    at = [i for i, name in enumerate(op.inputs) if name == array and i != READS_LENGTHS.get(op.type)]
    if not at:
        return True
    if is_loop(op):
        return _runs_over(scope, op, at)
    if op.type == "if_else":
        return all(_side_reads_all(scope, op, op.attrs[side], at) for side in ("true_block", "false_block"))
    if op.type == "array_join":
        return _joins_all(scope, op, array)
    return op.type == "array_concat" or (op.type in PASSES_ON and scope.whole(op.outputs[0]))


def _runs_over(scope: _Scope, op: Op, at: Collection[int]) -> bool:
    """Whether a loop runs over the array at the positions `at`, and its body reads all of each element."""
    n, body = op.attrs["carried"], op.attrs["sub_block"]
    if any(i < n + op.attrs["captured"] for i in at):
        return False
    params = [body.params[i] for i in at if isinstance(body.types[body.params[i]], StackType)]
    return all(scope.within(op, body, n, inside=True).whole(param) for param in params)


def _side_reads_all(scope: _Scope, op: Op, block: Block, at: Collection[int]) -> bool:
    """Whether one side of a branch reads all of the array at the positions `at`, or need not read it."""
    inner = scope.within(op, block, 0, scope.inside)
    params = [block.params[i - 1] for i in at]
    if any(inner.readers(param) or param in block.results for param in params):
        return all(inner.whole(param) for param in params)
    return scope.inside or op.inputs[0] == scope.condition


def _joins_all(scope: _Scope, op: Op, array: str) -> bool:
    """Whether `array_join` returns as many rows as `array` has elements."""
    count = op.attrs["count"]
    if all(name == HOLE for name in op.inputs[1:]) and count == -1:
        return True
    return count >= 0 and _length(scope.block, array) == count


def _length(block: Block, array: str) -> int | None:
    """The number of elements of a recorded or unstacked array; None if it is not known before the run."""
    op = next((op for op in block.ops if array in op.outputs), None)
    if op is not None and op.type == "array_unstack":
        rows = block.types[op.inputs[0]].shape[0]  # type: ignore[union-attr]
        return rows if rows >= 0 else None
    return next((n for each in _as_long(block, array) if (n := _length(block, each)) is not None), None)


def _as_long(block: Block, array: str) -> Iterator[str]:
    """Other arrays with as many elements, from which `array` was computed: by a loop over them or over their runs."""
    op = next((op for op in block.ops if array in op.outputs), None)
    if op is None:
        return
    if is_loop(op) and op.outputs.index(array) >= op.attrs["carried"]:
        yield from op.inputs[op.attrs["carried"] + op.attrs["captured"] :]
    elif op.type == "assign":
        yield from op.inputs
    elif op.type == "array_flatten":
        runs, order = op.inputs[0], op.attrs["order"]
        loop = next((each for each in block.ops if runs in each.outputs and is_loop(each)), None)
        if loop is None or loop.outputs.index(runs) < loop.attrs["carried"]:
            return
        body, first = loop.attrs["sub_block"], loop.attrs["carried"] + loop.attrs["captured"]
        result = body.results[loop.outputs.index(runs)]
        for name, param in zip(loop.inputs[first:], body.params[first:], strict=True):
            chunks = next((each for each in block.ops if name in each.outputs and each.type == "array_chunks"), None)
            if chunks is not None and chunks.attrs["order"] == order and _is_as_long(body, result, param):
                yield chunks.inputs[0]


def _is_as_long(block: Block, array: str, param: str) -> bool:
    return array == param or any(_is_as_long(block, each, param) for each in _as_long(block, array))
