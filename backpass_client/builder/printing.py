"""A program as text for people: one line for each variable and op, inner blocks indented."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from backpass_client.builder.blocks import Block, Leaf, Op, Ref
from backpass_client.builder.build import Builder
from backpass_client.builder.signatures import signature_of

__all__ = ["text_of"]

MOST_NUMBERS = 6


def text_of(builder: Builder, outputs: Mapping[str, Ref]) -> str:
    """The text of what `builder` has recorded."""
    lines = [f"program {builder.title}"]
    lines += [f"  {_leaf(leaf)}" for leaf in builder.leaves.values()]
    lines += _ops(builder.root, "  ")
    if outputs:
        lines.append(f"  return {', '.join(outputs)}")
    for name, each in builder.functions.items():
        rule = f", gradient {each.gradient}" if each.gradient is not None else ""
        operands = ", ".join(f"{n}: {leaf.ref.type}" for n, leaf in each.builder.leaves.items())
        lines += [f"function {name}({operands}){rule}", *_ops(each.builder.root, "  ")]
        lines.append(f"  return {', '.join('none' if x is None else x.name.text for x in each.results)}")
    return "\n".join(lines)


def _leaf(leaf: Leaf) -> str:
    words = [leaf.role, f"{leaf.ref.name.text}: {leaf.ref.type}"]
    if leaf.initializer is not None:
        words.append(f"= {leaf.initializer['type']}({_attributes(leaf.initializer, 'type')})")
    elif leaf.value is not None:
        words.append("= " + (str(leaf.value.item()) if leaf.value.ndim == 0 else "given"))
    if not leaf.trainable:
        words.append("(not trained)")
    return " ".join(words)


def _ops(block: Block, indent: str) -> Iterator[str]:
    for op in block.ops:
        yield indent + _op(op)
        for attr, inner in op.blocks.items():
            for i, each in enumerate(inner if isinstance(inner, list) else [inner]):
                if each is not None:
                    yield f"{indent}  {attr}{f'[{i}]' if isinstance(inner, list) else ''}{_local(op)}:"
                    yield from _ops(each, indent + "    ")


def _op(op: Op) -> str:
    outputs = ", ".join(f"{x.name.text}: {x.type}" for refs in op.outputs.values() for x in refs)
    inputs = [
        f"[{', '.join(x.name.text for x in refs)}]" if len(refs) > 1 else refs[0].name.text
        for refs in op.inputs.values()
        if refs
    ]
    defaults = signature_of(op.type).defaults
    attributes = _attributes({k: v for k, v in op.attrs.items() if k not in defaults or v != defaults[k]})
    inside = ", ".join([*inputs, *([attributes] if attributes else [])])
    return f"{outputs + ' = ' if outputs else ''}{op.type}({inside})"


def _local(op: Op) -> str:
    """The states and elements of a scan, as its block sees them."""
    if not op.names:
        return ""
    before = [x.name.text for x in (*op.names["ex_states"], *op.names["step_inputs"])]
    after = [x.name.text for x in (*op.names["states"], *op.names["step_outputs"])]
    return f"({', '.join(before)}) -> ({', '.join(after)})"


def _attributes(attrs: Mapping[str, Any], *hidden: str) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in attrs.items() if name not in hidden)


def _value(value: Any) -> str:
    if isinstance(value, list) and len(value) > MOST_NUMBERS:
        return f"[{', '.join(map(str, value[:MOST_NUMBERS]))}, ... {len(value)} in all]"
    return str(value)
