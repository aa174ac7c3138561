"""The initial values of a registered program, read from their file in a worker."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from core.ir.errors import ExecutionError
from core.ir.lru import LRU
from core.ir.program import Program
from core.ops.common.types import as_dtype
from service.objects import Objects
from service.objects.copies import local_file
from service.objects.tensor_file import CHUNK, DamagedFile, mapped
from service.worker.checkpoint_file import CheckpointFile
from service.worker.given import check_values
from service.worker.state import WorkerState

__all__ = ["check_tensors", "loaded", "unread", "viewed"]

FILES = 64
VALUES = "/values"
"""JSON pointer to the values in the request that registers a program."""

NO_ARGS: Mapping[str, Any] = {}

Arrays = dict[str, np.ndarray]


def viewed(
    state: WorkerState, program: Program, args: Mapping[str, Any], given: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """`given`, and read-only views of the file ``args["values"]`` {key, sha256} for other parameters and states.

    The file is read if there is that argument, and `given` lacks a parameter or state. The digest is checked when this
    worker first maps the file, which stays mapped while it is used.
    Raises InvalidProgram for values that the program cannot have; ExecutionError (values_missing, values_damaged,
    storage_unavailable, canceled, deadline_exceeded).
    """
    asked = args.get("values")
    if asked is None or all(v.name in given for v in (*program.parameters, *program.states)):
        return dict(given)
    if state.values is None:
        state.values = LRU(FILES)
    found: Arrays | None = state.values.get(asked["key"])
    if found is None:
        objects = Objects(state.settings["objects"])
        try:
            with objects.finding():
                path = local_file(objects, asked["key"], Path(state.settings["data_dir"]), state.stop.check)
                _check(state, path, asked["sha256"])
                found, _ = mapped(path)
        except FileNotFoundError:
            raise ExecutionError("the file of the program's values is missing", "values_missing") from None
        except DamagedFile as error:
            raise ExecutionError(f"the file of the program's values is damaged: {error}", "values_damaged") from error
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ExecutionError(f"the program's values cannot be read: {reason}", "storage_unavailable") from error
        state.values.put(asked["key"], found)
    _check_values(program, found)
    return {**found, **given}


def unread(state: WorkerState, program: Program, args: Mapping[str, Any], without: Collection[str]) -> dict[str, int]:
    """Name -> bytes of the values in the file ``args["values"]``, but for those with names in `without`.

    Raises InvalidProgram for values that the program cannot have; ExecutionError as `viewed`.
    """
    asked = args.get("values")
    if asked is None:
        return {}
    entries = CheckpointFile(state, asked["key"], "values").entries
    _check_values(program, {name: Kind(*entry[:2]) for name, entry in entries.items()})
    return {name: end - begin for name, (_, _, begin, end) in entries.items() if name not in without}


def loaded(state: WorkerState, args: Mapping[str, Any], names: Collection[str]) -> Arrays:
    """These values of the file ``args["values"]`` in memory of their own. Raises as `viewed`."""
    asked = args.get("values")
    if asked is None or not names:
        return {}
    return CheckpointFile(state, asked["key"], "values").tensors(asked["sha256"], names)


def check_tensors(program: Program, tensors: Collection[tuple[str, str, list[int]]], args: Mapping[str, Any]) -> None:
    """Check that `tensors` (name, dtype, shape) can be initial values of the program. args: as of `check_values`.

    Raises InvalidProgram with all mistakes (feed_unknown, feed_dtype, feed_shape).
    """
    kinds = {name: Kind(as_dtype(dtype), tuple(shape)) for name, dtype, shape in tensors}
    _check_values(program, kinds, args)


class Kind(NamedTuple):
    """Dtype and shape of an array that is elsewhere."""

    dtype: np.dtype
    shape: tuple[int, ...]


def _check_values(program: Program, values: Mapping[str, Any], args: Mapping[str, Any] = NO_ARGS) -> None:
    check_values(program, values, args, roles={"parameter": VALUES, "state": VALUES})


def _check(state: WorkerState, path: Path, sha256: str) -> None:
    """Raises DamagedFile if the file has another digest."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(CHUNK):
            state.stop.check()
            digest.update(part)
    if digest.hexdigest() != sha256:
        raise DamagedFile("it has another digest")
