"""The protobuf of a model: parsed, completed with external data, and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import AttributeProto, ModelProto, TensorProto

from core.ir.errors import ProgramError
from core.onnx.reading.order import sort_nodes
from core.onnx.reading.subgraphs import subgraphs

__all__ = ["NEWEST", "OLDEST", "embedded", "parse"]

OLDEST = 6
"""The oldest opset of the default domain that is read."""

NEWEST = onnx.defs.onnx_opset_version()
"""The newest opset that is read: that of the installed onnx package."""


def parse(data: bytes, files: Mapping[str, bytes]) -> ModelProto:
    """The checked model. files: external data, by the location that the tensors name.

    Raises ProgramError: malformed_model.
    """
    model, changed = _whole(data, files)
    for output in model.graph.output:
        if output.type.HasField("tensor_type") and not output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.shape.SetInParent()  # the checker wants one; the reader infers the type itself
            changed = True
    wrong = _mistake(model if changed else bytes(data))  # a model is written as bytes again to be checked
    if "topologically sorted" in wrong:
        sort_nodes(model)
        wrong = _mistake(model)
    if wrong:
        raise ProgramError(f"the model is not valid: {wrong}", "malformed_model")
    return model


def _mistake(model: ModelProto | bytes) -> str:
    """The first mistake that the checker finds, or nothing."""
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, DecodeError, ValueError, RuntimeError) as error:
        return _first_line(error)
    return ""


def embedded(data: bytes, files: Mapping[str, bytes], limit: int = 2**31) -> bytes:
    """The model with its external data inside, not checked. files: as of `parse`. limit: of the result in bytes; one
    protobuf has less than 2 GiB.

    Raises ProgramError: malformed_model.
    """
    model, changed = _whole(data, files, limit)
    if not changed:
        return data
    try:
        return model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ProgramError(f"the model cannot be one file: {_first_line(error)}", "malformed_model") from None


def _whole(data: bytes, files: Mapping[str, bytes], limit: int | None = None) -> tuple[ModelProto, bool]:
    """The model with its external data, of which many tensors may name the same bytes; whether it had some."""
    model, size, changed = ModelProto(), len(data), False
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ProgramError(f"this is not an ONNX model: {error}", "malformed_model") from None
    if not model.HasField("graph"):
        raise ProgramError("this is not an ONNX model: it has no graph", "malformed_model")
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            _load(tensor, files)
            changed = True
            size += len(tensor.raw_data)
            if limit is not None and size > limit:
                raise ProgramError(f"the tensors of the model have more than {limit} bytes", "malformed_model")
    return model, changed


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    functions = [node for function in model.functions for node in function.node]
    graphs = [model.graph, *subgraphs(iter(model.graph.node)), *subgraphs(iter(functions))]
    for graph in graphs:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for nodes in [functions, *(graph.node for graph in graphs)]:
        for node in nodes:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    yield attribute.t
                yield from attribute.tensors


def _load(tensor: TensorProto, files: Mapping[str, bytes]) -> None:
    """Copy the external data of `tensor` into it."""
    place = {entry.key: entry.value for entry in tensor.external_data}
    location = place.get("location", "")
    if location not in files:
        raise ProgramError(
            f"tensor {tensor.name!r} has its data in the file {location!r}, which was not given", "malformed_model"
        )
    held = files[location]
    try:
        offset = int(place.get("offset", 0))
        length = int(place.get("length", len(held) - offset))
    except ValueError:
        raise ProgramError(f"tensor {tensor.name!r}: offset and length must be numbers", "malformed_model") from None
    if offset < 0 or length < 0 or offset + length > len(held):
        raise ProgramError(
            f"tensor {tensor.name!r} needs bytes {offset} to {offset + length} of {location!r}, "
            f"which has {len(held)} bytes",
            "malformed_model",
        )
    tensor.raw_data = held[offset : offset + length]
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.DEFAULT


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
