"""Random programs: nested control flow, overwritten and shadowed names, constant initial states.

Hypothesis draws a seed, and the seed determines the program: programs that Hypothesis draws itself are too small to
combine constructs.

Every value of the pool is a float64 vector of two small numbers, so that any op can take any two names and finite
differences are precise. The pool has five names, which all blocks share on purpose. Values of other and of changing
sizes have other names; see `growing` and `varied`.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from tests.products import ROWS, Products
from tests.statements import BINARY, MEMORY, POOL, UNARY
from tests.varied import VARIED, VARIED_NESTING, Varied

__all__ = ["LEAVES", "TABLE", "programs", "written"]

LEAVES = ("w", "v", "x")
TABLE = "table"
"""A parameter of three rows of two."""

NESTING = (
    *("if", "while", "if", "while", "scan", "switch", "array", "net"),
    *("case", "conditional", "recurrent", "rows", "call"),
    *("grow", "grow", "grow_scan", "grow_array", "cell"),
    *VARIED_NESTING,
)
FED = ("scan", "recurrent", "rows", "call", "cell", "states")
"""Statements that read feeds or functions of the program."""


class _Writer(Varied, Products):
    """Draws the statements of one program."""

    def __init__(
        self,
        draw: random.Random,
        depth: int,
        budget: int,
        fed: bool = True,
        random_ops: bool = False,
        derivatives: bool = False,
    ) -> None:
        """fed: whether the program has flags, counts and sequences as feeds. random_ops: see `write_dropout`.

        derivatives: whether the program computes with derivatives (`write_derivative`).

        Half of the programs have values of changing size. The others may run as machine code only.
        """
        self.draw = draw
        self.max_depth = depth
        self.blocks: list[dict[str, Any]] = []
        self.functions: dict[str, Any] = {}
        self.count = 0
        self.budget = budget
        self.fed = fed
        self.random_ops = random_ops
        self.derivatives = derivatives
        self.growing = draw.random() < 0.5
        self.longs = []
        self.memory = MEMORY

    def pick(self, options: Any) -> Any:
        return self.draw.choice(list(options))

    def fresh(self, hint: str) -> str:
        self.count += 1
        return f"{hint}{self.count}"

    def new_block(self, parent: int) -> dict[str, Any]:
        block: dict[str, Any] = {"idx": len(self.blocks), "parent_idx": parent, "vars": [], "ops": []}
        self.blocks.append(block)
        return block

    def fill(self, block: dict[str, Any], visible: set[str], depth: int) -> set[str]:
        """Write statements; `visible` are the float names that have a value. Returns it with the new ones."""
        visible = set(visible)
        for name in POOL:  # sometimes the block declares a name of an outer block: it has no value yet
            if depth and self.draw.randrange(10) == 0:
                block["vars"].append({"name": name, "dtype": "float64", "shape": [2]})
                visible.discard(name)
        for _ in range(self.draw.randint(1, 5)):
            if self.budget <= 0:
                break
            self.budget -= 1
            kinds = ["op", "op", "op", "const", "safe_where"]
            if self.fed:
                kinds += ["embedding", "dropout", "lookup", "product", *VARIED]
                if self.longs:
                    kinds += ["change"] * 3
            if self.derivatives:
                kinds += ["derivative"] * 4
            if depth < self.max_depth:
                kinds += NESTING
                if not self.fed:
                    kinds = [k for k in kinds if k not in FED]
                if not (self.fed and self.growing):
                    kinds = [k for k in kinds if not k.startswith("grow")]
                if self.random_ops and "rows" in kinds:  # a branch by rows cannot contain them
                    kinds.remove("rows")
            getattr(self, f"write_{self.pick(kinds)}")(block, visible, depth)
        return visible

    def op(self, block: dict[str, Any], type: str, out: str, *inputs: str, **attrs: Any) -> None:
        slots = {"x": [inputs[0]]} if len(inputs) == 1 else {"x": [inputs[0]], "y": [inputs[1]]} if inputs else {}
        block["ops"].append({"type": type, "inputs": slots, "outputs": {"out": [out]}, "attrs": attrs})

    def write_op(self, block: dict[str, Any], visible: set[str], depth: int) -> None:
        names = sorted(visible)
        out = self.pick(POOL)
        if self.draw.random() < 0.5:
            self.op(block, self.pick(UNARY), out, self.pick(names))
        else:
            raw = self.fresh("t")
            self.op(block, self.pick(BINARY), raw, self.pick(names), self.pick(names))
            self.op(block, self.pick(("tanh", "sin")), out, raw)  # keeps everything small
        visible.add(out)

    def write_const(self, block: dict[str, Any], visible: set[str], depth: int) -> None:
        out = self.pick(POOL)
        value = self.draw.randint(-8, 8) / 8
        self.op(block, "fill_constant", out, shape=[2], value=value, dtype="float64")
        visible.add(out)

    def condition(self, block: dict[str, Any], visible: set[str]) -> str:
        """A fed flag, or a comparison of data with a constant."""
        if self.fed and self.draw.random() < 0.5:
            return self.pick(("yes", "no"))
        total, bound, flag = self.fresh("s"), self.fresh("k"), self.fresh("f")
        self.op(block, "reduce_sum", total, self.pick(sorted(visible)))
        self.op(block, "fill_constant", bound, shape=[], value=self.draw.randint(-8, 8) / 8 + 0.03, dtype="float64")
        self.op(block, "less_than", flag, total, bound)
        return flag

    def write_if(self, block: dict[str, Any], visible: set[str], depth: int) -> None:
        flag = self.condition(block, visible)
        indices, after = [], []
        empty = self.draw.randrange(6)
        for side in range(2):
            if empty == side:
                indices.append(None)
                after.append(set(visible))
                continue
            inner = self.new_block(block["idx"])
            own = self.fill(inner, visible, depth + 1)
            after.append(own - {v["name"] for v in inner["vars"]})
            indices.append(inner["idx"])
        block["ops"].append(
            {
                "type": "if_else",
                "inputs": {"condition": [flag]},
                "attrs": {
                    "true_block": indices[0],
                    "false_block": indices[1],
                    "memory": self.pick(("store", "store", "recompute")),
                },
            }
        )
        visible |= after[0] & after[1] & set(POOL)

    def inner(self, block: dict[str, Any], visible: set[str], depth: int) -> tuple[dict[str, Any], set[str]]:
        """A new inner block with statements, and the names that it leaves to the block around it."""
        inner = self.new_block(block["idx"])
        after = self.fill(inner, visible, depth + 1)
        return inner, after - {v["name"] for v in inner["vars"]}

    def write_switch(self, block: dict[str, Any], visible: set[str], depth: int) -> None:
        made = [self.inner(block, visible, depth) for _ in range(self.draw.randint(2, 4))]
        index = self.fresh("k")
        self.op(block, "fill_constant", index, shape=[], value=self.draw.randint(-1, 4), dtype="int64")
        *branches, default = [inner["idx"] for inner, _ in made]
        block["ops"].append(
            {
                "type": "switch_case",
                "inputs": {"index": [index]},
                "attrs": {"branches": branches, "default_block": default},
            }
        )
        visible |= set.intersection(*(after for _, after in made)) & set(POOL)

    def write_net(self, block: dict[str, Any], visible: set[str], depth: int) -> None:
        inner, after = self.inner(block, visible, depth)
        block["ops"].append({"type": "net", "attrs": {"sub_block": inner["idx"]}})
        visible |= after & set(POOL)

    def write_scan(self, block: dict[str, Any], visible: set[str], depth: int) -> None:
        state, element, output, stacked = (self.fresh(hint) for hint in ("h", "el", "o", "ys"))
        initial = self.pick(sorted(visible))
        inner = self.new_block(block["idx"])
        inside = self.fill(inner, visible | {state, element}, depth + 1)
        mixed = self.fresh("t")
        self.op(inner, self.pick(("add", "mul")), mixed, state, self.pick(sorted(inside)))
        self.op(inner, self.pick(("tanh", "sin")), state, mixed)
        self.op(inner, "mul", output, state, element)
        final, total = self.pick(POOL), self.pick(POOL)
        block["ops"].append(
            {
                "type": "scan",
                "inputs": {"initial": [initial], "sequences": [self.pick(("xs", "nothing"))]},
                "outputs": {"final": [final], "stacked": [stacked]},
                "attrs": {
                    "sub_block": inner["idx"],
                    "states": [state],
                    "elements": [element],
                    "outputs": [output],
                    "reverse": self.draw.random() < 0.3,
                    "memory": self.pick(MEMORY),
                },
            }
        )
        visible.add(final)
        raw = self.fresh("t")
        self.op(block, "reduce_sum", raw, stacked, axes=[0])
        self.op(block, "sin", total, raw)
        visible.add(total)

    def write_array(self, block: dict[str, Any], visible: set[str], depth: int) -> None:
        """Elements written in a loop, some of them read there, and all of them added up after it."""
        array, stacked, raw = (self.fresh(hint) for hint in ("arr", "st", "t"))
        block["ops"].append(
            {"type": "create_array", "outputs": {"out": [array]}, "attrs": {"shape": [2], "dtype": "float64"}}
        )
        i, n, go = self.fresh("i"), self.fresh("n"), self.fresh("go")
        self.op(block, "fill_constant", n, shape=[], value=self.draw.randint(0, 3), dtype="int64")
        self.op(block, "fill_constant", i, shape=[], value=0, dtype="int64")
        self.op(block, "less_than", go, i, n)
        inner = self.new_block(block["idx"])
        inside = self.fill(inner, visible, depth + 1)
        slots = {"x": [self.pick(sorted(inside))], "index": [i], "array": [array]}
        inner["ops"].append({"type": "array_write", "inputs": slots, "outputs": {"out": [array]}})
        if self.draw.random() < 0.5:
            at, read = self.fresh("k"), self.fresh("r")
            self.op(inner, "fill_constant", at, shape=[], value=0, dtype="int64")
            slots = {"array": [array], "index": [at]}
            inner["ops"].append({"type": "array_read", "inputs": slots, "outputs": {"out": [read]}})
            self.op(inner, "sin", self.pick(sorted(visible & set(POOL)) or POOL), read)
        self.op(inner, "increment", i, i, step=1)
        self.op(inner, "less_than", go, i, n)
        attrs = {"sub_block": inner["idx"], "memory": self.pick(MEMORY)}
        block["ops"].append({"type": "while", "inputs": {"condition": [go]}, "attrs": attrs})
        slots = {"array": [array]}
        block["ops"].append({"type": "array_stack", "inputs": slots, "outputs": {"out": [stacked]}})
        self.op(block, "reduce_sum", raw, stacked, axes=[0])
        out = self.pick(POOL)
        self.op(block, "sin", out, raw)
        visible.add(out)

    def write_while(self, block: dict[str, Any], visible: set[str], depth: int) -> None:
        i, n, go = self.counted(block)
        inner = self.new_block(block["idx"])
        self.fill(inner, visible, depth + 1)
        self.op(inner, "increment", i, i, step=1)
        self.op(inner, "less_than", go, i, n)
        attrs = {"sub_block": inner["idx"], "memory": self.pick(MEMORY)}
        block["ops"].append({"type": "while", "inputs": {"condition": [go]}, "attrs": attrs})

    def counted(self, block: dict[str, Any]) -> tuple[str, str, str]:
        """The counter of a loop of a few trips, its end, and whether there is another trip."""
        i, n, go = self.fresh("i"), self.fresh("n"), self.fresh("go")
        if self.fed and self.draw.random() < 0.5:
            n = self.pick(("two", "none"))
        else:
            self.op(block, "fill_constant", n, shape=[], value=self.draw.randint(0, 3), dtype="int64")
        self.op(block, "fill_constant", i, shape=[], value=0, dtype="int64")
        self.op(block, "less_than", go, i, n)
        return i, n, go

    def function(self) -> dict[str, Any]:
        """A program of two vectors with two results; it has the gradient of its own ops."""
        writer = _Writer(self.draw, 2, self.draw.randint(2, 5), fed=False, derivatives=self.derivatives)
        root = writer.new_block(-1)
        root["vars"] += [{"name": n, "dtype": "float64", "shape": [2], "role": "feed"} for n in ("p", "q")]
        names = sorted(writer.fill(root, {"p", "q"}, 0))
        writer.op(root, "mul", "first", names[0], writer.pick(names))
        writer.op(root, "sin", "second", writer.pick(names))
        return {"program": {"blocks": writer.blocks}, "results": ["first", "second"]}


FEEDS = (
    *(("yes", "bool", []), ("no", "bool", []), ("some", "bool", [3]), ("every", "bool", [3])),
    *(("two", "int64", []), ("none", "int64", []), ("ids", "int64", [4]), ("key", "int64", [])),
    *(("xs", "float64", [3, 2]), ("nothing", "float64", [0, 2]), ("no_ids", "int64", [0])),
    ("deep", "float64", [ROWS, 2]),
    *(("open1", "float64", [-1]), ("bare1", "float64", [-1])),
    *(("open2", "float64", [-1, 2]), ("bare2", "float64", [-1, 2])),
)


def programs(depth: int = 4) -> st.SearchStrategy[dict[str, Any]]:
    """Wire programs with parameters w and v, feeds x and those of FEEDS, and a scalar `loss`."""
    return st.integers(0, 2**48).map(lambda seed: written(seed, depth))


def written(
    seed: int, depth: int = 4, random_ops: bool = False, derivatives: bool = False, keeps_parameters: bool = False
) -> dict[str, Any]:
    """The program of `seed`. keeps_parameters: whether it overwrites none."""
    draw = random.Random(seed)
    writer = _Writer(draw, depth, draw.randint(4, 14), random_ops=random_ops, derivatives=derivatives)
    writer.keeps_parameters = keeps_parameters
    root = writer.new_block(-1)
    for name in LEAVES:
        role = "feed" if name == "x" else "parameter"
        root["vars"].append({"name": name, "dtype": "float64", "shape": [2], "role": role})
    root["vars"].append({"name": TABLE, "dtype": "float64", "shape": [3, 2], "role": "parameter"})
    root["vars"] += [{"name": n, "dtype": dtype, "shape": [*shape], "role": "feed"} for n, dtype, shape in FEEDS]
    visible = writer.fill(root, set(LEAVES), 0)
    ends = sorted(visible & set(POOL)) or ["w"]
    writer.op(root, "mul", "mixed", writer.pick(ends), writer.pick(sorted(visible)))
    for i, name in enumerate(ends):
        writer.op(root, "add", f"mixed{i}", "mixed" if i == 0 else f"mixed{i - 1}", name)
    writer.op(root, "reduce_sum", "loss", f"mixed{len(ends) - 1}")
    return {"blocks": writer.blocks} | ({"functions": writer.functions} if writer.functions else {})
