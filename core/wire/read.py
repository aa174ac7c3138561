"""JSON programs in, closed blocks out. This is where open scopes end.

On the wire a program is a flat list of blocks; an op names its inner blocks by index, and an inner block may read and
overwrite the variables around it. In the core there is none of that:

* a variable of an outer block that an inner one reads becomes a *captured* operand;
* one that it overwrites becomes *loop-carried* (or, in a branch, *merged*): an operand and a result;
* every further write to a name makes a new version of it, ``h@VER@1``.

A variable that an inner block declares itself is its own, whatever is visible outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from core.build import Value
from core.errors import ProgramError
from core.headroom import headroom
from core.ir import Block, Op, Program, StackType, TensorType, Type, Variable
from core.ops.types import joined_type, matches
from core.registry import OpSpec, lookup
from core.wire.document import Limits, Problems, RawBlock, RawOp, RawProgram, RawVar, parse
from core.wire.scope import BLOCK_ATTRS, Scopes, inner_indices
from core.wire.versions import Versions

__all__ = ["KEY", "read"]

KEY = "@KEY"
"""The variable that random ops draw from: a parameter of every program that has any."""

Env = dict[str, Value | None]
"""Client name -> its current version. None marks a name whose definition was wrong: one mistake is told once."""


def read(document: Any, limits: Limits | None = None) -> Program:
    """The closed program for a JSON document.

    Raises InvalidProgram with *all* problems found, each with a stable code, a place and a JSON pointer.
    """
    limits = limits or Limits()
    with headroom():
        raw = parse(document, limits)
        problems = Problems(limits.max_problems)
        scopes = Scopes(raw, problems, limits)
        program = _Reader(raw, scopes, problems, limits).program()
    problems.raise_if_any()
    return program


class _Reader:
    def __init__(self, raw: RawProgram, scopes: Scopes, problems: Problems, limits: Limits) -> None:
        self.raw = raw
        self.scopes = scopes
        self.problems = problems
        # a loop whose carried sizes change is read again with those sizes unknown; nesting multiplies that
        self.ops_left = 20 * limits.max_ops

    def program(self) -> Program:
        root = self.raw.blocks[0]
        b = Versions()
        env: Env = {}
        variables = []
        leaves = [v for v in root.vars.values() if v.role != "temporary"]
        for var in leaves:
            type = TensorType(var.shape or (), var.dtype or "float32")
            env[var.name] = b.param(var.name, type, var.stop_gradient)
            variables.append(Variable(var.name, type, var.role, var.trainable))  # type: ignore[arg-type]
        if self.scopes.touched(0).draws and not self.raw.closed:
            type = TensorType((), "int64")
            env[KEY] = b.param(KEY, type, False)
            variables.append(Variable(KEY, type, "key", False))
        for block in self.raw.blocks[1:]:
            for var in block.vars.values():
                if var.role != "temporary":
                    self.problems.add("bad_var", f"a {var.role} must be declared in block 0", f"{var.pointer}/role")
        self.ops(b, env, root)
        latest = {v.name: env[v.name].name for v in variables if env[v.name] and env[v.name].name != v.name}  # type: ignore[union-attr]
        latest.pop(KEY, None)
        if self.raw.closed:
            latest = dict(self.raw.names)
        return Program(b.build([]), tuple(variables), latest)

    def ops(self, b: Versions, env: Env, block: RawBlock) -> None:
        """Append the ops of `block`, reading and updating `env`. What is wrong is noted, and reading goes on."""
        for op in block.ops:
            self.ops_left -= 1
            if self.ops_left < 0:
                raise ProgramError(
                    "the program takes too long to read: its loops change sizes at many depths", "too_deep"
                )
            try:
                with b.builder.at(op.location):
                    if self.raw.closed or op.type not in BLOCK_ATTRS or self._is_closed(op):
                        self.plain(b, env, block, op)
                    elif op.type == "while":
                        self.while_(b, env, block, op)
                    else:
                        self.if_else(b, env, block, op)
            except _Known:
                self._poison(env, op)
            except ProgramError as error:
                for each in error.problems:
                    pointer = each.pointer if error.pointer else op.pointer
                    self.problems.add(each.code, each.message, pointer, each.location, each.suggestion)
                self._poison(env, op)

    def _poison(self, env: Env, op: RawOp) -> None:
        env.update((name, None) for name in op.written_names())
        for attr in ("sub_block", "true_block", "false_block"):
            inner = op.attrs.get(attr)
            if isinstance(inner, int) and 0 < inner < len(self.raw.blocks):
                env.update((name, None) for name in self.scopes.touched(inner).writes)

    def _is_closed(self, op: RawOp) -> bool:
        given = [i for _, i in inner_indices(op)]
        return op.type == "loop" or any(isinstance(i, int) and self.raw.blocks[i].params is not None for i in given)

    # --- ops without scopes ------------------------------------------------------------------------------------

    def plain(self, b: Versions, env: Env, block: RawBlock, raw: RawOp) -> None:
        """An op whose meaning its declaration tells: closed control flow included."""
        spec = lookup(raw.type)
        attrs = {k: self.closed_block(raw, k, v) if k in _block_attrs(spec) else v for k, v in raw.attrs.items()}
        if spec.takes_key and not self.raw.closed:
            attrs.setdefault("stream", 1 + raw.location.op + 1_000_000 * raw.location.block)
        try:
            attrs = spec.complete(attrs)
        except ProgramError as error:  # told even if the inputs are wrong too
            self.problems.add(error.code, error.message, f"{raw.pointer}/attrs", raw.location, error.suggestion)
            self.inputs(spec, env, block, raw)
            raise _Known from None
        inputs = self.inputs(spec, env, block, raw)
        if spec.takes_key and "key" not in raw.inputs and KEY in env:
            at = next(i for i, slot in enumerate(spec.inputs) if slot.name == "key")
            inputs[at] = env[KEY]
        op = b.builder.make(raw.type, *inputs, **attrs)
        names = self.outputs(spec, raw)
        self.define(b, env, block, raw, op, names)

    def inputs(self, spec: OpSpec, env: Env, block: RawBlock, raw: RawOp) -> list[Value | None]:
        """The values of the input slots, in the order of the declaration."""
        slots = {s.name for s in spec.inputs}
        for unknown in raw.inputs.keys() - slots:
            raise ProgramError(
                f"{spec.name} has no input slot {unknown!r}",
                "bad_slot",
                pointer=f"{raw.pointer}/inputs",
                suggestion=f"its slots are {', '.join(sorted(slots)) or 'none'}",
            )
        values: list[Value | None] = []
        missing = False
        for slot in spec.inputs:
            names = raw.inputs.get(slot.name, ())
            if len(names) > 1 and not slot.variadic:
                raise ProgramError(
                    f"slot {slot.name!r} of {spec.name} takes one name, not {len(names)}",
                    "bad_slot",
                    pointer=f"{raw.pointer}/inputs/{slot.name}",
                )
            if not names and not slot.variadic:
                if not slot.optional:
                    raise ProgramError(f"{spec.name} needs the input {slot.name!r}", "bad_slot")
                values.append(None)
            for i, name in enumerate(names):
                value = self.lookup(env, block, raw, name, slot.name, i)
                missing |= value is None
                values.append(value)
        if missing:
            raise _Known
        return values

    def lookup(self, env: Env, block: RawBlock, raw: RawOp, name: str, slot: str, position: int) -> Value | None:
        """The current version of `name`; None, with the problem noted, if there is none."""
        if name in env:
            return env[name]
        location = replace(raw.location, slot=slot, variable=name)
        pointer = f"{raw.pointer}/inputs/{slot}/{position}"
        if name in block.vars or any(name in op.written_names() for op in block.ops):
            self.problems.add("use_before_definition", f"{name!r} is read before any op writes it", pointer, location)
        else:
            self.problems.add("unknown_variable", f"there is no variable {name!r} here", pointer, location)
        env[name] = None
        return None

    def outputs(self, spec: OpSpec, raw: RawOp) -> tuple[str | None, ...] | None:
        """The client's names for the outputs; None for those left out (all of a variadic slot)."""
        for slot in raw.outputs.keys() - set(spec.outputs):
            raise ProgramError(
                f"{spec.name} has no output slot {slot!r}",
                "bad_slot",
                pointer=f"{raw.pointer}/outputs",
                suggestion=f"its slots are {', '.join(spec.outputs)}",
            )
        if not raw.written_names():
            if spec.kind == "control":
                return ()
            raise ProgramError(f"{spec.name} writes nothing: name its output", "bad_slot")
        if spec.variadic_outputs:
            return raw.outputs[spec.outputs[0]]
        names = []
        for slot in spec.outputs:
            given = raw.outputs.get(slot, ())
            if len(given) > 1:
                raise ProgramError(
                    f"slot {slot!r} of {spec.name} takes one name, not {len(given)}",
                    "bad_slot",
                    pointer=f"{raw.pointer}/outputs/{slot}",
                )
            names.append(given[0] if given else None)
        if len({n for n in names if n}) < sum(n is not None for n in names):
            raise ProgramError(f"{spec.name} writes one name twice", "bad_slot", pointer=f"{raw.pointer}/outputs")
        return tuple(names)

    def define(
        self,
        b: Versions,
        env: Env,
        block: RawBlock,
        raw: RawOp,
        op: Op,
        names: tuple[str | None, ...] | None,
    ) -> None:
        """Append `op` and make its outputs the current versions of `names`."""
        op = b.builder.typed(op)
        if names is None or len(names) != len(op.outputs):
            raise ProgramError(
                f"{op.type} has {len(op.outputs)} outputs, but {len(names or ())} are named",
                "bad_slot",
                pointer=f"{raw.pointer}/outputs",
            )
        finals = []
        for temporary, name in zip(op.outputs, names, strict=True):
            type = b.builder.types[temporary]
            if name is None:
                finals.append(temporary)
                continue
            self.check_write(block, env, raw, name, type)
            finals.append(b.new_version(name, type, self.declared(block, name)))
            if self.raw.closed and finals[-1] != name:
                raise ProgramError(f"{name!r} is written twice in a closed block", "not_single_assignment")
        b.builder.ops.append(replace(op, outputs=tuple(finals)))
        env.update((n, b.builder.value(f)) for n, f in zip(names, finals, strict=True) if n is not None)

    def check_write(self, block: RawBlock, env: Env, raw: RawOp, name: str, type: Type) -> None:
        location = replace(raw.location, variable=name)
        root = self.raw.blocks[0].vars.get(name)
        if root is not None and root.role == "feed" and not (block.idx and name in block.vars):
            raise ProgramError(f"{name!r} is a feed and cannot be written", "write_to_feed", location=location)
        declared = self.declared(block, name)
        if declared is None:
            return
        wanted = _declared_type(declared, type)
        if wanted is not None and not matches(type, wanted):
            raise ProgramError(
                f"{name!r} is declared as {wanted}, but {raw.type} gives {type}", "type_mismatch", location=location
            )

    def declared(self, block: RawBlock, name: str) -> RawVar | None:
        """The declaration that `name` has in `block`, or in the nearest block around it that has one."""
        at = block
        while name not in at.vars and at.idx and at.params is None:
            at = self.raw.blocks[at.parent_idx]
        return at.vars.get(name)

    def closed_block(self, raw: RawOp, attr: str, index: Any) -> Block:
        """The closed block that a closed control-flow op names."""
        block = self.raw.blocks[index] if isinstance(index, int) and 0 < index < len(self.raw.blocks) else None
        if block is None or block.params is None or block.results is None:
            raise ProgramError(
                f"{attr} of {raw.type} must be a block with params and results", "bad_attr", location=raw.location
            )
        c = Versions()
        env: Env = {}
        for name in block.params:
            var = block.vars.get(name)
            if var is None or var.dtype is None or var.shape is None:
                raise ProgramError(f"parameter {name!r} of block {block.idx} needs a declared type", "bad_var")
            env[name] = c.param(name, _full_type(var), var.stop_gradient)
        self.ops(c, env, block)
        results = [self.lookup(env, block, raw, n, "results", i) for i, n in enumerate(block.results)]
        if None in results:
            raise _Known
        return c.build([v for v in results if v is not None])

    # --- open control flow -------------------------------------------------------------------------------------

    def condition(self, env: Env, block: RawBlock, raw: RawOp) -> Value:
        names = raw.inputs.get("condition", ())
        if len(names) != 1:
            raise ProgramError(f"{raw.type} needs one condition", "bad_slot", pointer=f"{raw.pointer}/inputs")
        for slot in raw.inputs.keys() - {"condition", "x"}:
            raise ProgramError(f"{raw.type} has no input slot {slot!r}", "bad_slot", pointer=f"{raw.pointer}/inputs")
        for slot in raw.outputs.keys() - {"out"}:
            raise ProgramError(f"{raw.type} has no output slot {slot!r}", "bad_slot", pointer=f"{raw.pointer}/outputs")
        value = self.lookup(env, block, raw, names[0], "condition", 0)
        if value is None:
            raise _Known
        return value

    def inner(self, raw: RawOp, attr: str) -> RawBlock | None:
        if unknown := raw.attrs.keys() - set(BLOCK_ATTRS[raw.type]):
            raise ProgramError(
                f"{raw.type} has no attribute {min(unknown)!r}", "bad_attr", pointer=f"{raw.pointer}/attrs"
            )
        if attr not in raw.attrs:
            raise ProgramError(f"{raw.type} needs the attribute {attr!r}", "bad_attr", pointer=f"{raw.pointer}/attrs")
        index = raw.attrs[attr]
        return None if index is None else self.raw.blocks[index]

    def while_(self, b: Versions, env: Env, block: RawBlock, raw: RawOp) -> None:
        """A `while` becomes a `loop` whose first carried value is the condition."""
        condition = self.condition(env, block, raw)
        if condition.type.dtype != "bool":
            raise ProgramError(f"the condition must be one bool, not {condition.type}", "bad_condition")
        body = self.inner(raw, "sub_block")
        if body is None:
            raise ProgramError("while needs a sub_block", "bad_attr", pointer=f"{raw.pointer}/attrs")
        touched = self.scopes.touched(body.idx)
        go = raw.inputs["condition"][0]
        carried = [go, *(n for n in touched.writes if n in env and n != go)]
        if go not in touched.writes:
            raise ProgramError(f"the body never writes the condition {go!r}", "condition_not_updated")
        if touched.draws:
            carried.append(KEY)
        captured = [n for n in touched.reads if n in env and n not in carried]
        self.check_operands(raw, [*carried, *captured], carried)
        for name in carried:
            if name != KEY and (root := self.raw.blocks[0].vars.get(name)) is not None and root.role == "feed":
                raise ProgramError(f"{name!r} is a feed and cannot be written", "write_to_feed")
        operands = [env[n] for n in (*carried, *captured)]
        if None in operands:
            raise _Known
        types: list[Type] = [v.type for v in operands if v is not None]

        while True:
            before = len(self.problems.found)
            inner = self.open_block(body, dict(zip((*carried, *captured), types, strict=True)), carried)
            if len(self.problems.found) > before:
                raise _Known
            joined = [
                joined_type(t, r, "carry_dtype_changed", f"{n!r} changes its type in the body of the loop")
                for n, t, r in zip(carried, types, inner.result_types, strict=False)
            ]
            if joined == types[: len(carried)]:
                break
            types[: len(carried)] = joined

        op = b.builder.make(
            "loop", *operands, sub_block=inner, carried=len(carried), captured=len(captured), condition=True
        )
        self.define_all(b, env, block, raw, op, carried)

    def if_else(self, b: Versions, env: Env, block: RawBlock, raw: RawOp) -> None:
        """Merged are the names that a branch overwrites, and new ones that both branches write."""
        condition = self.condition(env, block, raw)
        branches = [self.inner(raw, attr) for attr in ("true_block", "false_block")]
        touched = [self.scopes.touched(x.idx) for x in branches if x is not None]
        written = list(dict.fromkeys(n for t in touched for n in t.writes))
        merged = [n for n in written if n in env]
        read = dict.fromkeys([*merged, *(n for t in touched for n in t.reads if n in env)])
        if any(t.draws for t in touched):
            read[KEY] = None
        operands = [env[n] for n in read]
        if None in operands:
            raise _Known
        for name in merged:
            if (root := self.raw.blocks[0].vars.get(name)) is not None and root.role == "feed":
                raise ProgramError(f"{name!r} is a feed and cannot be written", "write_to_feed")
        types = {n: v.type for n, v in zip(read, operands, strict=True) if v is not None}

        fresh = [n for n in written if n not in env and all(n in t.writes for t in touched) and len(touched) == 2]
        wanted = raw.outputs.get("out")
        before = len(self.problems.found)
        closed = [self.open_block(x, types, [*merged, *fresh], optional=fresh) for x in branches]
        if len(self.problems.found) > before:
            raise _Known
        shared = [n for n in fresh if all(n in names for _, names in closed)]
        agreed: list[str] = []
        clashing: list[str] = []
        for n in shared:
            a, c = (block.types[names[n]] for block, names in closed)
            (agreed if _joinable(a, c) else clashing).append(n)
        visible = [*merged, *agreed]
        if wanted is not None:
            self.check_out(raw, wanted, merged, fresh, agreed, clashing)
            visible = [*merged, *(n for n in agreed if n in wanted)]
        self.check_operands(raw, list(read), None)
        blocks = [replace(x, results=tuple(names[n] for n in visible)) for x, names in closed]
        op = b.builder.make("if_else", condition, *operands, true_block=blocks[0], false_block=blocks[1])
        self.define_all(b, env, block, raw, op, visible)

    def open_block(
        self,
        block: RawBlock | None,
        types: Mapping[str, Type],
        results: list[str],
        optional: Iterable[str] | None = None,
    ) -> Any:
        """Read an inner block with parameters `types`, returning the last versions of `results`.

        With `optional`, those may be missing, and what comes back is the block and the variable of each result.
        """
        c = Versions()
        env: Env = {n: c.param(n, t, False) for n, t in types.items()}
        if block is not None:
            hidden = {n: env.pop(n) for n in block.vars if n in env}
            self.ops(c, env, block)
            for n in block.vars:
                env.pop(n, None)
            env |= hidden
            if KEY in results:
                key = env[KEY]
                assert key is not None
                env[KEY] = c.builder.emit("next_key", key)
        names = {}
        for name in results:
            value = env.get(name)
            if value is not None:
                names[name] = value.name
            elif optional is None or name not in optional:
                raise _Known
        renamed = c.final_names()
        names = {n: renamed.get(v, v) for n, v in names.items()}
        closed = c.build([])
        if optional is not None:
            return closed, names
        return replace(closed, results=tuple(names[n] for n in results))

    def check_operands(self, raw: RawOp, needed: list[str], written: list[str] | None) -> None:
        """What the client listed as read and written must cover what the block really reads and writes."""
        for slot, given, real in (
            ("inputs/x", raw.inputs.get("x"), needed),
            ("outputs/out", raw.outputs.get("out"), written),
        ):
            if given is None or real is None:
                continue
            condition = raw.inputs["condition"][0]
            for name in real:
                if name not in given and name not in (condition, KEY):
                    kind = "reads" if slot == "inputs/x" else "writes"
                    raise ProgramError(
                        f"the block {kind} {name!r}, which is not listed in {slot[slot.index('/') + 1 :]}",
                        "bad_slot",
                        pointer=f"{raw.pointer}/{slot}",
                        suggestion="leave the list out: it is worked out",
                    )

    def check_out(
        self,
        raw: RawOp,
        wanted: Iterable[str],
        merged: list[str],
        fresh: list[str],
        agreed: list[str],
        clashing: list[str],
    ) -> None:
        pointer = f"{raw.pointer}/outputs/out"
        for name in wanted:
            if name in clashing:
                raise ProgramError(
                    f"the branches give {name!r} different dtypes or ranks", "branch_mismatch", pointer=pointer
                )
            if name not in merged and name not in agreed:
                raise ProgramError(
                    f"{name!r} is not written by both branches and has no value before",
                    "branch_mismatch",
                    pointer=pointer,
                )

    def define_all(self, b: Versions, env: Env, block: RawBlock, raw: RawOp, op: Op, names: list[str]) -> None:
        """Like `define`, for the names that a control-flow op writes without naming them as outputs."""
        op = b.builder.typed(op)
        finals = []
        for temporary, name in zip(op.outputs, names, strict=True):
            type = b.builder.types[temporary]
            if name != KEY:
                self.check_write(block, env, raw, name, type)
            finals.append(b.new_version(name, type, self.declared(block, name)))
        b.builder.ops.append(replace(op, outputs=tuple(finals)))
        env.update((n, b.builder.value(f)) for n, f in zip(names, finals, strict=True))


class _Known(Exception):
    """The op at hand cannot be read because of a problem that has been noted already."""


def _block_attrs(spec: OpSpec) -> set[str]:
    return {a.name for a in spec.attrs if a.type is Block}


def _full_type(var: RawVar) -> Type:
    type: Type = TensorType(var.shape or (), var.dtype or "float32")
    for _ in range(var.stack_depth):
        type = StackType(type)
    return type


def _declared_type(var: RawVar, found: Type) -> Type | None:
    """What the declaration says, its silences filled in from what was found."""
    if isinstance(found, StackType) or var.stack_depth:
        return _full_type(var) if var.dtype is not None and var.shape is not None else None
    return TensorType(found.shape if var.shape is None else var.shape, found.dtype if var.dtype is None else var.dtype)


def _joinable(a: Type, b: Type) -> bool:
    try:
        joined_type(a, b, "branch_mismatch", "")
    except ProgramError:
        return False
    return True
