"""The form of a JSON program: read strictly, with every problem reported.

This file checks only the form of the document. The meaning of ops and the visibility of names are checked in `scope`
and `reader`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from core.ir import DTYPES, unknown_dtype
from core.ir.errors import Location, escaped
from core.ir.generated import CUTTING, GENERATED, PREFIX, generated_length
from core.ir.stop import poll
from core.ir.suggest import near
from core.wire.problems import Problems
from core.wire.records import Alone, RawBlock, RawFunction, RawOp, RawProgram, RawVar

__all__ = ["LONGEST_ALIAS", "Limits", "is_reserved", "parse"]

ROLES = ("feed", "parameter", "state", "key", "temporary")
ORIGINS = ("made_from", "backward_of")
"""Members of an op in an answer that name the client's op it computes, or the client's op it helps to differentiate."""
CLOSED = 16
"""Factor on the limits of blocks, ops and variables for programs in the closed form."""
OPTIONAL = {"version", "form", "names", "functions", "values", "aliases", "sizes"}
"""Members of a program besides `blocks`. `values` names values that belong to it, `aliases` and `sizes` name variables
and sizes in ONNX models; its meaning does not depend on them."""
LONGEST_ALIAS = 1024
DIGEST = re.compile(r"[0-9a-f]{64}\Z")
OP_NAME = 64
"""A generated name may start with the name of an op in place of a client's name. No op has a longer name."""
NAME = re.compile(r"(?![0-9]+:)[A-Za-z0-9_/@][A-Za-z0-9_.:@/\-]*\Z")
"""PyTorch names a weight `0.weight`, ONNX a value `/encoder/Add_output_0`. `1:h` is the variable `h` of block 1."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the size of a program. Sizes are counts; `max_bytes` is for one array.

    They hold for a client's own program. A program in the closed form, as an answer contains it, may be `CLOSED` times
    as large, and its names may be longer by the generated part. So an answer can be sent back.
    """

    max_blocks: int = 256
    max_depth: int = 200
    max_ops: int = 20_000
    max_vars: int = 50_000
    max_name: int = 128
    max_rank: int = 8
    max_elements: int = 2**31
    max_bytes: int = 2**32
    max_problems: int = 50


def is_reserved(name: str) -> bool:
    """Whether `name` is reserved for names that the service creates."""
    return "@" in name or name.startswith(PREFIX)


def parse(document: Any, limits: Limits) -> RawProgram:
    """Read the records of a program.

    Raises InvalidProgram with every problem, each with a JSON pointer into `document`.
    """
    problems = Problems(limits.max_problems)
    reader = _Reader(problems, limits)
    program = reader.program(document)
    problems.raise_if_any()
    assert program is not None
    return program


class _Reader:
    """Strict reading of JSON values. A wrong value is reported and replaced by a neutral one, so that reading goes
    on.
    """

    def __init__(self, problems: Problems, limits: Limits) -> None:
        self.problems = problems
        self.limits = limits
        self.closed = False
        self.depth = 0
        self.function: str | None = None

    def program(self, document: Any, at: str = "") -> RawProgram | None:
        """The program at the JSON pointer `at`."""
        members = self.members(document, at, {"blocks"}, OPTIONAL)
        if members.get("version", 1) != 1 or isinstance(members.get("version"), bool):
            self.problems.add("bad_program", "version must be 1", f"{at}/version")
        form = members.get("form", "open")
        if form not in ("open", "closed"):
            self.problems.add("bad_program", 'form must be "open" or "closed"', f"{at}/form")
        digest = members.get("values")
        if digest is not None and (self.depth or not isinstance(digest, str) or not DIGEST.match(digest)):
            message = "values must be the SHA-256 of a file, 64 hexadecimal digits, and a function has none"
            self.problems.add("bad_program", message, f"{at}/values")
        self.closed = form == "closed"
        if "blocks" not in members:
            return None
        raw_blocks = members["blocks"]
        if not isinstance(raw_blocks, list) or not raw_blocks:
            self.problems.add("bad_program", "blocks must be a list with at least one block", f"{at}/blocks")
            return None
        scale = CLOSED if self.closed else 1
        if len(raw_blocks) > (limit := scale * self.limits.max_blocks):
            self.too_many("blocks", len(raw_blocks), limit, at)
            return None
        for what, limit in (("ops", scale * self.limits.max_ops), ("vars", scale * self.limits.max_vars)):
            total = sum(len(b[what]) for b in raw_blocks if isinstance(b, dict) and isinstance(b.get(what), list))
            if total > limit:
                self.too_many(what, total, limit, at)
                return None
        blocks = [self.block(b, i, f"{at}/blocks/{i}") for i, b in enumerate(raw_blocks)]
        names = members.get("names", {})
        pairs = names.items() if isinstance(names, dict) else [(None, None)]
        if not all(isinstance(k, str) and isinstance(v, str) for k, v in pairs):
            self.problems.add("bad_program", "names must map names to names", f"{at}/names")
            names = {}
        functions = self.functions(members.get("functions", {}), f"{at}/functions")
        for member in ("aliases", "sizes"):
            if member in members and self.depth:
                self.problems.add("bad_program", f"a function has no {member}", f"{at}/{member}")
        aliases, sizes = self.aliases(members.get("aliases", {})), self.sizes(members.get("sizes", {}))
        return RawProgram(tuple(blocks), form == "closed", dict(names), functions, aliases, sizes)

    def aliases(self, raw: Any) -> dict[str, str]:
        """Names of variables in ONNX models, each used once."""
        if not isinstance(raw, dict):
            self.problems.add("bad_program", "aliases must map names of variables to names", "/aliases")
            return {}
        found: dict[str, str] = {}
        taken: dict[str, str] = {}
        for name, alias in raw.items():
            pointer = f"/aliases/{escaped(str(name))[:64]}"
            if not isinstance(alias, str) or not 0 < len(alias) <= LONGEST_ALIAS:
                message = f"an alias must be a text of 1 to {LONGEST_ALIAS} characters"
                self.problems.add("bad_program", message, pointer)
            elif alias in taken:
                message = f"{taken[alias]!r} and {name!r} have the same alias"
                self.problems.add("bad_program", message, pointer)
            else:
                found[name] = alias
                taken[alias] = name
        return found

    def sizes(self, raw: Any) -> dict[str, tuple[str | None, ...]]:
        """Names of the sizes of feeds."""
        if not isinstance(raw, dict):
            self.problems.add("bad_program", "sizes must map names of feeds to lists of names", "/sizes")
            return {}
        found = {}
        for name, listed in raw.items():
            pointer = f"/sizes/{escaped(str(name))[:64]}"
            most = self.limits.max_name
            if isinstance(listed, list) and all(
                n is None or (isinstance(n, str) and 0 < len(n) <= most) for n in listed
            ):
                found[name] = tuple(listed)
            else:
                message = f"must be a list with a name of 1 to {most} characters or null for each size of the feed"
                self.problems.add("bad_program", message, pointer)
        return found

    def functions(self, raw: Any, at: str) -> dict[str, RawFunction]:
        if not isinstance(raw, dict):
            self.problems.add("bad_program", "functions must be an object", at)
            return {}
        if len(raw) > self.limits.max_blocks:
            self.too_many("functions", len(raw), self.limits.max_blocks, at)
            return {}
        outer, found = self.closed, {}
        for name, each in raw.items():
            pointer = f"{at}/{escaped(str(name))[:64]}"
            members = self.members(each, pointer, {"program", "results"}, {"gradient"})
            if self.depth or not members:
                self.problems.add("bad_program", "a function cannot contain functions", pointer)
                continue
            self.depth, self.function = self.depth + 1, str(name)
            program = self.program(members.get("program"), f"{pointer}/program")
            self.depth, self.function = self.depth - 1, None
            listed = self.list(members.get("results", []), f"{pointer}/results")
            results = tuple(None if n is None else self.name(n, f"{pointer}/results/{i}") for i, n in enumerate(listed))
            gradient = members.get("gradient")
            if gradient is not None and gradient not in raw:
                hint = near(gradient, raw) if isinstance(gradient, str) else None
                message = f"the program has no function {gradient!r}"
                self.problems.add("unknown_function", message, f"{pointer}/gradient", suggestion=hint)
            elif program is not None:
                found[name] = RawFunction(program, results, gradient, pointer)
        self.closed = outer
        return found

    def too_many(self, what: str, count: int, limit: int, at: str) -> None:
        self.problems.add("limit_exceeded", f"{count} {what}, more than the limit of {limit}", f"{at}/blocks")

    def block(self, raw: Any, position: int, pointer: str) -> RawBlock:
        members = self.members(
            raw, pointer, {"ops"}, {"idx", "parent_idx", "forward_block_idx", "vars", "params", "results"}
        )
        idx = members.get("idx", position)
        if self.integer(idx, f"{pointer}/idx") == idx != position:
            self.problems.add("bad_program", f"block at position {position} has idx {idx}", f"{pointer}/idx")
        parent = self.integer(members.get("parent_idx", -1 if position == 0 else 0), f"{pointer}/parent_idx")
        self.integer(members.get("forward_block_idx", -1), f"{pointer}/forward_block_idx")
        vars: dict[str, RawVar] = {}
        for i, each in enumerate(self.list(members.get("vars", []), f"{pointer}/vars")):
            var = self.var(each, f"{pointer}/vars/{i}")
            if var is None:
                continue
            if var.name in vars:
                self.problems.add(
                    "duplicate_variable", f"{var.name!r} is declared twice in block {position}", var.pointer
                )
            vars[var.name] = var
        raw_ops = self.list(members.get("ops", []), f"{pointer}/ops")
        ops = [op for i, o in enumerate(raw_ops) if (op := self.op(o, position, i, f"{pointer}/ops/{i}"))]
        params = results = None
        if "params" in members or "results" in members:
            params = self.names(members.get("params", []), f"{pointer}/params")
            results = self.names(members.get("results", []), f"{pointer}/results")
            if len(set(params)) < len(params):
                self.problems.add("duplicate_variable", "a parameter is named twice", f"{pointer}/params")
        return RawBlock(position, parent, vars, tuple(ops), params, results, pointer)

    def var(self, raw: Any, pointer: str) -> RawVar | None:
        members = self.members(
            raw, pointer, {"name"}, {"dtype", "shape", "role", "trainable", "stop_gradient", "stack_depth"}
        )
        name = self.name(members["name"], f"{pointer}/name") if "name" in members else None
        role = members.get("role", "temporary")
        if role not in ROLES or (role == "key" and not self.closed):
            self.problems.add("bad_var", "role must be feed, parameter, state or temporary", f"{pointer}/role")
            role = "temporary"
        dtype = members.get("dtype")
        if dtype is not None and (not isinstance(dtype, str) or dtype not in DTYPES):
            self.problems.add("bad_var", f"dtype {unknown_dtype(dtype)}", f"{pointer}/dtype")
            dtype = None
        shape = self.shape(members["shape"], f"{pointer}/shape") if members.get("shape") is not None else None
        flags = {}
        for flag, default in (("trainable", True), ("stop_gradient", False)):
            flags[flag] = members.get(flag, default)
            if not isinstance(flags[flag], bool):
                self.problems.add("bad_var", f"{flag} must be true or false", f"{pointer}/{flag}")
                flags[flag] = default
        depth = self.integer(members.get("stack_depth", 0), f"{pointer}/stack_depth")
        if not 0 <= depth <= self.limits.max_depth:
            self.problems.add("bad_var", "stack_depth is out of range", f"{pointer}/stack_depth")
            depth = 0
        if role != "temporary" and name is not None:
            for member, value in (("dtype", dtype), ("shape", shape)):
                if value is None and member not in members:
                    self.problems.add("bad_var", f"a {role} needs a {member}", pointer)
            if role != "feed" and shape is not None and -1 in shape:
                self.problems.add("bad_var", f"only a feed may have a size of -1, not a {role}", f"{pointer}/shape")
        if name is None:
            return None
        return RawVar(name, dtype, shape, role, flags["trainable"], flags["stop_gradient"], depth, pointer)

    def shape(self, raw: Any, pointer: str) -> tuple[int, ...] | None:
        sizes = self.list(raw, pointer)
        if not all(isinstance(n, int) and not isinstance(n, bool) and n >= -1 for n in sizes):
            huge = any(
                isinstance(n, float) and n >= 2**63 for n in sizes
            )  # as which JSON's parser reads larger numbers
            text = "a shape must be a list of sizes: whole numbers of at least 0, or -1"
            self.problems.add("bad_var", "a size is too large" if huge else text, pointer)
            return None
        if len(sizes) > self.limits.max_rank:
            self.problems.add("limit_exceeded", f"rank {len(sizes)} is above {self.limits.max_rank}", pointer)
            return None
        total = 1
        for n in sizes:
            total *= max(n, 1)
        if total > self.limits.max_elements or total * 8 > self.limits.max_bytes * 8:
            self.problems.add("limit_exceeded", f"more than {self.limits.max_elements} elements in one array", pointer)
            return None
        return tuple(sizes)

    def op(self, raw: Any, block: int, index: int, pointer: str) -> RawOp | None:
        poll()
        optional = {"inputs", "outputs", "attrs", "is_target", *(ORIGINS if self.closed else ())}
        members = self.members(raw, pointer, {"type"}, optional)
        if "type" not in members:
            return None
        type = members["type"]
        if not isinstance(type, str):
            self.problems.add("bad_op", "an op must have a type, a string", f"{pointer}/type")
            return None
        location = Location(block, index, type[: self.limits.max_name], function=self.function)
        for member in ORIGINS:
            if member in members:
                location = self.origin(members[member], f"{pointer}/{member}", member == "backward_of") or location
        attrs = members.get("attrs", {})
        if not isinstance(attrs, dict):
            self.problems.add("bad_attr", "attrs must be an object", f"{pointer}/attrs", location)
            attrs = {}
        inputs = self.slots(members.get("inputs", {}), f"{pointer}/inputs", location)
        outputs = self.slots(members.get("outputs", {}), f"{pointer}/outputs", location)
        return RawOp(type, inputs, outputs, attrs, location, pointer)

    def origin(self, raw: Any, pointer: str, backward: bool) -> Location | None:
        """The location of the client's op that an op of an answer belongs to."""
        members = self.members(raw, pointer, {"block", "op", "type"}, {"function"})
        if "type" not in members:
            return None
        type = members["type"]
        if not isinstance(type, str):
            self.problems.add("bad_op", "the origin of an op must have a type, a string", f"{pointer}/type")
            return None
        block, op = (self.integer(members.get(name, -1), f"{pointer}/{name}") for name in ("block", "op"))
        function = members.get("function")
        if function is not None and not isinstance(function, str):
            self.problems.add("bad_op", "the name of a function must be a string", f"{pointer}/function")
            return None
        return Location(block, op, type[: self.limits.max_name], adjoint=backward, function=function)

    def slots(self, raw: Any, pointer: str, location: Location) -> dict[str, tuple[str, ...]]:
        if not isinstance(raw, dict):
            self.problems.add("bad_slot", "slots must be an object of names", pointer, location)
            return {}
        found: dict[str, tuple[str, ...]] = {}
        for slot, value in raw.items():
            at = f"{pointer}/{escaped(slot)}"
            if isinstance(value, str):
                name = value if self.is_name(value) else self.name(value, at)
                found[slot] = Alone(() if name is None else (name,))
            elif isinstance(value, list):
                found[slot] = self.names(value, at)
            else:
                self.problems.add("bad_program", "must be a name or a list of names", at, location)
                found[slot] = ()
        return found

    def names(self, raw: Any, pointer: str) -> tuple[str, ...]:
        if isinstance(raw, list) and all(map(self.is_name, raw)):
            return tuple(raw)
        found = (self.name(n, f"{pointer}/{i}") for i, n in enumerate(self.list(raw, pointer)))
        return tuple([n for n in found if n is not None])

    def is_name(self, raw: Any) -> bool:
        """Whether `name` would accept the value. This is the fast path: nearly all names are valid and need no
        pointer.
        """
        fits = isinstance(raw, str) and len(raw) <= self.limits.max_name and NAME.match(raw) is not None
        return fits and not (CUTTING in raw if self.closed else is_reserved(raw))

    def is_short(self, name: str) -> bool:
        """Whether the length of `name` is legal. In the closed form the limit is for the client's part of the name."""
        if len(name) <= self.limits.max_name:
            return True
        if not self.closed or len(name) > self.limits.max_name + OP_NAME + GENERATED:
            return False
        added = generated_length(name)
        return added <= GENERATED and len(name) - added <= max(self.limits.max_name, OP_NAME)

    def name(self, raw: Any, pointer: str) -> str | None:
        if not isinstance(raw, str) or not self.is_short(raw) or not NAME.match(raw):
            self.problems.add(
                "bad_name",
                f"a name has at most {self.limits.max_name} letters, digits and _ . : / -, starts with a letter, a "
                "digit, _ or /, and has no : after leading digits alone",
                pointer,
            )
            return None
        if not self.closed and is_reserved(raw):
            self.problems.add(
                "reserved_name",
                f"{raw!r}: names with @ or starting with grad/ are reserved for answers",
                pointer,
                suggestion="rename the variable",
            )
        if self.closed and CUTTING in raw:
            self.problems.add("reserved_name", f"{raw!r}: names with {CUTTING} are reserved for steps", pointer)
        return raw

    def integer(self, raw: Any, pointer: str) -> int:
        if not isinstance(raw, int) or isinstance(raw, bool):
            self.problems.add("bad_program", "must be a whole number", pointer)
            return -1
        return raw

    def list(self, raw: Any, pointer: str) -> list[Any]:
        if not isinstance(raw, list):
            self.problems.add("bad_program", "must be a list", pointer)
            return []
        return raw

    def members(self, raw: Any, pointer: str, required: set[str], optional: set[str]) -> dict[str, Any]:
        if not isinstance(raw, dict):
            self.problems.add("bad_program", "must be an object", pointer)
            return {}
        for name in raw.keys() - required - optional:
            hint = near(str(name), sorted(required | optional))
            place = f"{pointer}/{escaped(str(name))[:64]}"
            self.problems.add("unknown_member", "unknown member", place, suggestion=hint)
        for name in required - raw.keys():
            self.problems.add("missing_member", f"the member {name!r} is missing", pointer)
        return raw
