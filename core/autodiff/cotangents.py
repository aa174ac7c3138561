"""The cotangents of the variables of one block: contributions go in, and one complete cotangent of each comes out.

A variable receives a contribution from every op that reads it. They are added by one `sum`, right behind the last of
them; those of a table stay rows while nothing needs them whole; hooks act on each contribution or on the total, and
the total is called ``<name>@GRAD``. That a contribution was the last is known only when the op that writes the
variable is reached. So what completes a cotangent is put among ops that are there already, and what turns out to be
a cotangent gets its name then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.autodiff.hooks import Hooks, When
from core.ir import Block, Op
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value
from core.ir.errors import Location
from core.ir.names import block_index, plain
from core.ir.registry import lookup

__all__ = ["Cotangents", "Densified", "gradient_name"]


@dataclass(frozen=True, slots=True)
class Densified:
    """A table whose cotangent could have stayed rows, had something not needed it whole.

    variable: "block:name" of the table, as hooks name it.
    reason:   machine-readable; see docs/sparse.md.
    location: of what needed it.
    """

    variable: str
    reason: str
    location: Location | None = None

    def as_document(self) -> dict[str, Any]:
        """As JSON-ready values."""
        at = self.location and self.location.as_document()
        return {"variable": self.variable, "reason": self.reason, "at": at}


@dataclass(slots=True)
class _Part:
    """One contribution to a cotangent: its value, and how many adjoint ops stood before it was complete."""

    value: Cotangent
    position: int
    location: Location | None


class Cotangents:
    """The cotangents of the variables of a block, while its adjoint ops are written.

    b:         the builder that collects these ops; `ops` are all of them, in their order and with their final names.
    primal:    variables of the forward pass, whose names are not ours to give.
    hooks:     what is done to cotangents on the way.
    origin:    cotangent variable -> primal variable, for every name this class gives.
    recorded:  "block:name" -> the cotangent of that variable, which a hook wants returned.
    densified: tables whose cotangent could not stay rows, those of inner blocks included.
    """

    def __init__(
        self, block: Block, b: BlockBuilder, hooks: Hooks, root: bool = True, densified: list[Densified] | None = None
    ) -> None:
        self.b = b
        self.primal = set(block.types)
        self.hooks = hooks
        self.origin: dict[str, str] = {}
        self.recorded: dict[str, Value] = {}
        self.densified: list[Densified] = [] if densified is None else densified
        self._hooked = hooks.table(block, root)
        self._index = 0 if root else block_index(block)
        self._parts: dict[str, list[_Part]] = {}
        self._complete: dict[str, Cotangent] = {}
        self._whole: dict[str, Value] = {}
        self._names: dict[str, str] = {}
        self._late: dict[int, list[Op]] = defaultdict(list)

    def contribute(self, name: str, ct: Cotangent) -> None:
        """Take `ct` as one part of the cotangent of `name`."""
        for n in self._hooks_of(name, "each_contribution"):
            hook = self.hooks.hooks[n]
            if isinstance(ct, SparseRows) and not hook.do.by_rows:
                self._tell(name, f"hook:{hook.do.name}", self.b.location)
                (ct,) = self.b.append(self._table(name, ct, self.b.fresh("table"), self.b.location))
            if isinstance(ct, SparseRows):
                (values,) = self.b.append(hook.emit(self.b, ct.values.name, self.b.location))
                ct = SparseRows(ct.rows, values)
            else:
                (ct,) = self.b.append(hook.emit(self.b, ct.name, self.b.location))
            self._note(n, name, ct)
        self._parts.setdefault(name, []).append(_Part(ct, len(self.b.ops), self.b.location))

    def waiting(self, name: str) -> bool:
        """Whether there are contributions to the cotangent of `name`, which is not complete."""
        return name in self._parts

    def complete(self, name: str) -> Cotangent | None:
        """The cotangent of `name`, to which nothing will be contributed any more; None if nothing ever was."""
        if name in self._complete:
            return self._complete[name]
        parts = self._parts.pop(name, None)
        if parts is None:
            return None
        self._complete[name] = total = self._total(name, parts)
        return total

    def whole(self, name: str, ct: Cotangent, reason: str | None = None, location: Location | None = None) -> Value:
        """`ct`, the complete cotangent of `name`, as one array. reason, location: why, if that is to be told."""
        if not isinstance(ct, SparseRows):
            return ct
        if reason is not None:
            self._tell(name, reason, location)
        if name not in self._whole:
            final = self._free(gradient_name(name))
            (self._whole[name],) = self.b.append(self._table(name, ct, final, self.b.location))
            self.origin[final] = name
        return self._whole[name]

    def ops(self) -> list[Op]:
        """The adjoint ops, every name final."""
        merged: list[Op] = []
        for position, op in enumerate(self.b.ops):
            merged.extend(self._late.get(position, ()))
            merged.append(op)
        merged.extend(self._late.get(len(self.b.ops), ()))
        final = self._names.get
        return [
            Op(
                op.type,
                tuple([final(n, n) for n in op.inputs]),
                tuple([final(n, n) for n in op.outputs]),
                op.attrs,
                op.location,
            )
            for op in merged
        ]

    def final(self, name: str) -> str:
        """What the variable `name` of the builder is called in `ops`."""
        return self._names.get(name, name)

    def _total(self, name: str, parts: list[_Part]) -> Cotangent:
        """The parts of the cotangent of `name` added, right behind the last of them."""
        hooked = self._hooks_of(name, "after_accumulation")
        if any(isinstance(part.value, SparseRows) for part in parts):
            why = self._why_dense(parts, hooked)
            if why is None:
                return self._total_rows(name, parts, hooked)
            self._tell(name, *why)
            parts = [self._as_table(name, part) for part in parts]
        return self._total_array(name, parts, hooked)

    def _total_array(self, name: str, parts: Sequence[_Part], hooked: Sequence[int]) -> Value:
        final, last = self._free(gradient_name(name)), parts[-1]
        whole = self._free(f"{final}@WHOLE") if hooked else final
        if len(parts) == 1:
            total = self._christen(last, last.value, whole, name)
        else:
            named = [self._christen(p, p.value, self._free(f"{final}@RENAME@{i}"), name) for i, p in enumerate(parts)]
            op = Op("sum", tuple(v.name for v in named), (whole,), {}, last.location)
            (total,) = self._behind(last, op, name)
        for n in hooked:
            out = final if n == hooked[-1] else self._free(f"{final}@HOOK@{n}")
            op = self.hooks.hooks[n].emit(self.b, total.name, last.location)
            (total,) = self._behind(last, replace(op, outputs=(out,)), name)
            self._note(n, name, total)
        return total

    def _total_rows(self, name: str, parts: Sequence[_Part], hooked: Sequence[int]) -> SparseRows:
        """Of parts that are all rows: they are merged where they meet, and stay rows."""
        given = [part.value for part in parts if isinstance(part.value, SparseRows)]
        last, total = parts[-1], given[0]
        if len(given) > 1:
            rows, values = (
                self._behind(last, self._op("concat", [v.name for v in each], last, axis=0))[0]
                for each in ([g.rows for g in given], [g.values for g in given])
            )
            merge = self._op("merge_rows", [values.name, rows.name, name], last)
            total = SparseRows(*self._behind(last, merge))
        for n in hooked:
            (values,) = self._behind(last, self.hooks.hooks[n].emit(self.b, total.values.name, last.location))
            total = SparseRows(total.rows, values)
            self._note(n, name, total)
        stem = gradient_name(name)
        return SparseRows(
            self._christen(last, total.rows, self._free(f"{stem}@ROWS"), None),
            self._christen(last, total.values, self._free(f"{stem}@VALUES"), name),
        )

    def _why_dense(self, parts: Sequence[_Part], hooked: Sequence[int]) -> tuple[str, Location | None] | None:
        """What keeps a cotangent from staying rows, if anything does: a reason and a place."""
        for part in parts:
            if not isinstance(part.value, SparseRows):
                at = part.location
                return f"dense_contribution:{at.type}" if at is not None else "dense_contribution", at
        for n in hooked:
            action = self.hooks.hooks[n].do
            if not action.by_rows:
                return f"hook:{action.name}", parts[-1].location
        return None

    def _as_table(self, name: str, part: _Part) -> _Part:
        if not isinstance(part.value, SparseRows):
            return part
        (table,) = self._behind(part, self._table(name, part.value, self.b.fresh("table"), part.location))
        return replace(part, value=table)

    def _table(self, name: str, ct: SparseRows, out: str, location: Location | None) -> Op:
        """The op that writes rows of the table `name` into a table of zeros."""
        attrs = lookup("scatter_add_like").complete({"axis": 0})
        return Op("scatter_add_like", (ct.values.name, ct.rows.name, name), (out,), attrs, location)

    def _op(self, type: str, inputs: Sequence[str], part: _Part, **attrs: object) -> Op:
        return Op(type, tuple(inputs), (), lookup(type).complete(attrs), part.location)

    def _behind(self, part: _Part, op: Op, primal: str | None = None) -> tuple[Value, ...]:
        """Put `op` right behind `part`; its outputs. primal: the variable whose cotangent it makes, if it makes one."""
        op = self.b.typed(op)
        self._late[part.position].append(op)
        if primal is not None:
            self.origin[op.outputs[0]] = primal
        return tuple([self.b.value(name) for name in op.outputs])

    def _christen(self, part: _Part, value: Cotangent, name: str, primal: str | None) -> Value:
        """Give a part's value its name. What already has one, or is not ours to name, is passed on by an `assign`.

        primal: the variable whose cotangent it is; None for the numbers of rows, which are no cotangent.
        """
        assert isinstance(value, Value), "rows have become a table before"
        if primal is not None:
            self.origin[name] = primal
        if value.name in self.primal or value.name in self.origin or value.name in self._names:
            self._behind(part, Op("assign", (value.name,), (name,), {}, part.location))
        else:
            self._names[value.name] = name
            self.b.types[name] = value.type
        return self.b.value(name)

    def _free(self, name: str) -> str:
        while name in self.b.types:
            name = f"grad/{name}"
        return name

    def _hooks_of(self, name: str, when: When) -> list[int]:
        return [n for n in self._hooked.get(name, ()) if self.hooks.hooks[n].when == when]

    def _note(self, number: int, primal: str, ct: Cotangent) -> None:
        """Remember that a hook acted on the cotangent of `primal`, and `ct` if it wants it returned."""
        hook = self.hooks.hooks[number]
        self.hooks.applied.append((number, f"{self._index}:{primal}"))
        if hook.do.returned:
            assert isinstance(ct, Value), "what is recorded is not by rows"
            name, _, home = plain(primal).partition("@IN@")
            at, name = hook.place if hook.match.variable else (home or self._index, name)
            self.recorded[f"{at}:{name}"] = ct

    def _tell(self, name: str, reason: str, location: Location | None) -> None:
        told = Densified(f"{self._index}:{plain(name)}", reason, location)
        if told not in self.densified:
            self.densified.append(told)


def gradient_name(name: str) -> str:
    return f"{name}@GRAD"
