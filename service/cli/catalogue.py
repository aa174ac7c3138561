"""The catalogue of ops as Markdown: a page for each family, a section for each file. Written from the declarations."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.ir import FLOATS, Block, StackType, TensorType, Type
from core.ir.attr_values import json_value
from core.ir.builder import BlockBuilder
from core.ir.registry import Attr, Example, Family, OpSpec, as_tuple
from core.runtime.reference import execute
from core.wire.samples import SAMPLES
from service.formats import json_tensors as tensors
from service.routes.ops import CATALOGUE, FAMILIES, attributes_of, documentation_of, sampled, schema_of

__all__ = ["pages", "write_pages"]

DIGITS = 6
"""Significant digits of numbers on a page. Further digits differ between machines, and so does the rounding noise of
sums that cancel, which is shown as 0."""
WIDTH = 120
SENTENCE_END = re.compile(r"\. (?=[A-Z`])")
"""The end of a sentence. The full stop of "et al. 2006" is not one."""
BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "of at most",
    "exclusiveMaximum": "below",
    "maxLength": "of a length of at most",
    "not": "other than",
}
"""Keywords of JSON Schema in words, each before its value."""
LARGE = 24
"""Most elements, of all arrays together, of an example shown with its gradients."""


def write_pages(folder: Path) -> None:
    """Write all pages, and delete the pages of families that no longer exist."""
    folder.mkdir(parents=True, exist_ok=True)
    written = pages()
    for path in folder.glob("*.md"):
        if path.name not in written:
            path.unlink()
    for name, text in written.items():
        (folder / name).write_text(text)


def pages() -> dict[str, str]:
    """File name -> text: README.md, which lists all ops, and a page for each family."""
    written = {"README.md": _index()}
    for family in FAMILIES.values():
        written[f"{family.name}.md"] = _page(family)
    return written


def _index() -> str:
    lines = [
        "# The ops",
        "",
        f"All {len(CATALOGUE)} ops, by family. `GET /v1/ops` returns the same list. `make catalogue` writes them",
        "from the code, and a test compares the two.",
    ]
    for family in FAMILIES.values():
        lines += [
            "",
            f"## [{family.name}]({family.name}.md)",
            "",
            f"{family.title}.",
            "",
            "| section | ops |",
            "|---|---|",
        ]
        lines += _table(family, f"{family.name}.md")
    return "\n".join(lines) + "\n"


def _page(family: Family) -> str:
    lines = [f"# {family.name}", "", f"{family.title}.", "", "| section | ops |", "|---|---|", *_table(family, "")]
    for section in _sections(family):
        lines += ["", f"## {section.title}", ""]
        if section.text.removesuffix(".") != section.title:
            lines += [_prose(section.text), ""]
        for spec in section.specs:
            lines += [*_entry(spec), ""]
        lines.pop()
    return "\n".join(lines) + "\n"


def _table(family: Family, page: str) -> Iterator[str]:
    """A row for each section of the family's `page`, with links to its ops."""
    for section in _sections(family):
        links = ", ".join(f"[{spec.name}]({page}#{spec.name})" for spec in section.specs)
        yield f"| {section.title} | {links} |"


@dataclass(frozen=True, slots=True)
class _Section:
    """The ops of one file. text: the first paragraph of its docstring. title: the first words of it."""

    title: str
    text: str
    specs: list[OpSpec]


def _sections(family: Family) -> list[_Section]:
    files: dict[str, list[OpSpec]] = {}
    for _, spec in sorted(CATALOGUE.items()):
        if spec.family is family:
            files.setdefault(spec.body.__module__, []).append(spec)
    sections = []
    for module, specs in sorted(files.items()):
        doc = inspect.getdoc(import_module(module))
        assert doc, f"{module} declares ops and has no docstring"
        text = " ".join(doc.split("\n\n")[0].split())
        sections.append(_Section(_title(text), text, specs))
    return sorted(sections, key=lambda section: section.title.casefold())


def _title(text: str) -> str:
    """The words before the first colon, or else the first sentence."""
    head, colon, _ = text.partition(": ")
    if colon and "`" not in head and not SENTENCE_END.search(head):  # the name of an op is the title of its own entry
        return head
    return SENTENCE_END.split(text, maxsplit=1)[0].removesuffix(".")


def _entry(spec: OpSpec) -> Iterator[str]:
    yield f"### {spec.name}"
    yield ""
    yield _prose(documentation_of(spec))
    yield ""
    given = ", ".join(f"`{s.name}`" + _marked(s.optional, s.variadic) for s in spec.inputs)
    found = ", ".join(f"`{name}`" + _marked(False, spec.variadic_outputs) for name in spec.outputs)
    yield f"* inputs: {given or 'none'}"
    yield f"* outputs: {found}"
    for attr in attributes_of(spec):
        yield f"* attribute `{attr.name}`: {_type(attr)}{_default(attr)}"
    yield f"* {_gradient(spec)}"
    sample = SAMPLES.get(spec.name)
    if sample is not None:
        yield from _json(sampled(sample))
        return
    examples = sorted(_examples(spec), key=_example_order)
    shown = next((e for e in examples if e.smooth), examples[0])
    yield f"* for example {_types(spec, shown)}"
    yield from _json(_shown(spec, shown))
    kink = next((e for e in examples if not e.smooth and e is not shown), None)
    if kink is not None and spec.differentiable:
        yield ""
        yield "At a kink, a tie or a bound:"
        yield from _json(_shown(spec, kink))


def _prose(text: str) -> str:
    """A docstring as Markdown. Asterisks outside code are escaped."""
    parts = text.replace("``", "`").split("`")
    return "`".join(part if i % 2 else part.replace("*", r"\*") for i, part in enumerate(parts))


def _marked(optional: bool, variadic: bool) -> str:
    if variadic:
        return " (an optional list)" if optional else " (a list)"
    return " (optional)" if optional else ""


def _type(attr: Attr) -> str:
    """The JSON Schema of an attribute as a phrase."""

    def words(schema: Mapping[str, Any], plural: str = "") -> str:
        if "anyOf" in schema:
            return " or ".join(dict.fromkeys(words(each) for each in schema["anyOf"]))
        if "enum" in schema:
            return ", ".join(f'`"{each}"`' for each in schema["enum"])
        if schema.get("type") == "array":
            least, most = schema.get("minItems", 0), schema.get("maxItems")
            many = "" if most is None else f" {least}" if most == least else f" {least} to {most}"
            return f"list of{many} {words(schema['items'], 's')}"
        kind = schema.get("description", "").rstrip(".").lower() or schema.get("type", "anything") + plural
        return kind + _range(schema)

    return words(schema_of(attr))


def _range(schema: Mapping[str, Any]) -> str:
    """The range of a number or the longest length of a string in words, with a space in front."""
    if "minimum" in schema and "maximum" in schema:
        return f" from {schema['minimum']} to {schema['maximum']}"
    values = {**schema, "not": schema.get("not", {}).get("const")}
    return " and".join(f" {text} {value}" for key, text in BOUNDS.items() if (value := values.get(key)) is not None)


def _default(attr: Attr) -> str:
    return "" if attr.required else f", by default `{json.dumps(json_value(attr.default))}`"


def _gradient(spec: OpSpec) -> str:
    if spec.no_gradient or spec.unavailable:
        return f"no gradient: {spec.no_gradient or spec.unavailable}"
    return "gradients of any order"


# --- examples ------------------------------------------------------------------------------------------------------


def _examples(spec: OpSpec) -> list[Example]:
    """The examples without empty inputs, or all of them if each has an empty input."""
    assert spec.example_rule is not None
    every = list(spec.example_rule())
    return [e for e in every if not e.inputs or all(_count(x) for x in e.inputs)] or every


def _example_order(example: Example) -> tuple[bool, bool, int]:
    """Sort key of examples, best first: finite values (JSON shows no infinity), at least 4 elements, small."""
    return not _finite([*example.inputs, *example.outputs]), _weight(example) < 4, _weight(example)


def _finite(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_finite, value))
    return np.asarray(value).dtype.kind != "f" or bool(np.isfinite(value).all())


def _weight(example: Example) -> int:
    return sum(_count(x) for x in (*example.inputs, *example.outputs))


def _count(value: Any) -> int:
    return sum(map(_count, value)) if isinstance(value, list) else int(np.size(value))


def _typed(value: Any) -> Type:
    if isinstance(value, list):
        return StackType(_typed(value[0]))
    array = np.asarray(value)
    return TensorType(array.shape, str(array.dtype))


def _names(spec: OpSpec, example: Example) -> dict[str, list[str]]:
    """Slot -> the names of its inputs in an example."""
    names: dict[str, list[str]] = {}
    for i, _ in enumerate(example.inputs):
        slot = spec.inputs[min(i, len(spec.inputs) - 1)]
        if slot.variadic:
            names.setdefault(slot.name, []).append(f"{slot.name}{i - len(spec.inputs) + 1}")
        elif example.inputs[i] is not None:
            names[slot.name] = [slot.name]
    return names


def _block(spec: OpSpec, example: Example, names: Mapping[str, list[str]]) -> Block:
    b = BlockBuilder()
    flat = iter([name for each in names.values() for name in each])
    values = [None if x is None else b.param(_typed(x), next(flat)) for x in example.inputs]
    return b.build(as_tuple(b.emit(spec.name, *values, **example.attrs)))


def _outputs(spec: OpSpec, count: int) -> dict[str, list[str]]:
    """Slot -> the names of its outputs, `count` in all."""
    if spec.variadic_outputs:
        return {spec.outputs[0]: [f"{spec.outputs[0]}{i}" for i in range(count)]}
    taken = {slot.name for slot in spec.inputs}
    return {name: [f"{name}_out" if name in taken else name] for name in spec.outputs}


def _types(spec: OpSpec, example: Example) -> str:
    names = _names(spec, example)
    block = _block(spec, example, names)
    given = [f"{name} {block.types[name]}" for name in block.params]
    outs = [name for each in _outputs(spec, len(block.results)).values() for name in each]
    found = [f"{name} {type}" for name, type in zip(outs, block.result_types, strict=True)]
    return f"`{', '.join(given) or '()'} -> {', '.join(found)}`"


def _shown(spec: OpSpec, example: Example) -> dict[str, Any]:
    """The op as in a program document, its inputs and outputs by name, and for a small one gradients of the sum."""
    names = _names(spec, example)
    block = _block(spec, example, names)
    outs = _outputs(spec, len(block.results))
    op: dict[str, Any] = {"type": spec.name, "inputs": names, "outputs": outs}
    if example.attrs:
        op["attrs"] = {name: json_value(value) for name, value in example.attrs.items()}
    given = dict(zip(block.params, [x for x in example.inputs if x is not None], strict=True))
    shown: dict[str, Any] = {"op": op}
    if given:
        shown["given"] = {name: _tensor(value) for name, value in given.items()}
    flat = [name for each in outs.values() for name in each]
    if example.outputs:
        shown["found"] = {name: _tensor(value) for name, value in zip(flat, example.outputs, strict=False)}
    drawn = spec.takes_key and not example.outputs  # random outputs, different in every step
    if spec.differentiable and _weight(example) <= LARGE and not drawn:
        gradients = _gradients(block, given)
        if gradients:
            shown["gradients"] = {name: _tensor(value) for name, value in gradients.items()}
    return shown


def _gradients(block: Block, given: Mapping[str, Any]) -> dict[str, Any]:
    """The gradients of the sum of all outputs, by input."""
    wrt = [p for p in block.params if isinstance(block.types[p], TensorType) and block.types[p].is_float]
    results = [t for t in block.result_types if t.is_float]
    if not wrt or any(isinstance(t, StackType) for t in (*block.types.values(), *results)):
        return {}
    pulled = vjp(block, wrt)
    with np.errstate(all="ignore"):
        values = execute(block, list(given.values()))
        seeds = [np.ones_like(v) for v, t in zip(values, block.result_types, strict=True) if t.is_float]
        found = execute(optimize(pulled), [*given.values(), *seeds])
    return dict(zip(wrt, found[len(values) :], strict=True))


def _tensor(value: Any) -> Any:
    if isinstance(value, list):
        return [_tensor(each) for each in value]
    array = np.asarray(value)
    if array.dtype.name in FLOATS:
        largest = np.abs(array[np.isfinite(array)]).max(initial=0.0)
        noise = max(1e-9 * float(largest), 1e-13)
        flat = [0.0 if abs(x) < noise else float(f"{x:.{DIGITS}g}") for x in array.reshape(-1).tolist()]
        array = np.array(flat, array.dtype).reshape(array.shape)
    return json.loads(tensors.dumps(tensors.encode(array)))


def _json(shown: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield "```json"
    yield _laid_out(shown, 0)
    yield "```"


def _laid_out(value: Any, indent: int) -> str:
    """`value` as JSON in lines of at most WIDTH characters."""
    text = json.dumps(value, ensure_ascii=False)
    if indent + len(text) <= WIDTH - 20 or not isinstance(value, dict | list):
        return text
    start = "\n" + " " * (indent + 1)
    if isinstance(value, dict):
        members = [f"{json.dumps(name)}: {_laid_out(each, indent + 1)}" for name, each in value.items()]
        return "{" + f",{start}".join(members) + "}"
    if not any(isinstance(each, dict | list) for each in value):
        return start.join(textwrap.wrap(text, WIDTH - indent - 1))
    return f"[{start} " + f",{start} ".join(_laid_out(each, indent + 2) for each in value) + "]"
