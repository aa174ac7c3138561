"""Branches: `cond`, `switch` and `safe_where`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backpass_client.arithmetic import is_number
from backpass_client.builder.blocks import Block, Name, Op
from backpass_client.builder.build import Builder, current_builder
from backpass_client.builder.symbol import Symbol
from backpass_client.builder.trees import flattened, labels, like
from backpass_client.builder.types import INTEGERS, InvalidOp, Type, joined, same_sizes

__all__ = ["cond", "safe_where", "switch"]


def cond(
    condition: Any, true: Callable[..., Any], false: Callable[..., Any], *operands: Any, name: str = "cond"
) -> Any:
    """The result of ``true(*operands)`` if `condition` (one bool) is true, else of ``false(*operands)``.

    Only one of them runs, forward and backward. Both return the same structure, with equal dtypes and ranks.
    """
    b = current_builder("cond")
    chosen = b.condition(condition, "cond")
    blocks, results, tree = _branches(b, [("true", true), ("false", false)], operands, name)
    b.append(Op("if_else", {"condition": [chosen]}, {"out": [*results]}, {}, dict(zip(BOTH, blocks, strict=True))))
    return like(tree, results)


def switch(
    index: Any,
    branches: Sequence[Callable[..., Any]],
    *operands: Any,
    default: Callable[..., Any] | None = None,
    name: str = "switch",
) -> Any:
    """The result of ``branches[index](*operands)``; for any other index of `default`, or of the last branch."""
    b = current_builder("switch")
    chosen = b.operand(index)
    if chosen.type.dtype not in (None, *INTEGERS) or not all(same_sizes(n, 1) for n in chosen.type.shape or ()):
        raise InvalidOp(f"the index of switch must be one integer, not {chosen!r}")
    if not branches:
        raise InvalidOp("switch needs at least one branch")
    functions = [(f"branch_{i}", each) for i, each in enumerate(branches)]
    if default is not None:
        functions.append(("default", default))
    blocks, results, tree = _branches(b, functions, operands, name)
    inner: dict[str, Block | list[Block] | None] = {"branches": blocks[: len(branches)]}
    if default is not None:
        inner["default_block"] = blocks[-1]
    b.append(Op("switch_case", {"index": [chosen]}, {"out": [*results]}, {}, inner))
    return like(tree, results)


def safe_where(
    condition: Any, true: Callable[..., Any], false: Callable[..., Any], *operands: Any, name: str = "safe_where"
) -> Any:
    """``where(condition, true(*operands), false(*operands))``, without NaN in the gradient from the other side.

    Both functions run and must work element by element.
    """
    b = current_builder("safe_where")
    chosen = b.condition(condition, "safe_where", one=False)
    blocks, results, tree = _branches(b, [("true", true), ("false", false)], operands, name)
    inner = dict(zip(BOTH, blocks, strict=True))
    b.append(Op("safe_where", {"condition": [chosen]}, {"out": [*results]}, {}, inner))
    return like(tree, results)


BOTH = ("true_block", "false_block")


def _branches(
    b: Builder, functions: Sequence[tuple[str, Callable[..., Any]]], operands: Sequence[Any], name: str
) -> tuple[list[Block], list[Symbol], Any]:
    """(the blocks, the results after them, a tree with the structure of the results). Raises InvalidOp."""
    given = [like(each, [b.operand(x) for x in flattened(each)]) for each in operands]
    prefix = b.new_prefix(name)
    blocks: list[Block] = []
    found: list[list[Symbol]] = []
    trees: list[Any] = []
    for title, function in functions:
        if not callable(function):
            advice = "bp.where chooses between values"
            raise InvalidOp(f"{title.replace('_', ' ')} of {name} must be a function, not {function!r}; {advice}")
        with b.at(f"{prefix}{title}."), b.inner_block(f"{title.replace('_', ' ')} of {name}") as block:
            tree = function(*given)
            values = flattened(tree)
            if not values:
                raise InvalidOp(f"{title.replace('_', ' ')} of {name} returns nothing")
            first = found[0] if found and len(found[0]) == len(values) else [None] * len(values)
            found.append(
                [
                    b.full_like(Symbol(b, x.name, x.type, block), value)
                    if x is not None and is_number(value) and x.type.shape == ()
                    else b.operand(value)
                    for value, x in zip(values, first, strict=True)
                ]
            )
        blocks.append(block)
        trees.append(tree)
    wanted = labels(trees[0], "result")
    for (title, _), tree in zip(functions[1:], trees[1:], strict=True):
        if labels(tree, "result") != wanted:
            got = ", ".join(labels(tree, "result"))
            raise InvalidOp(f"{title} of {name} returns ({got}), but {functions[0][0]} returns ({', '.join(wanted)})")
    with b.at(prefix):
        types = [_merged([each[i].type for each in found], text, name) for i, text in enumerate(wanted)]
        results = [b.symbol(text, type) for text, type in zip(wanted, types, strict=True)]
    outer = b.block
    for block, values in zip(blocks, found, strict=True):
        b.block = block
        for value, result in zip(values, results, strict=True):
            _write(b, value, result, block, {x.name for x in results})
    b.block = outer
    return blocks, results, trees[0]


def _write(b: Builder, value: Symbol, result: Symbol, block: Block, taken: set[Name]) -> None:
    """Let `block` write `value` under the name of `result`: by another name of its op's output, or by a copy."""
    for op in reversed(block.ops):
        if not op.blocks and any(value is out for each in op.outputs.values() for out in each):
            if not value.name.fixed and value.name not in taken:
                del b.names[value.name.text]
                value.name.same = result.name
                return
            break
    b.assign(value, Symbol(b, result.name, result.type, block))


def _merged(types: Sequence[Type], text: str, name: str) -> Type:
    """The type of a result that each branch gives. Raises InvalidOp."""
    first = types[0]
    shape = first.shape
    for each in types[1:]:
        ranks_differ = None not in (shape, each.shape) and len(shape or ()) != len(each.shape or ())
        if (None not in (first.dtype, each.dtype) and first.dtype != each.dtype) or ranks_differ:
            raise InvalidOp(f"the branches of {name} return {text!r} as {first} and {each}")
        shape = None if shape is None or each.shape is None else joined(shape, each.shape)
    return Type(first.dtype, shape)
