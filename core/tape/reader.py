"""Reading of ops that a client appends: the reader of `core.wire` with the rules of a tape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.ir import Op
from core.ir.errors import InvalidProgram, Problem, ProgramError
from core.ir.registry import CONSTRUCTS, REGISTRY, OpSpec
from core.ops.other_names import looked_up
from core.wire.document import Limits, parse
from core.wire.problems import Problems
from core.wire.reader import Reader
from core.wire.records import RawOp, RawProgram
from core.wire.scope import Scopes
from core.wire.site import KEY, AlreadyReported, Env, Site
from core.wire.versions import Versions

__all__ = ["parse_ops", "pointer_of", "read_ops"]

Define = Callable[[Op, tuple[str | None, ...]], None]


def parse_ops(ops: Sequence[Any], leaves: Mapping[str, tuple[str, Any]], position: int, limits: Limits) -> RawProgram:
    """The checked form of ops and leaves that a client appends. Leaves are name -> (role, value).

    `position` is the place of the first op. Raises InvalidProgram with every problem; its pointers are like `/ops/0`,
    `/parameters/w` and `/constants/x`.
    """
    variables = [
        {"name": name, "role": role, "dtype": str(value.dtype), "shape": list(value.shape)}
        for name, (role, value) in leaves.items()
    ]
    groups = [pointer_of(role, name) for name, (role, _) in leaves.items()]
    try:
        raw = parse({"blocks": [{"vars": variables, "ops": list(ops)}]}, limits)
    except InvalidProgram as error:
        raise InvalidProgram([_on_tape(p, position, groups) for p in error.problems]) from None
    root = raw.blocks[0]
    at = tuple(
        replace(op, location=replace(op.location, op=position + i), pointer=f"/ops/{i}")
        for i, op in enumerate(root.ops)
    )
    for op in at:
        _refuse_blocks(op)
    return replace(raw, blocks=(replace(root, ops=at),))


def read_ops(raw: RawProgram, env: Env, versions: Versions, limits: Limits, define: Define) -> None:
    """Read the ops of `raw` in order, and call `define` with each typed op and the names of its outputs.

    Raises InvalidProgram with every problem. Ops defined before the error are not undone.
    """
    problems = Problems(limits.max_problems)
    reader = _TapeReader(raw, Scopes(raw, problems, limits), problems, limits, define)
    reader.ops(versions, env, raw.blocks[0])
    problems.raise_if_any()


class _TapeReader(Reader):
    """A reader for which each name is written once and output names are optional."""

    def __init__(self, raw: RawProgram, scopes: Scopes, problems: Problems, limits: Limits, define: Define) -> None:
        super().__init__(raw, scopes, problems, limits)
        self._define = define

    def registered_op(self, at: Site) -> None:
        raw, spec = at.raw, looked_up(at.raw.type)
        attrs = dict(raw.attrs)
        if spec.takes_key:
            attrs.setdefault("stream", 1 + raw.location.op)
        complete, inputs, names = self.attrs(spec, at, attrs), self.inputs(spec, at), self._names(spec, at)
        if complete is None or inputs is None or names is None:
            raise AlreadyReported
        if spec.takes_key and "key" not in raw.inputs:
            inputs[[slot.name for slot in spec.inputs].index("key")] = at.env[KEY]
        op = at.b.typed(at.b.make(raw.type, *inputs, **complete))
        self.check_rank(op, [at.b.types[name] for name in op.outputs])
        if names and len(names) != len(op.outputs):
            for name in op.outputs:
                del at.b.types[name]
            found = f"{op.type} has {len(op.outputs)} outputs, but the op lists {len(names)} names"
            raise at.refuse(found, "bad_slot", "outputs")
        self._define(op, names or (None,) * len(op.outputs))

    def _names(self, spec: OpSpec, at: Site) -> tuple[str | None, ...] | None:
        """The client's names for the outputs, checked to be new on the tape. Empty if the client gave none; None after
        a report of every mistake."""
        if not at.raw.written_names():
            return None if self.unknown_slots(spec, at, "output") else ()
        names = self.outputs(spec, at)
        given = [name for name in names or () if name is not None]
        taken = [name for name in dict.fromkeys(given) if name in at.b.types or given.count(name) > 1]
        for name in taken:
            message = f"{name!r} is on the tape already, and each op must write a new variable"
            self.report(at, at.refuse(message, "duplicate_variable", "outputs"))
        return None if taken else names


def pointer_of(role: str, name: str) -> str:
    """The JSON pointer of a leaf in the client's request."""
    return f"/{'parameters' if role == 'parameter' else 'constants'}/{name.replace('~', '~0').replace('/', '~1')}"


def _refuse_blocks(raw: RawOp) -> None:
    """Raises ProgramError (control_flow_on_tape) for an op with inner blocks: a tape records only ops that ran."""
    spec = CONSTRUCTS.get(raw.type) or REGISTRY.get(raw.type)
    if spec is not None and spec.kind in ("construct", "control"):
        raise ProgramError(
            f"{raw.type} has inner blocks, and a tape records only ops without them",
            "control_flow_on_tape",
            location=raw.location,
            pointer=raw.pointer,
            suggestion="branch and loop in the client, which has the values, or send a whole program",
        )


def _on_tape(problem: Problem, position: int, groups: Sequence[str]) -> Problem:
    """`problem` with the pointer and the location that it has on the tape."""
    pointer = problem.pointer.removeprefix("/blocks/0")
    if pointer.startswith("/vars/"):
        number, _, rest = pointer.removeprefix("/vars/").partition("/")
        pointer = groups[int(number)] + (f"/{rest}" if rest and rest != "name" else "")
    at = problem.location
    return replace(problem, pointer=pointer, location=at and replace(at, op=position + at.op))
