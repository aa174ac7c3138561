"""The worker's cache of programs.

A program arrives as a document together with its id; later calls send the id alone. The cache is bounded by the number
of ops, because the memory of a compiled program grows with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from core.ir.errors import ExecutionError
from service.worker.documents import digest, has_derivatives, is_short, read_program
from service.worker.executables import OwnExecutables
from service.worker.programs import CachedProgram, Machine
from service.worker.state import Answer, Handler, WorkerState

__all__ = ["about_program", "cached_program", "machine_for"]


def cached_program(state: WorkerState, args: Mapping[str, Any]) -> CachedProgram:
    """The program ``args["program_id"]``, read from ``args["document"]`` if the cache does not contain it.

    Without an id, a short program is read from the document and not cached; a long one is cached by its content, so
    that the call that is sent again finds it. Long documents are read in a compilation thread.
    Raises CompilationPending; ExecutionError (program_unknown) if the cache does not contain the program and there is
    no document: the service then sends the call again with the document. Raises ProgramError if the document is not a
    valid program.
    """
    id, document = args.get("program_id"), args.get("document")
    found: CachedProgram | None = state.programs.get(id)
    if found is not None:
        return found
    if document is None:
        raise ExecutionError("this worker does not have the program in its cache", "program_unknown")
    compilations = state.compilations
    if compilations is None or is_short(document):
        program = read_program(state.settings, document)
        if id is None:  # the call sent again would read another object and wait again
            compilations = None
    else:
        if id is None:
            id = digest(document)
            found = state.programs.get(id)
            if found is not None:
                return found
        program = compilations.result(("read", id), lambda: read_program(state.settings, document))
    own = OwnExecutables() if id is None else OwnExecutables(state.executables)
    capacity = None if state.memory is None else state.memory.capacity
    cached = CachedProgram(program, machine_for(state), compilations, state.note_compilation, own, capacity=capacity)
    cached.largest = state.settings.get("tensor_bytes")
    if has_derivatives(document):
        cached.in_test = lambda: read_program(state.settings, document, for_test=True)
    if id is not None:
        state.programs.put(id, cached)
    return cached


def about_program(examine: Callable[[CachedProgram, dict[str, Any]], Answer]) -> Handler:
    """The handler that calls `examine` with the program of a call, in a compilation thread unless that is short.

    examine: a pure function of the program and of the other arguments of the call.
    """

    def handler(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
        cached = cached_program(state, args)
        if cached.compilations is None or cached.is_short:
            return examine(cached, args)
        more = {name: value for name, value in args.items() if name != "document"}
        key = (examine.__name__, id(cached), msgspec.json.encode(more, order="sorted"))
        return cached.compilations.result(key, lambda: examine(cached, args))  # type: ignore[no-any-return]

    return handler


def machine_for(state: WorkerState) -> Machine:
    """Whether this worker compiles programs to machine code: "auto" decides for each program."""
    if state.device == "cuda" and state.gpu is None:
        return "never"
    return state.settings.get("compile", "never")  # type: ignore[no-any-return]
