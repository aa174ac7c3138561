"""A compiled step with its arrays bound to it: from one step to the next only the feeds change.

`Executable.step` looks up, checks and allocates dozens of arrays, which takes longer than a small step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from core.ir import Variable
from core.ir.aligned import LINE, aligned_empty, aligned_zeros
from core.ops.common.types import as_dtype
from core.passes.row_bounds import Pick
from core.runtime.backend import Backend
from core.runtime.executable import Executable, Outputs, checked, key_of
from core.runtime.outputs import KEPT
from core.runtime.run import Run, RunLimits
from core.runtime.sparse_rows import RowArray

__all__ = ["KEPT", "BoundStep", "UpdatedTable", "bind_step", "one_by_one", "picks_of", "updated_tables"]

SUMMED = (np.dtype("float32"), np.dtype("float64"))


class BoundStep:
    """Two arrays of each value in `KEPT`, read and written in turn. Runs one step at a time.

    Of a table whose rows are updated there is one array, and of a value that is updated apart
    (`core.passes.updates`). The step computes the new rows and the operands of the update; `keep` writes them.
    """

    def __init__(self, executable: Executable, values: Mapping[str, Any]) -> None:
        assert executable.machine is not None, "the step is machine code"
        apart = executable.machine.apart
        region = executable.machine.region if apart is None else apart.step
        assert region is not None, "the step is one region, or two with its updates apart"
        inputs = executable.inputs
        count = len(inputs)
        self._feeds = [(i, v.name, v.type.shape, as_dtype(v.type.dtype)) for i, v in _of_role(inputs, "feed")]
        self._keys = [i for i, _ in _of_role(inputs, "key")]
        given = [None if v.role in ("feed", "key") else checked(v, values[v.name], np) for v in inputs]
        own = region.results()
        results = own if apart is None else apart.spread(own)
        places = [i for i, _ in picks_of(executable)]
        self._flat = _side_by_side(executable, places, results)
        first = [a if a is None else region.readable(a) for a in given] + results
        for i, j in {} if apart is None else apart.updated.items():
            first[count + i] = first[j]
        second = list(first)
        where = {v.name: i for i, v in enumerate(inputs)}
        for (at, _), result in zip(picks_of(executable), executable.layout, strict=True):
            i = count + at
            if result.place not in KEPT or result.table is not None or (apart is not None and at in apart.updated):
                continue
            read = where.get(result.name)
            if read is None:
                second[i] = aligned_empty(results[at].shape, results[at].dtype)
            else:
                second[read], second[i] = first[i], first[read]
        self._tables = [_Table(each, results, executable.backend) for each in updated_tables(executable)]
        self._executable = executable
        self._region = region
        self._readable = region.readable
        self._has_rows = any(end is not None for _, end in picks_of(executable))
        self._results = [each[count:] for each in (first, second)]
        self._update = None if apart is None else apart.update
        self._unlimited = Run(np, RunLimits())  # nothing stops an update: all values are of the same step
        self._turns: list[tuple[Any, Any, Outputs]] = []
        for arrays, results in zip((first, second), self._results, strict=True):
            if apart is None:
                self._turns.append((region.bind(arrays), None, self._outputs(results)))
                continue
            whole = arrays[:count], results, own
            update = apart.update.bind(apart.of_update(*whole))
            self._turns.append((region.bind(apart.of_step(*whole)), update, self._outputs(results)))
        self._last = self._turns[0][-1]
        self._turn = 0
        self._fed: list[Any] = [None] * count

    def takes(self, feeds: Mapping[str, Any]) -> bool:
        """Bind the feeds for the next `step`; False if they are not arrays of exactly the declared types.

        Arrays that the code can read in place are not copied: they must not change until that step has ended.
        """
        if len(feeds) != len(self._feeds):
            return False
        for i, name, shape, dtype in self._feeds:
            value = feeds.get(name)
            if value is not None and value is self._fed[i] and value.shape == shape:  # a shape may be set in place
                continue
            if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != dtype:
                return False
            given = self._readable(value)
            self._put(i, given)
            self._fed[i] = value if given is value else None  # the source of a copy may change
        return True

    def series(self, stacked: Mapping[str, np.ndarray]) -> Callable[[int], None]:
        """A function that binds element i of each of `stacked`, feeds of many steps, in place of another `takes`.

        stacked: arrays [count, *shape] of feeds whose elements `takes` has accepted before. The other feeds stay.
        """
        places = {name: i for i, name, *_ in self._feeds}
        whole = [(places[name], self._readable(value)) for name, value in stacked.items()]
        tables = [given for given, *_ in self._turns]

        def bind(number: int) -> None:
            for i, value in whole:
                each = value[number, ...]
                self._fed[i] = None
                for given in tables:
                    given.put(i, each)

        return bind

    def has_finite_gradients(self) -> bool:
        """Whether all gradients of the last step are finite. They lie side by side, so that one sum shows it."""
        rows = [(each.values, [each.values]) for each in self._last.gradients.values() if isinstance(each, RowArray)]
        for flat, gradients in (*self._flat, *rows):
            if flat.dtype in SUMMED and math.isfinite(np.vdot(flat, flat)):
                continue  # an infinite sum proves nothing: it may have overflowed
            if not all(np.isfinite(each).all() for each in gradients):
                return False
        return True

    def step(self, run: Run, seed: int, step: int) -> Outputs:
        """Run one step with the feeds that `takes` has bound. The values change only when `keep` is called; new values
        that are updated apart are not in their arrays before.

        The arrays of the outputs are overwritten by the next step, those of new values by its `keep` at the earliest.
        Raises ExecutionError.
        """
        for i in self._keys:
            self._put(i, key_of(seed, step))
        given, _, outputs = self._turns[self._turn]
        self._region.run(given, run)
        if self._has_rows:  # only now their number is known
            outputs = self._outputs(self._results[self._turn])
        self._last = outputs
        if run.messages:
            return replace(outputs, messages=tuple(run.messages), unsaid=run.unsaid)
        return outputs

    def steps(
        self, runs: Iterable[Run], seed: int, first: int, bind: Callable[[int], None] | None = None
    ) -> Generator[Outputs, None, None]:
        """The outputs of a step for each run, numbered from `first` on. Asking for the next one keeps the last one.

        bind: called with 0, 1, 2 and so on, gives a step its feeds; without it all steps have those that `takes` has
        taken. Whoever asks for no more must close the iterator. Raises ExecutionError.
        """
        return one_by_one(self, runs, seed, first, bind)

    def keep(self) -> None:
        """Make the results of the last step the values of the next one."""
        if self._update is not None:
            self._update.run(self._turns[self._turn][1], self._unlimited)
        self._turn = 1 - self._turn
        for each in self._tables:
            each.write(each.address, *each.source)

    def put_tables(self, values: Mapping[str, Any]) -> bool:
        """Read and write the tables among `values` in place from now on; False if that is impossible.

        values: the tables whose rows the step updates, and others.
        """
        for each in self._tables:
            table = values[each.name]
            if self._readable(table) is not table or not table.flags.writeable:
                return False
            self._put(each.number, table)
            each.address = table.ctypes.data
        return True

    def drop_feeds(self) -> None:
        """Release the arrays of the feeds; the next step needs new ones."""
        for i, *_ in self._feeds:
            self._fed[i] = None
            for given, *_ in self._turns:
                given.drop(i)

    def _outputs(self, results: Sequence[Any]) -> Outputs:
        machine = self._executable.machine
        assert machine is not None, "the step is machine code"
        return self._executable.outputs(machine.picked(results))

    def _put(self, i: int, value: np.ndarray) -> None:
        for given, *_ in self._turns:
            given.put(i, value)


def one_by_one(
    bound: Any, runs: Iterable[Run], seed: int, first: int, bind: Callable[[int], None] | None
) -> Generator[Outputs, None, None]:
    """The steps of `BoundStep.steps`, each of which begins when the one before has been kept."""
    for number, run in enumerate(runs):
        if bind is not None:
            bind(number)
        yield bound.step(run, seed, first + number)
        bound.keep()


class _Table:
    """A table whose rows a step updates, among the arrays of the step. number: among the inputs."""

    def __init__(self, each: UpdatedTable, results: Sequence[np.ndarray], backend: Backend) -> None:
        values = results[each.values]
        self.name, self.number = each.name, each.number
        self.address = 0
        self.source = tuple(results[i].ctypes.data for i in (each.rows, each.values, each.count))
        self.write = backend.row_writer(values.nbytes // len(values))


def bind_step(executable: Executable, values: Mapping[str, Any]) -> BoundStep | None:
    """`executable` bound to its parameters and states; None unless it is a single region that can work in place, on
    arrays of numpy, or two with its updates apart.

    values: all inputs but feeds, by name. Their arrays are overwritten from now on.
    Raises ProgramError (feed_shape, feed_dtype).
    """
    machine = executable.machine
    if machine is None or not executable.backend.runs_on(np):
        return None
    if machine.apart is None and (machine.region is None or machine.region.plan.cuts):
        return None
    numbers = [i for i, _ in picks_of(executable)]
    kept = {i for i, each in zip(numbers, executable.layout, strict=True) if each.place in KEPT}
    tables = {each.name for each in executable.layout if each.table is not None and each.place in KEPT}
    if any(numbers.count(i) > 1 for i in kept) or not tables.issubset(v.name for v in executable.inputs):
        return None
    bound = BoundStep(executable, values)
    return bound if bound.put_tables(values) else None


@dataclass(frozen=True, slots=True)
class UpdatedTable:
    """A table of which a step updates some rows.

    number: of the table among the inputs. rows, values, count: of the row numbers, of the new rows and of how many they
    are, among the results of the region.
    """

    name: str
    number: int
    rows: int
    values: int
    count: int


def updated_tables(executable: Executable) -> list[UpdatedTable]:
    """The tables whose rows a step updates. All of them are inputs."""
    where = {v.name: i for i, v in enumerate(executable.inputs)}
    found, rows = [], -1
    for (at, end), each in zip(picks_of(executable), executable.layout, strict=True):
        if each.place == "rows":
            rows = at
        elif each.table is not None and each.place in KEPT:
            assert end is not None, "the rows of a table are counted"
            found.append(UpdatedTable(each.name, where[each.name], rows, at, end))
    return found


def picks_of(executable: Executable) -> Sequence[Pick]:
    """For each result of the layout its number among the results of the region."""
    machine = executable.machine
    if machine is None or machine.picks is None:
        return [(i, None) for i in range(len(executable.layout))]
    return machine.picks


def _side_by_side(
    executable: Executable, numbers: Sequence[int], results: list[np.ndarray]
) -> list[tuple[np.ndarray, list[np.ndarray]]]:
    """Replace the dense gradients among `results` by views of one array for each dtype; returns these with their views.

    numbers: of each result of the layout among `results`.
    """
    places: dict[np.dtype, dict[int, None]] = {}
    for i, each in zip(numbers, executable.layout, strict=True):
        if each.place == "gradients" and each.table is None:
            places.setdefault(results[i].dtype, {})[i] = None
    found = []
    for dtype, indices in places.items():
        line = LINE // dtype.itemsize
        sizes = [-(-results[i].size // line) * line for i in indices]  # padded with zeros to whole cache lines
        flat = aligned_zeros((sum(sizes),), dtype)
        start = 0
        for i, size in zip(indices, sizes, strict=True):
            shape = results[i].shape
            results[i] = flat[start : start + results[i].size].reshape(shape)
            start += size
        found.append((flat, [results[i] for i in indices]))
    return found


def _of_role(inputs: tuple[Variable, ...], role: str) -> list[tuple[int, Variable]]:
    return [(i, v) for i, v in enumerate(inputs) if v.role == role]
