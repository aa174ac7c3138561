"""The result of a gradient query: the program with its backward pass, and tables about it.

The tables are data, so that no client has to parse names of variables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.autodiff.adjoint import RuleCall
from core.autodiff.cotangents import Densified
from core.cost.budget import Choice
from core.ir import Block, Program
from core.ir.errors import Location
from core.ir.recursion import headroom
from core.ir.stop import poll
from core.passes.recompute import Recomputed
from core.wire.write import write

__all__ = ["Backward", "rewrites", "roles"]

EMPTY = Block((), (), (), {})


@dataclass(frozen=True, slots=True)
class Backward:
    """A program that computes gradients, and tables about them.

    program:        forward ops, then backward ops.
    params_grads:   (requested name, gradient variable or None), in the order of the query.
    grad_to_var:    gradient variable -> forward variable, partial gradients and those inside loops included.
    grad_info_map:  forward variable -> (gradient variable, index of its block).
    forward_of:     for each op of the backward pass, its position in block 0 and its op in the client's program.
    roles:          for each op of block 0: 0 forward, 256 forward and loss, 257 backward and loss, 1 backward.
    ready_at:       requested name -> position in block 0 of the op after which its gradient is final.
    missing:        requested name -> the reason why it has no gradient; see core.backward.unreachable.
    cut_at:         requested name -> the op at which its path to the targets ends, if that is a single op.
    rewrites:       the changes to the forward part, as sentences.
    recorded:       "block:name" -> variable of the gradient that a hook records; one element a trip inside loops.
    hooked:         (number of the hook, "block:name" whose gradient it acts on), in the order of the ops.
    checkpoints:    forward variables that cross a cut and stay in memory.
    sparse:         requested name -> (variable of the row numbers, variable of their values), for a gradient that is
                    also row-sparse; its gradient variable is the dense table.
    densified:      tables with a densified gradient, and the reasons.
    choice:         the memory plan chosen for a budget.
    forward:        the differentiated block.
    rule_calls:     position in `forward` of a control-flow op -> the call of its rule.
    """

    program: Program
    params_grads: tuple[tuple[str, str | None], ...]
    grad_to_var: Mapping[str, str] = field(default_factory=dict)
    grad_info_map: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    forward_of: tuple[tuple[int, Location | None], ...] = ()
    roles: tuple[int, ...] = ()
    ready_at: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    cut_at: Mapping[str, Location] = field(default_factory=dict)
    rewrites: tuple[str, ...] = ()
    recorded: Mapping[str, str] = field(default_factory=dict)
    hooked: tuple[tuple[int, str], ...] = ()
    checkpoints: tuple[str, ...] = ()
    sparse: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    densified: tuple[Densified, ...] = ()
    choice: Choice | None = None
    forward: Block = field(default=EMPTY, repr=False)
    rule_calls: Mapping[int, RuleCall] = field(default_factory=dict, repr=False)

    @property
    def gradients(self) -> dict[str, str]:
        """Requested name -> gradient variable, for those that exist."""
        return {name: grad for name, grad in self.params_grads if grad is not None}

    @property
    def role_vars(self) -> tuple[tuple[str, ...], ...]:
        """For each op of block 0 the parameters whose gradients it completes, as (parameter, gradient, ...).

        This is Fluid's ``op_role_var``: the places where an optimiser or a collective can start.
        """
        parameters = {v.name for v in self.program.parameters}
        found: list[list[str]] = [[] for _ in self.program.block.ops]
        for name, grad in dict(self.params_grads).items():
            if grad is not None and name in parameters and name in self.ready_at:
                found[self.ready_at[name]] += [name, grad]
        return tuple(map(tuple, found))

    def as_document(self) -> dict[str, Any]:
        """The program and all tables as JSON-ready values."""
        with headroom():
            return self._as_document()

    def _as_document(self) -> dict[str, Any]:
        return {
            "program": write(self.program),
            "params_grads": [list(pair) for pair in self.params_grads],
            "grad_to_var": dict(self.grad_to_var),
            "grad_info_map": {name: list(info) for name, info in self.grad_info_map.items()},
            "backward_ops": [
                {"op": i, **{f"forward_{key}": value for key, value in (at.as_document() if at else {}).items()}}
                for i, at in self.forward_of
            ],
            "op_roles": list(self.roles),
            "op_role_vars": [list(pairs) for pairs in self.role_vars],
            "ready_at": dict(self.ready_at),
            "missing": dict(self.missing),
            "rewrites": list(self.rewrites),
            "recorded": dict(self.recorded),
            "hooked": [list(pair) for pair in self.hooked],
            "checkpoints": list(self.checkpoints),
            "sparse": {name: {"rows": rows, "values": values} for name, (rows, values) in self.sparse.items()},
            "densified": [each.as_document() for each in self.densified],
            "memory": self.choice.as_document() if self.choice else None,
        }


def roles(block: Block, forward: int, targets: Collection[str], seeds: Collection[str]) -> tuple[int, ...]:
    """`Backward.roles` of `block`.

    forward: the number of its forward ops, which come first.
    seeds:   cotangents of the targets, under the names that they have.
    """
    found = [256 if set(targets) & set(op.outputs) else 0 for op in block.ops[:forward]]
    found += [
        257 if op.type in ("fill_constant", "full_like") and op.outputs[0] in seeds else 1 for op in block.ops[forward:]
    ]
    return tuple(found)


def rewrites(before: Block, after: Block, again: Recomputed | None) -> tuple[str, ...]:
    """Sentences on the changes to the forward part: recomputed ops, residuals of control flow, renamed versions."""
    sentences = []
    if again is not None:
        sentences.append(f"{again.again} ops of the forward part run again in the backward pass")
    for old, new in zip(before.ops, after.ops, strict=False):
        poll()
        extra = new.outputs[len(old.outputs) :]
        if extra:
            place = f"block {old.location.block}, op {old.location.op}" if old.location else old.type
            sentences.append(f"{place} ({old.type}) also returns {', '.join(extra)}, which the backward pass reads")
    versions = [m for n in before.types if (m := re.fullmatch(r"(.+)@VER@\d+", n))]
    sentences.extend(f"{m[1]!r} is written more than once: {m[0]!r} is one of its versions" for m in versions)
    return tuple(sentences)
