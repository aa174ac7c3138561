"""The check of a training job before it starts: whether the columns of its dataset fit the feeds of its session."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.ir import TensorType, Variable
from core.ir.errors import ProgramError, escaped
from core.ir.names import root_array
from core.ir.suggest import near
from core.ops.common.types import as_dtype
from service.worker.columns import fitted, is_lossless, stored
from service.worker.given import Mistakes, check_sizes, leaves_of, outputs_of
from service.worker.session import WorkerSession, session_of
from service.worker.state import Answer, WorkerState

__all__ = ["check_fit"]


USUAL_BATCH = 32


def check_fit(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """The columns of each feed and the size of a batch, as a job will use them.

    args: id; data {key, rows, holdout}; validation {key, rows} or None; feeds {feed: column or [column, ...]};
    batch_size, drop_last: None for the usual; metrics.
    A feed that is not named gets the column of the same name. Raises InvalidProgram with all mistakes.
    """
    session = session_of(state, args)
    mistakes = Mistakes()
    metrics = [name for i, name in enumerate(args["metrics"]) if _is_scalar(session, name, f"/metrics/{i}", mistakes)]
    needed = leaves_of(session.cached.program, outputs_of(session.query, metrics))
    feeds = [v for v in session.cached.program.feeds if v.name in needed]
    _check_names(session, args["feeds"], mistakes)
    if session.query.loss is None:
        mistakes.add("bad_query", "a job needs a session with a loss; this one has targets", "/session_id")
    columns: dict[str, list[str]] = {}
    for feed in feeds:
        found = _columns_of(state, feed, args, mistakes)
        if found is not None:
            columns[feed.name] = found
    if args["validation"] is not None:
        _check_validation(state, feeds, columns, args, mistakes)
    size, drop_last = _batch(feeds, args, mistakes)
    mistakes.raise_if_any()
    held = stored(state).columns(state, args["data"]["key"])
    for each in _sizes(feeds, args, size, drop_last):
        _check_batch(session, feeds, each, columns, held)
    return {**session.about(), "columns": columns, "batch_size": size, "drop_last": drop_last}, {}


def _is_scalar(session: WorkerSession, name: str, pointer: str, mistakes: Mistakes) -> bool:
    """Whether `name` is a variable of one element; adds the mistake otherwise."""
    program = session.cached.program
    try:
        type = program.block.types.get(root_array(program, name))
    except ProgramError:
        type = None
    if not isinstance(type, TensorType):
        mistakes.add("bad_query", f"the program has no variable {name!r}", pointer, near(name, program.block.types))
        return False
    if -1 in type.shape or math.prod(type.shape) != 1:
        mistakes.add("bad_query", f"{name!r} is {type}, but a metric has one element", pointer)
        return False
    return True


def _check_names(session: WorkerSession, given: Mapping[str, Any], mistakes: Mistakes) -> None:
    known = [v.name for v in session.cached.program.feeds]
    for name in given:
        if name not in known:
            message = f"the program has no feed {name!r}"
            mistakes.add("feed_unknown", message, f"/feeds/{escaped(name)}", near(name, known))


def _columns_of(state: WorkerState, feed: Variable, args: Mapping[str, Any], mistakes: Mistakes) -> list[str] | None:
    """The columns of `feed`; None after adding the mistakes."""
    key, pointer = args["data"]["key"], f"/feeds/{escaped(feed.name)}"
    held = stored(state).columns(state, key)
    given = args["feeds"].get(feed.name)
    names = [feed.name] if given is None else [given] if isinstance(given, str) else list(given)
    if given is None and feed.name not in held:
        message = f"no column is given for the feed {feed.name!r} ({feed.type}); the columns are {_listed(held)}"
        mistakes.add("feed_missing", message, pointer, near(feed.name, held))
        return None
    good = True
    for i, name in enumerate(names):
        place = f"{pointer}/{i}" if isinstance(given, list) else pointer
        if name not in held:
            mistakes.add("feed_unknown", f"the dataset has no column {name!r}", place, near(name, held))
            good = False
        elif not is_lossless(state, key, name, as_dtype(feed.type.dtype)):
            mistakes.add("feed_dtype", _lossy(name, held[name], feed), place)
            good = False
    return names if good and _has_shape(feed, names, held, pointer, mistakes) else None


def _lossy(name: str, column: np.ndarray, feed: Variable) -> str:
    return (
        f"the column {name!r} is {column.dtype} and has values that the feed {feed.name!r} ({feed.type.dtype}) cannot "
        f"hold exactly; store the column as {feed.type.dtype}, or declare the feed as {column.dtype}"
    )


def _has_shape(
    feed: Variable, names: Sequence[str], held: Mapping[str, np.ndarray], pointer: str, mistakes: Mistakes
) -> bool:
    assert isinstance(feed.type, TensorType), "feeds are arrays"
    if feed.type.rank == 0:
        mistakes.add("feed_shape", f"the feed {feed.name!r} is {feed.type}: it has no axis of rows", pointer)
        return False
    shapes = [held[name].shape[1:] for name in names]
    if len(names) > 1 and any(shapes):
        message = "several columns become one feed only if each has one number in a row"
        mistakes.add("feed_shape", f"{message}; {_listed(names)} have the shapes {[list(s) for s in shapes]}", pointer)
        return False
    row = shapes[0] if len(names) == 1 else (len(names),)
    if fitted(row, feed.type.shape[1:]) is None:
        message = f"a row of {_listed(names)} has the shape {list(row)}, but the feed {feed.name!r} is {feed.type}"
        mistakes.add("feed_shape", message, pointer)
        return False
    return True


def _check_validation(
    state: WorkerState,
    feeds: Sequence[Variable],
    columns: Mapping[str, list[str]],
    args: Mapping[str, Any],
    mistakes: Mistakes,
) -> None:
    """Add the mistakes of the dataset for validation: it needs the columns of the training."""
    key, pointer = args["validation"]["key"], "/validation/dataset_id"
    held, training = (stored(state).columns(state, each) for each in (key, args["data"]["key"]))
    for feed in feeds:
        for name in columns.get(feed.name, ()):
            if name not in held:
                mistakes.add("feed_unknown", f"the dataset has no column {name!r}", pointer, near(name, held))
            elif held[name].shape[1:] != training[name].shape[1:]:
                shapes = f"{list(held[name].shape[1:])}, and {list(training[name].shape[1:])} in the training data"
                mistakes.add("feed_shape", f"a row of the column {name!r} has the shape {shapes}", pointer)
            elif not is_lossless(state, key, name, as_dtype(feed.type.dtype)):
                mistakes.add("feed_dtype", _lossy(name, held[name], feed), pointer)


def _batch(feeds: Sequence[Variable], args: Mapping[str, Any], mistakes: Mistakes) -> tuple[int, bool]:
    """The size of a batch, and whether rows that do not fill one are left out."""
    data, size, drop_last = args["data"], args["batch_size"], args["drop_last"]
    rows = data["rows"] - data["holdout"]
    fixed = {v.name: v.type.shape[0] for v in feeds if v.type.rank and v.type.shape[0] != -1}
    if not fixed:
        size, drop_last = size or min(USUAL_BATCH, rows), bool(drop_last)
    else:
        name, declared = next(iter(fixed.items()))
        if len(set(fixed.values())) > 1:
            message = f"the feeds declare batches of different sizes: {fixed}"
            mistakes.add("feed_shape", message, f"/feeds/{escaped(name)}")
        if size is not None and size != declared:
            message = f"the feed {name!r} declares batches of {declared} rows, not {size}"
            mistakes.add("feed_shape", message, "/batch_size")
        if drop_last is False and rows % declared:
            message = f"the feed {name!r} declares batches of {declared} rows, which do not divide {rows} rows"
            mistakes.add("feed_shape", message, "/drop_last")
        size, drop_last = declared, True
        held_out = data["holdout"] if args["validation"] is None else args["validation"]["rows"]
        if 0 < held_out < declared:
            message = f"the validation has {held_out} rows, fewer than a batch of {declared}"
            mistakes.add("feed_shape", message, "/validation")
    if drop_last and rows < size:
        message = f"the dataset has {rows} rows to train on, fewer than a batch of {size}"
        mistakes.add("feed_shape", message, "/batch_size")
    return size, drop_last


def _sizes(feeds: Sequence[Variable], args: Mapping[str, Any], size: int, drop_last: bool) -> list[int]:
    """All numbers of rows that a batch of training or validation has."""
    if any(v.type.rank and v.type.shape[0] != -1 for v in feeds):
        return [size]
    data = args["data"]
    held_out = data["holdout"] if args["validation"] is None else args["validation"]["rows"]
    ends = [held_out] if drop_last else [held_out, data["rows"] - data["holdout"]]
    return sorted({size, *(rows % size for rows in ends)} - {0}, reverse=True)


def _check_batch(
    session: WorkerSession,
    feeds: Sequence[Variable],
    size: int,
    columns: Mapping[str, list[str]],
    held: Mapping[str, np.ndarray],
) -> None:
    """Raises InvalidProgram if the ops of the program do not fit together for batches of this size."""
    shapes = {}
    for feed in feeds:
        names = columns[feed.name]
        row = fitted(held[names[0]].shape[1:] if len(names) == 1 else (len(names),), feed.type.shape[1:])
        assert row is not None, "the columns fit"
        if -1 in feed.type.shape:
            shapes[feed.name] = (size, *row)
    if shapes:
        check_sizes(session.cached.program, shapes)


def _listed(names: Any) -> str:
    shown = [repr(name) for name in names]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
