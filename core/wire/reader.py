"""The reader of blocks: it numbers versions of names, infers types, and closes inner blocks."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.ir import Block, Op, Program, StackType, TensorType, Type, Variable
from core.ir.errors import InternalError, ProgramError, escaped
from core.ir.registry import CONSTRUCTS, OpSpec, block_attrs
from core.ir.stop import poll
from core.ir.suggest import near
from core.ops.common.types import byte_size, element_of, matches
from core.ops.elementwise.axis_aligned import ALIGNED
from core.ops.other_names import looked_up
from core.wire.document import Limits
from core.wire.op_reader import OpReader
from core.wire.problems import Problems
from core.wire.records import RawBlock, RawOp, RawProgram, RawVar
from core.wire.scope import Scopes, inner_indices
from core.wire.site import KEY, AlreadyReported, Env, Site
from core.wire.versions import Versions

__all__ = ["LoopTypes", "Reader"]


@dataclass(frozen=True, slots=True)
class LoopTypes:
    """The types of the names that the body of a loop reads: before the loop, and in every trip."""

    given: Mapping[str, Type]
    found: Mapping[str, Type]


class Reader(OpReader):
    """Reads the blocks of one program. Problems are added to `problems`, and reading goes on."""

    def __init__(
        self,
        raw: RawProgram,
        scopes: Scopes,
        problems: Problems,
        limits: Limits,
        for_test: bool = False,
        calls: tuple[str, ...] = (),
    ) -> None:
        super().__init__(problems)
        self.raw = raw
        self.calls = calls  # the functions that are being read, from the outermost call inwards
        self.scopes = scopes
        self.limits = limits
        self.for_test = for_test
        self.deepest = len(calls)  # of the functions that have been read
        self.bodies: dict[Hashable, Any] = {}  # of functions that have been read (core.wire.functions)
        self.loops: dict[int, LoopTypes] = {}  # the last reading of each block that is the body of a loop
        # A loop whose carried sizes change is read again with unknown sizes, and the ops of a function count for each
        # call. Nested loops multiply the readings.
        self.ops_left = 20 * limits.max_ops

    def program(self) -> Program:
        """The closed program, as far as it can be read."""
        root = self.raw.blocks[0]
        b = Versions(root.idx)
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
        self._check_names(variables, env)
        return Program(b.build([]), tuple(variables), latest, dict(self.raw.aliases), dict(self.raw.sizes))

    def _check_names(self, variables: Sequence[Variable], env: Env) -> None:
        """Report aliases of unknown variables, and names of sizes that no feed has."""
        for name in self.raw.aliases:
            # a backward pass may lack some of the client's variables
            if not self.raw.closed and name not in env:
                pointer = f"/aliases/{escaped(name)[:64]}"
                message = f"block 0 has no variable {name!r}"
                self.problems.add("unknown_variable", message, pointer, suggestion=near(name, env))
        feeds = {v.name: v.type for v in variables if v.role == "feed"}
        for name, sizes in self.raw.sizes.items():
            pointer = f"/sizes/{escaped(name)[:64]}"
            if name not in feeds:
                message = f"the program has no feed {name!r}"
                self.problems.add("unknown_variable", message, pointer, suggestion=near(name, feeds))
            elif len(sizes) != feeds[name].rank:
                message = f"{name!r} is {feeds[name]}, and not of rank {len(sizes)}"
                self.problems.add("bad_program", message, pointer)
            elif any(n is not None and m != -1 for n, m in zip(sizes, feeds[name].shape, strict=True)):
                self.problems.add("bad_program", f"{name!r} is {feeds[name]}: only open sizes have names", pointer)

    def ops(self, b: Versions, env: Env, block: RawBlock) -> None:
        """Append the ops of `block`, reading and updating `env`. Problems are reported, and reading goes on."""
        for raw in block.ops:
            poll()
            self.ops_left -= 1
            if self.ops_left < 0:
                raise ProgramError(
                    "the program takes too long to read: nested loops change the sizes of carried variables, or large "
                    "functions are called or differentiated many times",
                    "too_deep",
                )
            if "axis" in raw.attrs and raw.type in ALIGNED:
                raw = replace(raw, type=ALIGNED[raw.type])
            at = Site(b, env, block, raw)
            construct = None if self.raw.closed or self._is_closed(raw) else CONSTRUCTS.get(raw.type)
            try:
                with b.builder.at(raw.location):
                    if construct is None:
                        self.registered_op(at)
                    else:
                        construct.body(self, at, **self.construct_attrs(construct, at))
            except AlreadyReported:
                if not self.problems.found:
                    raise InternalError(f"the reader left out {raw.type} without a problem") from None
                self._poison(env, raw)
            except ProgramError as error:
                self.report(at, error)
                self._poison(env, raw)

    def _poison(self, env: Env, op: RawOp) -> None:
        env.update((name, None) for name in op.written_names())
        for _, inner in inner_indices(op):
            if isinstance(inner, int) and 0 < inner < len(self.raw.blocks):
                env.update((name, None) for name in self.scopes.touched(inner).writes)

    def _is_closed(self, raw: RawOp) -> bool:
        """Whether a control-flow op has the closed form: its inner blocks have params and results."""
        return any(isinstance(i, int) and self.raw.blocks[i].params is not None for _, i in inner_indices(raw))

    # --- ops without scopes ------------------------------------------------------------------------------------

    def registered_op(self, at: Site) -> None:
        """Read an op of the registry, closed control flow included."""
        raw = at.raw
        spec = looked_up(raw.type)
        inner = block_attrs(spec)
        given = self.param_types(spec, at) if inner else None
        attrs = {
            k: self.closed_block(at, k, v, given) if k in inner and v is not None else v for k, v in raw.attrs.items()
        }
        if spec.takes_key and not self.raw.closed:
            attrs.setdefault("stream", 1 + raw.location.op + 1_000_000 * raw.location.block)
        complete, inputs, names = self.attrs(spec, at, attrs), self.inputs(spec, at), self.outputs(spec, at)
        if complete is None or inputs is None or names is None:
            raise AlreadyReported
        attrs = complete
        if self.for_test and attrs.get("is_test") is False and spec.kind != "control":
            attrs = {**attrs, "is_test": True}
        if spec.takes_key and "key" not in raw.inputs and KEY in at.env:
            inputs[[slot.name for slot in spec.inputs].index("key")] = at.env[KEY]
        op = at.b.typed(at.b.make(raw.type, *inputs, **attrs))
        if len(names) != len(op.outputs):
            found = f"{op.type} has {len(op.outputs)} outputs, but the op lists {len(names)} names"
            raise at.refuse(found, "bad_slot", "outputs")
        self.define(at, op, names)

    def define(self, at: Site, op: Op, names: Sequence[str | None]) -> None:
        """Append `op`, whose types are known, and make its outputs the current versions of `names`.

        An output whose name is None can be read only by ops that the reader itself adds.
        """
        finals = []
        types = [
            at.b.types[n] for n in op.outputs
        ]  # read all types first: the loop below may reuse the name of a temporary
        self.check_rank(op, types)
        for temporary, type, name in zip(op.outputs, types, names, strict=True):
            if byte_size(type) > self.limits.max_bytes:
                raise ProgramError(
                    f"the result {type} of {op.type} exceeds the limit of {self.limits.max_bytes} bytes",
                    "limit_exceeded",
                )
            if name is None:
                finals.append(temporary)
                continue
            if name != KEY:
                self.check_write(at, name, type)
            finals.append(at.versions.new_version(self.core_name(at, name), type, self.declared(at.block, name)))
            if self.raw.closed and finals[-1] != name:
                raise ProgramError(f"{name!r} is written twice in a closed block", "not_single_assignment")
        at.b.ops.append(Op(op.type, op.inputs, tuple(finals), op.attrs, op.location))
        at.env.update((n, at.b.value(f)) for n, f in zip(names, finals, strict=True) if n is not None)

    def check_rank(self, op: Op, types: Iterable[Type]) -> None:
        """Raises ProgramError (limit_exceeded) if a result of `op` has too many axes."""
        for type in types:
            if (rank := element_of(type).rank) > self.limits.max_rank:
                raise ProgramError(
                    f"the result {type} of {op.type} has rank {rank}, above the limit of {self.limits.max_rank}",
                    "limit_exceeded",
                )

    def check_write(self, at: Site, name: str, type: Type) -> None:
        self.check_no_feed(at, name)
        declared = self.declared(at.block, name)
        if declared is None:
            return
        expected = _declared_type(declared, type)
        if expected is not None and not matches(type, expected):
            location = replace(at.raw.location, variable=name)
            raise ProgramError(
                f"{name!r} is declared as {expected}, but {at.raw.type} writes {type}",
                "type_mismatch",
                location=location,
            )

    def check_no_feed(self, at: Site, name: str) -> None:
        """Raises ProgramError (write_to_feed) if `name` means a feed at this place."""
        var = self.declared(at.block, name)
        if var is not None and var.role == "feed":
            location = replace(at.raw.location, variable=name)
            raise ProgramError(f"{name!r} is a feed and cannot be written", "write_to_feed", location=location)

    def declared(self, block: RawBlock, name: str) -> RawVar | None:
        """The declaration of the variable that `name` means inside `block`."""
        return self.scopes.home(block, name).vars.get(name)

    def core_name(self, at: Site, name: str) -> str:
        """The name of the client's variable `name` in the core block that is being built.

        A variable of its own of a block that is inlined into this one gets the number of that block.
        """
        if self.raw.closed:
            return name
        block, outermost = at.block, at.versions.index
        while block.idx not in (0, outermost) and name not in block.vars:
            block = self.raw.blocks[block.parent_idx]
        return name if block.idx in (0, outermost) else f"{name}@IN@{block.idx}"

    # --- inner blocks ------------------------------------------------------------------------------------------

    def param_types(self, spec: OpSpec, at: Site) -> list[Type] | None:
        """The types that a closed loop or branch passes to the parameters of its blocks. None if the op is wrong."""
        names = [n for slot in spec.inputs for n in at.raw.inputs.get(slot.name, ())]
        values = [at.env.get(n) for n in names]
        counts = [at.raw.attrs.get(a.name) for a in spec.attrs if a.required and a.type is int]
        if spec.roles_rule is None or None in values or not all(isinstance(n, int) and n >= 0 for n in counts):
            return None
        roles = spec.roles_rule(Op(spec.name, tuple(names), (), at.raw.attrs))
        return roles.param_types([v.type for v in values if v is not None])

    def closed_block(self, at: Site, attr: str, index: Any, given: Sequence[Type] | None) -> Block:
        """The closed block that attribute `attr` of a closed control-flow op refers to.

        given: types of the parameters that the block does not declare.
        """
        raw = at.raw
        block = self.raw.blocks[index] if isinstance(index, int) and 0 < index < len(self.raw.blocks) else None
        if block is None or block.params is None or block.results is None:
            raise ProgramError(
                f"{attr} of {raw.type} must be a block with params and results", "bad_attr", location=raw.location
            )
        c = Versions(block.idx)
        env: Env = {}
        for i, name in enumerate(block.params):
            var = block.vars.get(name)
            if var is not None and var.dtype is not None and var.shape is not None:
                env[name] = c.param(name, _full_type(var), var.stop_gradient)
            elif var is None and given is not None and len(given) == len(block.params):
                env[name] = c.param(name, given[i], False)
            else:
                raise ProgramError(f"parameter {name!r} of block {block.idx} needs a declared type", "bad_var")
        self.ops(c, env, block)
        inside = Site(c, env, block, raw)
        results = [self.resolve(inside, n, f"results/{i}", "results") for i, n in enumerate(block.results)]
        if None in results:
            raise AlreadyReported
        return c.build([v for v in results if v is not None])

    def open_block(
        self,
        block: RawBlock | None,
        types: Mapping[str, Type],
        results: Sequence[str],
        optional: Iterable[str] = (),
        local: Collection[str] = (),
    ) -> tuple[Block, dict[str, str]]:
        """Read an inner block with parameters `types`. Returns it, and for each result the variable with its last
        version.

        An `optional` result may be missing. Raises ProgramError (unknown_variable) if another result is missing, and
        AlreadyReported if the block has a problem.

        local: names that the op gives to variables of the block, such as states of a `scan`. The block may declare
               them.
        """
        before = len(self.problems.found)
        c = Versions(None if block is None else block.idx)
        env: Env = {}
        for n, t in types.items():
            var = block.vars.get(n) if block is not None and n in local else None
            if var is not None and (expected := _declared_type(var, t)) is not None and not matches(t, expected):
                raise ProgramError(
                    f"{n!r} is declared as {expected}, but is given {t}", "type_mismatch", pointer=var.pointer
                )
            env[n] = c.param(n, t, var is not None and var.stop_gradient)
        if block is not None:
            self.inline_block(c, env, block, local)
            if KEY in results:
                key = env[KEY]
                assert key is not None
                env[KEY] = c.builder.emit("next_key", key)
        names = {}
        for name in results:
            value = env.get(name)
            if value is not None:
                names[name] = value.name
            elif name in env:
                raise AlreadyReported
            elif name not in optional:
                raise _not_written(block, name)
        if len(self.problems.found) > before:
            raise AlreadyReported
        renamed = c.final_names()
        return c.build([]), {n: renamed.get(v, v) for n, v in names.items()}

    def inline_block(self, b: Versions, env: Env, block: RawBlock, local: Collection[str] = ()) -> None:
        """Read the ops of a block in place. Its own variables hide outer ones of the same name, and end with the
        block. Names in `local` are its own already, and stay in `env`.
        """
        own = [n for n in block.vars if n not in local]
        hidden = {n: env.pop(n) for n in own if n in env}
        self.ops(b, env, block)
        for n in own:
            env.pop(n, None)
        env |= hidden


def _not_written(block: RawBlock | None, name: str) -> ProgramError:
    """The error for a block that does not write a result."""
    if block is None:
        return ProgramError(f"no block writes {name!r}", "unknown_variable")
    if name in block.vars:
        return ProgramError(
            f"block {block.idx} declares {name!r} as its own variable, which ends with the block",
            "unknown_variable",
            suggestion=f"remove {name!r} from the vars of block {block.idx}",
        )
    return ProgramError(f"block {block.idx} does not write {name!r}", "unknown_variable")


def _full_type(var: RawVar) -> Type:
    type: Type = TensorType(var.shape or (), var.dtype or "float32")
    for _ in range(var.stack_depth):
        type = StackType(type)
    return type


def _declared_type(var: RawVar, found: Type) -> Type | None:
    """The declared type, completed with the type found where the declaration omits shape or dtype."""
    if isinstance(found, StackType) or var.stack_depth:
        return _full_type(var) if var.dtype is not None and var.shape is not None else None
    return TensorType(found.shape if var.shape is None else var.shape, found.dtype if var.dtype is None else var.dtype)
