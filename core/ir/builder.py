"""Write blocks in Python: functions of symbols add ops to a block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from core.ir.derived import derived
from core.ir.errors import CoreError, Location, ProgramError
from core.ir.generated import numbered
from core.ir.precision import can_widen, is_half, rounds_often
from core.ir.program import HOLE, Block, Op, StackType, TensorType, Type
from core.ir.registry import OpSpec, as_tuple, lookup
from core.ir.stop import poll

__all__ = [
    "BlockBuilder",
    "Cotangent",
    "SparseRows",
    "Value",
    "arrays_of",
    "expansion",
    "in_float32_if_better",
    "narrowed",
    "output_types",
    "widened",
]


@dataclass(slots=True, eq=False)
class Value:
    """A symbol: a variable of a block under construction. Arithmetic on it emits ops; a Python number is a constant."""

    name: str
    type: Any
    builder: BlockBuilder

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    def __add__(self, other: Value | float) -> Value:
        return self._binary("add", other) if isinstance(other, Value) else self._affine(1.0, other)

    def __sub__(self, other: Value | float) -> Value:
        return self._binary("sub", other) if isinstance(other, Value) else self._affine(1.0, -other)

    def __mul__(self, other: Value | float) -> Value:
        return self._binary("mul", other) if isinstance(other, Value) else self._affine(other, 0.0)

    def __truediv__(self, other: Value | float) -> Value:
        if isinstance(other, Value):
            return self._binary("div", other)
        inverse = 1.0 / other if other else math.inf
        if math.isinf(inverse):  # a product with it would be infinite where the quotient is not
            return self._binary("div", self.builder.constant(other, self.dtype))
        return self._affine(inverse, 0.0)

    def __radd__(self, other: float) -> Value:
        return self._affine(1.0, other)

    def __rsub__(self, other: float) -> Value:
        return self._affine(-1.0, other)

    def __rmul__(self, other: float) -> Value:
        return self._affine(other, 0.0)

    def __rtruediv__(self, other: float) -> Value:
        return self.builder.constant(other, self.dtype)._binary("div", self)

    def __neg__(self) -> Value:
        return self.builder.emit("neg", self)

    def _binary(self, op: str, other: Value) -> Value:
        return self.builder.emit(op, self, other)

    def _affine(self, scale: float, bias: float) -> Value:
        return self.builder.emit("scale", self, scale=float(scale), bias=float(bias))


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """A row-sparse cotangent of a table: the nonzero rows only.

    rows:   int64 [n], row numbers, ascending and distinct.
    values: [n, *row], the values of these rows.
    """

    rows: Value
    values: Value


Cotangent = Value | SparseRows


def arrays_of(ct: Cotangent) -> tuple[Value, ...]:
    """The arrays of a cotangent: one if it is dense; row numbers and values if it is row-sparse."""
    return (ct.rows, ct.values) if isinstance(ct, SparseRows) else (ct,)


class BlockBuilder:
    """Collect ops in order and infer the types of their outputs."""

    def __init__(self) -> None:
        self.params: list[str] = []
        self.ops: list[Op] = []
        self.types: dict[str, Type] = {}
        self.stopped: set[str] = set()
        self.location: Location | None = None
        self._counter = 0
        self._numbers: dict[str, int] = {}

    @classmethod
    def like(cls, block: Block) -> BlockBuilder:
        """A builder that starts with the parameters and ops of `block`, names unchanged."""
        b = cls()
        b.params.extend(block.params)
        b.ops.extend(block.ops)
        b.types.update(block.types)
        b.stopped.update(block.stopped)
        return b

    def param(self, type: Type, name: str | None = None) -> Value:
        name = self.fresh("p") if name is None else name
        self.types[name] = type
        self.params.append(name)
        return Value(name, type, self)

    def emit(self, type: str, *inputs: Value | None, **attrs: Any) -> Any:
        """Add an op. Return its output, or a tuple if it has several outputs."""
        op = self.typed(self.make(type, *inputs, **attrs))
        self.ops.append(op)
        outputs = op.outputs
        if len(outputs) == 1:
            return Value(outputs[0], self.types[outputs[0]], self)
        return tuple([Value(name, self.types[name], self) for name in outputs])

    def make(self, type: str, *inputs: Value | None, **attrs: Any) -> Op:
        """An op with unnamed outputs, not added to the block."""
        spec = lookup(type)
        names = tuple([HOLE if v is None else v.name for v in inputs])
        if len(names) < len(spec.inputs):
            names += tuple([HOLE for slot in spec.inputs[len(names) :] if slot.optional])
        return Op(type, names, (), spec.complete(attrs), self.location)

    def append(self, op: Op) -> tuple[Value, ...]:
        """Add `op` and name its outputs if they have no names. Raises ProgramError if the types do not fit."""
        op = self.typed(op)
        self.ops.append(op)
        return tuple([Value(name, self.types[name], self) for name in op.outputs])

    def typed(self, op: Op) -> Op:
        """`op` with named outputs. Record their types in the builder, but do not add the op."""
        poll()
        types = self.types
        with_holes = tuple([None if name == HOLE else types[name] for name in op.inputs])
        try:
            inferred = output_types(lookup(op.type), with_holes, op.attrs)
        except ProgramError as error:
            raise error.at(op.location) from None
        if not op.outputs:
            outputs = tuple([self.fresh(op.type) for _ in inferred])
            op = Op(op.type, op.inputs, outputs, op.attrs, op.location)
        types.update(zip(op.outputs, inferred, strict=True))
        return op

    def constant(self, value: float | bool | int, dtype: str, shape: tuple[int, ...] = ()) -> Value:
        """A constant array of a static shape."""
        return self.emit("fill_constant", shape=shape, value=float(value), dtype=dtype)

    def zeros_like(self, value: Value) -> Value:
        return self.emit("fill_zeros_like", value)

    def value(self, name: str) -> Value:
        return Value(name, self.types[name], self)

    def inline(self, block: Block, operands: Iterable[Value | None]) -> tuple[Value, ...]:
        """Add the ops of `block` under fresh names, with `operands` for its parameters. Return its results."""
        env: dict[str, str] = {HOLE: HOLE}
        env.update((p, v.name) for p, v in zip(block.params, operands, strict=True) if v is not None)
        has_types = all(self.types[env[p]] == block.types[p] for p in block.params if p in env)
        for each in block.ops:
            inputs = tuple([env[n] for n in each.inputs])
            outputs: tuple[str, ...] = ()
            if has_types:  # then results have the types that they have in `block`
                poll()
                outputs = tuple([self.fresh(each.type) for _ in each.outputs])
                self.types.update(zip(outputs, [block.types[n] for n in each.outputs], strict=True))
            op = Op(each.type, inputs, outputs, each.attrs, self.location or each.location)
            if not has_types:
                op = self.typed(op)
            self.ops.append(op)
            env.update(zip(each.outputs, op.outputs, strict=True))
            self.stopped.update([env[n] for n in each.outputs if n in block.stopped])
        return tuple(self.value(env[n]) for n in block.results)

    def build(self, results: Iterable[Value | str]) -> Block:
        names = tuple(r if isinstance(r, str) else r.name for r in results)
        return Block(tuple(self.params), tuple(self.ops), names, dict(self.types), frozenset(self.stopped))

    @contextmanager
    def at(self, location: Location | None) -> Iterator[None]:
        """Give `location` to the ops emitted and the errors raised inside the `with` statement."""
        outer, self.location = self.location, location
        try:
            yield
        except CoreError as error:
            error.at(location)
            raise
        finally:
            self.location = outer

    def fresh(self, hint: str) -> str:
        """An unused name. It contains an @, which client names cannot. The caller must set its type."""
        while True:
            self._counter += 1
            name = f"{hint}@{self._counter}"
            if name not in self.types:
                return name

    def free(self, name: str) -> str:
        """`name` or, if the block has it, ``name@1``, ``name@2`` and so on. No two calls give the same name."""
        return numbered(name, self.types, self._numbers)


def output_types(spec: OpSpec, inputs: tuple[Type | None, ...], attrs: Mapping[str, Any]) -> tuple[Type, ...]:
    """The output types of an op.

    inputs: None for an empty optional slot.
    Raises ProgramError if the number, shapes or dtypes of the inputs do not fit.
    """
    if spec.kind == "control":
        assert spec.infer_rule is not None
        return as_tuple(spec.infer_rule(*inputs, **attrs))
    return derived("types", spec, inputs, attrs, lambda: _infer(spec, inputs, attrs))


def expansion(spec: OpSpec, inputs: tuple[Type | None, ...], attrs: Mapping[str, Any]) -> Block:
    """The block of other ops that replaces a composite. core.ir.precision has the treatment of 16-bit floats."""

    def derive() -> Block:
        return in_float32_if_better(lambda *x: as_tuple(spec.body(*x, **attrs)), inputs)

    return derived("expansion", spec, inputs, attrs, derive)


def in_float32_if_better(body: Callable[..., Sequence[Value]], inputs: Sequence[Type | None]) -> Block:
    """The block that `body` writes for operands of the types `inputs` (None for an empty optional slot).

    Cast 16-bit operands to float32, and the results back, if the block would round a 16-bit value more than once.
    """
    block = _written(body, inputs)
    if can_widen(inputs) and rounds_often(block):
        wide = lambda *x: [narrowed(r, t) for r, t in zip(body(*map(widened, x)), block.result_types, strict=True)]
        block = _written(wide, inputs)
    return block


def _written(body: Callable[..., Sequence[Value]], inputs: Sequence[Type | None]) -> Block:
    b = BlockBuilder()
    operands = [b.param(TensorType((), "bool") if t is None else t) for t in inputs]
    return b.build(body(*(None if t is None else v for t, v in zip(inputs, operands, strict=True))))


def widened(value: Any) -> Any:
    """`value` cast to float32 if it is an array of 16-bit floats; other values unchanged."""
    return value.builder.emit("cast", value, dtype="float32") if value is not None and is_half(value.type) else value


def narrowed(value: Value, type: Type) -> Value:
    """`value` cast back to the dtype of `type`, the inverse of `widened`."""
    if value.type == type or not isinstance(type, TensorType):
        return value
    return value.builder.emit("cast", value, dtype=type.dtype)


def _infer(spec: OpSpec, inputs: tuple[Type | None, ...], attrs: Mapping[str, Any]) -> tuple[Type, ...]:
    _check_count(spec, inputs)
    for slot, each in zip(spec.inputs, inputs, strict=False):
        if each is not None and not isinstance(each, TensorType) and not spec.stacks:
            raise ProgramError(f"{spec.name} takes arrays, but {slot.name} is a {each}", "type_mismatch")
    if spec.infer_rule is not None:
        found = as_tuple(spec.infer_rule(*inputs, **attrs))
        for each in found:
            _check_size(spec, each)
        return found
    assert spec.kind == "composite", f"{spec.name} has neither an infer rule nor a composite body"
    return expansion(spec, inputs, attrs).result_types


MOST_AXES, MOST_ELEMENTS = 64, 2**58
"""Limits of NumPy's arrays. An axis of size 0 counts as 1, because strides are computed from all other sizes."""


def _check_size(spec: OpSpec, type: Type) -> None:
    """Raises ProgramError (limit_exceeded) for a result that no array can hold."""
    while isinstance(type, StackType):
        type = type.element
    if len(type.shape) > MOST_AXES:
        raise ProgramError(
            f"a result of {spec.name} has {len(type.shape)} axes, more than {MOST_AXES}", "limit_exceeded"
        )
    if math.prod(max(n, 1) for n in type.shape) > MOST_ELEMENTS:
        raise ProgramError(f"the result {type} of {spec.name} is larger than any array", "limit_exceeded")


def _check_count(spec: OpSpec, inputs: tuple[Type | None, ...]) -> None:
    variadic = bool(spec.inputs) and spec.inputs[-1].variadic
    fixed = spec.inputs[:-1] if variadic else spec.inputs
    if len(inputs) < len(fixed) or (len(inputs) > len(fixed) and not variadic):
        raise ProgramError(f"{spec.name} takes {len(fixed)} inputs, got {len(inputs)}", "bad_slot")
    for slot, each in zip(fixed, inputs, strict=False):
        if each is None and not slot.optional:
            raise ProgramError(f"{spec.name} needs the input {slot.name!r}", "bad_slot")
