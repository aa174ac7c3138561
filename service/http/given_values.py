"""The values of a request, and the report of all their mistakes at once.

The service decodes values, and a worker compares them with the program. So that a client learns of all mistakes from
one answer, a request with values that cannot be decoded still goes to the worker: with the others, and with the names
of the `flawed` ones. The worker refuses it in any case, and its answer names the place of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.ir.errors import escaped
from service.engine import EngineError, RemoteError
from service.formats import json_tensors as tensors
from service.formats.json_tensors import TensorError
from service.http.request_body import Body
from service.problems import OF_QUERY, FieldError, HttpProblem, from_remote
from service.settings import Settings

__all__ = ["Values", "read_gradients", "read_values", "told_in_query"]

THREAD_BYTES = 2**18  # above, decoding would delay other requests
FLAWED = "flawed"
NO_PREFIXES: Mapping[str, str] = {}
BY_ROLE = ("/feeds", "/parameters", "/states")
"""Members whose values a worker places by the roles of the variables; a body may contain them in another one."""


@dataclass(slots=True)
class Values:
    """The values of one request.

    tensors: the decoded arrays by name.
    places:  name -> pointer to its value in a JSON body. A tensor of a file has the place that the worker gives it.
    flaws:   name -> the mistakes of a value that cannot be decoded, with the ends of their pointers.
    tables:  parameter -> the shape that the request gives for its table.
    """

    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    flaws: dict[str, list[TensorError]] = field(default_factory=dict)
    tables: dict[str, list[int]] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """The names of all values, flawed ones included."""
        return self.tensors.keys() | self.flaws.keys()

    @property
    def args(self) -> dict[str, Any]:
        """Arguments for the worker: the names of the flawed values, if there are any."""
        return {FLAWED: list(self.flaws)} if self.flaws else {}

    @contextmanager
    def told(self, translate: Callable[[RemoteError], HttpProblem] = from_remote) -> Iterator[None]:
        """Turn the refusal of the values by a worker into a problem with all mistakes and their places.

        translate: makes a problem from any other refusal by a worker.
        If there are flawed values, the block ends with a problem in any case.
        """
        try:
            yield
        except RemoteError as error:
            if error.kind == "program":
                raise self._problem(translate(error), error) from error
            if self.flaws:
                raise self._problem() from error
            raise
        except EngineError as error:
            if self.flaws:
                raise self._problem() from error
            raise
        if self.flaws:
            raise self._problem()

    def _problem(self, found: HttpProblem | None = None, error: RemoteError | None = None) -> HttpProblem:
        """The problem with the mistakes of a worker's `error`, translated to `found`, and of the flawed values."""
        problems = () if error is None else error.problem.get("problems", ())
        errors: list[FieldError] = []
        flawed: set[str] = set()
        for each, raw in () if found is None else zip(found.errors, problems, strict=True):
            name, pointer = raw.get("value"), each.pointer
            place = None if name is None else self.places.get(name)
            if place is not None:
                member, *rest = pointer.split("/")[1:]
                if f"/{member}" in BY_ROLE and rest[:1] == [escaped(name)]:
                    pointer = "/".join([place, *rest[1:]])
                elif member == escaped(name):
                    pointer = "/".join([place, *rest])
            if each.code == FLAWED:
                flawed.add(name)
                errors += self._flaws(name, pointer)
            else:
                errors.append(FieldError(pointer, each.code, each.detail, each.location, each.suggestion))
        for name in self.flaws.keys() - flawed:
            errors += self._flaws(name, self.places.get(name, f"/{escaped(name)}"))
        if found is not None and (not self.flaws or found.code not in OF_VALUES):
            return HttpProblem(found.code, found.detail, status=found.status, errors=errors, **found.extensions)
        kinds = {OF_ERRORS.get(each.code, "invalid-request") for each in errors}
        kind = kinds.pop() if len(kinds) == 1 else "invalid-request"
        count = "" if len(errors) == 1 else f" (and {len(errors) - 1} more)"
        return HttpProblem(kind, errors[0].detail + count, errors=errors, reason=errors[0].code.replace("_", "-"))

    def _flaws(self, name: str, pointer: str) -> list[FieldError]:
        return [FieldError(pointer + each.pointer, each.code, f"{name!r}: {each.detail}") for each in self.flaws[name]]


OF_ERRORS = {
    "invalid-request": "invalid-request",
    "limit-exceeded": "limit-exceeded",
    "shape-mismatch": "shape-mismatch",
    "dtype-mismatch": "dtype-mismatch",
    "feed_shape": "shape-mismatch",
    "target_grad_shape": "shape-mismatch",
    "feed_dtype": "dtype-mismatch",
    "not_finite": "numeric-error",
}
OF_VALUES = {*OF_ERRORS.values()}


async def read_values(
    body: Body, settings: Settings, members: Mapping[str, Any], prefixes: Mapping[str, str] = NO_PREFIXES
) -> Values:
    """All values of a request: those of its file, and those of the `members` {pointer: JSON tensors by name}.

    prefixes: pointer -> prefix of the names that the values of this member get.
    """

    def read() -> Values:
        values = _of_file(body)
        for pointer, given in members.items():
            for name, value in given.items():
                full = prefixes.get(pointer, "") + name
                _decode(values, full, value, f"{pointer}/{escaped(name)}", settings)
        return values

    return await _in_thread_if_large(body, members.values(), read)


async def read_gradients(body: Body, settings: Settings, gradients: Mapping[str, Any]) -> Values:
    """As `read_values`, for gradients: ``<parameter>``, and ``rows/<parameter>`` for the row numbers of a table.

    gradients: parameter -> a JSON tensor, or an object with `rows`, `values` and optionally `shape`.
    """

    def read() -> Values:
        values = _of_file(body)
        for name, value in gradients.items():
            pointer = f"/gradients/{escaped(name)}"
            if not isinstance(value, dict) or "rows" not in value:
                _decode(values, name, value, pointer, settings)
                continue
            if value.keys() - {"shape"} != {"rows", "values"}:
                words = "rows of a table are an object with rows, values and optionally shape"
                _flaw(values, name, TensorError("invalid-request", words), pointer)
                continue
            shape = value.get("shape", [])
            if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
                _flaw(values, name, TensorError("invalid-request", "shape is not a list of sizes", "/shape"), pointer)
                continue
            if "shape" in value:
                values.tables[name] = shape
            _decode(values, f"rows/{name}", value["rows"], f"{pointer}/rows", settings)
            _decode(values, name, value["values"], f"{pointer}/values", settings)
        return values

    return await _in_thread_if_large(body, [gradients], read)


async def _in_thread_if_large(body: Body, members: Iterable[Any], read: Callable[[], Values]) -> Values:
    if len(body.raw) > THREAD_BYTES and any(members):
        return await asyncio.to_thread(read)
    return read()


def _of_file(body: Body) -> Values:
    values = Values(dict(body.tensors))
    for name, error in body.flaws.items():
        values.flaws[name] = [error]
    return values


def _decode(values: Values, name: str, value: Any, pointer: str, settings: Settings) -> None:
    if name in values.tensors or name in values.flaws:
        _flaw(values, name, TensorError("invalid-request", "another tensor has the same name"), pointer)
        return
    values.places[name] = pointer
    try:
        values.tensors[name] = tensors.decode_one(value, settings.tensor_limits)
    except TensorError as error:
        _flaw(values, name, error, pointer)


def _flaw(values: Values, name: str, error: TensorError, pointer: str) -> None:
    values.tensors.pop(name, None)
    values.places[name] = pointer
    values.flaws.setdefault(name, []).append(error)


IN_QUERY = {"loop_memory/bytes": "loop_bytes", "checkpoints/bytes": "checkpoint_bytes"}
"""Place in a question -> the query parameter for it, if that has another name."""


@contextmanager
def told_in_query(parameter: str = "", members: Iterable[str] = ()) -> Iterator[None]:
    """Turn pointers of a worker into query parameters of the same name, or into positions of `parameter`.

    parameter: a repeated one whose values name feeds or variables. members: the names that its values give, in order.
    """
    positions = {name: i for i, name in enumerate(members)}
    try:
        yield
    except RemoteError as error:
        if error.kind != "program":
            raise
        problem = from_remote(error)
        moved = []
        for each in problem.errors:
            plain = [step.replace("~1", "/").replace("~0", "~") for step in each.pointer.split("/")[1:]]
            at = positions.get(plain[1]) if len(plain) > 1 and plain[0] in ("feeds", "names") else None
            if at is None and len(plain) == 2 and plain[0] == "names" and plain[1].isdecimal():
                at = int(plain[1])
            if at is None and (not plain or plain[0] not in OF_QUERY):
                moved.append(each)
            else:
                path = "/".join(plain)
                place = f"query: {IN_QUERY.get(path, path) if at is None else f'{parameter}/{at}'}"
                moved.append(FieldError("", each.code, each.detail, each.location, each.suggestion, place))
        raise HttpProblem(
            problem.code, problem.detail, status=problem.status, errors=moved, **problem.extensions
        ) from error
