"""The node that a converter reads: its inputs as typed values, its attributes, and the ops that it emits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto

from core.ir.errors import ProgramError
from core.onnx.reading.arrays import array_of, dtype_name
from core.onnx.reading.draft import Draft
from core.onnx.reading.elements import elements_of
from core.onnx.reading.values import Array, Env, Tensor, Value
from core.onnx.reading.worlds import WORLDS
from core.ops.common.types import as_dtype

__all__ = ["Node", "Refused"]


class Refused(ProgramError):
    """A node that a program cannot express, with the reason."""

    default_code = "unsupported_node"


class Reader(Protocol):
    """The part of `core.onnx.reading.graph.GraphReader` that nodes use; `graph` imports this file."""

    draft: Draft

    def subgraph(self, graph: GraphProto, env: Env, inputs: Sequence[Value] = ()) -> list[Value]: ...

    def standard_function(self, node: Node) -> Sequence[Value | None]: ...


class Node:
    """One node of the graph.

    inputs: one value for each input of the node, None for an omitted one.
    opset:  the version of the operator set of the node's domain.
    """

    def __init__(self, proto: NodeProto, inputs: Sequence[Value | None], opset: int, reader: Reader, env: Env) -> None:
        self.proto = proto
        self.inputs = list(inputs)
        self.opset = opset
        self._reader = reader
        self._env = env
        self._attributes = {each.name: each for each in proto.attribute}

    @property
    def draft(self) -> Draft:
        return self._reader.draft

    @property
    def op(self) -> str:
        return self.proto.op_type

    def refuse(self, reason: str) -> Refused:
        """The error for this node: ``raise node.refuse("...")``."""
        return Refused(reason)

    # --- inputs ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of inputs, omitted ones included."""
        return len(self.inputs)

    def given(self, position: int) -> bool:
        """Whether the node has this input."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def __getitem__(self, position: int) -> Tensor:
        """An input that must be a tensor."""
        found = self.get(position)
        if found is None:
            raise self.refuse(f"input {position} is missing")
        return found

    def get(self, position: int) -> Tensor | None:
        """An optional input that must be a tensor if it is given."""
        if not self.given(position):
            return None
        found = self.inputs[position]
        if not isinstance(found, Tensor):
            raise self.refuse(f"input {position} must be a tensor")
        return found

    def value(self, position: int) -> Value:
        """An input of any kind: tensor, sequence or optional."""
        if not self.given(position):
            raise self.refuse(f"input {position} is missing")
        found = self.inputs[position]
        assert found is not None
        return found

    def tensors(self, start: int = 0) -> list[Tensor]:
        """All inputs from `start` on; each must be a tensor."""
        return [self[i] for i in range(start, len(self.inputs))]

    def constant(self, position: int) -> np.ndarray:
        """The elements of an input that configures the node. Raises Refused if they are not known at import."""
        found = self[position].known
        if found is None:
            raise self.refuse(
                f"input {position} ({self.proto.input[position]!r}) must be a constant of the model: "
                "a program needs its value before it runs"
            )
        return found

    def ints(self, position: int) -> list[int]:
        """The elements of a constant input of integers, as a list."""
        return [int(n) for n in self.constant(position).reshape(-1)]

    def number(self, position: int, default: float | None = None) -> float:
        """The one element of a constant input, or `default` if the input is omitted."""
        if default is not None and not self.given(position):
            return default
        found = self.constant(position)
        if found.size != 1:
            raise self.refuse(f"input {position} must have one element, not the shape {list(found.shape)}")
        return float(found.reshape(-1)[0])

    def sizes(self, position: int) -> list[int | None]:
        """The elements of an integer input, None for each that depends on an open size or on data.

        Raises Refused if even their number is open.
        """
        found = self[position]
        if found.known is not None:
            return [int(n) for n in found.known.reshape(-1)]
        if found.rank != 1 or found.shape[0] == -1:
            raise self.refuse(f"input {position} must be a vector of known length, not {found.type}")
        known = elements_of(found) or [None] * found.shape[0]
        worlds = [s.value for s in found.samples if s is not None and s.value is not None]
        if len(worlds) < WORLDS:
            return known
        columns = [{int(w[i]) for w in worlds} for i in range(found.shape[0])]
        return [each.pop() if len(each) == 1 else n for each, n in zip(columns, known, strict=True)]

    def known_sizes(self, position: int) -> list[int]:
        """As `sizes`, for a node that needs all elements. Raises Refused if one is not known at import."""
        found = [n for n in self.sizes(position) if n is not None]
        return found if len(found) == self[position].shape[0] else [int(n) for n in self.constant(position).reshape(-1)]

    def planned_sizes(self, position: int) -> list[int | None]:
        """As `sizes`, for a node that can follow open sizes but not data. Raises Refused if the elements are data."""
        found = self.sizes(position)
        if None in found and all(s is None or s.value is None for s in self[position].samples):
            self.constant(position)
        return found

    # --- attributes --------------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether the node has the attribute."""
        return name in self._attributes

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute: a number, a string, or a list of them. Raises Refused if it is missing without a default."""
        if name not in self._attributes:
            if default is None:
                raise self.refuse(f"the attribute {name!r} is missing")
            return default
        found = self._attributes[name]
        if found.ref_attr_name:
            raise self.refuse(f"the attribute {name!r} refers to {found.ref_attr_name!r}, which has no value")
        value = onnx.helper.get_attribute_value(found)
        if found.type == AttributeProto.STRING:
            return value.decode("utf-8", "replace")
        if found.type == AttributeProto.STRINGS:
            return [each.decode("utf-8", "replace") for each in value]
        if found.type == AttributeProto.TENSOR:
            return array_of(value)
        if found.type in (AttributeProto.INTS, AttributeProto.FLOATS):
            return list(value)
        return value

    def optional(self, name: str) -> Any:
        """An attribute, or None if the node does not have it."""
        return self.attr(name) if self.has(name) else None

    def dtype(self, name: str, default: str | None = None) -> str:
        """An attribute that is an element type, as the dtype of a program."""
        if default is not None and not self.has(name):
            return default
        return dtype_name(self.attr(name))

    def graph(self, name: str) -> GraphProto:
        """An attribute that is a graph."""
        found = self.attr(name)
        if not isinstance(found, GraphProto):
            raise self.refuse(f"the attribute {name!r} must be a graph")
        return found

    def axis(self, default: int | None = None, name: str = "axis", rank: int | None = None) -> int:
        """The attribute `axis`, counted from the front of input 0."""
        rank = self[0].rank if rank is None else rank
        axis = int(self.attr(name, default))
        if not -rank <= axis < rank:
            raise self.refuse(f"{name} {axis} is out of range for rank {rank}")
        return axis % rank

    # --- graphs and functions ----------------------------------------------------------------------------------

    def subgraph(self, graph: GraphProto, inputs: Sequence[Value] = ()) -> list[Value]:
        """The outputs of an inner graph, read into the current block; it sees the values around this node.

        inputs: the values of its inputs. Raises AlreadyRefused if a node that an output needs is refused.
        """
        return self._reader.subgraph(graph, self._env, inputs)

    def standard_function(self) -> Sequence[Value | None]:
        """The outputs by the function body that the ONNX standard gives for this operator. Raises Refused."""
        return self._reader.standard_function(self)

    def replaced(self, proto: NodeProto, inputs: Sequence[Value | None], opset: int) -> Node:
        """Another node in the place of this one."""
        return Node(proto, inputs, opset, self._reader, self._env)

    # --- ops ---------------------------------------------------------------------------------------------------

    def emit(self, type: str, *inputs: Tensor | Array | None, **attrs: Any) -> Any:
        """Add an op of the program. Return its result, or a tuple if it has several.

        An op whose operands are all known is computed at once. Raises ProgramError if types or attributes do not fit.
        """
        results = self.draft.emit(type, inputs, attrs)
        return results[0] if len(results) == 1 else results

    def const(self, value: Any, dtype: str) -> Tensor:
        """A constant."""
        return self.draft.constant(np.asarray(value).astype(as_dtype(dtype)))

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """`x` with this dtype."""
        result: Tensor = x if x.dtype == dtype else self.emit("cast", x, dtype=dtype)
        return result

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """`x` with a shape of known sizes, one of which may be -1."""
        result: Tensor = (
            x if x.shape == tuple(shape) and -1 not in shape else self.emit("reshape", x, shape=list(shape))
        )
        return result

    def size(self, x: Tensor, axis: int) -> Tensor:
        """The size of an axis of `x` as a scalar, a constant where it is known."""
        if x.shape[axis] != -1:
            return self.const(x.shape[axis], "int64")
        place = self.const(axis, "int64")
        result: Tensor = self.emit("gather", self.emit("shape", x), place, axis=0)
        return result

    def counted(self, x: Tensor, axis: int) -> Tensor:
        """The position along `axis` of each element of `x`, int64 with the shape of x."""
        if x.type.is_static:
            shape = [n if i == axis else 1 for i, n in enumerate(x.shape)]
            return self.const(np.broadcast_to(np.arange(x.shape[axis]).reshape(shape), x.shape), "int64")
        ones = self.emit("ones_like", self.cast(x, "int64"))
        result: Tensor = self.emit("cumsum", ones, axis=axis, exclusive=True)
        return result
