"""The handler of conversion processes, which run `service.worker.main`. They keep no state."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from core.ir.errors import CoreError, InternalError, InvalidProgram, Problem, ProgramError
from core.onnx import ImportedModel, Loss, read_model
from service.models.value_file import write_values
from service.store.program_text import ProgramText
from service.worker.state import Handler, WorkerState

__all__ = ["HANDLERS"]

log = logging.getLogger("backpass.models")


def onnx(
    state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a model. args: path of the protobuf, values: path of the file to write, loss: members of a `Loss` or None,
    trainable: initializers to train or None.

    The result has inputs, outputs and loss, and the id and the values of the program; the tensor `program` is its JSON
    text. Raises ProgramError with all refused nodes; ExecutionError for a model that needs too much memory.
    """
    loss = None if args["loss"] is None else Loss(**args["loss"])
    model = _model(Path(args["path"]).read_bytes(), loss, args["trainable"])
    state.stop.check()
    program = ProgramText.of(model.program)
    result: dict[str, Any] = {"inputs": list(model.inputs), "outputs": list(model.outputs), "loss": model.loss}
    if model.values:
        _check_sizes(state, model.values)
        values = write_values(model.values, Path(args["values"]))
        program = program.with_values(values.sha256)
        result["values"] = [values.sha256, values.size, values.tensors]
    return result | {"id": program.id}, {"program": np.frombuffer(program.text, np.uint8)}


def _model(data: bytes, loss: Loss | None, trainable: list[str] | None) -> ImportedModel:
    """The model as a program. A defect of a converter is logged, and answered as a model that cannot be read."""
    try:
        return read_model(data, loss=loss, parameters=trainable)
    except (CoreError, InternalError, MemoryError):
        raise
    except Exception as error:
        log.exception("an ONNX model cannot be read")
        text = f"the model cannot be read ({type(error).__name__}); the log of the service has the details"
        raise ProgramError(text, "unreadable_model") from error


def _check_sizes(state: WorkerState, values: dict[str, np.ndarray]) -> None:
    """Raises InvalidProgram with all values that are larger than tensors may be."""
    rank, most = state.settings["tensor_rank"], state.settings["tensor_bytes"]
    problems = []
    for name, array in values.items():
        if array.ndim > rank:
            problems.append(Problem("limit_exceeded", f"initializer {name!r} has rank {array.ndim}, above {rank}"))
        elif array.nbytes > most:
            problems.append(Problem("limit_exceeded", f"initializer {name!r} has {array.nbytes} bytes, above {most}"))
    if problems:
        raise InvalidProgram(problems)


HANDLERS: dict[str, Handler] = {"onnx": onnx}
