"""One graph under construction: its nodes, names and constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from core.ir import TensorType
from core.onnx.writing.dtypes import ELEM, numpy_dtype

__all__ = ["Graph", "Model", "Tensor", "fill", "tensor_proto", "value_info"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of a graph. shape: sizes, with -1 for an open one, or None if the rank is not tracked."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None = None

    @property
    def rank(self) -> int:
        assert self.shape is not None, f"the rank of {self.name} is not tracked"
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype

    @property
    def is_static(self) -> bool:
        return self.shape is not None and -1 not in self.shape

    @property
    def is_half(self) -> bool:
        return self.dtype in ("float16", "bfloat16")

    @property
    def type(self) -> TensorType:
        assert self.shape is not None
        return TensorType(self.shape, self.dtype)


class Model:
    """The names of a model, and the initialisers of its main graph, which inner graphs read too.

    initializers: constants. weights: (name, dtype, array) of values that the caller names.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.initializers: list[TensorProto] = []
        self.weights: list[tuple[str, str, np.ndarray]] = []
        self._names: set[str] = set()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Tensor] = {}
        self._counters: dict[str, int] = {}
        self.known: dict[str, np.ndarray] = {}

    def claim(self, name: str) -> bool:
        """Take `name`, if no value has it yet."""
        if not name or name in self._names:
            return False
        self._names.add(name)
        return True

    def fresh(self, hint: str) -> str:
        """An unused name that begins with `hint`."""
        while True:
            count = self._counters[hint] = self._counters.get(hint, 0) + 1
            name = f"{hint}.{count}"
            if self.claim(name):
                return name

    def weight(self, value: np.ndarray, dtype: str, name: str) -> Tensor:
        """An initialiser of the main graph under this name, which is claimed already."""
        self.weights.append((name, dtype, value))
        return Tensor(name, dtype, tuple(value.shape))

    def constant(self, value: np.ndarray, dtype: str) -> Tensor:
        """An initialiser of the main graph. Equal constants are one initialiser."""
        array = np.ascontiguousarray(value)
        array = array.reshape(value.shape)  # ascontiguousarray gives an array without axes one axis
        key = (dtype, array.shape, array.tobytes())
        if key in self._constants:
            return self._constants[key]
        name = self.fresh("constant")
        self.initializers.append(tensor_proto(array, dtype, name))
        tensor = self._constants[key] = Tensor(name, dtype, tuple(array.shape))
        self.known[name] = array
        return tensor


class Graph:
    """The nodes of one graph, main or inner. depth: the number of graphs around it."""

    def __init__(self, model: Model, outer: Graph | None = None) -> None:
        self.model = model
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.outer = outer
        self.nodes: list[NodeProto] = []
        self.made: set[str] = set()
        self.infos: list[ValueInfoProto] = []

    def add(self, operator: str, inputs: list[str], outputs: list[str], attrs: Mapping[str, Any]) -> None:
        """Append a node. Empty names at the end of `inputs` are left out: onnxruntime fails on them."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        node = helper.make_node(operator, inputs, outputs, name=f"{outputs[0]}/{operator}", **attrs)
        self.nodes.append(node)
        self.made.update(outputs)

    def rename(self, start: int, old: str, new: str) -> None:
        """Give the output `old` of a node from position `start` on the name `new`, wherever these nodes read it."""
        for node in self.nodes[start:]:
            for names in (node.input, node.output):
                for i, each in enumerate(names):
                    if each == old:
                        names[i] = new
            if old in node.name:
                node.name = f"{node.output[0]}/{node.op_type}"
        self.made.discard(old)
        self.made.add(new)

    def proto(self, name: str, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]) -> GraphProto:
        """The graph, without initialisers."""
        return helper.make_graph(self.nodes, name, inputs, outputs, value_info=self.infos)


def value_info(name: str, type: TensorType, sizes: tuple[str | None, ...] | None = None) -> ValueInfoProto:
    """The declaration of a value. sizes: a name for each open size, or None."""
    names = sizes or (None,) * type.rank
    shape = [n if n >= 0 else each for n, each in zip(type.shape, names, strict=True)]
    return helper.make_tensor_value_info(name, ELEM[type.dtype], shape)


def tensor_proto(value: np.ndarray, dtype: str, name: str) -> TensorProto:
    """`value` as an ONNX tensor of `dtype`."""
    tensor = TensorProto()
    fill(tensor, value, dtype, name)
    return tensor


def fill(tensor: TensorProto, value: np.ndarray, dtype: str, name: str) -> None:
    """Write `value` to an empty ONNX tensor, in raw bytes."""
    array = np.asarray(value).astype(numpy_dtype(dtype), copy=False)
    tensor.name, tensor.data_type = name, ELEM[dtype]
    tensor.dims.extend(array.shape)
    tensor.raw_data = array.tobytes() if array.dtype.byteorder != ">" else array.byteswap().tobytes()
