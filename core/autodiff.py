"""Reverse-mode differentiation of a closed block, nested blocks included.

One class does it at every depth: the top level of a program, the branches of an `if_else` and the body of a `loop`
are all just closed blocks. `Adjoint` walks the ops of one block in reverse and applies each op's rule; the rules of
control-flow ops build an `Adjoint` of each inner block in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.build import BlockBuilder, Cotangent, SparseRows, Value, expansion, in_float32_if_better
from core.dependence import Dependence
from core.errors import CoreError, Location, NotDifferentiable
from core.hooks import Hooks, block_index, plain
from core.ir import HOLE, Block, Op, StackType, live
from core.precision import EXACT, can_widen
from core.registry import OpSpec, as_tuple, lookup

__all__ = ["Adjoint", "Asked", "Densified", "gradient_name", "pullback", "vjp"]


def vjp(block: Block, wrt: Collection[str] | None = None) -> Block:
    """Pull cotangents of the results of `block` back to its parameters.

    The new block takes the parameters of `block`, then one cotangent per floating-point result. It returns the
    results of `block`, then one cotangent per name in `wrt` (default: every floating-point parameter), real zeros
    where the results do not depend on it.

    Raises NotDifferentiable, with the op's location, where no rule exists.
    """
    wrt = [name for name in block.params if block.types[name].is_float] if wrt is None else wrt
    a = Adjoint(block)
    seeds = [(name, a.seed(name)) for name in block.results if block.types[name].is_float]
    found = a.run(seeds, wrt)
    grads = [found.get(name) or a.b.zeros_like(a.b.value(name)) for name in wrt]
    return a.joined([*block.results, *(g.name for g in grads)])


@dataclass(frozen=True, slots=True)
class Pullback:
    """The block from (parameters, cotangents of some results) to cotangents.

    reached: for each result of the block the parameter it is the cotangent of. One whose cotangent comes as rows is
             there twice, for the rows and their values.
    """

    block: Block
    reached: tuple[str, ...]

    def by_name(self, outs: Iterable[Value]) -> dict[str, Cotangent]:
        """The results by parameter."""
        found: dict[str, Cotangent] = {}
        for name, out in zip(self.reached, outs, strict=True):
            rows = found.get(name)
            found[name] = SparseRows(rows, out) if isinstance(rows, Value) else out
        return found


def pullback(
    block: Block, seeded: Sequence[int], wrt: Sequence[str], densified: list[Densified] | None = None
) -> Pullback:
    """Pull cotangents of the results numbered `seeded` back to those of `wrt` that do receive one."""
    a = Adjoint(block, root=False, densified=densified)
    found = a.run_by_rows([(block.results[i], a.seed(block.results[i])) for i in seeded], wrt)
    results = [(name, v.name) for name in wrt if name in found for v in _values(found[name])]
    joined = a.joined([result for _, result in results])
    return Pullback(replace(joined, ops=live(joined.ops, joined.results)), tuple(name for name, _ in results))


def _values(ct: Cotangent) -> tuple[Value, ...]:
    return (ct.rows, ct.values) if isinstance(ct, SparseRows) else (ct,)


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
        at = self.location
        place = at and {"block": at.block, "op": at.op, "type": at.type}
        return {"variable": self.variable, "reason": self.reason, "at": place}


@dataclass(slots=True)
class _Part:
    """One contribution to a cotangent: its value, and how many adjoint ops stood before it was complete."""

    value: Cotangent
    position: int
    location: Location | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What the rule of an op with inner blocks was asked.

    seeded:  for each output whether it has a cotangent; wanted: for each input whether one is wanted.
    outputs: those of the op as its rule left it; adjoint: those of the op that came of it.
    """

    seeded: tuple[bool, ...]
    wanted: tuple[bool, ...]
    outputs: tuple[str, ...]
    adjoint: tuple[str, ...]


class Adjoint:
    """The backward pass of one block, under construction.

    b:       builder that knows every primal variable and collects the adjoint ops.
    primal:  the ops of the block; a rule of a control-flow op may replace its own with one that returns more.
    origin:  cotangent variable -> primal variable, for every name this class gives.
    hooks:   what is done to cotangents on the way.
    recorded: "block:name" -> the cotangent of that variable, which a hook wants returned.
    densified: tables whose cotangent could not stay rows, those of inner blocks included.
    asked:   position of an op with inner blocks -> what its rule was asked.
    """

    def __init__(
        self,
        block: Block,
        cut: Collection[str] = (),
        depends: Dependence | None = None,
        hooks: Hooks | None = None,
        root: bool = True,
        densified: list[Densified] | None = None,
    ) -> None:
        self.block = block
        self.hooks = hooks or Hooks()
        self.recorded: dict[str, Value] = {}
        self.densified: list[Densified] = [] if densified is None else densified
        self.asked: dict[int, Asked] = {}
        self._hooked = self.hooks.table(block, root)
        self._index = 0 if root else block_index(block)
        self.primal = list(block.ops)
        self.depends = depends or Dependence()
        self.cut = block.stopped.union(cut)
        self.b = BlockBuilder.like(block)
        self.b.ops = []
        self.origin: dict[str, str] = {}
        self._inner: list[Adjoint] = []
        self._known = set(block.types)
        self._parts: dict[str, list[_Part]] = {}
        self._done: dict[str, Cotangent] = {}
        self._whole: dict[str, Value] = {}
        self._names: dict[str, str] = {}
        self._late: dict[int, list[Op]] = defaultdict(list)
        self._readers: dict[str, list[Op]] = defaultdict(list)

    def inside(self, block: Block) -> Adjoint:
        """The backward pass of an inner block of one of the ops."""
        inner = Adjoint(block, depends=self.depends, hooks=self.hooks, root=False, densified=self.densified)
        self._inner.append(inner)
        return inner

    def origins(self) -> dict[str, str]:
        """`origin`, with that of all inner blocks; where names meet, the outer one counts."""
        every = [self]
        for each in every:  # grows while it is walked
            every.extend(each._inner)
        found: dict[str, str] = {}
        for each in reversed(every):
            found.update(each.origin)
        return found

    def readers(self, name: str) -> list[Op]:
        """The ops of the block that read `name`."""
        if not self._readers:
            for op in self.block.ops:
                for each in op.inputs:
                    self._readers[each].append(op)
        return self._readers.get(name, [])

    def seed(self, name: str) -> Value:
        """A new parameter that takes the cotangent of `name`."""
        return self.b.param(self.b.types[name])

    def run(self, seeds: Iterable[tuple[str, Value]], wrt: Collection[str]) -> dict[str, Value]:
        """Append the adjoint ops. The cotangent of each name in `wrt` that has one; the others are structural zeros.

        Raises NotDifferentiable where an op without a gradient lies between a seed and `wrt`.
        """
        return {name: self.whole(name, ct) for name, ct in self.run_by_rows(seeds, wrt).items()}

    def run_by_rows(self, seeds: Iterable[tuple[str, Value]], wrt: Collection[str]) -> dict[str, Cotangent]:
        """As `run`, but the cotangent of a table may come as rows; `whole` makes a table of it."""
        active = self.depends.active(self.block, wrt, self.cut)
        for name, ct in seeds:
            self._contribute(name, ct)
        outer = self.b.location
        try:
            for index in range(len(self.primal) - 1, -1, -1):
                self._step(index, active)
        except CoreError as error:
            raise error.at(self.b.location) from error.__cause__
        self.b.location = outer
        found = {name: self._complete(name) for name in wrt}
        return {name: ct for name, ct in found.items() if ct is not None}

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

    def _table(self, name: str, ct: SparseRows, out: str, location: Location | None) -> Op:
        """The op that writes rows of the table `name` into a table of zeros."""
        attrs = lookup("scatter_add_like").complete({"axis": 0})
        return Op("scatter_add_like", (ct.values.name, ct.rows.name, name), (out,), attrs, location)

    def _tell(self, name: str, reason: str, location: Location | None) -> None:
        told = Densified(f"{self._index}:{name.split('@VER@')[0]}", reason, location)
        if told not in self.densified:
            self.densified.append(told)

    def _step(self, index: int, active: set[str]) -> None:
        """The adjoint of the op at `index`: from the cotangents of its outputs to parts of those of its inputs."""
        op = self.primal[index]
        if not any(name in self._parts for name in op.outputs):
            return
        if active.isdisjoint(op.inputs) or active.isdisjoint(op.outputs):
            return
        self.b.location = _adjoint_of(op.location)
        cts = [self._given(name, op) if name in active else None for name in op.outputs]
        wanted = [name in active for name in op.inputs]
        for name, part in zip(op.inputs, self._apply(index, op, cts, wanted), strict=True):
            if part is not None and name in active:
                self._contribute(name, self._fit(part, op, name))

    def _given(self, name: str, op: Op) -> Value | None:
        """The complete cotangent of an output of `op`, which rules take as one array."""
        ct = self._complete(name)
        return None if ct is None else self.whole(name, ct, f"computed_by:{op.type}", op.location)

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

    def joined(self, results: Sequence[str]) -> Block:
        """Forward and backward as one block, returning `results`."""
        ops = (*self.primal, *self.ops())
        return self._block(ops, tuple(self.final(n) for n in self.b.params), results)

    def part(self, ops: Iterable[Op], params: Sequence[str], results: Sequence[str]) -> Block:
        """A block of some of the ops, with only the types it needs."""
        ops = tuple(ops)
        return self._block(ops, tuple(self.final(n) for n in params), results)

    def final(self, name: str) -> str:
        return self._names.get(name, name)

    def is_primal(self, name: str) -> bool:
        return name in self._known

    def rewrite(self, index: int, op: Op) -> None:
        """Put `op` in the place of a forward op; its new outputs become primal variables."""
        self.primal[index] = op
        self._known.update(op.outputs)

    def _block(self, ops: tuple[Op, ...], params: tuple[str, ...], results: Sequence[str]) -> Block:
        types = {self.final(n): t for n, t in self.b.types.items()}
        used = dict.fromkeys(params)
        for op in ops:
            used.update(dict.fromkeys(op.outputs))
        stopped = frozenset(n for n in self.b.stopped if n in used)
        return Block(params, ops, tuple(self.final(r) for r in results), {n: types[n] for n in used}, stopped)

    def _contribute(self, name: str, ct: Cotangent) -> None:
        for n in self._hooked.get(name, ()):
            hook = self.hooks.hooks[n]
            if hook.when != "each_contribution":
                continue
            if isinstance(ct, SparseRows) and not hook.by_rows:
                self._tell(name, f"hook:{hook.do}", self.b.location)
                (ct,) = self.b.append(self._table(name, ct, self.b.fresh("table"), self.b.location))
            if isinstance(ct, SparseRows):
                (values,) = self.b.append(hook.emit(self.b, ct.values.name, self.b.location))
                ct = SparseRows(ct.rows, values)
            else:
                (ct,) = self.b.append(hook.emit(self.b, ct.name, self.b.location))
            self._apply_hook(n, name, ct)
        self._parts.setdefault(name, []).append(_Part(ct, len(self.b.ops), self.b.location))

    def _complete(self, name: str) -> Cotangent | None:
        """The whole cotangent of `name`: its parts added, right after the last of them."""
        if name in self._done:
            return self._done[name]
        parts = self._parts.pop(name, None)
        if parts is None:
            return None
        hooked = [n for n in self._hooked.get(name, ()) if self.hooks.hooks[n].when == "after_accumulation"]
        if any(isinstance(part.value, SparseRows) for part in parts):
            why = self._why_dense(parts, hooked)
            if why is None:
                return self._complete_rows(name, parts, hooked)
            self._tell(name, *why)
            parts = [self._as_table(name, part) for part in parts]
        final = self._free(gradient_name(name))
        whole = self._free(f"{final}@WHOLE") if hooked else final
        if len(parts) == 1:
            total = self._christen(parts[0], parts[0].value, whole, name)
        else:
            named = [self._christen(p, p.value, self._free(f"{final}@RENAME@{i}"), name) for i, p in enumerate(parts)]
            op = Op("sum", tuple(v.name for v in named), (whole,), {}, parts[-1].location)
            total = self._insert(op, parts[-1], name)
        for n in hooked:
            out = final if n == hooked[-1] else self._free(f"{final}@HOOK@{n}")
            op = replace(self.hooks.hooks[n].emit(self.b, total.name, parts[-1].location), outputs=(out,))
            total = self._insert(op, parts[-1], name)
            self._apply_hook(n, name, total)
        self._done[name] = total
        return total

    def _why_dense(self, parts: Sequence[_Part], hooked: Sequence[int]) -> tuple[str, Location | None] | None:
        """What keeps a cotangent from staying rows, if anything does: a reason and a place."""
        for part in parts:
            if not isinstance(part.value, SparseRows):
                at = part.location
                return f"dense_contribution:{at.type}" if at is not None else "dense_contribution", at
        for n in hooked:
            if not self.hooks.hooks[n].by_rows:
                return f"hook:{self.hooks.hooks[n].do}", parts[-1].location
        return None

    def _complete_rows(self, name: str, parts: Sequence[_Part], hooked: Sequence[int]) -> SparseRows:
        """The parts of a cotangent, all of them rows, added and merged into rows."""
        given = [part.value for part in parts if isinstance(part.value, SparseRows)]
        last, total = parts[-1], given[0]
        if len(given) > 1:
            rows, values = (
                self._late_op("concat", [v.name for v in each], last, axis=0)[0]
                for each in ([g.rows for g in given], [g.values for g in given])
            )
            total = SparseRows(*self._late_op("merge_rows", [values.name, rows.name, name], last))
        for n in hooked:
            op = self.b.typed(self.hooks.hooks[n].emit(self.b, total.values.name, last.location))
            self._late[last.position].append(op)
            total = SparseRows(total.rows, self.b.value(op.outputs[0]))
            self._apply_hook(n, name, total)
        stem = gradient_name(name)
        total = SparseRows(
            self._christen(last, total.rows, self._free(f"{stem}@ROWS"), None),
            self._christen(last, total.values, self._free(f"{stem}@VALUES"), name),
        )
        self._done[name] = total
        return total

    def _late_op(self, type: str, inputs: Sequence[str], part: _Part, **attrs: object) -> list[Value]:
        """Put an op right behind `part`; its outputs."""
        op = self.b.typed(Op(type, tuple(inputs), (), lookup(type).complete(attrs), part.location))
        self._late[part.position].append(op)
        return [self.b.value(name) for name in op.outputs]

    def _as_table(self, name: str, part: _Part) -> _Part:
        if not isinstance(part.value, SparseRows):
            return part
        op = self.b.typed(self._table(name, part.value, self.b.fresh("table"), part.location))
        self._late[part.position].append(op)
        return replace(part, value=self.b.value(op.outputs[0]))

    def _insert(self, op: Op, part: _Part, primal: str) -> Value:
        """Put an op that makes a cotangent of `primal` right behind `part`."""
        self._late[part.position].append(self.b.typed(op))
        self.origin[op.outputs[0]] = primal
        return self.b.value(op.outputs[0])

    def _apply_hook(self, number: int, primal: str, ct: Cotangent) -> None:
        hook = self.hooks.hooks[number]
        self.hooks.applied.append((number, f"{self._index}:{primal}"))
        if hook.do == "record":
            assert isinstance(ct, Value), "what is recorded is not by rows"
            name, _, home = plain(primal).partition("@IN@")
            at, name = hook.place if hook.variable else (home or self._index, name)
            self.recorded[f"{at}:{name}"] = ct

    def _christen(self, part: _Part, value: Cotangent, name: str, primal: str | None) -> Value:
        """Give a part's value its name. What already has one, or is not ours to name, is passed on by an `assign`.

        primal: the variable whose cotangent it is; None for the numbers of rows, which are no cotangent.
        """
        assert isinstance(value, Value), "rows have become a table before"
        if primal is not None:
            self.origin[name] = primal
        if self.is_primal(value.name) or value.name in self.origin or value.name in self._names:
            copy = Op("assign", (value.name,), (name,), {}, part.location)
            self._late[part.position].append(self.b.typed(copy))
        else:
            self._names[value.name] = name
            self.b.types[name] = value.type
        return self.b.value(name)

    def _free(self, name: str) -> str:
        while name in self.b.types:
            name = f"grad/{name}"
        return name

    def _apply(self, index: int, op: Op, cts: list[Value | None], wanted: list[bool]) -> tuple[Cotangent | None, ...]:
        spec = lookup(op.type)
        if spec.unavailable is not None:
            raise NotDifferentiable(
                f"{op.type} has no gradient: {spec.unavailable}",
                suggestion="set stop_gradient on its input or output if none should flow through it",
            )
        if spec.adjoint_rule is not None:
            before = len(self.b.ops)
            parts = tuple(spec.adjoint_rule(self, index, op, cts, wanted))
            adjoint = self.b.ops[-1].outputs if len(self.b.ops) > before else ()
            seeded = tuple(ct is not None for ct in cts)
            self.asked[index] = Asked(seeded, tuple(wanted), self.primal[index].outputs, adjoint)
            return parts
        ins = [None if name == HOLE else self.b.value(name) for name in op.inputs]
        if spec.vjp_rule is None:
            return self._pull_back_composite(spec, op, ins, cts, wanted)
        outs = [self.b.value(name) for name in op.outputs]
        full = tuple(ct or (self.b.zeros_like(o) if o.type.is_float else None) for ct, o in zip(cts, outs, strict=True))
        if can_widen(v.type for v in (*full, *ins) if v is not None):
            return self._pull_back_half(spec, op, ins, full, outs)
        return _by_rule(spec, op, full, outs, ins)

    def _pull_back_half(
        self, spec: OpSpec, op: Op, ins: list[Value | None], cts: tuple[Value | None, ...], outs: list[Value]
    ) -> tuple[Cotangent | None, ...]:
        """The rule of an op on 16-bit floats, in float32 where it would round more than once.

        What the op gave was rounded, and differences from it lose digits: in float32 the rule sees it computed anew.
        """
        operands = (*cts, *outs, *ins)
        types = tuple(None if v is None else v.type for v in operands)
        key = ("rule", types, tuple(op.attrs.values()))
        if key not in spec.memo:
            n = len(outs)
            reached: list[int] = []

            def body(*x: Value | None) -> list[Value]:
                given, gave = x[2 * n :], x[n : 2 * n]
                if spec.name not in EXACT and any(v is not None and v.type != t for v, t in zip(x, types, strict=True)):
                    gave = as_tuple(next(v for v in x if v is not None).builder.emit(spec.name, *given, **op.attrs))
                found = _by_rule(spec, op, x[:n], gave, given)
                parts = [() if v is None else _values(v) for v in found]
                reached[:] = map(len, parts)
                return [v for part in parts for v in part]

            block = in_float32_if_better(body, types)
            spec.memo[key] = (replace(block, ops=live(block.ops, block.results)), tuple(reached))
        block, reached = spec.memo[key]
        found = iter(self.b.inline(block, operands))
        return tuple(SparseRows(next(found), next(found)) if r == 2 else next(found) if r else None for r in reached)

    def _pull_back_composite(
        self, spec: OpSpec, op: Op, ins: list[Value | None], cts: list[Value | None], wanted: list[bool]
    ) -> tuple[Cotangent | None, ...]:
        """A composite without a rule of its own: its expansion is run again and pulled back."""
        types = tuple(None if v is None else v.type for v in ins)
        seeded = tuple(i for i, ct in enumerate(cts) if ct is not None)
        key = ("pullback", types, tuple(op.attrs.values()), seeded, tuple(wanted))
        if key not in spec.memo:
            block = expansion(spec, types, op.attrs)
            wrt = [p for p, w in zip(block.params, wanted, strict=True) if w]
            spec.memo[key] = (block.params, pullback(block, seeded, wrt))
        params, pulled = spec.memo[key]
        by_name = pulled.by_name(self.b.inline(pulled.block, [*ins, *(ct for ct in cts if ct is not None)]))
        return tuple(by_name.get(p) for p in params)

    def _fit(self, ct: Cotangent, op: Op, name: str) -> Cotangent:
        """Undo broadcasting, once, here, so that no rule has to."""
        primal = self.b.value(name)
        if isinstance(ct, SparseRows) or isinstance(primal.type, StackType):
            return ct
        # two sizes that are both unknown may still differ when the program runs
        certain = primal.type.is_static or len(op.inputs) == 1 or not lookup(op.type).broadcasts
        if ct.type == primal.type and certain:
            return ct
        assert ct.dtype == primal.dtype, f"the rule of {op.type} gave {ct.type} for {primal.type}"
        if primal.type.is_static and ct.type.is_static:
            return self.b.emit("sum_to", ct, shape=primal.shape)
        return self.b.emit("sum_to_like", ct, primal)


def _by_rule(
    spec: OpSpec, op: Op, cts: Sequence[Value | None], outs: Sequence[Value | None], ins: Sequence[Value | None]
) -> tuple[Cotangent | None, ...]:
    assert spec.vjp_rule is not None
    if len(outs) == 1 and not spec.variadic_outputs:
        return as_tuple(spec.vjp_rule(cts[0], outs[0], *ins, **op.attrs))
    return as_tuple(spec.vjp_rule(tuple(cts), tuple(outs), *ins, **op.attrs))


def _adjoint_of(location: Location | None) -> Location | None:
    """The same place, marked as the backward pass of what stands there."""
    if location is None or location.adjoint:
        return location
    return Location(location.block, location.op, location.type, location.slot, location.variable, True)


def gradient_name(name: str) -> str:
    return f"{name}@GRAD"
