"""Loops: `while_loop` and `scan`. A body is a Python function, traced once; more often if a trip changes sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backpass_client.arithmetic import is_number
from backpass_client.builder.blocks import Block, Name, Op, Ref
from backpass_client.builder.build import Builder, current_builder
from backpass_client.builder.symbol import Symbol
from backpass_client.builder.trees import flattened, labels, like
from backpass_client.builder.types import InvalidOp, Size, Type, joined, same_sizes

__all__ = ["scan", "while_loop"]


def while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    init: Any,
    *,
    memory: str = "store",
    is_test: bool = False,
    name: str = "while",
) -> Any:
    """Run `body` as long as `condition` holds; returns the last values.

    init:      the values carried from trip to trip: a symbol or number, or a tuple or dictionary of them.
    condition: function of the carried values (those of a tuple as several arguments) to one bool.
    body:      function of the same arguments to the new values, in the structure of `init`. It may read any symbol
               from outside. A value keeps its dtype and rank; its sizes may change.
    memory:    what the loop stores for its backward pass: store, recompute, sqrt or binomial.
    is_test:   store nothing; the loop then has no gradient.

    Raises InvalidOp.
    """
    b = current_builder("while_loop")
    _check_functions("while_loop", condition=condition, body=body)
    first = [b.operand(x) for x in flattened(init)]
    if not first:
        raise InvalidOp("while_loop needs at least one carried value")
    texts, prefix = _names_of(init, body), b.new_prefix(name)
    start, types = b.snapshot(), [x.type for x in first]
    while True:
        with b.at(prefix):
            carried = [b.symbol(text, type) for text, type in zip(texts, types, strict=True)]
            for value, symbol in zip(first, carried, strict=True):
                b.assign(value, symbol)
            go, test = _traced_condition(b, condition, like(init, carried))
            with b.inner_block("the body of a while_loop") as block:
                inside = [Symbol(b, x.name, x.type, block) for x in carried]
                new = _new_values(b, _call(body, like(init, inside)), init, inside, "the body of while_loop")
                b.write(new, inside)
                if go.name not in {x.name for x in carried}:
                    renamed = {name: b.new_name("test") for name in _written(test) if name is not go.name}
                    block.ops += [_copied(op, renamed, block) for op in test]
        wider = _joined_types(types, new, texts)
        if wider == types:
            break
        b.rollback(start)
        types = wider
    attrs = {"memory": memory, **({"is_test": True} if is_test else {})}
    b.append(Op("while", {"condition": [go]}, {}, attrs, {"sub_block": block}))
    return like(init, [Symbol(b, x.name, x.type, b.block) for x in carried])


def _check_functions(loop: str, **functions: Any) -> None:
    """Raises InvalidOp unless all are functions."""
    for name, each in functions.items():
        if not callable(each):
            raise InvalidOp(f"the {name} of {loop} must be a function, not {each!r}")


def _names_of(init: Any, body: Callable[..., Any]) -> list[str]:
    """Names of the carried values: the keys of a dictionary, or the names of the arguments of `body`."""
    texts = labels(init)
    try:
        parameters = list(inspect.signature(body).parameters.values())
    except (TypeError, ValueError):
        return texts
    fits = len(parameters) == len(texts) and not isinstance(init, dict)
    named = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return [p.name for p in parameters] if fits and named else texts


def _traced_condition(b: Builder, condition: Callable[..., Any], arguments: Any) -> tuple[Ref, list[Op]]:
    """(the condition, its ops). The ops are appended to the current block; its symbols end with it."""
    with b.inner_block("the condition of a while_loop") as scratch:
        inside = [Symbol(b, x.name, x.type, scratch) for x in flattened(arguments)]
        go = b.condition(_call(condition, like(arguments, inside)), "while_loop")
        written = [out for op in scratch.ops for each in op.outputs.values() for out in each]
        if not any(go is x for x in (*written, *inside)):
            copied = b.symbol("go", go.type)
            b.assign(go, copied)
            go = copied
    for op in scratch.ops:
        for inner in op.inner():
            inner.parent = b.block
    b.block.ops += scratch.ops
    return go, scratch.ops


def _written(ops: Sequence[Op]) -> list[Name]:
    """The names that `ops` and their inner blocks write or introduce."""
    found: dict[Name, None] = {}
    for op in ops:
        for refs in (*op.outputs.values(), *op.names.values()):
            found.update(dict.fromkeys(ref.name for ref in refs))
        for inner in op.inner():
            found.update(dict.fromkeys(_written(inner.ops)))
    return list(found)


def _copied(op: Op, renamed: dict[Name, Name], parent: Block) -> Op:
    """`op` inside `parent` with other names, and its inner blocks likewise."""

    def ref(each: Ref) -> Ref:
        assert isinstance(each, Symbol)
        return Symbol(each.builder, renamed.get(each.name, each.name), each.type, parent)

    def slots(given: Mapping[str, Sequence[Ref]]) -> dict[str, list[Ref]]:
        return {slot: [ref(each) for each in refs] for slot, refs in given.items()}

    def block(given: Block) -> Block:
        new = Block(parent, given.title, declared=[ref(each) for each in given.declared])
        new.ops = [_copied(each, renamed, new) for each in given.ops]
        return new

    def inner(given: Block | list[Block] | None) -> Block | list[Block] | None:
        if isinstance(given, list):
            return [block(each) for each in given]
        return None if given is None else block(given)

    blocks = {attr: inner(each) for attr, each in op.blocks.items()}
    return Op(op.type, slots(op.inputs), slots(op.outputs), dict(op.attrs), blocks, slots(op.names), op.line)


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    sequences: Any = None,
    *,
    length: int | None = None,
    reverse: bool = False,
    memory: str = "store",
    name: str = "scan",
) -> tuple[Any, Any]:
    """Run `body` for each element of `sequences` along their first axis; returns (last states, stacked outputs).

    init:      the first states: a symbol or number, a tuple or dictionary of them, or None.
    sequences: what `body` gets an element of in each step, likewise; with None, `length` is the number of steps.
    body:      function (states, elements) to (new states, outputs); outputs may be None.
    reverse:   start with the last element; stacked outputs keep the order of the sequences.

    Raises InvalidOp.
    """
    b = current_builder("scan")
    _check_functions("scan", body=body)
    first = [b.operand(x) for x in flattened(init)]
    rows = [b.operand(x) for x in flattened(sequences)]
    steps = _steps(rows, length)
    prefix = b.new_prefix(name)
    start, types = b.snapshot(), [x.type for x in first]
    while True:
        with b.at(prefix), b.inner_block("the body of a scan") as block:
            before = [b.symbol(text, type) for text, type in zip(labels(init, "state"), types, strict=True)]
            elements = [
                b.symbol(text, Type(x.type.dtype, None if x.type.shape is None else x.type.shape[1:]))
                for text, x in zip(labels(sequences, "element"), rows, strict=True)
            ]
            found = body(like(init, before), like(sequences, elements))
            if not isinstance(found, tuple) or len(found) != 2:
                raise InvalidOp("the body of scan must return (new states, outputs); either may be None")
            new = _new_values(b, found[0], init, before, "the body of scan")
            after = _own(b, new, block, before)
            outputs = _own(b, [b.operand(x) for x in flattened(found[1])], block, after)
        wider = _joined_types(types, new, labels(init, "state"))
        if wider == types:
            break
        b.rollback(start)
        types = wider
    with b.at(prefix):
        final = [b.symbol(f"last_{text}", type) for text, type in zip(labels(init, "state"), types, strict=True)]
        stacked = [
            b.symbol(text, Type(x.type.dtype, None if x.type.shape is None else (steps, *x.type.shape)))
            for text, x in zip(labels(found[1], "output"), outputs, strict=True)
        ]
    attrs = {"memory": memory, "reverse": reverse, **({} if length is None else {"length": length})}
    names = {"ex_states": before, "states": after, "step_inputs": elements, "step_outputs": outputs}
    op = Op(
        "recurrent",
        {"inputs": rows, "initial_states": first},
        {"outputs": stacked, "final_states": final},
        attrs,
        {"sub_block": block},
        {attr: [*refs] for attr, refs in names.items()},
    )
    b.append(op)
    return like(init, final), like(found[1], stacked)


def _steps(rows: Sequence[Symbol], length: int | None) -> Size:
    """The number of steps. Raises InvalidOp if the sequences disagree."""
    if not rows and length is None:
        raise InvalidOp("scan needs sequences or a length")
    steps: Size = length
    for each in rows:
        if each.type.shape is None:
            continue
        if not each.type.shape:
            raise InvalidOp(f"scan needs sequences with at least one axis, not {each!r}")
        if not same_sizes(steps, each.type.shape[0]):
            raise InvalidOp(f"the sequences of scan differ in length: {steps} and {each.type.shape[0]}")
        steps = each.type.shape[0] if steps is None else steps
    return steps


def _own(b: Builder, values: Sequence[Symbol], block: Block, taken: Sequence[Symbol]) -> list[Symbol]:
    """`values` under names that `block` writes and that differ from each other and from `taken`; else copies."""
    used = {x.name for x in taken}
    found = []
    for value in values:
        if value.block is not block or value.name in used or value.name.fixed:
            copied = b.symbol("copy", value.type)
            b.assign(value, copied)
            value = copied
        used.add(value.name)
        found.append(value)
    return found


def _call(function: Callable[..., Any], arguments: Any) -> Any:
    """`function` of the values of a tuple or list as several arguments, of anything else as one."""
    return function(*arguments) if isinstance(arguments, tuple | list) else function(arguments)


def _new_values(b: Builder, found: Any, init: Any, old: Sequence[Symbol], what: str) -> list[Symbol]:
    """The new carried values. Raises InvalidOp unless they have the structure of `init`."""
    values = flattened(found)
    if len(values) != len(old) or labels(found) != labels(init):
        wanted, got = ", ".join(labels(init)), ", ".join(labels(found))
        raise InvalidOp(f"{what} must return new values in the structure of init ({wanted}), not ({got})")
    return [
        b.full_like(x, value) if is_number(value) else b.operand(value) for value, x in zip(values, old, strict=True)
    ]


def _joined_types(types: Sequence[Type], new: Sequence[Symbol], texts: Sequence[str]) -> list[Type]:
    """Types that hold before and after each trip: sizes that a trip changes are open."""
    found = []
    for type, value, text in zip(types, new, texts, strict=True):
        wrong_dtype = None not in (type.dtype, value.type.dtype) and type.dtype != value.type.dtype
        shape: tuple[Size, ...] | None
        if type.shape is None or value.type.shape is None:
            shape = None if type.shape is None else (None,) * len(type.shape)
        elif len(type.shape) != len(value.type.shape):
            shape, wrong_dtype = type.shape, True
        else:
            shape = joined(type.shape, value.type.shape)
        if wrong_dtype:
            raise InvalidOp(
                f"the carried value {text!r} is {type} before a trip and {value.type} after it: its dtype and rank "
                "must stay; bp.constant(0.0, bp.f64) is a first value of another dtype"
            )
        found.append(Type(type.dtype, shape))
    return found
