"""Programs from Python functions: `program` traces a function once, and the result can be printed and registered."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args, get_origin, overload

import numpy as np

from backpass_client.builder.build import Builder
from backpass_client.builder.document import document_of, numbered
from backpass_client.builder.printing import text_of
from backpass_client.builder.symbol import Symbol
from backpass_client.builder.types import FLOATS, Dtype, InvalidOp, Type
from backpass_client.errors import Refused

__all__ = ["BuiltProgram", "built", "explain", "program"]


TO_COMPUTE = "register it, service.programs.create(program), and call evaluate, gradients or session of the result"

COMPUTING = frozenset(
    {
        "analysis", "backward", "check", "evaluate", "fit", "forward", "grad", "gradients", "predict", "run", "session",
        "step", "stream_gradients", "to_onnx", "train",
    }
)  # fmt: skip
"""What people ask of a program that only a service can do."""


class BuiltProgram:
    """A program that a Python function has written. ``print`` shows it; `Program(service, built)` registers it.

    name:         the name of the function.
    feeds, parameters, states, outputs: name -> type.
    initializers: parameter -> how a session draws its first value, where the program says so.
    values:       parameter or state -> its first value, where the program has one.
    loss:         the output `loss`, or else the only output that is one floating-point number; None without one.
    """

    def __init__(self, builder: Builder, outputs: Mapping[str, Symbol]) -> None:
        self._builder = builder
        self._outputs = dict(outputs)
        self.name = builder.title
        self.feeds = self._types("feed")
        self.parameters = self._types("parameter")
        self.states = self._types("state")
        self.outputs = {name: symbol.type for name, symbol in outputs.items()}
        leaves = builder.leaves.items()
        self.initializers: dict[str, Mapping[str, Any]] = {
            name: leaf.initializer for name, leaf in leaves if leaf.initializer is not None
        }
        self.values: dict[str, np.ndarray] = {name: leaf.value for name, leaf in leaves if leaf.value is not None}
        numbers = [n for n, t in self.outputs.items() if t.dtype in FLOATS and t.shape == ()]
        self.loss = "loss" if "loss" in self.outputs else numbers[0] if len(numbers) == 1 else None

    def constant_values(self) -> dict[str, np.ndarray]:
        """The first values that initializers fix: those of the types "zeros", "ones" and "constant"."""
        found = {}
        for name, initializer in self.initializers.items():
            number = {"zeros": 0.0, "ones": 1.0, "constant": initializer.get("value", 0.0)}.get(initializer["type"])
            type = self._builder.leaves[name].ref.type
            if number is not None and type.dtype != "bfloat16":  # which numpy lacks
                found[name] = np.full(type.wire_shape, number, type.dtype)
        return found

    def _types(self, role: str) -> dict[str, Type]:
        return {name: leaf.ref.type for name, leaf in self._builder.leaves.items() if leaf.role == role}

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises TypeError, which tells how to compute the program."""
        raise TypeError(f"the program {self.name!r} is no function any more: {TO_COMPUTE}")

    if not TYPE_CHECKING:  # a type checker knows the attributes that exist

        def __getattr__(self, name: str) -> NoReturn:
            """Raises AttributeError, which tells how to compute the program."""
            hint = f"; {TO_COMPUTE}" if name in COMPUTING else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def document(self) -> dict[str, Any]:
        """The program document, as POST /v1/programs takes it."""
        return document_of(self._builder)

    def line(self, block: int, op: int, function: str | None = None) -> str:
        """The Python line that wrote an op, "file:line"; empty if there is no such op."""
        builder = self._builder if function is None else self._builder.functions[function].builder
        blocks = numbered(builder.root)
        return blocks[block].ops[op].line if block < len(blocks) and op < len(blocks[block].ops) else ""

    def __str__(self) -> str:
        return text_of(self._builder, self._outputs)

    def __repr__(self) -> str:
        ops = sum(len(block.ops) for block in numbered(self._builder.root))
        return f"BuiltProgram({self.name!r}, {ops} ops, {len(self.parameters)} parameters)"


@overload
def program(function: Callable[..., Any], /, **fixed: Any) -> BuiltProgram: ...


@overload
def program(function: None = None, /, **fixed: Any) -> Callable[[Callable[..., Any]], BuiltProgram]: ...


def program(function: Callable[..., Any] | None = None, /, **fixed: Any) -> Any:
    """The program that `function` writes, as a `BuiltProgram`; also as a decorator.

        @bp.program
        def line(x: bp.f32["batch", 2], y: bp.f32["batch"]):
            w = bp.parameter("w", [2])
            return {"loss": bp.mse_loss(x @ w, y)}

    function: its arguments with a type are feeds; the type is the annotation, ``Annotated[bp.Symbol, type]``, or the
              default. The others get their value from `fixed`, or their default. It returns the outputs: a dictionary
              of names, a symbol, or a tuple of symbols.

    Raises InvalidOp at the line that wrote a wrong op, and for a function that returns None and updates no state;
    TypeError for an argument without type and value.
    """
    around = sys._getframe(1).f_locals
    if function is None:
        return lambda f: _traced(f, fixed, around)
    return _traced(function, fixed, around)


def _traced(function: Callable[..., Any], fixed: Mapping[str, Any], around: Mapping[str, Any]) -> BuiltProgram:
    annotations = _annotations(function, around)
    arguments: dict[str, Any] = {}
    with Builder(function.__name__) as b:
        for name, parameter in inspect.signature(function).parameters.items():
            type = _type_of(annotations.get(name)) or _type_of(parameter.default)
            if name in fixed:
                arguments[name] = fixed[name]
            elif type is not None:
                arguments[name] = b.feed(name, type)
            elif parameter.default is not parameter.empty:
                arguments[name] = parameter.default
            elif parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(
                    f"argument {name!r} of {function.__name__} needs a type, such as {name}: bp.f32['batch', 3], or a "
                    f"value, bp.program({function.__name__}, {name}=...)"
                )
        unknown = fixed.keys() - arguments.keys()
        if unknown:
            raise TypeError(f"{function.__name__} has no argument {min(unknown)!r}")
        result = function(**arguments)
        if result is None and not b.updates:
            raise InvalidOp(
                f"{function.__name__!r} returns nothing: return its outputs, which are a symbol, a tuple of symbols, "
                'or a dictionary such as {"loss": loss}'
            )
        return built(b, result)


def built(b: Builder, result: Any) -> BuiltProgram:
    """The program that `b` has recorded, with the outputs `result`: a dictionary, a symbol or a tuple of symbols."""
    if isinstance(result, Mapping):
        replaced = [name for name in result if name in b.updates]
        if replaced:
            raise InvalidOp(
                f"the output {replaced[0]!r} would be the next value of the state of that name: give the output "
                "another name, for the value before the update or for the one after it"
            )
        outputs = {str(name): b.rename(_symbol(value, name), str(name)) for name, value in result.items()}
    else:
        values = list(result) if isinstance(result, tuple | list) else [] if result is None else [result]
        outputs = {}
        for i, value in enumerate(values):
            symbol = _symbol(value, i)
            is_loss = len(values) == 1 and symbol.type.shape == () and symbol.type.dtype in FLOATS
            if not symbol.name.fixed or symbol.name.text in b.leaves:
                symbol = b.rename(symbol, "loss" if is_loss else "out" if len(values) == 1 else f"out_{i}")
            outputs[symbol.name.text] = symbol
    states = [b.leaves[name].ref for name in b.updates]
    b.write([*b.updates.values()], [each for each in states if isinstance(each, Symbol)])
    return BuiltProgram(b, outputs)


def _symbol(value: Any, name: Any) -> Symbol:
    if not isinstance(value, Symbol):
        raise InvalidOp(f"output {name!r} of the program must be a symbol, not a {type(value).__name__}")
    return value


def _annotations(function: Callable[..., Any], around: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return inspect.get_annotations(function, eval_str=True, locals=around)
    except NameError as error:
        raise TypeError(f"cannot read the annotations of {function.__name__}: {error}") from None


def _type_of(annotation: Any) -> Type | None:
    """The type that an annotation or a default means, if it means one."""
    if get_origin(annotation) is Annotated:
        return next((found for note in get_args(annotation)[1:] if (found := _type_of(note))), None)
    if isinstance(annotation, Dtype):
        return Type(annotation.name, ())
    return annotation if isinstance(annotation, Type) else None


def explain(error: Refused, program: BuiltProgram) -> None:
    """Add to `error` the Python lines that wrote the refused ops."""
    for each in error.errors:
        at = each.get("location") or {}
        if "block" in at and "op" in at:
            try:
                line = program.line(at["block"], at["op"], at.get("function"))
            except KeyError:
                continue
            error.add_note(f"block {at['block']}, op {at['op']} ({at.get('type', '')}) is written at {line}")
