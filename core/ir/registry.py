"""The declarations of ops, and the table of all declared ops.

An op is a few functions that end in the same arguments, ``(*inputs, **attrs)``::

    kernel(xp, *inputs, **attrs)     inputs are arrays   -> arrays
    infer(*inputs, **attrs)          inputs are types    -> types
    vjp(ct, out, *inputs, **attrs)   inputs are symbols  -> one cotangent per input
    example()                        cases for the documentation and for tests

The kernel's signature is the schema: positional parameters are input slots (optional ones default to None), ``*name``
is a variadic slot, keyword-only parameters are attributes with their types and defaults (an `AttrGroup` stands for
several), the docstring is the documentation. A *composite* has no kernel: it is a function of symbols that calls other
ops, and its types, gradient and code follow from them.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from core.ir.attr_groups import attributes_of, groups_of, packed
from core.ir.attr_values import convert
from core.ir.errors import ProgramError, escaped
from core.ir.program import DTYPES, Block, Op
from core.ir.roles import Roles
from core.ir.slot_roles import Role, role_of
from core.ir.suggest import closest, near

__all__ = [
    "CONSTRUCTS",
    "REGISTRY",
    "Attr",
    "Dtype",
    "Example",
    "Family",
    "Kind",
    "OpSpec",
    "Slot",
    "as_tuple",
    "block_attrs",
    "composite",
    "construct",
    "is_loop",
    "lookup",
    "op",
    "roles_of",
]

Dtype = Literal["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
assert typing.get_args(Dtype) == DTYPES

Rule = Callable[..., Any]
Kind = Literal["primitive", "composite", "control", "construct"]

REGISTRY: dict[str, OpSpec] = {}
"""Every op of the core, by name."""

CONSTRUCTS: dict[str, OpSpec] = {}
"""Ops that exist on the wire only, by name. The reader turns them into ops of the core."""


EXACT = frozenset({bool, str, Block})
"""Attribute types whose values need no check but that of their type."""


@dataclass(frozen=True, slots=True)
class Family:
    """A group of ops in the catalogue. A folder or module of ops declares the family of its ops as ``FAMILY``.

    name:  one word, the filter of the catalogue and the name of the family's page.
    title: one line that lists the operations.
    """

    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Slot:
    """A named input of an op, or, if variadic, a named list of inputs.

    role: the role of a parameter that is read here, see `core.ir.slot_roles`.
    """

    name: str
    optional: bool = False
    variadic: bool = False
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class Attr:
    """A named constant of an op: its annotation, and its default (`Parameter.empty` if it is required)."""

    name: str
    type: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Example:
    """Inputs, attributes, and the outputs that they give; no outputs for random ops, which only laws can check.

    smooth: whether central differences approximate the gradient. False at ties, on bounds, and where results are
            rounded.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    smooth: bool = True


@dataclass(slots=True, eq=False)
class OpSpec:
    """One declared op. Its decorators complete it while the op's module is imported.

    takes_key: whether it is a random op with an optional slot `key`, which the reader fills so that every step draws
               new numbers.
    """

    name: str
    kind: Kind
    family: Family
    doc: str
    inputs: tuple[Slot, ...]
    outputs: tuple[str, ...]
    variadic_outputs: bool
    attrs: tuple[Attr, ...]
    body: Rule
    elementwise: bool = False
    broadcasts: bool = False
    stacks: bool = False
    reports: bool = False
    takes_key: bool = False
    no_gradient: str | None = None
    unavailable: str | None = None
    infer_rule: Rule | None = None
    vjp_rule: Rule | None = None
    adjoint_rule: Rule | None = None
    roles_rule: Callable[[Op], Roles] | None = None
    example_rule: Callable[[], Iterable[Example]] | None = None

    @property
    def differentiable(self) -> bool:
        return self.no_gradient is None and self.unavailable is None

    def slot(self, position: int) -> Slot:
        """The slot of the input at this position; a variadic slot takes all that remain."""
        return self.inputs[min(position, len(self.inputs) - 1)]

    def infer(self, rule: Rule) -> Rule:
        """Decorator: the output types, from the input types and attributes."""
        self.infer_rule = rule
        return rule

    def vjp(self, rule: Rule) -> Rule:
        """Decorator: one cotangent for each input, None for a structural zero."""
        self.vjp_rule = rule
        return rule

    def adjoint(self, rule: Rule) -> Rule:
        """Decorator, for control flow: a gradient rule that may also rewrite the forward op (core.autodiff.adjoint)."""
        self.adjoint_rule = rule
        return rule

    def roles(self, rule: Callable[[Op], Roles]) -> Callable[[Op], Roles]:
        """Decorator, for control flow: the roles of the operands and outputs of an op of this type."""
        self.roles_rule = rule
        return rule

    def example(self, rule: Callable[[], Iterable[Example]]) -> Callable[[], Iterable[Example]]:
        """Decorator: examples for the documentation, checked by the tests."""
        self.example_rule = rule
        return rule

    def complete(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Check `attrs`, convert them to canonical values and add the defaults.

        Raises ProgramError (bad_attr) for an unknown, missing or wrongly typed attribute. Its pointer leads from
        `attrs` to the attribute.
        """
        if not attrs and not self.attrs:
            return {}
        if len(attrs) > len(self.attrs) or not attrs.keys() <= {a.name for a in self.attrs}:
            raise self.mistakes(attrs)[0]
        return {a.name: self._attr(a, attrs) for a in self.attrs}

    def mistakes(self, attrs: Mapping[str, Any]) -> list[ProgramError]:
        """All errors for which `complete` refuses `attrs`, unknown attributes first.

        A missing attribute that an unknown one resembles is left out: it is there under a wrong name.
        """
        names = [a.name for a in self.attrs]
        misspelt: set[str] = set()
        found = []
        for unknown in sorted(attrs.keys() - set(names)):
            text = f"{self.name} has no attribute {unknown!r}"
            hint = near(unknown, names) or f"it has {', '.join(names) or 'none'}"
            found.append(ProgramError(text, "bad_attr", suggestion=hint, pointer=f"/{escaped(unknown)}"))
            misspelt.update(closest(unknown, names))
        for attr in self.attrs:
            try:
                self._attr(attr, attrs)
            except ProgramError as error:
                if attr.name in attrs or attr.name not in misspelt:
                    found.append(error)
        return found

    def _attr(self, attr: Attr, given: Mapping[str, Any]) -> Any:
        if attr.name not in given:
            if attr.required:
                text = f"{self.name} needs the attribute {attr.name!r}"
                raise ProgramError(text, "bad_attr", pointer=f"/{attr.name}")
            return attr.default
        value = given[attr.name]
        if type(value) is attr.type and attr.type in EXACT:
            return value
        try:
            return convert(attr.type, value)
        except ValueError as error:
            text = f"attribute {attr.name!r} of {self.name} {error}"
            raise ProgramError(text, "bad_attr", pointer=f"/{attr.name}") from None

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        """Apply the op to symbols: add it to their block."""
        builder = next(value.builder for value in inputs if value is not None)
        return builder.emit(self.name, *inputs, **attrs)


def op(
    kernel: Rule | None = None,
    *,
    outputs: tuple[str, ...] | str = ("out",),
    elementwise: bool = False,
    broadcasts: bool = False,
    stacks: bool = False,
    reports: bool = False,
    control: bool = False,
    no_gradient: str | None = None,
    unavailable: str | None = None,
) -> Any:
    """Declare a primitive (or, with `control`, a control-flow op) from its kernel.

    outputs:      names of the output slots; a bare string names one variadic slot.
    elementwise:  each element of the output depends on the elements at the same position, with broadcasting.
    broadcasts:   sizes of 1 are broadcast, so that a cotangent may be larger than its input; true of elementwise ops.
    stacks:       inputs may be stacks that a loop recorded, or tensor arrays.
    reports:      the run reports the input as its attributes `message`, `summarize` and `first_n` define.
    no_gradient:  the reason why the gradient is zero by definition; a path to the loss ends here without an error.
    unavailable:  the reason why an existing gradient is not implemented; a request for it is an error.
    """
    if kernel is None:
        return lambda function: op(
            function,
            outputs=outputs,
            elementwise=elementwise,
            broadcasts=broadcasts,
            stacks=stacks,
            reports=reports,
            control=control,
            no_gradient=no_gradient,
            unavailable=unavailable,
        )
    spec = _declare("control" if control else "primitive", kernel, outputs, skip=1)
    spec.elementwise, spec.broadcasts = elementwise, broadcasts or elementwise
    spec.stacks, spec.reports = stacks, reports
    spec.no_gradient, spec.unavailable = no_gradient, unavailable
    return spec


def composite(
    body: Rule | None = None,
    *,
    outputs: tuple[str, ...] = ("out",),
    stacks: bool = False,
    no_gradient: str | None = None,
) -> Any:
    """Declare an op as a function of symbols that calls other ops. Its types, gradient and code follow from them."""
    if body is None:
        return lambda function: composite(function, outputs=outputs, stacks=stacks, no_gradient=no_gradient)
    spec = _declare("composite", body, outputs, skip=0)
    spec.stacks = stacks
    spec.no_gradient = no_gradient
    return spec


def construct(*, inputs: tuple[Slot, ...], outputs: tuple[str, ...] = ("out",)) -> Any:
    """Declare an op of the wire by the function ``(reader, site, **attrs)`` that reads it.

    The keyword-only parameters of the function are the attributes and its docstring is the documentation, as with any
    op. Output slots take any number of names.
    """

    def declare(function: Rule) -> OpSpec:
        spec = _declare("construct", function, outputs, skip=2, table=CONSTRUCTS)
        spec.inputs, spec.variadic_outputs = inputs, True
        return spec

    return declare


def _declare(
    kind: Kind, body: Rule, outputs: tuple[str, ...] | str, skip: int, table: dict[str, OpSpec] = REGISTRY
) -> OpSpec:
    name = body.__name__.rstrip("_")
    if name in table:
        raise ValueError(f"op {name!r} is declared twice")
    hints = typing.get_type_hints(body, include_extras=True)
    parameters = list(inspect.signature(body).parameters.values())[skip:]
    slots = tuple(
        Slot(
            p.name,
            optional=p.default is None,
            variadic=p.kind is p.VAR_POSITIONAL,
            role=role_of(hints.get(p.name)),
        )
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
    )
    groups = groups_of(hints)
    attrs: list[Attr] = []
    for p in parameters:
        if p.name in groups:
            attrs += (Attr(*each) for each in attributes_of(groups[p.name], p.default))
        elif p.kind is p.KEYWORD_ONLY:
            attrs.append(Attr(p.name, hints[p.name], p.default))
    spec = table[name] = OpSpec(
        name=name,
        kind=kind,
        family=_family(name, body.__module__),
        doc=inspect.getdoc(body) or "",
        inputs=slots,
        outputs=(outputs,) if isinstance(outputs, str) else outputs,
        variadic_outputs=isinstance(outputs, str),
        attrs=tuple(attrs),
        body=packed(body, groups),
        takes_key=any(slot.name == "key" and slot.optional for slot in slots),
    )
    return spec


def _family(op: str, module: str) -> Family:
    """The family declared by `module`, or else by its folder. Raises ValueError if neither declares a family."""
    for name in (module, module.rpartition(".")[0]):
        family = getattr(sys.modules.get(name), "FAMILY", None)
        if isinstance(family, Family):
            return family
    raise ValueError(f"op {op!r} has no family: declare FAMILY in {module} or in its folder")


def lookup(name: str) -> OpSpec:
    """The declaration of op `name`. Raises ProgramError (unknown_op), which suggests similar names."""
    try:
        return REGISTRY[name]
    except KeyError:
        raise ProgramError(f"unknown op type {name!r}", "unknown_op", suggestion=near(name, REGISTRY)) from None


def roles_of(op: Op) -> Roles | None:
    """The roles of the operands and outputs of a loop or branch; None for any other op."""
    spec = REGISTRY.get(op.type)  # the type of a region of machine code is not declared
    return None if spec is None or spec.roles_rule is None else spec.roles_rule(op)


def is_loop(op: Op) -> bool:
    """Whether the inner block of `op` runs once for each trip."""
    roles = roles_of(op)
    return roles is not None and roles.repeats


def as_tuple(result: Any) -> tuple[Any, ...]:
    """`result` as a tuple; rules and kernels with one output may return it alone."""
    return result if isinstance(result, tuple) else (result,)


def block_attrs(spec: OpSpec, kind: type = Block) -> tuple[str, ...]:
    """The attributes of `spec` that hold one or more blocks, or with `kind` BlockIndex the indices of blocks."""

    def holds(annotation: Any) -> bool:
        return annotation is kind or any(holds(a) for a in typing.get_args(annotation))

    return tuple(a.name for a in spec.attrs if holds(a.type))
