"""The tree of blocks, and the names that each block reads and writes, its inner blocks included."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import get_args

from core.ir import Block
from core.ir.attr_values import BlockIndex, LocalName
from core.ir.registry import CONSTRUCTS, REGISTRY, block_attrs
from core.ir.stop import poll
from core.wire.document import Limits
from core.wire.problems import Problems
from core.wire.records import RawBlock, RawOp, RawProgram

CLOSED_DEPTH = 2
"""Factor on the limit of nesting for programs in the closed form: a `switch_case` becomes nested branches."""

__all__ = ["Scopes", "Touched", "inner_indices", "local_names"]


@dataclass(frozen=True, slots=True)
class Touched:
    """Outer names that a block reads or writes, in order, and whether it contains random ops."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    draws: bool


class Scopes:
    """The tree of blocks.

    Raises InvalidProgram unless each block is used exactly once, below block 0 and within the depth limit.
    """

    def __init__(self, program: RawProgram, problems: Problems, limits: Limits) -> None:
        self.program = program
        self._touched: dict[int, Touched] = {}
        self._owner: dict[int, RawOp] = {}
        self._local: dict[int, frozenset[str]] = {}
        self._check_tree(problems, limits)

    def touched(self, index: int) -> Touched:
        return self._touched[index]

    def home(self, block: RawBlock, name: str) -> RawBlock:
        """The block whose variable `name` means inside `block`: the nearest one, from `block` outwards, that declares
        it in its `vars` or gets it from its op, as a state of a `scan`. Block 0 if there is none.
        """
        at = block
        while at.idx and name not in at.vars and at.params is None and name not in self._local[at.idx]:
            at = self.program.blocks[at.parent_idx]
        return at

    def _check_tree(self, problems: Problems, limits: Limits) -> None:
        """Walk from block 0 to the leaves and report all violations of the tree; then collect names on the way back."""
        blocks = self.program.blocks
        if blocks[0].parent_idx != -1:
            problems.add("bad_program", "block 0 is the root: its parent_idx must be -1", "/blocks/0/parent_idx")
        deepest = (CLOSED_DEPTH if self.program.closed else 1) * limits.max_depth
        owner = self._owner
        order = [(0, 1)]
        for index, depth in order:  # the loop appends to the list it iterates
            for op in blocks[index].ops:
                poll()
                for attr, inner in inner_indices(op):
                    pointer = f"{op.pointer}/attrs/{attr}"
                    if not isinstance(inner, int) or isinstance(inner, bool) or not 0 < inner < len(blocks):
                        problems.add(
                            "bad_block", f"{attr} must be the index of a block other than 0", pointer, op.location
                        )
                    elif inner in owner:
                        code = "block_cycle" if self._encloses(inner, index, owner) else "block_shared"
                        problems.add(code, f"block {inner} already belongs to another op", pointer, op.location)
                    elif depth >= deepest:
                        problems.add("too_deep", f"blocks are nested more than {deepest} deep", pointer, op.location)
                    else:
                        owner[inner] = op
                        self._local[inner] = local_names(op)
                        order.append((inner, depth + 1))
                        if blocks[inner].parent_idx != index:
                            problems.add(
                                "bad_block",
                                f"block {inner} is used in block {index}, but its parent_idx is "
                                f"{blocks[inner].parent_idx}",
                                f"{blocks[inner].pointer}/parent_idx",
                                op.location,
                            )
        if not problems.found:
            for block in blocks:
                if block.idx and block.idx not in owner:
                    problems.add("unreachable_block", f"no op runs block {block.idx}", block.pointer)
        problems.raise_if_any()
        for index, _ in reversed(order):
            self._touched[index] = self._collect(blocks[index])

    @staticmethod
    def _encloses(outer: int, inner: int, owner: dict[int, RawOp]) -> bool:
        while inner in owner:
            if inner == outer:
                return True
            inner = owner[inner].location.block
        return inner == outer

    def _collect(self, block: RawBlock) -> Touched:
        reads: dict[str, None] = {}
        writes: dict[str, None] = {}
        draws = False
        for op in block.ops:
            reads.update((n, None) for n in op.read_names())
            writes.update((n, None) for n in op.written_names())
            spec = REGISTRY.get(op.type)
            draws |= spec is not None and spec.takes_key and "key" not in op.inputs
            for _, inner in inner_indices(op):
                if isinstance(inner, int) and self.program.blocks[inner].params is None:
                    below, local = self._touched[inner], local_names(op)
                    reads.update((n, None) for n in below.reads if n not in local)
                    writes.update((n, None) for n in below.writes if n not in local)
                    draws |= below.draws
        own = block.vars if block.idx else {}
        return Touched(tuple(n for n in reads if n not in own), tuple(n for n in writes if n not in own), draws)


def inner_indices(op: RawOp) -> list[tuple[str, object]]:
    """The (attribute, index) pairs by which `op` refers to blocks. A null index that is allowed is left out."""
    found: list[tuple[str, object]] = []
    for attr, optional in _block_attributes(op.type):
        value = op.attrs.get(attr)
        if isinstance(value, list):
            found += [(f"{attr}/{i}", each) for i, each in enumerate(value)]
        elif attr in op.attrs and not (optional and value is None):
            found.append((attr, value))
    return found


def local_names(op: RawOp) -> frozenset[str]:
    """Names that `op` defines only for its inner block."""
    spec = CONSTRUCTS.get(op.type)
    given = [op.attrs.get(a) for a in (_local_attributes(op.type) if spec else ())]
    lists = (value if isinstance(value, list) else [value] for value in given)
    return frozenset(name for names in lists for name in names if isinstance(name, str))


@cache
def _local_attributes(type: str) -> tuple[str, ...]:
    """The attributes of a construct that hold names for its inner block."""
    return tuple(block_attrs(CONSTRUCTS[type], LocalName))


@cache
def _block_attributes(type: str) -> tuple[tuple[str, bool], ...]:
    """(attribute, whether it may be null) for the attributes that refer to blocks, in both forms of the op."""
    found = {}
    for table, kind in ((REGISTRY, Block), (CONSTRUCTS, BlockIndex)):
        if type in table:
            for name in block_attrs(table[type], kind):
                attr = next(a for a in table[type].attrs if a.name == name)
                found[name] = NoneType in get_args(attr.type)
    return tuple(found.items())
