"""Reverse-mode differentiation of a closed block, nested blocks included.

`Adjoint` walks the ops of a block in reverse. When the walk reaches an op, it has passed every reader of the op's
outputs, so the cotangents of the outputs are complete. The op's VJP rule writes contributions to the cotangents of its
inputs, and `Cotangents` adds them.

One class serves every depth: the top level of a program, the branches of an `if_else` and the body of a `loop` are
closed blocks. The rules of control-flow ops build an `Adjoint` of each inner block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from core.autodiff.activity import Activity
from core.autodiff.cotangents import Cotangents, Densified
from core.autodiff.hooks import Hooks
from core.autodiff.vjp import apply_rule, fitted
from core.ir import HOLE, Block, Op, TensorType, Type, inner_blocks, live
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value, arrays_of, expansion
from core.ir.derived import derived
from core.ir.errors import CoreError, Location, NotDifferentiable
from core.ir.registry import OpSpec, lookup
from core.ir.stop import poll

__all__ = ["Adjoint", "RuleCall", "pullback", "vjp"]


def vjp(block: Block, wrt: Collection[str] | None = None) -> Block:
    """Pull cotangents of the results of `block` back to its parameters.

    The new block takes the parameters of `block`, then one cotangent for each floating-point result. It returns the
    results of `block`, then one cotangent for each name in `wrt` (default: every floating-point parameter). A
    structural zero is returned as an array of zeros.

    Raises NotDifferentiable, with the op's location, for an op without a gradient.
    """
    wrt = [name for name in block.params if block.types[name].is_float] if wrt is None else wrt
    a = Adjoint(block)
    seeds = [(name, a.seed(name)) for name in block.results if block.types[name].is_float]
    found = a.run(seeds, wrt)
    grads = [found.get(name) or a.b.zeros_like(a.b.value(name)) for name in wrt]
    return a.joined([*block.results, *(g.name for g in grads)])


@dataclass(frozen=True, slots=True)
class Pullback:
    """The block from (parameters, cotangents of some results) to cotangents of parameters.

    reached: for each result of the block the parameter of this cotangent. A row-sparse cotangent has two results: the
             row numbers, then the values.
    """

    block: Block
    reached: tuple[str, ...]

    def by_name(self, outs: Iterable[Value]) -> dict[str, Cotangent]:
        """Cotangents by parameter, from the results `outs` of the block."""
        found: dict[str, Cotangent] = {}
        for name, out in zip(self.reached, outs, strict=True):
            rows = found.get(name)
            found[name] = SparseRows(rows, out) if isinstance(rows, Value) else out
        return found


def pullback(
    block: Block,
    seeded: Sequence[int],
    wrt: Sequence[str],
    densified: list[Densified] | None = None,
    hooks: Hooks | None = None,
) -> Pullback:
    """Pull cotangents of the results numbered `seeded` back to `wrt`, without structural zeros."""
    a = Adjoint(block, hooks=hooks, root=False, densified=densified)
    found = a.run_by_rows([(block.results[i], a.seed(block.results[i])) for i in seeded], wrt)
    results = [(name, v.name) for name in wrt if name in found for v in arrays_of(found[name])]
    joined = a.joined([result for _, result in results])
    return Pullback(replace(joined, ops=live(joined.ops, joined.results)), tuple(name for name, _ in results))


@dataclass(frozen=True, slots=True)
class RuleCall:
    """A call of the rule of an op with inner blocks.

    seeded:  for each output of the op, whether it has a cotangent.
    wanted:  for each input of the op, whether its cotangent is requested.
    outputs: the outputs of the forward op after its rule rewrote it.
    adjoint: the outputs of the adjoint op with inner blocks that the rule added.
    """

    seeded: tuple[bool, ...]
    wanted: tuple[bool, ...]
    outputs: tuple[str, ...]
    adjoint: tuple[str, ...]


class Adjoint:
    """The backward pass of one block, under construction.

    b:          builder that knows every primal variable and collects the adjoint ops.
    primal:     the ops of the block. The rule of a control-flow op may replace its op by one that returns residuals.
    cotangents: the cotangents of the block's variables that the walk has reached.
    rule_calls: position of an op with inner blocks -> the call of its rule.
    whole:      tensor arrays among the results whose seeds have every element (`core.ops.control.elements`).
    """

    def __init__(
        self,
        block: Block,
        cut: Collection[str] = (),
        activity: Activity | None = None,
        hooks: Hooks | None = None,
        root: bool = True,
        densified: list[Densified] | None = None,
    ) -> None:
        self.block = block
        self.primal = list(block.ops)
        self.activity = activity or Activity()
        self.cut = (block.stopped if root else self.activity.stopped(block)).union(cut)
        self.b = BlockBuilder.like(block)
        self.b.ops = []
        self.cotangents = Cotangents(block, self.b, hooks or Hooks(), root, densified)
        self.rule_calls: dict[int, RuleCall] = {}
        self.whole: Collection[str] = ()
        self._inner: list[Adjoint] = []
        self._readers: dict[str, list[Op]] = defaultdict(list)

    def seed(self, name: str) -> Value:
        """A new parameter for the cotangent of `name`."""
        return self.b.param(self.b.types[name])

    def ones(self, name: str) -> Value:
        """The default seed of a target: a constant if its shape is static, otherwise shaped like the target."""
        type = self.b.types[name]
        assert isinstance(type, TensorType)
        if type.is_static:
            return self.b.constant(1.0, type.dtype, type.shape)
        return self.b.emit("full_like", self.b.value(name), value=1.0)

    def run(
        self, seeds: Iterable[tuple[str, Value]], wrt: Collection[str], among: Sequence[int] | None = None
    ) -> dict[str, Value]:
        """Append the adjoint ops. Return the dense cotangents of `wrt`; a missing key is a structural zero.

        among: positions of all ops that lie between `wrt` and a seed, in order, if they are known; others may be there.
        Raises NotDifferentiable if an op without a gradient lies between a seed and `wrt`.
        """
        return {name: self.cotangents.dense(name, ct) for name, ct in self.run_by_rows(seeds, wrt, among).items()}

    def run_by_rows(
        self, seeds: Iterable[tuple[str, Value]], wrt: Collection[str], among: Sequence[int] | None = None
    ) -> dict[str, Cotangent]:
        """Like `run`, but cotangents of tables may be row-sparse; `Cotangents.dense` converts them."""
        places = range(len(self.primal)) if among is None else among
        active = self.activity.active(self.block, wrt, self.cut, [self.block.ops[i] for i in places])
        for name, ct in seeds:
            self.cotangents.contribute(name, ct)
        outer = self.b.location
        try:
            for index in reversed(places):
                self._step(index, active)
        except CoreError as error:
            raise error.at(self.b.location) from error.__cause__
        self.b.location = outer
        found = {name: self.cotangents.complete(name) for name in wrt}
        return {name: ct for name, ct in found.items() if ct is not None}

    def _step(self, index: int, active: set[str]) -> None:
        """Append the adjoint of the op at `index`: contributions to the cotangents of its inputs."""
        poll()
        op = self.primal[index]
        if not any(self.cotangents.waiting(name) for name in op.outputs):
            return
        if active.isdisjoint(op.inputs) or active.isdisjoint(op.outputs):
            return
        if lookup(op.type).no_gradient is not None:  # its output is active if its own gradient is wanted
            return
        self.b.location = _adjoint_of(op.location)
        cts = [self._output_cotangent(name, op) if name in active else None for name in op.outputs]
        wanted = [name in active for name in op.inputs]
        for name, part in zip(op.inputs, self._apply(index, op, cts, wanted), strict=True):
            if part is not None and name in active:
                self.cotangents.contribute(name, part)

    def _output_cotangent(self, name: str, op: Op) -> Value | None:
        """The complete cotangent of an output of `op`. It is dense: VJP rules take no rows."""
        ct = self.cotangents.complete(name)
        return None if ct is None else self.cotangents.dense(name, ct, f"computed_by:{op.type}", op.location)

    def _apply(self, index: int, op: Op, cts: list[Value | None], wanted: list[bool]) -> tuple[Cotangent | None, ...]:
        """A contribution to the cotangent of each input of `op`, of its type; None for a structural zero."""
        spec = lookup(op.type)
        if spec.unavailable is not None:
            raise NotDifferentiable(
                f"{op.type} has no gradient: {spec.unavailable}",
                suggestion="set stop_gradient on its input or output if no gradient should flow through it",
            )
        if spec.adjoint_rule is not None:
            before = len(self.b.ops)
            parts = tuple(spec.adjoint_rule(self, index, op, cts, wanted))
            # ops that join rows of a table may follow the op with the inner blocks
            added = reversed(self.b.ops[before:])
            adjoint = next((each.outputs for each in added if any(inner_blocks(each))), ())
            seeded = tuple(ct is not None for ct in cts)
            self.rule_calls[index] = RuleCall(seeded, tuple(wanted), self.primal[index].outputs, adjoint)
            return self._fitted(op, parts, wanted)
        ins = [None if name == HOLE else self.b.value(name) for name in op.inputs]
        if spec.vjp_rule is None:
            return self._fitted(op, self._pull_back_composite(spec, op, ins, cts, wanted), wanted)
        outs = [self.b.value(name) for name in op.outputs]
        full = tuple(ct or (self.b.zeros_like(o) if o.type.is_float else None) for ct, o in zip(cts, outs, strict=True))
        return apply_rule(self.b, op, full, outs, ins, wanted)

    def _fitted(
        self, op: Op, parts: Sequence[Cotangent | None], wanted: Sequence[bool]
    ) -> tuple[Cotangent | None, ...]:
        """The wanted contributions, summed over the axes that `op` broadcast."""
        return tuple(
            fitted(part, op, self.b.value(name)) if part is not None and each else None
            for name, part, each in zip(op.inputs, parts, wanted, strict=True)
        )

    def _pull_back_composite(
        self, spec: OpSpec, op: Op, ins: list[Value | None], cts: list[Value | None], wanted: list[bool]
    ) -> tuple[Cotangent | None, ...]:
        """The contributions of a composite without a VJP rule: the pullback of its expansion, computed again."""
        types = tuple(None if v is None else v.type for v in ins)
        seeded = tuple(i for i, ct in enumerate(cts) if ct is not None)

        def derive() -> tuple[tuple[str, ...], Block, tuple[str, ...]]:
            block = expansion(spec, types, op.attrs)
            pulled = pullback(block, seeded, [p for p, w in zip(block.params, wanted, strict=True) if w])
            return block.params, pulled.block, pulled.reached

        params, block, reached = derived("pullback", spec, types, op.attrs, derive, seeded, tuple(wanted))
        outs = self.b.inline(block, [*ins, *(ct for ct in cts if ct is not None)])
        by_name = Pullback(block, reached).by_name(outs)
        return tuple(by_name.get(p) for p in params)

    def joined(self, results: Sequence[str]) -> Block:
        """The forward and adjoint ops as one block that returns `results`."""
        ops = (*self.primal, *self.ops())
        return self._block(ops, tuple(self.final(n) for n in self.b.params), results)

    def part(
        self,
        ops: Iterable[Op],
        params: Sequence[str],
        results: Sequence[str],
        more: Mapping[str, Type] | None = None,
    ) -> Block:
        """A block of some of the ops, with only the types of its own variables.

        more: types of variables of `ops` that are not of this backward pass.
        """
        ops = tuple(ops)
        return self._block(ops, tuple(self.final(n) for n in params), results, more)

    def ops(self) -> list[Op]:
        """The adjoint ops with final names."""
        return self.cotangents.ops()

    def final(self, name: str) -> str:
        """The final name of the builder's variable `name`, as in `ops`, `joined` and `part`."""
        return self.cotangents.final(name)

    def origins(self) -> dict[str, str]:
        """Cotangent variable -> primal variable, inner blocks included. The outer block wins if names are equal."""
        every = [self]
        for each in every:  # the list grows during the loop
            every.extend(each._inner)
        found: dict[str, str] = {}
        for each in reversed(every):
            found.update(each.cotangents.origin)
        return found

    def _block(
        self,
        ops: tuple[Op, ...],
        params: tuple[str, ...],
        results: Sequence[str],
        more: Mapping[str, Type] | None = None,
    ) -> Block:
        types = self.cotangents.renamed() | dict(more or {})
        used = dict.fromkeys(params)
        for op in ops:
            poll()
            used.update(dict.fromkeys(op.outputs))
        stopped = frozenset(n for n in self.b.stopped if n in used)
        return Block(
            params,
            ops,
            tuple(self.final(r) for r in results),
            {n: types.get(n) or self.b.types[n] for n in used},
            stopped,
        )

    def inside(self, block: Block) -> Adjoint:
        """The backward pass of an inner block of one of the ops, with the same hooks.

        Ops that belong to no op of the inner block, such as sums over trips, have the location of the outer op.
        """
        own = self.cotangents
        inner = Adjoint(block, activity=self.activity, hooks=own.hooks, root=False, densified=own.densified)
        inner.b.location = self.b.location
        self._inner.append(inner)
        return inner

    def readers(self, name: str) -> list[Op]:
        """The ops of the block that read `name`."""
        if not self._readers:
            for op in self.block.ops:
                for each in op.inputs:
                    self._readers[each].append(op)
        return self._readers.get(name, [])

    def is_primal(self, name: str) -> bool:
        return name in self.cotangents.primal

    def rewrite(self, index: int, op: Op) -> None:
        """Replace the forward op at `index` by `op`; its new outputs become primal variables."""
        self.primal[index] = op
        self.cotangents.primal.update(op.outputs)


def _adjoint_of(location: Location | None) -> Location | None:
    """`location`, marked as part of the backward pass."""
    if location is None or location.adjoint:
        return location
    return replace(location, adjoint=True)
