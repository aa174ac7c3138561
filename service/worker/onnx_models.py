"""Handlers that write programs, backward passes and trained models as ONNX models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from core.compiler.compile import append_backward, gradients
from core.ir import Program
from core.ir.errors import ProgramError
from service.worker.program_cache import cached_program
from service.worker.programs import CachedProgram
from service.worker.running import check_answer_size, query_from
from service.worker.session import session_of
from service.worker.state import Answer, WorkerState
from service.worker.stored_values import viewed

__all__ = ["backward_model", "program_model", "session_model"]

Tensors = dict[str, np.ndarray]


def program_model(state: WorkerState, args: dict[str, Any], tensors: Tensors) -> Answer:
    """The program as a model, with its initial values. The tensor `onnx` is the protobuf.

    args: program_id, document?, outputs: names or None, for_test, opset, values?: the file of initial values.
    """
    cached = _tested(cached_program(state, args), args)
    values = viewed(state, cached.program, args, {})
    return _in_thread(state, cached, args, lambda: _written(cached.program, args["outputs"], args["opset"], values))


def backward_model(state: WorkerState, args: dict[str, Any], tensors: Tensors) -> Answer:
    """The backward pass as a model: from feeds, parameters and states to the loss or targets, and the gradients.

    args: program_id, document?, query: the members of a GradientQuery, opset.
    """
    cached = cached_program(state, args)
    query = query_from(args["query"])
    if any(query.target_gradients):
        raise ProgramError("a program without values cannot take target gradients", "bad_query")

    def write() -> Answer:
        if query.loss is not None:
            found = append_backward(cached.program, query.loss, query.parameter_list, query)
        else:
            found = gradients(cached.program, query.targets, query.inputs, None, query)
        targets = query.targets if query.loss is None else (query.loss,)
        return _written(found.program, [*targets, *found.gradients.values()], args["opset"], {})

    return _in_thread(state, cached, args, write)


def session_model(state: WorkerState, args: dict[str, Any], tensors: Tensors) -> Answer:
    """The program of a session as a model with its parameters and states.

    args: id, outputs: names or None, for_test, opset.
    """
    session = session_of(state, args)
    cached = _tested(session.cached, args)
    values = {name: _on_host(value) for name, value in (session.parameters | session.states).items()}
    check_answer_size(state, values)
    result, arrays = _written(cached.program, args["outputs"], args["opset"], values)
    check_answer_size(state, arrays)
    return {**session.about(), **result}, arrays


def _tested(cached: CachedProgram, args: Mapping[str, Any]) -> CachedProgram:
    return cached.for_test() if args["for_test"] else cached


def _on_host(value: Any) -> np.ndarray:
    return value.get() if hasattr(value, "get") else np.asarray(value)


def _written(
    program: Program, outputs: Sequence[str] | None, opset: int | None, values: Mapping[str, np.ndarray]
) -> Answer:
    from core.onnx import write_model  # the package onnx takes a while to load, and most workers never need it
    from core.onnx.writing import NEWEST

    data = write_model(program, values=values, outputs=outputs, opset=NEWEST if opset is None else opset)
    return {}, {"onnx": np.frombuffer(data, np.uint8)}


def _in_thread(
    state: WorkerState, cached: CachedProgram, args: Mapping[str, Any], write: Callable[[], Answer]
) -> Answer:
    """The result of `write`, in a compilation thread unless the program is short."""
    if cached.compilations is None or cached.is_short:
        found = write()
    else:
        more = {name: value for name, value in args.items() if name != "document"}
        key = ("onnx", id(cached), msgspec.json.encode(more, order="sorted"))
        found = cached.compilations.result(key, write)
    check_answer_size(state, found[1])
    return found
