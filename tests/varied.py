"""Statements of random programs that combine features, which other statements have one at a time.

A program overwrites its parameters. Data decide trips and branches. Integers and flags are states, and two states are
exchanged. Branches give a new name values of different sizes. Branches in loops write elements of any size to an array.
Functions read the table in loops. Slices overlap.
"""

from __future__ import annotations

from typing import Any

from tests.growing import MOST, Growing
from tests.statements import POOL

__all__ = ["VARIED", "VARIED_NESTING", "Varied"]

Block = dict[str, Any]

VARIED = ("parameter", "counted_elements", "chosen_elements", "neighbours")
VARIED_NESTING = (
    *("until", "until", "int_state", "by_number", "states"),
    *("grow_new", "grow_new", "grow_by_number", "grow_elements", "grow_elements", "grow_function", "grow_overlap"),
)
TABLE_LOOKUP = [
    {"name": "long_t", "dtype": "float64", "shape": [3, 2], "role": "feed"},
    {"name": "long_i", "dtype": "int64", "shape": [-1], "role": "feed"},
]


class Varied(Growing):
    """The statements of `strategies.Writer` that this file describes.

    keeps_parameters: whether no statement may overwrite a parameter, as in a block that computes rows.
    """

    keeps_parameters = False

    def fed_op(self, block: Block, type: str, out: str | None, slots: dict[str, list[str]], **attrs: Any) -> None:
        outputs = {} if out is None else {"out": [out]}
        block["ops"].append({"type": type, "inputs": slots, "outputs": outputs, "attrs": attrs})

    def bound_of(self, block: Block, shape: list[int]) -> str:
        """A constant that no value of a program equals."""
        bound = self.fresh("long")
        self.op(block, "fill_constant", bound, shape=shape, value=self.draw.randint(-8, 8) / 8 + 0.03, dtype="float64")
        return bound

    def mask(self, block: Block, visible: set[str]) -> str:
        flag = self.fresh("long")
        self.op(block, "less_than", flag, self.pick(sorted(visible)), self.bound_of(block, [2]))
        return flag

    def held(self, block: Block, visible: set[str]) -> str:
        """A name of the pool with a value, for the state of a loop."""
        state = self.pick(sorted(visible & set(POOL)) or POOL)
        if state not in visible:
            self.op(block, "fill_constant", state, shape=[2], value=self.draw.randint(-4, 4) / 8, dtype="float64")
            visible.add(state)
        return state

    def repeated(self, block: Block, inner: Block, i: str, n: str, go: str, also: str | None = None) -> None:
        """A `while` on the body `inner`. also: a flag that must be true for another trip."""
        self.op(inner, "increment", i, i, step=1)
        self.op(inner, "less_than", go, i, n)
        if also is not None:
            self.op(inner, "logical_and", go, go, also)
        attrs = {"sub_block": inner["idx"], "memory": self.pick(self.memory)}
        self.fed_op(block, "while", None, {"condition": [go]}, **attrs)

    def some(self, block: Block, visible: set[str], depth: int) -> set[str]:
        """Sometimes statements at the start of an inner block; the names that have a value after them."""
        return self.fill(block, visible, depth + 1) if self.draw.random() < 0.4 else set(visible)

    # --- vectors ---

    def write_parameter(self, block: Block, visible: set[str], depth: int) -> None:
        """Overwrite a parameter: its gradient is that of the value on entry."""
        name, raw = self.pick(("w", "v")), self.fresh("t")
        out = self.pick(POOL) if self.keeps_parameters else name
        self.op(block, self.pick(("add", "mul")), raw, name, self.pick(sorted(visible)))
        self.op(block, self.pick(("tanh", "sin")), out, raw)
        visible.add(out)

    def write_counted_elements(self, block: Block, visible: set[str], depth: int) -> None:
        """A factor of integers that data decide."""
        number, factor, raw = self.fresh("long"), self.fresh("long"), self.fresh("long")
        self.op(block, "cast", number, self.mask(block, visible), dtype="int64")
        self.op(block, "cast", factor, number, dtype="float64")
        self.op(block, "mul", raw, factor, self.pick(sorted(visible)))
        self.mixed_in(block, visible, raw)

    def write_chosen_elements(self, block: Block, visible: set[str], depth: int) -> None:
        raw, names = self.fresh("long"), sorted(visible)
        slots = {"condition": [self.mask(block, visible)], "x": [self.pick(names)], "y": [self.pick(names)]}
        self.fed_op(block, "where", raw, slots)
        self.mixed_in(block, visible, raw)

    def write_neighbours(self, block: Block, visible: set[str], depth: int) -> None:
        """Products of neighbouring elements: slices that overlap."""
        x, parts = self.pick(sorted(visible)), [self.fresh("long") for _ in range(3)]
        cuts = ({"starts": [0], "ends": [-1]}, {"starts": [1], "ends": [99]}, {"starts": [-1], "ends": [99]})
        for part, cut in zip(parts, cuts, strict=True):
            self.op(block, "slice", part, x, axes=[0], **cut)
        product, total, raw, out = (self.fresh("long") for _ in range(4))
        self.op(block, "mul", product, *parts[:2])
        self.op(block, "reduce_sum", total, product)
        self.op(block, "mul", raw, parts[2], total)
        self.op(block, "add", out, raw, self.pick(sorted(visible)))
        self.mixed_in(block, visible, out)

    # --- control flow ---

    def write_until(self, block: Block, visible: set[str], depth: int) -> None:
        """A loop whose trips depend on its state."""
        i, n, go = self.counted(block)
        state, inner = self.held(block, visible), self.new_block(block["idx"])
        inside, also = self.fill(inner, visible, depth + 1), None
        if state in inside and all(v["name"] != state for v in inner["vars"]):
            raw, total, also = (self.fresh("long") for _ in range(3))
            self.op(inner, self.pick(("add", "mul")), raw, state, self.pick(sorted(inside)))
            self.op(inner, "sin", state, raw)
            self.op(inner, "reduce_sum", total, state)
            self.op(inner, "less_than", also, total, self.bound_of(inner, []))
        self.repeated(block, inner, i, n, go, also)

    def write_int_state(self, block: Block, visible: set[str], depth: int) -> None:
        """A loop that carries an integer, which is a factor, and a flag, which every other trip a branch takes."""
        i, n, go = self.counted(block)
        number, flag, state = self.fresh("long"), self.fresh("long"), self.held(block, visible)
        self.op(block, "fill_constant", number, shape=[], value=self.draw.randint(-2, 2), dtype="int64")
        self.op(block, "less_than", flag, number, n)
        inner = self.new_block(block["idx"])
        inside = self.fill(inner, visible, depth + 1)
        self.op(inner, "increment", number, number, step=self.pick((1, -1, 2)))
        self.op(inner, "logical_not", flag, flag)
        if all(v["name"] != state for v in inner["vars"]):
            side = self.new_block(inner["idx"])
            self.op(side, "sin", state, self.scaled(side, inside, number))
            attrs = {"true_block": side["idx"], "false_block": None, "memory": self.pick(("store", "recompute"))}
            self.fed_op(inner, "if_else", None, {"condition": [flag]}, **attrs)
        self.repeated(block, inner, i, n, go)
        self.mixed_in(block, visible, self.scaled(block, visible, number))

    def scaled(self, block: Block, visible: set[str], number: str) -> str:
        factor, raw = self.fresh("long"), self.fresh("long")
        self.op(block, "cast", factor, number, dtype="float64")
        self.op(block, "mul", raw, self.pick(sorted(visible)), factor)
        return raw

    def number(self, block: Block, visible: set[str]) -> str:
        """How many elements of a vector are below a bound."""
        ones, number = self.fresh("long"), self.fresh("long")
        self.op(block, "cast", ones, self.mask(block, visible), dtype="int64")
        self.op(block, "reduce_sum", number, ones)
        return number

    def write_by_number(self, block: Block, visible: set[str], depth: int) -> None:
        number = self.number(block, visible)
        made = [self.inner(block, visible, depth) for _ in range(self.draw.randint(2, 3))]
        *branches, default = [inner["idx"] for inner, _ in made]
        self.fed_op(block, "switch_case", None, {"index": [number]}, branches=branches, default_block=default)
        visible |= set.intersection(*(after for _, after in made)) & set(POOL)

    def write_states(self, block: Block, visible: set[str], depth: int) -> None:
        """A scan of two sequences whose two states are exchanged in each step."""
        states, elements, outputs, finals, stacked = ([self.fresh("z"), self.fresh("z")] for _ in range(5))
        inner, (one, other) = self.new_block(block["idx"]), states
        inside = self.fill(inner, visible | {*states, *elements}, depth + 1)
        raw, new = self.fresh("t"), self.fresh("t")
        self.op(inner, self.pick(("add", "mul")), raw, one, self.pick(sorted(inside)))
        self.op(inner, "tanh", new, raw)
        self.op(inner, "assign", one, other)
        self.op(inner, "assign", other, new)
        self.op(inner, "mul", outputs[0], one, elements[0])
        self.op(inner, "add", outputs[1], elements[1], self.pick(sorted(inside)))
        names = sorted(visible)
        given = {"initial": [self.pick(names), self.pick(names)], "sequences": [self.pick(("xs", "nothing"))] * 2}
        attrs = {"states": states, "elements": elements, "outputs": outputs, "sub_block": inner["idx"]}
        attrs |= {"reverse": self.draw.random() < 0.3, "memory": self.pick(self.memory)}
        slots = {"final": finals, "stacked": stacked}
        block["ops"].append({"type": "scan", "inputs": given, "outputs": slots, "attrs": attrs})
        totals = [self.fresh("t"), self.fresh("t"), self.fresh("t")]
        for total, each in zip(totals, stacked, strict=False):
            self.op(block, "reduce_sum", total, each, axes=[0])
        self.op(block, "mul", totals[2], *finals)
        for total in totals:
            self.mixed_in(block, visible, total)

    # --- values of changing size ---

    def write_grow_new(self, block: Block, visible: set[str], depth: int) -> None:
        """Branches that write one new name, each with a value of its own size."""
        h, rank = self.begun(block, visible)
        flag, new, sides = self.condition(block, visible), self.fresh("long"), []
        for changes in (self.draw.randint(0, 1), self.draw.randint(1, 2)):
            inner, own, around = self.new_block(block["idx"]), self.fresh("long"), self.longs
            inside = self.some(inner, visible, depth)
            self.op(inner, "assign", own, h)
            self.longs = [*around, (own, rank)]
            for _ in range(changes):
                self.change(inner, inside, depth + 1, own, rank)
            self.op(inner, "assign", new, own)
            self.longs = around
            sides.append(inner["idx"])
        self.draw.shuffle(sides)
        kind = self.pick(("if_else", "if_else", "case", "switch_case"))
        if kind == "if_else":
            attrs = {"true_block": sides[0], "false_block": sides[1], "memory": self.pick(("store", "recompute"))}
            self.fed_op(block, kind, None, {"condition": [flag]}, **attrs)
        elif kind == "case":
            self.fed_op(block, kind, None, {"conditions": [flag]}, branches=sides[:1], default_block=sides[1])
        else:
            number = self.number(block, visible)
            self.fed_op(block, kind, None, {"index": [number]}, branches=sides[:1], default_block=sides[1])
        self.pick((self.grown, self.change_apply))(block, visible, depth, new, rank)
        self.ended(block, visible, new, rank)
        self.ended(block, visible, h, rank)

    def write_grow_by_number(self, block: Block, visible: set[str], depth: int) -> None:
        """A loop that changes a size in another way on each trip."""
        h, rank = self.begun(block, visible)
        i, n, go = self.counted(block)
        inner, around, sides = self.new_block(block["idx"]), self.longs, []
        inside = self.some(inner, visible, depth)
        self.longs = [*around, (h, rank)]
        for _ in range(self.draw.randint(2, 3)):
            side = self.new_block(inner["idx"])
            for _ in range(self.draw.randint(0, 2)):
                self.change(side, inside, depth + 2, h, rank)
            sides.append(side["idx"])
        self.longs = around
        self.fed_op(inner, "switch_case", None, {"index": [i]}, branches=sides[:-1], default_block=sides[-1])
        self.repeated(block, inner, i, n, go)
        self.ended(block, visible, h, rank)

    def write_grow_elements(self, block: Block, visible: set[str], depth: int) -> None:
        """A loop with branches that append elements of any size to an array, overwrite its first one, or read it."""
        h, rank = self.begun(block, visible)
        array, whole, zero = self.fresh("arr"), self.fresh("long"), self.fresh("k")
        shape = [-1] if rank == 1 else [-1, 2]
        block["ops"].append(
            {"type": "create_array", "outputs": {"out": [array]}, "attrs": {"shape": shape, "dtype": "float64"}}
        )
        self.op(block, "fill_constant", zero, shape=[], value=0, dtype="int64")
        self.fed_op(block, "array_write", array, {"x": [h], "index": [zero], "array": [array]})
        i, n, go = self.counted(block)
        inner, around = self.new_block(block["idx"]), self.longs
        inside = self.some(inner, visible, depth)
        self.longs = [*around, (h, rank)]
        flag = self.condition(inner, inside)
        sides: list[int | None] = [self.element(inner, inside, depth + 2, h, rank, array, zero)]
        both = self.draw.random() < 0.7
        sides.append(self.element(inner, inside, depth + 2, h, rank, array, zero) if both else None)
        self.draw.shuffle(sides)
        self.longs = around
        attrs = {"true_block": sides[0], "false_block": sides[1], "memory": self.pick(("store", "recompute"))}
        self.fed_op(inner, "if_else", None, {"condition": [flag]}, **attrs)
        self.repeated(block, inner, i, n, go)
        self.fed_op(block, "array_concat", whole, {"array": [array], "like": [f"open{rank}"]})
        self.ended(block, visible, whole, rank)
        self.ended(block, visible, h, rank)

    def element(self, block: Block, inside: set[str], depth: int, h: str, rank: int, array: str, zero: str) -> int:
        """The index of a branch that writes h, perhaps changed, to the array."""
        side, at, written = self.new_block(block["idx"]), self.fresh("k"), self.fresh("long")
        if self.draw.random() < 0.7:
            self.change(side, inside, depth, h, rank)
        self.fed_op(side, "array_length", at, {"array": [array]})
        self.op(side, self.pick(("sin", "assign")), written, h)
        index = self.pick((at, at, zero))
        self.fed_op(side, "array_write", array, {"x": [written], "index": [index], "array": [array]})
        if self.draw.random() < 0.5:
            read, raw = self.fresh("long"), self.fresh("long")
            self.fed_op(side, "array_read", read, {"array": [array], "index": [self.pick((index, zero))]})
            self.listed(side, "concat", raw, read, h, axis=0)
            self.clipped(side, h, raw)
        return int(side["idx"])

    def write_grow_function(self, block: Block, visible: set[str], depth: int) -> None:
        """A loop that calls a function on the table; the gradient of the table may be row-sparse."""
        name, rows, total = self.fresh("f"), self.fresh("long"), self.fresh("long")
        writer: list[dict[str, Any]] = []
        inside = {"idx": 0, "parent_idx": -1, "vars": TABLE_LOOKUP, "ops": writer}
        slots = {"weight": ["long_t"], "ids": ["long_i"]}
        self.fed_op(inside, "embedding", "long_r", slots, is_sparse=self.draw.random() < 0.8)
        self.op(inside, "sin", "long_s", "long_r")
        self.op(inside, "reduce_sum", "long_q", "long_s", axes=[0])
        self.functions[name] = {"program": {"blocks": [inside]}, "results": ["long_s", "long_q"]}
        i, n, go = self.counted(block)
        state, inner = self.held(block, visible), self.new_block(block["idx"])
        around = self.some(inner, visible, depth)
        given = {"x": ["table", self.pick(("ids", "no_ids"))]}
        inner["ops"].append(
            {"type": "call", "inputs": given, "outputs": {"out": [rows, total]}, "attrs": {"function": name}}
        )
        each, product, raw = (self.fresh("long") for _ in range(3))
        self.op(inner, "reduce_sum", each, rows, axes=[0])
        self.op(inner, "mul", product, each, total)
        self.op(inner, "add", raw, product, self.pick(sorted(around)))
        if all(v["name"] != state for v in inner["vars"]):
            self.op(inner, "sin", state, raw)
        self.repeated(block, inner, i, n, go)

    def write_grow_overlap(self, block: Block, visible: set[str], depth: int) -> None:
        """Slices of a value of any size that overlap."""
        h, rank = self.begun(block, visible)
        self.grown(block, visible, depth, h, rank)
        parts = [self.fresh("long") for _ in range(3)]
        others = ({"starts": [-2], "ends": [99]}, {"starts": [0], "ends": [3]}, {"starts": [0], "ends": [1]})
        cuts = ({"starts": [0], "ends": [-1]}, {"starts": [1], "ends": [99]}, self.pick(others))
        for part, cut in zip(parts, cuts, strict=True):
            self.op(block, "slice", part, h, axes=[0], **cut)
        pair, raw = self.fresh("long"), self.fresh("long")
        self.op(block, self.pick(("add", "mul")), pair, *parts[:2])
        self.listed(block, "concat", raw, pair, parts[2], axis=0)
        self.op(block, "slice", h, raw, axes=[0], starts=[0], ends=[MOST])
        self.ended(block, visible, h, rank)
