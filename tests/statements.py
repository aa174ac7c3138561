"""Statements of random programs beyond loops and branches: recurrence, rows, functions, choices, tables, masks."""

from __future__ import annotations

import random
from typing import Any

__all__ = ["BINARY", "MEMORY", "POOL", "UNARY", "Statements"]

POOL = ("a", "b", "c", "d", "e")
UNARY = ("tanh", "sin", "sigmoid", "softplus", "cos")
BINARY = ("add", "sub", "mul", "maximum")
MEMORY = ("store", "store", "recompute", "sqrt", "binomial")

Block = dict[str, Any]


class Statements:
    """Further statements of `strategies.Writer`; each adds to a block and to the names that have a value there."""

    draw: random.Random
    fed: bool
    functions: dict[str, Any]
    random_ops: bool
    max_depth: int
    longs: list[tuple[str, int]]
    keeps_parameters: bool

    def pick(self, options: Any) -> Any:
        raise NotImplementedError

    def fresh(self, hint: str) -> str:
        raise NotImplementedError

    def new_block(self, parent: int) -> Block:
        raise NotImplementedError

    def op(self, block: Block, type: str, out: str, *inputs: str, **attrs: Any) -> None:
        raise NotImplementedError

    def condition(self, block: Block, visible: set[str]) -> str:
        raise NotImplementedError

    def inner(self, block: Block, visible: set[str], depth: int) -> tuple[Block, set[str]]:
        raise NotImplementedError

    def fill(self, block: Block, visible: set[str], depth: int) -> set[str]:
        raise NotImplementedError

    def function(self) -> dict[str, Any]:
        raise NotImplementedError

    def write_recurrent(self, block: Block, visible: set[str], depth: int) -> None:
        """h := tanh(p ? something) over a sequence; sometimes with a second memory without updates."""
        before, after, element, output = (self.fresh(hint) for hint in ("p", "h", "el", "o"))
        names = sorted(visible)
        still = [self.fresh("m")] if self.draw.random() < 0.4 else []
        inner = self.new_block(block["idx"])
        inside = self.fill(inner, visible | {before, element, *still}, depth + 1)
        mixed = self.fresh("t")
        self.op(inner, self.pick(("add", "mul")), mixed, before, self.pick([*sorted(inside), *still]))
        self.op(inner, self.pick(("tanh", "sin")), after, mixed)
        self.op(inner, "mul", output, after, element)
        stacked, raw, total, *finals = (self.fresh(hint) for hint in ("ys", "t", "t", "fin", *("fin" for _ in still)))
        block["ops"].append(
            {
                "type": "recurrent",
                "inputs": {
                    "inputs": [self.pick(("xs", "nothing"))],
                    "initial_states": [self.pick(names) for _ in finals],
                },
                "outputs": {"outputs": [stacked], "final_states": finals},
                "attrs": {
                    "sub_block": inner["idx"],
                    "ex_states": [before, *still],
                    "states": [after, *still],
                    "step_inputs": [element],
                    "step_outputs": [output],
                    "reverse": self.draw.random() < 0.3,
                    "memory": self.pick(MEMORY),
                },
            }
        )
        self.op(block, "reduce_sum", raw, stacked, axes=[0])
        self.op(block, "add", total, raw, self.pick(finals))
        self.mixed_in(block, visible, total)

    def mixed_in(self, block: Block, visible: set[str], name: str) -> None:
        """Add the result of a construct to a name of the pool."""
        out = self.pick(POOL)
        self.op(block, self.pick(("tanh", "sin")), out, name)
        visible.add(out)

    def write_case(self, block: Block, visible: set[str], depth: int) -> None:
        conditions = [self.condition(block, visible) for _ in range(self.draw.randint(1, 3))]
        made = [self.inner(block, visible, depth) for _ in range(len(conditions) + self.draw.randint(0, 1))]
        blocks = [inner["idx"] for inner, _ in made]
        count = len(conditions)
        attrs = {"branches": blocks[:count], "default_block": blocks[count] if len(blocks) > count else None}
        block["ops"].append({"type": "case", "inputs": {"conditions": conditions}, "attrs": attrs})
        visible |= set.intersection(*(after for _, after in made)) & set(POOL)

    def write_conditional(self, block: Block, visible: set[str], depth: int) -> None:
        flag = self.condition(block, visible)
        inner, _ = self.inner(block, visible, depth)
        attrs = {"sub_block": inner["idx"]}
        block["ops"].append({"type": "conditional_block", "inputs": {"condition": [flag]}, "attrs": attrs})

    def write_rows(self, block: Block, visible: set[str], depth: int) -> None:
        """The rows of a matrix go through two blocks, which contain whole programs on their own names."""
        table, row, out, raw = (self.fresh(hint) for hint in ("tab", "row", "tab", "t"))
        self.op(block, self.pick(("add", "mul")), table, "xs", self.pick(sorted(visible)))
        sides, longs, keeps = [], self.longs, self.keeps_parameters
        self.longs, self.keeps_parameters = [], True
        for _ in range(2):
            inner = self.new_block(block["idx"])
            inside = self.fill(inner, visible - set(POOL), depth + 1)
            own = {v["name"] for v in inner["vars"]}
            inner["vars"] += [{"name": n, "dtype": "float64", "shape": [2]} for n in POOL if n not in own]
            first = self.fresh("row")
            self.op(inner, self.pick(("add", "mul", "sub")), first, row, self.pick(sorted(inside)))
            self.op(inner, self.pick(UNARY), out, first)
            sides.append(inner["idx"])
        self.longs, self.keeps_parameters = longs, keeps
        block["ops"].append(
            {
                "type": "if_else_rows",
                "inputs": {"condition": [self.pick(("some", "every"))], "x": [table]},
                "outputs": {"out": [out]},
                "attrs": {"true_block": sides[0], "false_block": sides[1], "rows": [row]},
            }
        )
        self.op(block, "reduce_sum", raw, out, axes=[0])
        self.mixed_in(block, visible, raw)

    def write_call(self, block: Block, visible: set[str], depth: int) -> None:
        """A function with loops and branches inside, or one with a declared gradient."""
        name, names = self.fresh("f"), sorted(visible)
        if self.draw.random() < 0.5:
            self.functions[name] = self.function()
        else:
            self.functions[name], self.functions[f"{name}_rule"] = with_rule(f"{name}_rule")
        outs = [self.fresh("t"), self.fresh("t")]
        given = {"x": [self.pick(names), self.pick(names)]}
        block["ops"].append({"type": "call", "inputs": given, "outputs": {"out": outs}, "attrs": {"function": name}})
        both = self.fresh("t")
        self.op(block, self.pick(("add", "mul")), both, *outs)
        self.mixed_in(block, visible, both)

    def write_safe_where(self, block: Block, visible: set[str], depth: int) -> None:
        """sqrt where it is defined, and a smooth function elsewhere."""
        name, bound, value = self.pick(sorted(visible)), self.fresh("k"), self.draw.randint(-4, 4) / 8 + 0.03
        flag, shifted, out = self.fresh("f"), self.fresh("t"), self.fresh("t")
        self.op(block, "fill_constant", bound, shape=[2], value=value, dtype="float64")
        self.op(block, "less_than", flag, bound, name)
        yes, no = self.new_block(block["idx"]), self.new_block(block["idx"])
        self.op(yes, "scale", shifted, name, scale=1.0, bias=0.2 - value)
        self.op(yes, "sqrt", out, shifted)
        self.op(no, self.pick(("sin", "tanh")), out, self.pick(sorted(visible)))
        attrs = {"true_block": yes["idx"], "false_block": no["idx"]}
        inputs, outputs = {"condition": [flag]}, {"out": [out]}
        block["ops"].append({"type": "safe_where", "inputs": inputs, "outputs": outputs, "attrs": attrs})
        self.mixed_in(block, visible, out)

    def write_embedding(self, block: Block, visible: set[str], depth: int) -> None:
        table, rows, raw = self.fresh("tab"), self.fresh("tab"), self.fresh("t")
        self.op(block, self.pick(("add", "mul")), table, "xs", self.pick(sorted(visible)))
        slots = {"weight": [table], "ids": ["ids"]}
        block["ops"].append({"type": "embedding", "inputs": slots, "outputs": {"out": [rows]}, "attrs": {}})
        self.op(block, "reduce_sum", raw, rows, axes=[0])
        self.mixed_in(block, visible, raw)

    def write_dropout(self, block: Block, visible: set[str], depth: int) -> None:
        """With a fed key all trips have the same mask; without a key each trip draws a mask."""
        out = self.pick(POOL)
        slots = {"x": [self.pick(sorted(visible))]} | ({} if self.random_ops else {"key": ["key"]})
        attrs = {"p": self.pick((0.25, 0.5)), "seed": self.draw.randint(0, 99), "stream": self.draw.randint(1, 99)}
        block["ops"].append({"type": "dropout", "inputs": slots, "outputs": {"out": [out]}, "attrs": attrs})
        visible.add(out)

    def write_derivative(self, block: Block, visible: set[str], depth: int) -> None:
        """Statements that may read a copy of a name, and the derivative of a value with respect to the copy."""
        copy, product, target, slope = (self.fresh(hint) for hint in ("cp", "t", "t", "t"))
        self.op(block, "assign", copy, self.pick(sorted(visible)))
        inside = visible | {copy}
        for _ in range(self.draw.randint(1, 3)):
            kinds = [
                "op",
                "op",
                "safe_where",
                *(("if", "while", "net", "switch", "derivative") if depth < self.max_depth else ()),
            ]
            if self.fed and depth < self.max_depth:
                kinds += ["scan", "call"]
            getattr(self, f"write_{self.pick(kinds)}")(block, inside, depth + 1)
        visible |= inside & set(POOL)
        self.op(block, "mul", product, copy, self.pick(sorted(inside)))
        self.op(block, "tanh", target, product)
        block["ops"].append(
            {
                "type": "gradients",
                "inputs": {"targets": [target], "inputs": [copy]},
                "outputs": {"out": [slope]},
                "attrs": {},
            }
        )
        self.mixed_in(block, visible, slope)


def with_rule(rule: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(f, its gradient): f(p, q) = (p sin q, p), and the formulas for the cotangents of p and q."""

    def program(feeds: str, ops: list[tuple[str, str, str]]) -> dict[str, Any]:
        leaves = [{"name": n, "dtype": "float64", "shape": [2], "role": "feed"} for n in feeds.split()]
        written = []
        for type, given, out in ops:
            slots = dict(zip(("x", "y"), ([n] for n in given.split()), strict=False))
            written.append({"type": type, "inputs": slots, "outputs": {"out": [out]}, "attrs": {}})
        return {"blocks": [{"idx": 0, "parent_idx": -1, "vars": leaves, "ops": written}]}

    f = program("p q", [("sin", "q", "s"), ("mul", "p s", "y"), ("assign", "p", "z")])
    df = program(
        "p q y z dy dz",
        [
            ("sin", "q", "s"),
            ("mul", "dy s", "sdy"),
            ("add", "sdy dz", "dp"),
            ("cos", "q", "c"),
            ("mul", "p c", "pc"),
            ("mul", "pc dy", "dq"),
        ],
    )
    return {"program": f, "results": ["y", "z"], "gradient": rule}, {"program": df, "results": ["dp", "dq"]}
