"""The cotangents of the variables of one block: the sums of their contributions.

Every op that reads a variable contributes to its cotangent. One `sum`, right after the last contribution, adds them.
Contributions to a table stay row-sparse until an op or a hook needs them dense. Hooks act on each contribution or on
the total. The total is named ``<name>@GRAD``.

The walk is in reverse, so a contribution turns out to be the last one only when the walk reaches the op that writes the
variable. At that time later adjoint ops exist already. The ops that complete a cotangent are therefore inserted at an
earlier position, and contributions get their final names afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.autodiff.hooks import Hooks, When
from core.ir import Block, Op, Type
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value
from core.ir.errors import Location
from core.ir.generated import prefixed, tagged
from core.ir.names import block_index, unversioned
from core.ir.registry import lookup
from core.ir.stop import poll

__all__ = ["Cotangents", "Densified"]


@dataclass(frozen=True, slots=True)
class Densified:
    """A table whose row-sparse cotangent was converted to a dense one.

    variable: "block:name" of the table, as hooks name it.
    reason:   machine-readable; see docs/sparse.md.
    location: place of the op that needs the dense cotangent.
    """

    variable: str
    reason: str
    location: Location | None = None

    def as_document(self) -> dict[str, Any]:
        """The members of the JSON document."""
        at = self.location and self.location.as_document()
        return {"variable": self.variable, "reason": self.reason, "at": at}


@dataclass(slots=True)
class _Part:
    """One contribution to a cotangent.

    position: the number of adjoint ops in the builder when the contribution was complete.
    """

    value: Cotangent
    position: int
    location: Location | None


class Cotangents:
    """The cotangents of the variables of a block while its adjoint ops are written.

    b:         the builder of the adjoint ops; `ops` returns them in order and with final names.
    primal:    variables of the forward pass; they cannot be renamed.
    hooks:     the gradient hooks to apply.
    origin:    cotangent variable -> primal variable, for every name given by this class.
    recorded:  "block:name" -> the cotangent of that variable, for the `record` hooks.
    densified: tables with a densified cotangent, those of inner blocks included.
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
        self._dense: dict[str, Value] = {}
        self._names: dict[str, str] = {}
        self._late: dict[int, list[Op]] = defaultdict(list)
        self._last: dict[str, int] = {}

    def contribute(self, name: str, ct: Cotangent) -> None:
        """Add `ct` to the contributions to the cotangent of `name`."""
        for n in self._hooks_of(name, "each_contribution"):
            hook = self.hooks.hooks[n]
            if isinstance(ct, SparseRows) and not hook.do.by_rows:
                self._report_dense(name, f"hook:{hook.do.name}", self.b.location)
                (ct,) = self.b.append(self._table(name, ct, self.b.fresh("table"), self.b.location))
            if isinstance(ct, SparseRows):
                (values,) = self.b.append(hook.emit(self.b, ct.values.name, self.b.location))
                ct = SparseRows(ct.rows, values)
            else:
                (ct,) = self.b.append(hook.emit(self.b, ct.name, self.b.location))
            self._log_hook(n, name, ct)
        self._parts.setdefault(name, []).append(_Part(ct, len(self.b.ops), self.b.location))

    def waiting(self, name: str) -> bool:
        """Whether `name` has contributions that are not summed yet."""
        return name in self._parts

    def complete(self, name: str) -> Cotangent | None:
        """The complete cotangent of `name`; None for a structural zero. Allows no further contributions."""
        if name in self._complete:
            return self._complete[name]
        parts = self._parts.pop(name, None)
        if parts is None:
            return None
        self._complete[name] = total = self._total(name, parts)
        return total

    def dense(self, name: str, ct: Cotangent, reason: str | None = None, location: Location | None = None) -> Value:
        """The complete cotangent `ct` of `name` as one dense array.

        reason, location: why it must be dense, for `densified`; without a reason it is not reported there.
        """
        if not isinstance(ct, SparseRows):
            return ct
        if reason is not None:
            self._report_dense(name, reason, location)
        if name not in self._dense:
            final = self._free(gradient_name(name))
            (self._dense[name],) = self.b.append(self._table(name, ct, final, self.b.location))
            self.origin[final] = name
        return self._dense[name]

    def ops(self) -> list[Op]:
        """The adjoint ops in order, with final names."""
        merged: list[Op] = []
        for position, op in enumerate(self.b.ops):
            poll()
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

    def renamed(self) -> dict[str, Type]:
        """The types of the variables with another final name, by final name."""
        return {final: self.b.types[name] for name, final in self._names.items()}

    def final(self, name: str) -> str:
        """The final name of the builder's variable `name`."""
        return self._names.get(name, name)

    def _total(self, name: str, parts: list[_Part]) -> Cotangent:
        """The sum of `parts`, computed right after the last of them."""
        hooked = self._hooks_of(name, "after_accumulation")
        if any(isinstance(part.value, SparseRows) for part in parts):
            cause = self._cause_of_dense(parts, hooked)
            if cause is None:
                return self._total_rows(name, parts, hooked)
            self._report_dense(name, *cause)
            parts = [self._as_table(name, part) for part in parts]
        return self._total_array(name, parts, hooked)

    def _total_array(self, name: str, parts: Sequence[_Part], hooked: Sequence[int]) -> Value:
        final, last = self._free(gradient_name(name)), parts[-1]
        unhooked = self._free(f"{final}@WHOLE") if hooked else final
        if len(parts) == 1:
            total = self._name(last, last.value, unhooked, name)
        else:
            named = [self._name(p, p.value, self._free(f"{final}@RENAME@{i}"), name) for i, p in enumerate(parts)]
            op = Op("sum", tuple(v.name for v in named), (unhooked,), {}, last.location)
            (total,) = self._insert_after(last, op, name)
        for n in hooked:
            out = final if n == hooked[-1] else self._free(f"{final}@HOOK@{n}")
            op = self.hooks.hooks[n].emit(self.b, total.name, last.location)
            (total,) = self._insert_after(last, replace(op, outputs=(out,)), name)
            self._log_hook(n, name, total)
        return total

    def _total_rows(self, name: str, parts: Sequence[_Part], hooked: Sequence[int]) -> SparseRows:
        """The sum of row-sparse parts, itself row-sparse: equal rows are merged."""
        given = [part.value for part in parts if isinstance(part.value, SparseRows)]
        last, total = parts[-1], given[0]
        if len(given) > 1:
            rows, values = (
                self._insert_after(last, self._op("concat", [v.name for v in each], last, axis=0))[0]
                for each in ([g.rows for g in given], [g.values for g in given])
            )
            merge = self._op("merge_rows", [values.name, rows.name, name], last)
            total = SparseRows(*self._insert_after(last, merge))
        for n in hooked:
            (values,) = self._insert_after(last, self.hooks.hooks[n].emit(self.b, total.values.name, last.location))
            total = SparseRows(total.rows, values)
            self._log_hook(n, name, total)
        stem = gradient_name(name)
        return SparseRows(
            self._name(last, total.rows, self._free(f"{stem}@ROWS"), None),
            self._name(last, total.values, self._free(f"{stem}@VALUES"), name),
        )

    def _cause_of_dense(self, parts: Sequence[_Part], hooked: Sequence[int]) -> tuple[str, Location | None] | None:
        """The reason and place why the sum of `parts` must be dense; None if it can stay row-sparse."""
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
        (table,) = self._insert_after(part, self._table(name, part.value, self.b.fresh("table"), part.location))
        return replace(part, value=table)

    def _table(self, name: str, ct: SparseRows, out: str, location: Location | None) -> Op:
        """The op that scatters a row-sparse cotangent of the table `name` into zeros."""
        attrs = lookup("scatter_add_like").complete({"axis": 0})
        return Op("scatter_add_like", (ct.values.name, ct.rows.name, name), (out,), attrs, location)

    def _op(self, type: str, inputs: Sequence[str], part: _Part, **attrs: object) -> Op:
        return Op(type, tuple(inputs), (), lookup(type).complete(attrs), part.location)

    def _insert_after(self, part: _Part, op: Op, primal: str | None = None) -> tuple[Value, ...]:
        """Insert `op` right after the ops of `part`. Return its outputs.

        primal: the variable whose cotangent is the first output; None if no output is a cotangent.
        """
        op = self.b.typed(op)
        self._late[part.position].append(op)
        if primal is not None:
            self.origin[op.outputs[0]] = primal
        return tuple([self.b.value(name) for name in op.outputs])

    def _name(self, part: _Part, value: Cotangent, name: str, primal: str | None) -> Value:
        """Give the value of `part` the final name `name`; copy it with an `assign` if it cannot be renamed.

        Primal variables and values that have a final name already cannot be renamed.
        primal: the variable whose cotangent it is; None for row numbers.
        """
        assert isinstance(value, Value), "a row-sparse part must be densified first"
        if primal is not None:
            self.origin[name] = primal
        if value.name in self.primal or value.name in self.origin or value.name in self._names:
            self._insert_after(part, Op("assign", (value.name,), (name,), {}, part.location))
        else:
            self._names[value.name] = name
            self.b.types[name] = value.type
        return self.b.value(name)

    def _free(self, name: str) -> str:
        return prefixed(name, self.b.types, self._last)

    def _hooks_of(self, name: str, when: When) -> list[int]:
        return [n for n in self._hooked.get(name, ()) if self.hooks.hooks[n].when == when]

    def _log_hook(self, number: int, primal: str, ct: Cotangent) -> None:
        """Log that a hook acted on the cotangent of `primal`. For a `record` hook, keep `ct` too."""
        hook = self.hooks.hooks[number]
        self.hooks.applied.append((number, f"{self._index}:{primal}"))
        if hook.do.returned:
            assert isinstance(ct, Value), "a record hook needs a dense cotangent"
            name, _, home = unversioned(primal).partition("@IN@")
            at, name = hook.place if hook.match.variable else (home or self._index, name)
            self.recorded[f"{at}:{name}"] = ct

    def _report_dense(self, name: str, reason: str, location: Location | None) -> None:
        report = Densified(f"{self._index}:{unversioned(name)}", reason, location)
        if report not in self.densified:
            self.densified.append(report)


def gradient_name(name: str) -> str:
    """The name of the cotangent of `name`."""
    return tagged(name, "GRAD")
