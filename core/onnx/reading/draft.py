"""The program under construction: ops in blocks, and the types and known elements of their results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.cost.duration import seconds_of
from core.ir import Op, StackType, TensorType, Type
from core.ir.attr_values import json_value
from core.ir.builder import output_types
from core.ir.errors import ProgramError
from core.ir.registry import OpSpec, lookup
from core.ir.stop import poll
from core.onnx.reading.arrays import is_trainable_dtype, name_of_array
from core.onnx.reading.cases import fitted, settled
from core.onnx.reading.columns import Samples
from core.onnx.reading.dynamic_sizes import lacks_sizes, sized
from core.onnx.reading.folding import computed
from core.onnx.reading.values import Array, Initial, Label, Origin, Tensor
from core.onnx.reading.worlds import WORLDS, Sample, Sizes
from core.ops.common.types import as_dtype

__all__ = ["Draft", "DraftBlock", "Operand", "Written"]

FOLDED_BYTES = 2**26
"""Most bytes of a result that is computed at import."""
FOLDED_SECONDS = 20.0
"""Most time, as predicted, for all ops of a model that are computed at import."""
SAMPLED = 1024
"""Most elements of a value that is computed for each world."""
IN_PROGRAM = 1000
"""Most elements of a constant that the program spells out; a larger one is a state."""
MOST_OPS = 100_000

Operand = Tensor | Array


@dataclass(slots=True, eq=False)
class Written:
    """An op of the program.

    attrs:   JSON values, in which a `Label` stands for its name and a `DraftBlock` for its index.
    effects: variables of outer blocks that its inner blocks write.
    """

    type: str
    inputs: dict[str, list[Label]]
    outputs: dict[str, list[Label]]
    attrs: dict[str, Any]
    effects: list[Label] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class DraftBlock:
    """The ops of a block. results: the variables that the op of this block reads from it."""

    ops: list[Written] = field(default_factory=list)
    results: list[Label] = field(default_factory=list)


class Draft:
    """Collects ops. `block` is the block that `emit` writes to."""

    def __init__(self) -> None:
        self.sizes = Sizes()
        self.root = DraftBlock()
        self.block = self.root
        self.constants = DraftBlock()
        self.feeds: list[tuple[Label, TensorType]] = []
        self.size_names: list[tuple[str | None, ...]] = []  # of each feed
        self.initials: list[tuple[Label, Initial]] = []
        self.at_end: list[tuple[Tensor, Tensor]] = []
        self._count = 0
        self._seconds = FOLDED_SECONDS
        self._shaped: list[dict[tuple[tuple[int, ...] | None, ...], Tensor]] = [{}]
        self._entered: dict[int, Label] = {}

    @contextmanager
    def inside(self, block: DraftBlock) -> Iterator[None]:
        """Write to `block` inside the `with` statement."""
        outer, self.block = self.block, block
        self._shaped.append({})
        try:
            yield
        finally:
            self.block = outer
            self._shaped.pop()

    # --- values without an op ----------------------------------------------------------------------------------

    def feed(self, name: str, type: TensorType, names: Sequence[str | None]) -> Tensor:
        """A feed. names: the names of its sizes, None for an open size without one."""
        label = Label(name, wanted=True)
        self.feeds.append((label, type))
        self.size_names.append(tuple(names))
        open_sizes = [
            None if n != -1 else self.sizes.fresh() if name is None else self.sizes.of(name)
            for n, name in zip(type.shape, names, strict=True)
        ]
        if not any(open_sizes):
            return Tensor(type, label)
        shapes = (
            [n if s is None else s[w] for n, s in zip(type.shape, open_sizes, strict=True)] for w in range(WORLDS)
        )
        fed = Tensor(type, label, samples=tuple(Sample(TensorType(tuple(shape), type.dtype)) for shape in shapes))
        self._remember(fed)
        return fed

    def constant(self, array: np.ndarray, name: str | None = None) -> Tensor:
        """A constant. It enters the program if an op reads it."""
        hint = None if name is None else Label(name, wanted=True)
        return Tensor(TensorType(array.shape, name_of_array(array)), hint, value=array)

    def initial(self, initial: Initial) -> Tensor:
        """A parameter or state. It enters the program if an op reads it."""
        type = TensorType(initial.array.shape, name_of_array(initial.array))
        return Tensor(type, Label(initial.name, wanted=True), initial=initial)

    def array(self, type: TensorType, hint: str) -> Array:
        """An empty tensor array."""
        label = Label(hint)
        attrs = {"shape": [max(n, -1) for n in type.shape], "dtype": type.dtype}
        self.block.ops.append(Written("create_array", {}, {"out": [label]}, attrs))
        return Array(StackType(type), label)

    def use(self, operand: Operand) -> Label:
        """The variable of `operand`. A constant, parameter or state enters the program here."""
        if operand.label is None:
            operand.label = Label("constant")
        label = operand.label
        if isinstance(operand, Tensor) and id(label) not in self._entered:
            if operand.initial is not None:
                self._entered[id(label)] = label
                self.initials.append((label, operand.initial))
            elif operand.value is not None:
                self._entered[id(label)] = label
                self._write_constant(label, operand.value)
        return label

    def entered(self, tensor: Tensor) -> bool:
        """Whether the program has a variable for this constant, parameter or state."""
        return id(tensor.label) in self._entered

    # --- ops ---------------------------------------------------------------------------------------------------

    def emit(self, type: str, inputs: Sequence[Operand | None], attrs: Mapping[str, Any]) -> tuple[Operand, ...]:
        """Add an op, or compute it if all its operands are known. Raises ProgramError if the operands do not fit."""
        poll()
        spec = lookup(type)
        complete = spec.complete(attrs)
        padded = [*inputs, *[None] * (len([s for s in spec.inputs if not s.variadic]) - len(inputs))]
        types = [None if each is None else each.type for each in padded]
        found = output_types(spec, tuple(types), complete)
        known = _known(spec, padded)
        if known is not None and self._affords(spec, complete, types, found):
            results = computed(spec, types, known, complete)
            if results is not None:
                return tuple(
                    Tensor(TensorType(r.shape, t.dtype), value=r)  # type: ignore[union-attr]
                    for r, t in zip(results, found, strict=True)
                )
        self._count += 1
        if self._count > MOST_OPS:
            raise ProgramError(f"the model needs more than {MOST_OPS} ops", "limit_exceeded")
        samples = self._samples(spec, padded, complete, found)
        outputs = tuple(self._result(spec.name, t, s) for t, s in zip(found, samples, strict=True))
        if len(outputs) == 1 and isinstance(outputs[0], Tensor):
            outputs[0].origin = Origin(spec.name, tuple(inputs), attrs)
        labels = [self._label(each) for each in outputs]
        slots = (
            {spec.outputs[0]: labels}
            if spec.variadic_outputs
            else {slot: [label] for slot, label in zip(spec.outputs, labels, strict=True)}
        )
        given = {k: json_value(complete[k]) for k in attrs}
        self.block.ops.append(Written(spec.name, self.slots(spec, padded), slots, given))
        return outputs

    def _affords(
        self, spec: OpSpec, attrs: Mapping[str, Any], types: Sequence[Type | None], found: Sequence[Type]
    ) -> bool:
        """Whether an op on known arrays is computed here. Otherwise the program computes it in each run."""
        if any(_bytes(t) > FOLDED_BYTES for t in found):
            return False
        seconds = seconds_of(Op(spec.name, (), (), attrs), types, found)
        self._seconds -= 0.0 if seconds is None else seconds
        return self._seconds > 0

    def slots(self, spec: OpSpec, inputs: Sequence[Operand | None]) -> dict[str, list[Label]]:
        """The input slots of an op."""
        found: dict[str, list[Label]] = {}
        for i, slot in enumerate(spec.inputs):
            if slot.variadic:
                found[slot.name] = [self.use(each) for each in inputs[i:] if each is not None]
            elif (each := inputs[i]) is not None:
                found[slot.name] = [self.use(each)]
        return found

    def assign(self, source: Operand, label: Label) -> None:
        """Write `source` to the variable `label`."""
        self.block.ops.append(Written("assign", {"x": [self.use(source)]}, {"out": [label]}, {}))

    def open(self, type: TensorType, label: Label) -> Tensor:
        """A value of `type` that an inner block or a loop gives: its open sizes have samples of their own."""
        return self._sampled(Tensor(type, label), [None] * WORLDS)

    def size_name(self, tensor: Tensor, axis: int) -> str | None:
        """The name of an open size, if all worlds agree that it is one of the model's."""
        if tensor.shape[axis] != -1 or not tensor.samples:
            return None
        return self.sizes.name_of([None if s is None else s.type.shape[axis] for s in tensor.samples])

    def shaped(self, shapes: Sequence[tuple[int, ...] | None]) -> Tensor | None:
        """A tensor that is visible here and has this shape in each world; None stands for an impossible world."""
        return next((found for each in reversed(self._shaped) if (found := each.get(tuple(shapes)))), None)

    def _remember(self, tensor: Tensor) -> None:
        """Let `shaped` find a tensor with two open sizes or more, which no static reshape can make."""
        shapes = tuple(None if s is None else s.type.shape for s in tensor.samples)
        if tensor.type.shape.count(-1) > 1 and len(shapes) - shapes.count(None) > 1:
            self._shaped[-1].setdefault(shapes, tensor)

    # --- results -----------------------------------------------------------------------------------------------

    def _result(self, hint: str, type: Type, samples: Sequence[Sample | None]) -> Operand:
        if isinstance(type, StackType):
            return Array(type, Label(hint))
        return self._sampled(Tensor(type, Label(hint)), samples)

    def _sampled(self, tensor: Tensor, samples: Sequence[Sample | None]) -> Tensor:
        """`tensor` with samples. An open size that a sample does not know gets a sample of its own."""
        if tensor.type.is_static and all(s is None or s.value is None for s in samples):
            return tensor
        if all(s is None for s in samples):
            samples = [Sample(tensor.type)] * WORLDS
        rank = tensor.rank
        unknown = [any(s is not None and s.type.shape[i] == -1 for s in samples) for i in range(rank)]
        fresh = [self.sizes.fresh() if each else () for each in unknown]
        filled: list[Sample | None] = []
        for w, s in enumerate(samples):
            if s is not None and any(unknown):
                shape = tuple(fresh[i][w] if n == -1 else n for i, n in enumerate(s.type.shape))
                s = Sample(TensorType(shape, s.type.dtype), s.value)
            filled.append(s)
        tensor.samples = tuple(filled)
        self._remember(tensor)
        return tensor

    def _samples(
        self, spec: OpSpec, inputs: Sequence[Operand | None], attrs: Mapping[str, Any], found: Sequence[Type]
    ) -> list[list[Sample | None]]:
        """For each result its sample in each world."""
        if not any(isinstance(each, Tensor) and each.samples for each in inputs):
            return [[None] * WORLDS for _ in found]
        operands = [_samples_of(each) if isinstance(each, Tensor) else None for each in inputs]
        worlds = [self._in_world(w, spec, inputs, operands, attrs) for w in range(WORLDS)]
        if all(world is None for world in worlds) and (others := fitted(self.sizes, operands)) is not None:
            operands = others
            worlds = [self._in_world(w, spec, inputs, operands, attrs) for w in range(WORLDS)]
        return settled(self.sizes, spec.name, attrs, operands, found, worlds)

    @staticmethod
    def _in_world(
        w: int,
        spec: OpSpec,
        inputs: Sequence[Operand | None],
        operands: Sequence[Samples | None],
        attrs: Mapping[str, Any],
    ) -> list[Sample | None] | None:
        types: list[Type | None] = []
        values: list[np.ndarray | None] = []
        for each, samples in zip(inputs, operands, strict=True):
            sample = None if samples is None else samples[w]
            if samples is not None and sample is None:
                return None
            types.append(each.type if isinstance(each, Array) else None if sample is None else sample.type)
            values.append(None if sample is None else sample.value)
        try:
            found = list(output_types(spec, tuple(types), attrs))
        except ProgramError:
            return None
        if spec.name.startswith("dynamic_") and isinstance(found[0], TensorType):
            shape = sized(spec.name, types, values, attrs)
            if shape is not None:
                found[0] = TensorType(shape, found[0].dtype)
            elif not lacks_sizes(spec.name, values):
                return None
        known = all(v is not None for v, each in zip(values, inputs, strict=True) if each is not None)
        small = all(isinstance(t, TensorType) and -1 not in t.shape and math.prod(t.shape) <= SAMPLED for t in found)
        results: tuple[np.ndarray, ...] | None = None
        if spec.name == "shape" and isinstance(types[0], TensorType) and types[0].is_static:
            results = (np.array(types[0].shape, "int64"),)
        elif known and small and not spec.takes_key and spec.kind != "control":
            results = computed(spec, types, values, attrs)
        return [
            None if not isinstance(t, TensorType) else Sample(t, None if results is None else results[i])
            for i, t in enumerate(found)
        ]

    @staticmethod
    def _label(each: Operand) -> Label:
        assert each.label is not None
        return each.label

    # --- constants ---------------------------------------------------------------------------------------------

    def _write_constant(self, label: Label, array: np.ndarray) -> None:
        """Add the constant to the program: as one number, as a list of numbers, or as a state.

        A float initializer with an axis is a weight that does not train. It is a state, which keeps its name.
        """
        dtype = name_of_array(array)
        if label.wanted and array.ndim > 0 and is_trainable_dtype(dtype):
            self.initials.append((label, Initial(label.hint, array, "state")))
            return
        flat = np.ascontiguousarray(array).reshape(-1)
        bits = flat.view("uint8").reshape(flat.size, -1) if flat.size else flat
        uniform = flat.size > 0 and bool((bits == bits[0]).all())
        listed = flat[:1] if uniform else flat[: IN_PROGRAM + 1]
        numbers = [float(n) for n in listed]
        exact = not any(math.isnan(n) for n in numbers) and (
            array.dtype.kind not in "iu" or all(int(n) == int(m) for n, m in zip(numbers, listed, strict=True))
        )
        infinite = any(math.isinf(n) for n in numbers)
        shape = list(array.shape)
        if uniform and exact:
            attrs = {"shape": shape, "value": json_value(numbers[0]), "dtype": dtype}
            self.constants.ops.append(Written("fill_constant", {}, {"out": [label]}, attrs))
        elif flat.size <= IN_PROGRAM and exact and not infinite:
            attrs = {"values": numbers, "shape": shape, "dtype": dtype}
            self.constants.ops.append(Written("assign_value", {}, {"out": [label]}, attrs))
        else:
            self.initials.append((label, Initial(label.hint, array, "state")))


def _known(spec: OpSpec, inputs: Sequence[Operand | None]) -> list[np.ndarray | None] | None:
    """The elements of all operands, or None if one is not known or the op must run in the program."""
    if spec.takes_key or spec.kind == "control" or spec.reports:
        return None
    values: list[np.ndarray | None] = []
    for each in inputs:
        value = each.value if isinstance(each, Tensor) else None
        if each is not None and value is None:
            return None
        values.append(value)
    return values


def _samples_of(x: Tensor) -> Samples:
    return x.samples or (Sample(x.type, x.value),) * WORLDS


def _bytes(type: Type) -> int:
    if not isinstance(type, TensorType):
        return 2**62
    return math.prod(max(n, 1) for n in type.shape) * as_dtype(type.dtype).itemsize
