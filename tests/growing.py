"""Statements of random programs on values of changing size: growing and shrinking carried values, open sizes, tables.

A *long* value has one axis of any size, or any number of rows of two. Its name begins with ``long``. All blocks inside
the one that defines it may read and overwrite it. At its end it becomes a vector of two.
"""

from __future__ import annotations

from typing import Any

from tests.statements import Statements

__all__ = ["CHANGES", "Growing"]

Block = dict[str, Any]
MOST = 8
"""Elements, or rows, that a long value keeps after each change."""

CHANGES = (
    "double",
    "append",
    "longer",
    "drop",
    "apply",
    "by_first",
    "open",
    "looked_up",
    "function",
    "branch",
    "again",
)


class Growing(Statements):
    """The statements of `strategies.Writer` on values of changing size.

    longs: names and ranks of the long values that the current block can overwrite.
    """

    memory: tuple[str, ...]
    max_depth: int

    def counted(self, block: Block) -> tuple[str, str, str]:
        raise NotImplementedError

    def listed(self, block: Block, type: str, out: str, *inputs: str, **attrs: Any) -> None:
        """An op with a single, variadic slot."""
        block["ops"].append({"type": type, "inputs": {"x": list(inputs)}, "outputs": {"out": [out]}, "attrs": attrs})

    # --- values ---

    def begun(self, block: Block, visible: set[str]) -> tuple[str, int]:
        """A new long value and its rank: a vector, a feed of open size, an empty one."""
        rank, h = self.draw.randint(1, 2), self.fresh("long")
        name = self.pick(sorted(visible))
        source = self.pick((name, name, name, "open", "bare"))
        if rank == 2 and source == name:
            self.op(block, "unsqueeze", h, name, axes=[0])
        else:
            self.op(block, "assign", h, source if source == name else f"{source}{rank}")
        return h, rank

    def ended(self, block: Block, visible: set[str], h: str, rank: int) -> None:
        """Add the remaining elements of a long value to a vector of the pool."""
        total = self.fresh("long")
        self.op(block, "reduce_sum", total, h, **({"axes": [0]} if rank == 2 else {}))
        small, out = self.fresh("long"), self.fresh("long")
        self.op(block, "scale", small, total, scale=0.25, bias=0.0)
        self.op(block, self.pick(("add", "mul")), out, self.pick(sorted(visible)), small)
        self.mixed_in(block, visible, out)

    def clipped(self, block: Block, h: str, raw: str) -> None:
        """h := the first elements of `raw`, so that no value grows without bounds."""
        self.op(block, "slice", h, raw, axes=[0], starts=[0], ends=[MOST])

    # --- changes ---

    def change(self, block: Block, visible: set[str], depth: int, h: str, rank: int) -> None:
        """h := a value of another or the same size."""
        kinds = [k for k in CHANGES if depth < self.max_depth or k not in ("branch", "again")]
        getattr(self, f"change_{self.pick(kinds)}")(block, visible, depth, h, rank)

    def change_double(self, block: Block, visible: set[str], depth: int, h: str, rank: int) -> None:
        raw, other = self.fresh("long"), self.fresh("long")
        self.op(block, self.pick(("sin", "tanh")), other, h)
        self.listed(block, "concat", raw, *self.pick(([h, h], [h, other], [other, h])), axis=0)
        self.clipped(block, h, raw)

    def change_append(self, block: Block, visible: set[str], depth: int, h: str, rank: int) -> None:
        raw, name = self.fresh("long"), self.pick(sorted(visible))
        if rank == 2:
            row = self.fresh("long")
            self.op(block, "unsqueeze", row, name, axes=[0])
            name = row
        self.listed(block, "concat", raw, *self.pick(([h, name], [name, h])), axis=0)
        self.clipped(block, h, raw)

    def change_longer(self, block: Block, visible: set[str], depth: int, h: str, rank: int) -> None:
        """Append another long value, if one is visible."""
        others = [n for n, r in self.longs if r == rank]
        raw = self.fresh("long")
        self.listed(block, "concat", raw, self.pick(others or [h]), h, axis=0)
        self.clipped(block, h, raw)

    def change_drop(self, block: Block, visible: set[str], depth: int, h: str, rank: int) -> None:
        cut = self.pick(({"starts": [1], "ends": [99]}, {"starts": [0], "ends": [-1]}, {"starts": [0], "ends": [1]}))
        self.op(block, "slice", h, h, axes=[0], **cut)

    def change_apply(self, block: Block, visible: set[str], depth: int, h: str, rank: int) -> None:
        raw, name = self.fresh("long"), self.pick(sorted(visible))
        if rank == 1:
            total = self.fresh("long")
            self.op(block, "reduce_sum", total, name)
            name = total
        self.op(block, self.pick(("add", "mul", "sub")), raw, *self.pick(([h, name], [name, h], [h, h])))
        self.op(block, self.pick(("sin", "tanh")), h, raw)

    def change_by_first(self, block: Block, visible: set[str], depth: int, h: str, rank: int) -> None:
        """Broadcasting of sizes known only at run time: the first element with all elements."""
        first, raw = self.fresh("long"), self.fresh("long")
        self.op(block, "slice", first, h, axes=[0], starts=[0], ends=[1])
        self.op(block, self.pick(("add", "mul")), raw, *self.pick(([h, first], [first, h])))
        self.op(block, "sin", h, raw)

    def change_open(self, block: Block, visible: set[str], depth: int, h: str, rank: int) -> None:
        raw = self.fresh("long")
        self.listed(block, "concat", raw, f"{self.pick(('open', 'bare'))}{rank}", h, axis=0)
        self.clipped(block, h, raw)

    def change_looked_up(self, block: Block, visible: set[str], depth: int, h: str, rank: int) -> None:
        """Rows of the table; the gradient of the table may be row-sparse."""
        rows, raw = self.fresh("long"), self.fresh("long")
        self.lookup(block, rows)
        if rank == 1:
            total = self.fresh("long")
            self.op(block, "reduce_sum", total, rows, axes=[0])
            rows = total
        self.listed(block, "concat", raw, rows, h, axis=0)
        self.clipped(block, h, raw)

    def change_function(self, block: Block, visible: set[str], depth: int, h: str, rank: int) -> None:
        """A function of open sizes, with a declared gradient or that of its ops."""
        name, raw = self.fresh("f"), self.fresh("long")
        shape = [-1] if rank == 1 else [-1, 2]
        if self.draw.random() < 0.5:
            self.functions[name] = doubling(shape, self.draw.randint(0, 2), self.pick(self.memory))
        else:
            self.functions[name], self.functions[f"{name}_rule"] = squaring(shape, f"{name}_rule")
        slots = {"x": [h]}
        block["ops"].append({"type": "call", "inputs": slots, "outputs": {"out": [raw]}, "attrs": {"function": name}})
        self.clipped(block, h, raw)

    def change_branch(self, block: Block, visible: set[str], depth: int, h: str, rank: int) -> None:
        """A branch whose sides give h different sizes; one side may leave h unchanged."""
        flag, sides = self.condition(block, visible), []
        for _ in range(2):
            if sides and self.draw.random() < 0.3:
                sides.append(None)
                continue
            inner = self.new_block(block["idx"])
            self.change(inner, visible, depth + 1, h, rank)
            sides.append(inner["idx"])
        self.draw.shuffle(sides)
        attrs = {"true_block": sides[0], "false_block": sides[1], "memory": self.pick(("store", "recompute"))}
        block["ops"].append({"type": "if_else", "inputs": {"condition": [flag]}, "attrs": attrs})

    def change_again(self, block: Block, visible: set[str], depth: int, h: str, rank: int) -> None:
        """A loop inside the loop."""
        self.grown(block, visible, depth, h, rank)

    def lookup(self, block: Block, out: str) -> None:
        attrs = {"is_sparse": self.draw.random() < 0.7} | ({"padding_idx": 1} if self.draw.random() < 0.3 else {})
        slots = {"weight": ["table"], "ids": [self.pick(("ids", "ids", "no_ids"))]}
        block["ops"].append({"type": "embedding", "inputs": slots, "outputs": {"out": [out]}, "attrs": attrs})

    # --- statements ---

    def write_change(self, block: Block, visible: set[str], depth: int) -> None:
        """Overwrite a long value of an outer block."""
        if self.longs:
            self.change(block, visible, depth, *self.pick(self.longs))

    def write_lookup(self, block: Block, visible: set[str], depth: int) -> None:
        rows, raw = self.fresh("long"), self.fresh("long")
        self.lookup(block, rows)
        self.op(block, "reduce_sum", raw, rows, axes=[0])
        self.mixed_in(block, visible, raw)

    def grown(self, block: Block, visible: set[str], depth: int, h: str, rank: int) -> None:
        """A `while` that changes the size of its carried value h."""
        i, n, go = self.counted(block)
        inner = self.new_block(block["idx"])
        self.body(inner, visible, depth, h, rank)
        self.op(inner, "increment", i, i, step=1)
        self.op(inner, "less_than", go, i, n)
        attrs = {"sub_block": inner["idx"], "memory": self.pick(self.memory)}
        block["ops"].append({"type": "while", "inputs": {"condition": [go]}, "attrs": attrs})

    def body(self, inner: Block, visible: set[str], depth: int, h: str, rank: int) -> set[str]:
        """Write statements with changes of h among them; return the names that have a value after them."""
        inside, around = set(visible), self.longs
        self.longs = [*around, (h, rank)]
        if self.draw.random() < 0.6:  # at the start: the block may declare names, which have no value in it yet
            inside = self.fill(inner, inside, depth + 1)
        for _ in range(self.draw.randint(1, 2)):
            self.change(inner, inside, depth + 1, h, rank)
        if self.draw.random() < 0.3:
            self.ended(inner, inside, h, rank)
        self.longs = around
        return inside

    def write_grow(self, block: Block, visible: set[str], depth: int) -> None:
        h, rank = self.begun(block, visible)
        self.grown(block, visible, depth, h, rank)
        if self.draw.random() < 0.4:
            self.grown(block, visible, depth, h, rank)
        self.ended(block, visible, h, rank)

    def write_grow_scan(self, block: Block, visible: set[str], depth: int) -> None:
        """A scan, or a static RNN, whose state changes its size, over a sequence of known or open length."""
        h, rank = self.begun(block, visible)
        state, element, output, final, stacked, raw = (self.fresh(f"long_{n}") for n in "seofyr")
        inner = self.new_block(block["idx"])
        inside = self.body(inner, visible | {element}, depth, state, rank)
        self.op(inner, "mul", output, element, self.pick(sorted(inside)))
        sequence = self.pick(("xs", "nothing", "open2", "bare2"))
        more = {"reverse": self.draw.random() < 0.4, "memory": self.pick(self.memory), "sub_block": inner["idx"]}
        if self.draw.random() < 0.5:
            op: dict[str, Any] = {
                "type": "scan",
                "inputs": {"initial": [h], "sequences": [sequence]},
                "outputs": {"final": [final], "stacked": [stacked]},
                "attrs": {"states": [state], "elements": [element], "outputs": [output], **more},
            }
        else:
            names = {"ex_states": [state], "states": [state], "step_inputs": [element], "step_outputs": [output]}
            op = {
                "type": "recurrent",
                "inputs": {"inputs": [sequence], "initial_states": [h]},
                "outputs": {"outputs": [stacked], "final_states": [final]},
                "attrs": {**names, **more},
            }
        block["ops"].append(op)
        self.ended(block, visible, final, rank)
        self.op(block, "reduce_sum", raw, stacked, axes=[0])
        self.mixed_in(block, visible, raw)

    def write_grow_array(self, block: Block, visible: set[str], depth: int) -> None:
        """Write elements of different sizes in a loop, and concatenate them after it."""
        h, rank = self.begun(block, visible)
        array, whole = self.fresh("arr"), self.fresh("long")
        shape = [-1] if rank == 1 else [-1, 2]
        slots: dict[str, list[str]] = {"out": [array]}
        block["ops"].append({"type": "create_array", "outputs": slots, "attrs": {"shape": shape, "dtype": "float64"}})
        i, n, go = self.counted(block)
        inner = self.new_block(block["idx"])
        self.body(inner, visible, depth, h, rank)
        given = {"x": [h], "index": [i], "array": [array]}
        inner["ops"].append({"type": "array_write", "inputs": given, "outputs": slots})
        if self.draw.random() < 0.5:
            at, read, raw = self.fresh("k"), self.fresh("long"), self.fresh("long")
            self.op(inner, "fill_constant", at, shape=[], value=0, dtype="int64")
            given = {"array": [array], "index": [at]}
            inner["ops"].append({"type": "array_read", "inputs": given, "outputs": {"out": [read]}})
            self.listed(inner, "concat", raw, read, h, axis=0)
            self.clipped(inner, h, raw)
        self.op(inner, "increment", i, i, step=1)
        self.op(inner, "less_than", go, i, n)
        attrs = {"sub_block": inner["idx"], "memory": self.pick(self.memory)}
        block["ops"].append({"type": "while", "inputs": {"condition": [go]}, "attrs": attrs})
        given = {"array": [array], "like": [f"open{rank}"]}
        block["ops"].append({"type": "array_concat", "inputs": given, "outputs": {"out": [whole]}, "attrs": {}})
        self.ended(block, visible, whole, rank)


def doubling(shape: list[int], trips: int, memory: str) -> dict[str, Any]:
    """p -> [sin p, p], `trips` times, in a loop inside the function."""

    def op(type: str, out: str, inputs: dict[str, list[str]], **attrs: Any) -> dict[str, Any]:
        return {"type": type, "inputs": inputs, "outputs": {"out": [out]} if out else {}, "attrs": attrs}

    count = {"shape": [], "dtype": "int64"}
    leaf = {"name": "long_p", "dtype": "float64", "shape": shape, "role": "feed"}
    outer = [
        op("assign", "long_r", {"x": ["long_p"]}),
        op("fill_constant", "i", {}, value=0, **count),
        op("fill_constant", "n", {}, value=trips, **count),
        op("less_than", "go", {"x": ["i"], "y": ["n"]}),
        op("while", "", {"condition": ["go"]}, sub_block=1, memory=memory),
    ]
    inner = [
        op("scale", "long_s", {"x": ["long_r"]}, scale=0.5, bias=0.1),
        op("square", "long_s", {"x": ["long_s"]}),
        op("concat", "long_c", {"x": ["long_s", "long_r"]}, axis=0),
        op("slice", "long_r", {"x": ["long_c"]}, axes=[0], starts=[0], ends=[MOST]),
        op("increment", "i", {"x": ["i"]}, step=1),
        op("less_than", "go", {"x": ["i"], "y": ["n"]}),
    ]
    blocks = [
        {"idx": 0, "parent_idx": -1, "vars": [leaf], "ops": outer},
        {"idx": 1, "parent_idx": 0, "vars": [], "ops": inner},
    ]
    return {"program": {"blocks": blocks}, "results": ["long_r"]}


def squaring(shape: list[int], rule: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(f, its gradient): f(p) = p p / 4, and the formula for the cotangent of p."""

    def program(feeds: list[str], ops: list[dict[str, Any]]) -> dict[str, Any]:
        leaves = [{"name": n, "dtype": "float64", "shape": shape, "role": "feed"} for n in feeds]
        return {"blocks": [{"idx": 0, "parent_idx": -1, "vars": leaves, "ops": ops}]}

    half = {"type": "scale", "inputs": {"x": ["p"]}, "outputs": {"out": ["half"]}, "attrs": {"scale": 0.5, "bias": 0.0}}
    square = {"type": "square", "inputs": {"x": ["half"]}, "outputs": {"out": ["y"]}, "attrs": {}}
    back = {"type": "mul", "inputs": {"x": ["half"], "y": ["dy"]}, "outputs": {"out": ["dp"]}, "attrs": {}}
    f = {"program": program(["p"], [half, square]), "results": ["y"], "gradient": rule}
    return f, {"program": program(["p", "y", "dy"], [half, back]), "results": ["dp"]}
