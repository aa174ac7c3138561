"""Equivalent programs: rename variables, inline blocks, put ops into blocks.

A document is first converted to a tree, whose attributes hold inner blocks instead of their indices.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.statements import BINARY, POOL, UNARY

__all__ = ["inlined", "renamed", "wrapped"]

Block = dict[str, Any]
Op = dict[str, Any]
BLOCKS = ("sub_block", "true_block", "false_block", "default_block", "branches")
LOCAL = ("states", "elements", "outputs", "ex_states", "step_inputs", "step_outputs", "rows")


# --- trees -----------------------------------------------------------------------------------------------------


def tree(document: Mapping[str, Any]) -> Block:
    """Block 0 of `document`, with copies of its inner blocks in place of their indices."""
    blocks = document["blocks"]

    def block(index: int) -> Block:
        return {"vars": copy.deepcopy(blocks[index]["vars"]), "ops": [op(each) for each in blocks[index]["ops"]]}

    def op(raw: Op) -> Op:
        attrs = {name: inner(value) if name in BLOCKS else value for name, value in raw.get("attrs", {}).items()}
        return copy.deepcopy({**raw, "inputs": raw.get("inputs", {}), "outputs": raw.get("outputs", {})}) | {
            "attrs": attrs
        }

    def inner(value: Any) -> Any:
        if isinstance(value, list):
            return [block(each) for each in value]
        return None if value is None else block(value)

    return block(0)


def document_of(root: Block, functions: Mapping[str, Any]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []

    def add(block: Block, parent: int) -> int:
        index = len(blocks)
        blocks.append({"idx": index, "parent_idx": parent, "vars": block["vars"], "ops": []})
        blocks[index]["ops"] = [op(each, index) for each in block["ops"]]
        return index

    def op(each: Op, index: int) -> Op:
        attrs = {n: inner(value, index) if n in BLOCKS else value for n, value in each["attrs"].items()}
        return {**each, "attrs": attrs}

    def inner(value: Any, index: int) -> Any:
        if isinstance(value, list):
            return [add(each, index) for each in value]
        return None if value is None else add(value, index)

    add(root, -1)
    return {"blocks": blocks} | ({"functions": dict(functions)} if functions else {})


def inner_blocks(op: Op) -> list[Block]:
    found: list[Block] = []
    for name in BLOCKS:
        value = op["attrs"].get(name)
        found += value if isinstance(value, list) else [] if value is None else [value]
    return found


def with_blocks(op: Op, change: Callable[[Block], Block]) -> Op:
    """`op` with its inner blocks changed."""
    attrs = dict(op["attrs"])
    for name in BLOCKS:
        value = attrs.get(name)
        if value is not None:
            attrs[name] = [change(b) for b in value] if isinstance(value, list) else change(value)
    return {**op, "attrs": attrs}


def with_names(block: Block, names: Callable[[str], str], free: bool = False) -> Block:
    """A copy of `block` with renamed variables.

    free: rename only free variables, not those declared in the block or given by an op to its inner block.
    """
    own = {v["name"] for v in block["vars"]} if free else set()

    def name(n: str) -> str:
        return n if n in own else names(n)

    def slots(given: Mapping[str, list[str]]) -> dict[str, list[str]]:
        return {slot: [name(n) for n in listed] for slot, listed in given.items()}

    ops = []
    for op in block["ops"]:
        local = {n for attr in LOCAL for n in op["attrs"].get(attr, ())} if free else set()

        def inside(n: str, local: set[str] = local) -> str:
            return n if n in local else name(n)

        attrs = {}
        for attr, value in op["attrs"].items():
            if attr in BLOCKS and value is not None:
                many = [with_names(b, inside, free) for b in (value if isinstance(value, list) else [value])]
                attrs[attr] = many if isinstance(value, list) else many[0]
            elif attr in LOCAL:
                attrs[attr] = [inside(n) for n in value]
            else:
                attrs[attr] = value
        ops.append({**op, "inputs": slots(op["inputs"]), "outputs": slots(op["outputs"]), "attrs": attrs})
    return {"vars": [{**v, "name": name(v["name"])} for v in block["vars"]], "ops": ops}


# --- other names -----------------------------------------------------------------------------------------------


def renamed(document: Mapping[str, Any], draw: random.Random) -> tuple[dict[str, Any], Callable[[str], str]]:
    """`document` with a new name for every variable and function, and the map from old to new names.

    The new names have another alphabetical order, and some are old names of other variables.
    """
    given: dict[str, str] = {}
    taken: set[str] = set()

    def other(name: str) -> str:
        while name not in given:
            n = draw.randrange(10**6)
            new = draw.choice([f"n{n}", draw.choice(POOL), f"Z{n % 100}_", f"{n % 50}.weight", f"/n{n % 50}/Add:0"])
            if new not in taken:
                taken.add(new)
                given[name] = new
        return given[name]

    def function(each: Mapping[str, Any]) -> dict[str, Any]:
        program = renamed_blocks(each["program"])
        gradient = each.get("gradient")
        return {
            "program": program,
            "results": [other(n) for n in each["results"]],
            "gradient": None if gradient is None else other(gradient),
        }

    def renamed_blocks(program: Mapping[str, Any]) -> dict[str, Any]:
        root = with_names(tree(program), other)
        for op in ops_of(root):
            if op["type"] == "call":
                op["attrs"]["function"] = other(op["attrs"]["function"])
        return document_of(root, {})

    functions = {other(name): function(each) for name, each in document.get("functions", {}).items()}
    return renamed_blocks(document) | ({"functions": functions} if functions else {}), other


def ops_of(block: Block) -> Iterator[Op]:
    for op in block["ops"]:
        yield op
        yield from inside_of(op)


def inside_of(op: Op) -> Iterator[Op]:
    for block in inner_blocks(op):
        yield from ops_of(block)


# --- inlining of blocks ----------------------------------------------------------------------------------------


def inlined(document: Mapping[str, Any], draw: random.Random, counts: Mapping[str, int]) -> dict[str, Any]:
    """`document` with many of its blocks inlined: nets, calls, branches on a fed flag or a constant, and loops whose
    number of trips is one of the fed `counts` or a constant."""
    functions = document.get("functions", {})
    fresh = _fresh("in", draw)

    def opened(block: Block) -> Block:
        constants: dict[str, int] = dict(counts)
        trips: dict[str, int] = {}
        ops: list[Op] = []
        for op in block["ops"]:
            op = with_blocks(op, opened)
            written = {n for each in (op, *inside_of(op)) for names in each["outputs"].values() for n in names}
            if op["type"] == "less_than" and op["inputs"]["y"][0] in constants and op["inputs"]["x"][0] in constants:
                first, last = (constants[op["inputs"][slot][0]] for slot in ("x", "y"))
                trips |= dict.fromkeys(written, max(0, last - first))
            else:
                trips = {n: count for n, count in trips.items() if n not in written}
            parts = instead(op, constants, trips) if draw.random() < 0.8 else None
            if parts is None:
                ops.append(op)
            else:
                ops += [each for part in parts for each in spliced(part)["ops"]]
            constants = {n: v for n, v in constants.items() if n not in written}
            if op["type"] == "fill_constant" and op["attrs"]["dtype"] == "int64":
                constants |= dict.fromkeys(written, op["attrs"]["value"])
        return {"vars": block["vars"], "ops": ops}

    def instead(op: Op, constants: Mapping[str, int], trips: Mapping[str, int]) -> list[Block] | None:
        """The blocks to run in sequence in place of `op`; None to leave `op`."""
        attrs, inputs = op["attrs"], op["inputs"]
        chosen: Block | None
        match op["type"]:
            case "net":
                return [attrs["sub_block"]]
            case "while" if inputs["condition"][0] in trips:
                return [attrs["sub_block"]] * trips[inputs["condition"][0]]
            case "if_else" if inputs["condition"][0] in FLAGS:
                chosen = attrs["true_block"] if FLAGS[inputs["condition"][0]] else attrs["false_block"]
                return [] if chosen is None else [chosen]
            case "conditional_block" if inputs["condition"][0] in FLAGS:
                return [attrs["sub_block"]] if FLAGS[inputs["condition"][0]] else []
            case "switch_case" if inputs["index"][0] in constants:
                sides = [*attrs["branches"], attrs["default_block"]]
                index = constants[inputs["index"][0]]
                return [sides[index] if 0 <= index < len(sides) else sides[-1]]
            case "case" if all(n in FLAGS for n in inputs["conditions"]):
                flags = [FLAGS[n] for n in inputs["conditions"]]
                last = attrs["branches"][-1] if attrs["default_block"] is None else attrs["default_block"]
                return [attrs["branches"][flags.index(True)] if True in flags else last]
            case "call":
                return [body(op)]
        return None

    def body(op: Op) -> Block:
        """The ops of a function under fresh names, between copies of operands and results."""
        function = functions[op["attrs"]["function"]]
        names: dict[str, str] = {}

        def own(name: str) -> str:
            return names.setdefault(name, fresh())

        inside = with_names(tree(function["program"]), own)
        feeds = [v["name"] for v in inside["vars"] if v.get("role") == "feed"]
        before = [copied(a, b) for a, b in zip(op["inputs"]["x"], feeds, strict=True)]
        after = [copied(own(a), b) for a, b in zip(function["results"], op["outputs"]["out"], strict=True)]
        return {"vars": [], "ops": [*before, *inside["ops"], *after]}

    def spliced(block: Block) -> Block:
        """`block` with fresh names for its own variables, so that it can be inlined."""
        own = {v["name"]: fresh() for v in block["vars"]}
        return with_names({"vars": [], "ops": block["ops"]}, lambda n: own.get(n, n), free=True)

    return document_of(opened(tree(document)), functions)


FLAGS = {"yes": True, "no": False}


def copied(name: str, out: str) -> Op:
    return {"type": "assign", "inputs": {"x": [name]}, "outputs": {"out": [out]}, "attrs": {}}


def _fresh(hint: str, draw: random.Random) -> Callable[[], str]:
    """Fresh names, different for every call: a rewritten program may be rewritten again."""
    count, time = iter(range(10**9)), draw.randrange(10**9)
    return lambda: f"{hint}{time}_{next(count)}"


# --- ops put into blocks ---------------------------------------------------------------------------------------


def wrapped(document: Mapping[str, Any], draw: random.Random) -> dict[str, Any]:
    """`document` with some runs of its ops moved into nets, branches, functions and loops of one trip."""
    functions = dict(document.get("functions", {}))
    fresh = _fresh("wr", draw)

    def around(block: Block) -> Block:
        # safe_where allows only elementwise ops
        ops = [op if op["type"] == "safe_where" else with_blocks(op, around) for op in block["ops"]]
        for _ in range(draw.randint(0, 2)):
            first = draw.randrange(len(ops) + 1)
            last = min(len(ops), first + draw.randint(1, 4))
            run = ops[first:last]
            ways = [net]
            if sum(1 for op in run for _ in inside_of(op)) < 20:
                ways.append(taken)
            if run and all(map(is_vector, run)):
                ways += [called, once, stepped, conditional] * 2
            ops[first:last] = draw.choice(ways)(run)
        return {"vars": block["vars"], "ops": ops}

    def net(run: list[Op]) -> list[Op]:
        return [construct("net", {}, sub_block=inner(run))]

    def taken(run: list[Op]) -> list[Op]:
        """A branch with the run on both sides, so that the variables it defines exist afterwards."""
        sides = {"true_block": inner(run), "false_block": inner(run)}
        return [construct("if_else", {"condition": [draw.choice(("yes", "no"))]}, **sides)]

    def called(run: list[Op]) -> list[Op]:
        names: dict[str, str] = {}
        reads, feeds, ops = [], [], []
        for op in run:
            given = {}
            for slot, (n,) in op["inputs"].items():
                if n not in names:
                    names[n] = fresh()
                    reads.append(n)
                    feeds.append({"name": names[n], "dtype": "float64", "shape": [2], "role": "feed"})
                given[slot] = [names[n]]
            (out,) = op["outputs"]["out"]
            names[out] = fresh()
            ops.append({**op, "inputs": given, "outputs": {"out": [names[out]]}})
        writes = written(run)
        name = fresh()
        program = {"blocks": [{"idx": 0, "parent_idx": -1, "vars": feeds, "ops": ops}]}
        functions[name] = {"program": program, "results": [names[n] for n in writes]}
        return [{"type": "call", "inputs": {"x": reads}, "outputs": {"out": writes}, "attrs": {"function": name}}]

    def once(run: list[Op]) -> list[Op]:
        go = fresh()
        body = {"vars": [], "ops": [*copy.deepcopy(run), copied("no", go)]}
        loop = construct("while", {"condition": [go]}, sub_block=body, memory=draw.choice(("store", "binomial")))
        return [*begun(run), copied("yes", go), loop]

    def stepped(run: list[Op]) -> list[Op]:
        return [*begun(run), construct("scan", {}, sub_block=inner(run), length=1)]

    def conditional(run: list[Op]) -> list[Op]:
        return [*begun(run), construct("conditional_block", {"condition": ["yes"]}, sub_block=inner(run))]

    def begun(run: list[Op]) -> list[Op]:
        """Initial values of variables that the run writes before it reads them: a loop only returns existing ones."""
        read: set[str] = set()
        new: list[str] = []
        for op in run:
            read |= {n for names in op["inputs"].values() for n in names}
            new += [n for n in op["outputs"]["out"] if n not in read and n not in new]
        attrs = {"shape": [2], "value": draw.randint(-3, 3) / 2, "dtype": "float64"}
        return [{"type": "fill_constant", "inputs": {}, "outputs": {"out": [n]}, "attrs": attrs} for n in new]

    return document_of(around(tree(document)), functions)


def inner(run: list[Op]) -> Block:
    return {"vars": [], "ops": copy.deepcopy(run)}


def construct(type: str, inputs: dict[str, list[str]], **attrs: Any) -> Op:
    return {"type": type, "inputs": inputs, "outputs": {}, "attrs": attrs}


def written(run: list[Op]) -> list[str]:
    return list(dict.fromkeys(n for op in run for n in op["outputs"]["out"]))


def is_vector(op: Op) -> bool:
    """Whether `op` reads and writes only vectors of two."""
    names = [n for slots in (op["inputs"], op["outputs"]) for listed in slots.values() for n in listed]
    return op["type"] in (*UNARY, *BINARY) and not any(
        n.startswith(("xs", "nothing", "tab", "row", "long", "open", "bare")) for n in names
    )
