"""The block to write: composites without a rule expanded, dead ops eliminated, constants folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.ir import Block, Program
from core.onnx.writing.registry import RULES
from core.passes import eliminate_dead, expand_composites, fold_constants, share_common

__all__ = ["prepared"]


def prepared(program: Program, results: Sequence[str]) -> Block:
    """The block that computes the variables `results`, made of ops with rules where these exist.

    A backward pass reads values inside composites, so a program with a backward pass keeps no composite.
    """
    block = replace(program.block, results=tuple(results))
    block = eliminate_dead(block)
    backward = any(op.location is not None and op.location.adjoint for op in block.ops)
    block = expand_composites(block, keep=() if backward else RULES)
    block = fold_constants(block)
    block = share_common(block)
    return eliminate_dead(block)
