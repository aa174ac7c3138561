"""A reader of the part of PromQL that dashboards and alert rules of this repository use.

Grammar: https://prometheus.io/docs/prometheus/latest/querying/basics/
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Query", "read"]

TOKEN = re.compile(
    r"\s*(?:(?P<duration>\d+[smhdw])(?![\w.])|(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-zA-Z_:][\w:]*)"
    r'|(?P<text>"(?:[^"\\]|\\.)*")|(?P<op>=~|!~|!=|==|<=|>=|[-+*/%^<>=(){}\[\],]))'
)
AGGREGATES = {"sum", "min", "max", "avg", "count", "topk", "bottomk", "stddev", "quantile"}
OF_RANGES = {
    "rate",
    "irate",
    "increase",
    "delta",
    "min_over_time",
    "max_over_time",
    "avg_over_time",
    "changes",
    "resets",
}
OF_VECTORS = {"histogram_quantile", "abs", "absent", "clamp_min", "clamp_max", "ceil", "floor", "time", "vector"}
BINARY = {"+", "-", "*", "/", "%", "^", "==", "!=", "<", ">", "<=", ">=", "and", "or", "unless"}
MATCHES = {"=", "!=", "=~", "!~"}


@dataclass
class Query:
    """metrics: the names in a query. labels: metric -> label names of its selectors and of groupings around it."""

    metrics: set[str] = field(default_factory=set)
    labels: dict[str, set[str]] = field(default_factory=dict)


def read(text: str) -> Query:
    """The metrics of a query. Raises ValueError for wrong syntax, or a range where none belongs."""
    reader = _Reader(text)
    ranged = reader.expression()
    if reader.kind:
        raise ValueError(f"unexpected {reader.token!r}")
    if ranged:
        raise ValueError("a range has no function")
    return reader.query


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.query = text.strip(), 0, Query()
        self.kind: str | None = None
        self.token = ""
        self.next()

    def next(self) -> None:
        if self.at == len(self.text):
            self.kind, self.token = None, ""
            return
        found = TOKEN.match(self.text, self.at)
        if found is None:
            raise ValueError(f"cannot read {self.text[self.at :]!r}")
        self.at, self.kind = found.end(), found.lastgroup
        self.token = found[found.lastgroup or 0]

    def take(self, token: str) -> None:
        if self.token != token:
            raise ValueError(f"expected {token!r}, found {self.token!r}")
        self.next()

    def expression(self) -> bool:
        """Read an expression; whether it is a range."""
        ranged = self.operand()
        while self.token in BINARY:
            self.next()
            if self.token in ("on", "ignoring"):
                self.next()
                self.names()
            if self.token in ("group_left", "group_right"):
                self.next()
                self.names()
            ranged = self.operand() or ranged
            if ranged:
                raise ValueError("a range cannot be computed with")
        return ranged

    def operand(self) -> bool:
        if self.token == "-":
            self.next()
        if self.kind == "number":
            self.next()
            return False
        if self.token == "(":
            self.next()
            ranged = self.expression()
            self.take(")")
            return ranged
        if self.kind != "name" and self.token != "{":
            raise ValueError(f"unexpected {self.token!r}")
        name = self.token
        if name in AGGREGATES:
            return self.aggregate()
        if name in OF_RANGES | OF_VECTORS:
            self.next()
            if any(self.arguments()) != (name in OF_RANGES):
                raise ValueError(f"{name} takes {'a range' if name in OF_RANGES else 'no range'}")
            return False
        return self.selector()

    def aggregate(self) -> bool:
        before = set(self.query.metrics)
        self.next()
        labels = self.grouping()
        if any(self.arguments()):
            raise ValueError("an aggregate takes no range")
        labels |= self.grouping()
        for metric in self.query.metrics - before:
            self.query.labels[metric] |= labels
        return False

    def grouping(self) -> set[str]:
        if self.token not in ("by", "without"):
            return set()
        self.next()
        return self.names()

    def names(self) -> set[str]:
        self.take("(")
        found = set()
        while self.token != ")":
            if self.kind != "name":
                raise ValueError(f"expected a label, found {self.token!r}")
            found.add(self.token)
            self.next()
            if self.token != ")":
                self.take(",")
        self.take(")")
        return found

    def arguments(self) -> list[bool]:
        self.take("(")
        found = [self.expression()]
        while self.token == ",":
            self.next()
            found.append(self.expression())
        self.take(")")
        return found

    def selector(self) -> bool:
        metric = self.token
        self.next()
        self.query.metrics.add(metric)
        labels = self.query.labels.setdefault(metric, set())
        if self.token == "{":
            self.next()
            while self.token != "}":
                labels.add(self.token)
                self.next()
                if self.token not in MATCHES:
                    raise ValueError(f"expected a match, found {self.token!r}")
                self.next()
                if self.kind != "text":
                    raise ValueError(f"expected a text, found {self.token!r}")
                self.next()
                if self.token != "}":
                    self.take(",")
            self.take("}")
        if self.token != "[":
            return False
        self.next()
        if self.kind != "duration":
            raise ValueError(f"expected a duration, found {self.token!r}")
        self.next()
        self.take("]")
        return True
