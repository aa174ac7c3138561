"""The builder: it records ops as blocks of a program, and infers types where each op is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token
from typing import Any, Self

import numpy as np

from backpass_client.arguments import NOT_A_CONDITION, POSITIONS, attributes_as_json
from backpass_client.arithmetic import is_number
from backpass_client.builder.blocks import Block, Leaf, Name, Op, line_of_caller
from backpass_client.builder.inference import output_types, warn_of_stretched
from backpass_client.builder.open_slices import open_size
from backpass_client.builder.signatures import OpSignature, check_initializer, signature_of
from backpass_client.builder.symbol import Symbol
from backpass_client.builder.types import DtypesDiffer, InvalidOp, Type, check_fits, same_sizes
from backpass_client.errors import BackpassError
from backpass_client.op_results import Results
from backpass_client.recorder import Operand, OpRecorder, current_recorder

__all__ = ["Builder", "current_builder"]

NAME = re.compile(r"(?![0-9]+:)[A-Za-z0-9_/][A-Za-z0-9_.:/-]{0,127}")
LONGEST = 128
"""Characters of a name."""
MOST_CONSTANTS = 10_000
"""Elements of an array that may stand in the text of a program."""


class Builder:
    """A program under construction. ``with Builder() as b:`` records the ops computed inside."""

    def __init__(self, title: str = "program", is_function: bool = False) -> None:
        """is_function: whether it is a function of a program, which has feeds only."""
        self.title = title
        self.is_function = is_function
        self.root = Block(None, title)
        self.block = self.root
        self.prefix = ""
        self.names: dict[str, Name] = {}
        self.leaves: dict[str, Leaf] = {}
        self.shared: dict[Any, Any] = {}  # key of a layer -> what it declared in this program
        self.updates: dict[str, Symbol] = {}  # state -> its value for the next step
        self.functions: dict[str, Any] = {}
        self.numbers: dict[str, int] = {}  # name without a number -> the last number
        self._tokens: list[Token[OpRecorder | None]] = []

    def __enter__(self) -> Self:
        self._tokens.append(current_recorder.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        current_recorder.reset(self._tokens.pop())

    # --- ops -----------------------------------------------------------------------------------------------------

    def call(self, type: str, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Append one op with Python's arguments; its output, or a tuple of them.

        Raises InvalidOp or TypeError for an op that the service would refuse.
        """
        signature = signature_of(type)
        if signature.blocks or type == "call":
            raise InvalidOp(
                f"{type} has inner blocks: write bp.while_loop, bp.scan, bp.cond, bp.switch, bp.safe_where or a "
                "@bp.function in its place"
            )
        given, attributes = signature.arguments(inputs, named)
        if self.is_function and "key" in signature.optional and given.get("key") is None:
            raise InvalidOp(f"function {self.title!r} cannot draw random numbers ({type}): pass them as an operand")
        expanded = self._operands(signature, given)
        attrs = attributes_as_json(type, attributes)
        signature.check(expanded, attrs)
        operands = _types(expanded)
        try:
            types, count = output_types(signature, operands, attrs)
        except DtypesDiffer as error:
            raise DtypesDiffer(f"{error}{self._dtype_advice(given, expanded)}") from None
        warn_of_stretched(signature, operands)
        outputs: dict[str, list[Symbol]] = {}
        for slot in signature.outputs:
            own = [types.pop(0) for _ in range(count if signature.is_variadic else 1)]
            outputs[slot] = [self.symbol(type if len(signature.outputs) == 1 else slot, each) for each in own]
        flat = [symbol for each in outputs.values() for symbol in each]
        slots = {slot: each if isinstance(each, list) else [each] for slot, each in expanded.items()}
        self.append(Op(type, slots, outputs, attrs))
        if signature.is_variadic or len(flat) > 1:
            return Results.of(type, signature.outputs, flat)
        return flat[0]

    def _dtype_advice(self, given: Mapping[str, Any], operands: Mapping[str, Any]) -> str:
        """How the first array or parameter with another dtype than the other operands gets theirs."""
        symbols = {slot: each for slot, each in operands.items() if isinstance(each, Symbol)}
        fixed = {slot for slot, each in symbols.items() if isinstance(given[slot], np.ndarray) or self._is_leaf(each)}
        wanted = next((each.type.dtype for slot, each in symbols.items() if slot not in fixed), None)
        for slot in sorted(fixed):
            symbol = symbols[slot]
            if wanted is None or symbol.type.dtype in (None, wanted):
                continue
            if isinstance(given[slot], np.ndarray):
                return f"; or give the array as {slot}.astype({wanted!r})"
            name, role = symbol.name.text, self.leaves[symbol.name.text].role
            return f"; or declare the {role} {name!r} with dtype={wanted!r}"
        return ""

    def _is_leaf(self, symbol: Symbol) -> bool:
        leaf = self.leaves.get(symbol.name.text)
        return leaf is not None and leaf.role in ("parameter", "state") and leaf.ref is symbol

    def append(self, op: Op) -> Op:
        op.line = op.line or line_of_caller()
        self.block.ops.append(op)
        return op

    def symbol(self, hint: str, type: Type, block: Block | None = None) -> Symbol:
        """A new symbol with a name of its own."""
        return Symbol(self, self.new_name(hint), type, block or self.block)

    def assign(self, value: Symbol, to: Symbol) -> None:
        """Append the op that copies `value` to the variable of `to`."""
        self.append(Op("assign", {"x": [value]}, {"out": [to]}))

    def _operands(self, signature: OpSignature, given: Mapping[str, Any]) -> dict[str, Any]:
        """The operands of an op as symbols. The name of an open size stands for its number."""
        like = signature.first_operand(given)

        def operand(slot: str, x: Any) -> Symbol:
            if not isinstance(x, str):
                return self.operand(x)
            size = self.call("reshape", (open_size(self, x),), {"shape": []})
            if like is None or slot in POSITIONS or like.type.dtype in (None, "int64"):
                return size
            return self.call("cast", (size,), {"dtype": like.dtype})

        return {
            slot: [operand(slot, x) for x in each] if isinstance(each, list) else operand(slot, each)
            for slot, each in signature.with_constants(given, self).items()
        }

    def full_like(self, like: Symbol, value: int | float) -> Symbol:
        """An array of `value` with the shape and dtype of `like`, or a single number if only that is known to do.

        Raises InvalidOp for a value that the dtype does not have.
        """
        if value != value or (like.type.dtype is not None and like.type.shape == ()):
            return self.array_like(like, value)
        if like.type.dtype is not None:
            check_fits(value, like.type.dtype)
        return self.call("full_like", (like,), {"value": value})

    def array_like(self, like: Symbol | None, values: Any) -> Symbol:
        """A number or an array as a constant with the dtype of `like`. Raises InvalidOp unless the dtype fits.

        Without `like` it is float32 or int64, as with `constant`.
        """
        if like is None:
            return self.constant(np.asarray(values).tolist())
        check_fits(values, like.dtype)
        if not is_number(values):
            return self.constant(values, like.dtype)
        if values == values:
            return self.call("fill_constant", (), {"value": values, "dtype": like.dtype})
        zero = self.call("fill_constant", (), {"value": 0.0, "dtype": like.dtype})  # NaN cannot be an attribute
        return self.call("div", (zero, zero), {})

    def condition(self, value: Any, what: str, one: bool = True) -> Symbol:
        """`value` as the condition of `what`. one: whether it must be one bool. Raises InvalidOp."""
        if isinstance(value, bool):
            raise InvalidOp(f"the condition of {what} {NOT_A_CONDITION.format(value)}")
        found = self.operand(value)
        is_one = not one or all(same_sizes(n, 1) for n in found.type.shape or ())
        if found.type.dtype not in (None, "bool") or not is_one:
            raise InvalidOp(f"the condition of {what} must be {'one bool' if one else 'bool'}, not {found!r}")
        return found

    def operand(self, value: Any) -> Symbol:
        """`value` as a symbol that the current block can read; numbers and arrays become constants.

        Raises BackpassError for a symbol of another program or of a block that has ended, InvalidOp for anything else.
        """
        if isinstance(value, Symbol):
            if value.builder is not self:
                inside = f"function {self.title!r} sees only its own operands: pass it as one"
                other = "a symbol belongs to one program"
                raise InvalidOp(f"cannot use {value!r} here: {inside if self.is_function else other}")
            if not self.block.is_inside(value.block):
                raise InvalidOp(f"cannot use {value!r} outside of {value.block.title}: return it from there")
            return value
        if isinstance(value, Operand):
            raise InvalidOp("a Variable or an expression of a tape cannot be part of a program; declare a bp.parameter")
        return self.constant(value)

    def constant(self, value: Any, dtype: str | None = None) -> Symbol:
        """A number or array as a constant. Python's floats are float32, and its integers int64."""
        if dtype is None and (is_number(value) or isinstance(value, bool)) and not isinstance(value, np.generic):
            dtype = "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"
        try:
            array = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise InvalidOp(f"cannot use {value!r} as an array: {error}") from None
        if dtype is None and array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic):
            dtype = "float32"
        dtype = dtype or array.dtype.name
        if array.dtype.kind not in "biuf" and dtype != "bfloat16":
            raise InvalidOp(f"cannot use a {type(value).__name__} as an array: its elements are {array.dtype}")
        if array.size > MOST_CONSTANTS:
            raise InvalidOp(
                f"a constant of {array.size} elements is too large for the text of a program; declare "
                "bp.parameter(name, shape, init=array, trainable=False)"
            )
        flat = [float(x) if array.dtype.kind not in "biu" else int(x) for x in array.reshape(-1).tolist()]
        if array.ndim == 0 and np.isfinite(flat[0]):
            return self.call("fill_constant", (), {"value": flat[0], "dtype": dtype})
        if not np.isfinite(flat).all():
            raise InvalidOp("a constant cannot hold infinity or NaN; declare bp.parameter(..., trainable=False)")
        return self.call("assign_value", (), {"values": flat, "shape": list(array.shape), "dtype": dtype})

    # --- names ---------------------------------------------------------------------------------------------------

    def new_name(self, hint: str) -> Name:
        """A name with the prefix of the scope, and a number if it is taken."""
        base = self.prefix + hint
        if len(base) > LONGEST - 10:
            base = hint
        number = self.numbers.get(base, 0)
        text = f"{base}_{number}" if number else base
        while text in self.names:
            number += 1
            text = f"{base}_{number}"
        self.numbers[base] = number
        name = self.names[text] = Name(text)
        return name

    def fixed_name(self, text: str, what: str) -> Name:
        """The name `text`, which nothing else may have been given. Raises InvalidOp."""
        check_name(text, what)
        taken = self.names.get(text)
        if taken is not None:
            self._release(taken, what)
        name = self.names[text] = Name(text, fixed=True)
        return name

    def _release(self, name: Name, what: str) -> None:
        """Give `name` another text, because a `what` needs it. Raises InvalidOp if its text was chosen."""
        if name.fixed:
            leaf = self.leaves.get(name.text)
            by = f" by the {leaf.role} at {leaf.line}" if leaf is not None else ""
            raise InvalidOp(f"the name {name.text!r} of this {what} is taken{by}")
        base, number = name.text, 1
        while f"{base}_{number}" in self.names:
            number += 1
        del self.names[base]
        name.text = f"{base}_{number}"
        self.names[name.text] = name

    def rename(self, symbol: Symbol, text: str) -> Symbol:
        """The value of `symbol` as the variable `text`: itself, or a copy if its name is chosen already."""
        text = self.prefix + text
        if symbol.name.text == text and symbol.name.fixed:
            return symbol
        symbol = self.operand(symbol)
        if symbol.name.fixed or symbol.block is not self.block:
            copied = Symbol(self, self.fixed_name(text, "variable"), symbol.type, self.block)
            self.assign(symbol, copied)
            return copied
        check_name(text, "variable")
        taken = self.names.get(text)
        if taken is not None and taken is not symbol.name:
            self._release(taken, "variable")
        self.names.pop(symbol.name.text, None)
        symbol.name.text, symbol.name.fixed = text, True
        self.names[text] = symbol.name
        return symbol

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names inside start with `name` and a full stop."""
        check_name(name, "scope")
        with self.at(f"{self.prefix}{name}."):
            yield

    @contextmanager
    def at(self, prefix: str) -> Iterator[None]:
        """Names inside start with `prefix`."""
        before, self.prefix = self.prefix, prefix
        try:
            yield
        finally:
            self.prefix = before

    def new_prefix(self, hint: str) -> str:
        """A prefix of names that nothing else has: that of a layer or a loop."""
        text = base = self.prefix + hint
        number = 0
        while ("prefix", text) in self.shared:
            number += 1
            text = f"{base}_{number}"
        self.shared["prefix", text] = True
        return f"{text}."

    # --- leaves --------------------------------------------------------------------------------------------------

    def feed(self, name: str, type: Type) -> Symbol:
        """Declare a feed. Raises InvalidOp."""
        return self._leaf(name, type, Leaf, role="feed")

    def parameter(self, name: str, type: Type, init: Any, trainable: bool, role: str = "parameter") -> Symbol:
        """Declare a parameter or state in block 0, from any block. Raises InvalidOp."""
        if self.is_function:
            raise InvalidOp(f"function {self.title!r} cannot declare the {role} {name!r}: pass it as an operand")
        if type.shape is None or not all(isinstance(size, int) for size in type.shape):
            raise InvalidOp(f"the {role} {name!r} needs sizes that are numbers, not {type}")
        if not isinstance(name, str):
            raise InvalidOp(f"a {role} has a name and a shape, such as bp.{role}('w', [3]): {name!r} is no name")
        initializer, value = _initial(self.prefix + name, type, init)
        return self._leaf(name, type, Leaf, role=role, trainable=trainable, initializer=initializer, value=value)

    def _leaf(self, name: str, type: Type, kind: type[Leaf], **members: Any) -> Symbol:
        if type.dtype is None or type.shape is None:
            raise InvalidOp(f"{name!r} needs a dtype and a shape, such as bp.f32[3]")
        symbol = Symbol(self, self.fixed_name(self.prefix + name, members["role"]), type, self.root)
        self.leaves[symbol.name.text] = kind(symbol, line=line_of_caller(), **members)
        return symbol

    def typed(self, symbol: Symbol, type: Type) -> Symbol:
        """`symbol` with the type that the user knows; the service checks it. Raises InvalidOp if it cannot have it."""
        self.operand(symbol)
        have = symbol.type
        fits = (have.dtype is None or have.dtype == type.dtype) and (
            have.shape is None or (len(have.shape) == len(type.dims) and all(map(same_sizes, have.shape, type.dims)))
        )
        if not fits:
            raise InvalidOp(f"{symbol.name.text} is {have}, not {type}")
        known = have.shape or (None,) * type.rank
        found = Type(type.dtype, tuple(m if n is None else n for m, n in zip(known, type.dims, strict=True)))
        written = [x for op in self.root.ops if not op.blocks for refs in op.outputs.values() for x in refs]
        if self.block is self.root and symbol in written:
            symbol.type = found
            if symbol not in self.root.declared:
                self.root.declared.append(symbol)
            return symbol
        # a declaration in an inner block would make the variable one of that block
        checked: Symbol = self.call("check_shape", (symbol,), {"shape": found.wire_shape})
        checked.type = found
        return checked

    # --- inner blocks --------------------------------------------------------------------------------------------

    @contextmanager
    def inner_block(self, title: str) -> Iterator[Block]:
        """A block inside the current one, which takes the ops until the end of the ``with``."""
        outer = self.block
        self.block = Block(outer, title)
        try:
            yield self.block
        finally:
            self.block = outer

    def write(self, values: Sequence[Symbol], to: Sequence[Symbol]) -> None:
        """Overwrite the variables `to` with `values`, all at once: a value may be the old one of another variable."""
        overwritten = {symbol.name for symbol in to}
        sources = []
        for value, symbol in zip(values, to, strict=True):
            if value.name in overwritten and value.name is not symbol.name:
                copied = self.symbol("old", value.type)
                self.assign(value, copied)
                value = copied
            sources.append(value)
        for value, symbol in zip(sources, to, strict=True):
            if value.name is not symbol.name:
                self.assign(value, symbol)

    def snapshot(self) -> tuple[Any, ...]:
        """The present state, for `rollback`."""
        names = [(name, name.text, name.fixed) for name in self.names.values()]
        tables = (self.leaves, self.shared, self.updates, self.functions, self.numbers)
        return self.block, len(self.block.ops), names, [dict(table) for table in tables]

    def rollback(self, state: tuple[Any, ...]) -> None:
        """Undo all ops and declarations since the snapshot, because a body must be traced again."""
        block, count, names, tables = state
        del block.ops[count:]
        for name, text, fixed in names:
            name.text, name.fixed = text, fixed
        self.names = {text: name for name, text, _ in names}
        self.leaves, self.shared, self.updates, self.functions, self.numbers = map(dict, tables)


def current_builder(what: str) -> Builder:
    """The builder of the innermost ``with``. Raises BackpassError, which names `what` needs one."""
    recorder = current_recorder.get()
    if not isinstance(recorder, Builder):
        raise BackpassError(f"{what} is part of a program: write it in a function under @bp.program")
    return recorder


def check_name(text: str, what: str) -> None:
    """Raises InvalidOp unless `text` can be the name of a `what`."""
    if NAME.fullmatch(text) is None or text.startswith("grad/"):
        raise InvalidOp(
            f"the name {text!r} of a {what} must have 1 to 128 letters, digits and _ . : / -, start with a letter, a "
            "digit, _ or /, have no : after leading digits alone, and not start with grad/"
        )


def _types(given: Mapping[str, Any]) -> dict[str, Any]:
    return {slot: [x.type for x in each] if isinstance(each, list) else each.type for slot, each in given.items()}


def _initial(name: str, type: Type, init: Any) -> tuple[Mapping[str, Any] | None, np.ndarray | None]:
    """(initializer, first value) of a parameter; at most one of them is not None."""
    if init is None:
        return None, None
    if isinstance(init, str):
        init = {"type": init}
    if is_number(init):
        init = {"type": "constant", "value": float(init)}
    if isinstance(init, Mapping):
        check_initializer(name, init)
        return dict(init), None
    if isinstance(init, Operand):
        raise InvalidOp(f"the first value of {name!r} must be an array or an initializer, not a symbol")
    value = np.asarray(init)
    if value.dtype.kind not in "biuf" and type.dtype != "bfloat16":
        raise InvalidOp(f"the first value of {name!r} must be numbers or an initializer, not {init!r}")
    if value.shape != type.shape:
        raise InvalidOp(f"the first value of {name!r} has the shape {list(value.shape)}, not {type}")
    if type.dtype == "bfloat16":
        return None, value
    return None, value.astype(type.dtype)
