"""Sizes that are known only during the run: an array has memory for the largest size, and a number for its length.

The largest size follows from the types: `nonzero` finds at most as many positions as its operand has elements. The
elements of an array beyond its length are unspecified, except that integers are 0 there, a valid position. Reductions
leave them out, and no check reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from core.ir import HOLE, Block, Op, StackType, TensorType, Type
from core.ir.builder import output_types
from core.ir.errors import CoreError
from core.ir.registry import lookup
from core.ir.stop import poll
from core.plan.instructions import PRODUCT_BLOCK
from core.plan.memory import View
from core.plan.registering import registering
from core.plan.scan_lengths import Made, most_joined
from core.plan.uses import Uses

__all__ = [
    "Expected",
    "Given",
    "Known",
    "Size",
    "bounded_outputs",
    "bounded_types",
    "bounds",
    "element_of_all",
    "expected_outputs",
    "in_blocks",
    "is_open",
    "nests",
    "of_arrays",
    "open_axes",
    "tensor",
]

Expected = Mapping[str, tuple[int, ...]]
"""Variables of sizes without a largest value -> the largest shapes that a plan should have memory for."""

FEWEST, MOST = 64, 2048
"""Limits of the size that a plan expects at first, which is twice that of the largest operand of known size."""

MOST_ELEMENTS = 1 << 20
"""Elements of a result for which a plan has memory at first, unless it has more with sizes of two."""


@dataclass(frozen=True, slots=True, eq=False)
class Size:
    """A size that the run computes. Two axes are known to be equally long only if they share this object.

    bound: the largest size, at least 1.
    length: an int64 scalar, from 0 to `bound`.
    """

    bound: int
    length: View


def is_open(type: Type | None) -> bool:
    """Whether a size of an array is known only when it runs."""
    return isinstance(type, TensorType) and not type.is_static


def open_axes(type: Type) -> list[int]:
    """The axes of an array whose size is known only when it runs."""
    return [axis for axis, n in enumerate(type.shape) if n == -1] if isinstance(type, TensorType) else []


def in_blocks(size: int) -> int:
    """A largest size: whole blocks of a product, if it has more than one."""
    return size if size <= PRODUCT_BLOCK else -(-size // PRODUCT_BLOCK) * PRODUCT_BLOCK


def element_of_all(type: Type) -> Type:
    """The type of the arrays inside a tensor array of tensor arrays; other types are their own."""
    while isinstance(type, StackType):
        type = type.element
    return type


Known = dict[tuple[int, frozenset[tuple[str, Type]]], dict[str, Type]]
"""(identity of a block, types of its parameters) -> the result of `bounded_types`."""


def bounded_types(
    block: Block,
    expected: Expected | None,
    given: Mapping[str, Type] = MappingProxyType({}),
    known: Known | None = None,
) -> Mapping[str, Type]:
    """The types of the variables of `block`, with the largest sizes of results whose size only the run tells, where
    these are known, or else expected.

    given: of parameters of open sizes.
    known: keeps what is found while the blocks live: the blocks of nested loops are asked for again and again.
    """
    known = {} if known is None else known
    key = id(block), frozenset(given.items())
    if key not in known:
        known[key] = _bounded(block, expected, given, known)
    return known[key]


def _bounded(block: Block, expected: Expected | None, given: Mapping[str, Type], known: Known) -> dict[str, Type]:
    found = {**block.types, **given}
    made = Uses(block).producers
    for op in block.ops:
        poll()
        if op.type in NESTED and any(is_open(element_of_all(found[n])) for n in op.outputs):
            found |= NESTED[op.type](op, found, expected, known)
        elif op.type in OF_ARRAYS and any(isinstance(found.get(n), StackType) for n in (*op.inputs, *op.outputs)):
            if is_open(element_of_all(found[op.outputs[0]])):
                type = OF_ARRAYS[op.type](op, found)
                found |= {} if type is None else {op.outputs[0]: type}
        elif any(is_open(found[n]) for n in op.outputs):
            types = bounded_outputs(op, found, made) or expected_outputs(op, found, block.types, expected)
            if types is not None:
                found.update(zip(op.outputs, types, strict=True))
    return found


def bounded_outputs(op: Op, types: Mapping[str, Type], made: Made) -> tuple[TensorType, ...] | None:
    """The types of the results of `op` with their largest sizes, or None if there are none.

    types: of its operands with their largest sizes, and of its results as declared. made: by the ops around it.
    """
    joined = most_joined(op, types, made)
    if joined is not None:
        most, element = joined
        return (TensorType((in_blocks(most), *element.shape), element.dtype),)
    if op.type == "array_join":
        like = types[op.inputs[1]] if any(op.inputs[1:]) else None
        return (like,) if isinstance(like, TensorType) and not is_open(like) and 0 not in like.shape else None
    given: list[TensorType | None] = []
    for name in op.inputs:
        type = types[name] if name != HOLE else None
        if isinstance(type, StackType) or is_open(type):
            return None
        given.append(type)
    if op.type in BOUNDS:
        return BOUNDS[op.type](op, given, [types[name] for name in op.outputs])
    spec = lookup(op.type)
    if spec.kind == "control":
        return None
    try:
        found = output_types(spec, tuple(given), op.attrs)
    except CoreError:
        if not spec.elementwise and op.type not in ("expand_as", "sum_to_like"):
            return None
        try:
            found = output_types(spec, _of_fewest(given), op.attrs)
        except CoreError:
            return None
    sizes: list[TensorType] = []
    for type, name in zip(found, op.outputs, strict=True):
        declared = types[name]
        if not isinstance(type, TensorType) or not isinstance(declared, TensorType) or 0 in type.shape:
            return None
        if is_open(type) or len(declared.shape) != len(type.shape):
            return None
        if any(m not in (-1, n) for m, n in zip(declared.shape, type.shape, strict=True)):
            return None
        sizes.append(type)
    return tuple(sizes)


def _of_fewest(given: Sequence[TensorType | None]) -> tuple[TensorType | None, ...]:
    """The types of operands that must have equal sizes along each axis, with the smallest of their largest sizes."""
    types = [type for type in given if type is not None]
    rank = max((type.rank for type in types), default=0)
    padded = [(1,) * (rank - type.rank) + type.shape for type in types]
    fewest = [min((n for n in sizes if n != 1), default=1) for sizes in zip(*padded, strict=True)]

    def narrowed(type: TensorType) -> TensorType:
        own = fewest[rank - type.rank :]
        return TensorType(tuple(1 if n == 1 else m for n, m in zip(type.shape, own, strict=True)), type.dtype)

    return tuple(None if type is None else narrowed(type) for type in given)


def expected_outputs(
    op: Op, types: Mapping[str, Type], declared: Mapping[str, Type], expected: Expected | None
) -> tuple[TensorType, ...] | None:
    """The types of the results of `op`, whose sizes have no largest value, with sizes that suffice for most runs.

    None if sizes are not expected at all (`expected` is None), if the operands have no largest sizes, and if `op` does
    not take operands of these.

    declared: the types of all variables in the program.
    """
    spec = lookup(op.type)
    given = [types[n] if n != HOLE else None for n in op.inputs]
    if expected is None or spec.kind == "control" or any(is_open(type) for type in given):
        return None
    if given and isinstance(given[0], TensorType) and any(isinstance(x, TensorType) and 0 in x.shape for x in given):
        return None  # positions beyond the length are 0, but an empty array has no position 0
    try:
        found = output_types(spec, tuple(given), op.attrs)
    except CoreError:
        return None
    known, opened = 1, 1
    for n, type in zip(op.inputs, given, strict=True):
        if isinstance(type, TensorType):
            largest = max(type.shape, default=1)
            known, opened = (known, max(opened, largest)) if is_open(declared.get(n)) else (max(known, largest), opened)
    first = max(FEWEST, min(2 * known, MOST), opened)
    made = []
    for name, type in zip(op.outputs, found, strict=True):
        own = declared[name]
        if not isinstance(type, TensorType) or not isinstance(own, TensorType) or 0 in (*type.shape, *own.shape):
            return None
        wanted = expected.get(name, (0,) * type.rank)
        sizes = [max(each) for each in zip(_first_shape(type.shape, first), wanted, strict=True)]
        shape = tuple(in_blocks(n) if m == -1 else m for m, n in zip(type.shape, sizes, strict=True))
        if any(m not in (-1, n) for m, n in zip(own.shape, shape, strict=True)):
            return None
        made.append(TensorType(shape, type.dtype))
    return tuple(made)


def _first_shape(shape: Sequence[int], first: int) -> list[int]:
    """`shape` with a size for each open one, small ones if they are many or the others are large. first: of axis 0."""
    sizes = [n if n != -1 else first if i == 0 else FEWEST for i, n in enumerate(shape)]
    opened = [i for i, n in enumerate(shape) if n == -1]
    while math.prod(sizes) > MOST_ELEMENTS:
        widest = max(opened, key=sizes.__getitem__)
        if sizes[widest] <= 2:  # an axis of size 1 would be one that is broadcast
            break
        sizes[widest] = max(2, sizes[widest] // 2)
    return sizes


Given = Sequence[TensorType | None]
Rule = Callable[[Op, Given, Sequence[Type]], tuple[TensorType, ...] | None]

BOUNDS: dict[str, Rule] = {}
"""Type of an op -> a function of the op, of the types of its operands with their largest sizes, and of those declared
for its results, that returns the types of the results with their largest sizes, or None if there are none.
"""


bounds = registering(BOUNDS)
"""Decorator: the function tells the largest sizes of the results of the ops of these types."""


OfArray = Callable[[Op, Mapping[str, Type]], Type | None]

OF_ARRAYS: dict[str, OfArray] = {}
"""Type of an op -> a function of the op, if it takes or makes a tensor array, and of the types of its operands with
their largest sizes, that returns the type of its result with its largest sizes, or None if there are none.
"""


of_arrays = registering(OF_ARRAYS)
"""Decorator: the function tells the largest sizes of the results of the ops of these types on tensor arrays."""


Nest = Callable[[Op, Mapping[str, Type], Expected | None, Known], dict[str, Type]]

NESTED: dict[str, Nest] = {}
"""Type of an op with inner blocks -> a function of the op, of the types of its operands with their largest sizes, and
of what is expected and known, that returns those of its results that have largest sizes.
"""


nests = registering(NESTED)
"""Decorator: the function tells the largest sizes of the results of ops of these types."""


def tensor(type: TensorType | None) -> TensorType:
    """The type of an operand that is there."""
    assert type is not None
    return type


@bounds("active_rows", "nonzero", "unique_positions", "unpadded_positions")
def _found(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    """Positions of some elements of an array."""
    elements = tensor(given[1]).shape[:2] if op.type == "unpadded_positions" else tensor(given[0]).shape
    if 0 in elements:
        return None
    most = in_blocks(math.prod(elements))
    where = TensorType((most, len(elements)) if op.type == "nonzero" else (most,), "int64")
    return (where, TensorType(elements, "int64"), where) if op.type == "unique_positions" else (where,)


@bounds("split_by_mask")
def _parts(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    whole = tensor(given[0])
    part = TensorType((in_blocks(whole.shape[0]), *whole.shape[1:]), whole.dtype)
    return (part, part) if whole.shape[0] else None


@bounds("dynamic_slice")
def _slice(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    """Along each axis at most the whole axis, where only the run tells the size."""
    whole, out = tensor(given[0]), declared[0]
    if not isinstance(out, TensorType) or 0 in whole.shape or 0 in out.shape:
        return None
    sizes = zip(out.shape, whole.shape, strict=True)
    return (TensorType(tuple(in_blocks(n) if m == -1 else m for m, n in sizes), whole.dtype),)


@bounds("dynamic_slice_into")
def _into(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    return (TensorType(tensor(given[1]).shape, tensor(given[0]).dtype),)
