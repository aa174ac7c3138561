"""The table of converters, by domain, operator and opset."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from core.onnx.reading.node import Node

__all__ = ["Converter", "converter", "find"]

Converter = Callable[[Node], Any]

_TABLE: dict[tuple[str, str], list[tuple[int, Converter]]] = {}


def converter(*names: str, since: int = 1, domain: str = "") -> Callable[[Converter], Converter]:
    """Decorator: the converter of the operators `names`, from opset `since` on.

    The function takes a `Node` and returns the values of its outputs: one, or a tuple in the order of the outputs, in
    which None stands for an output that it does not give.
    """

    def declare(function: Converter) -> Converter:
        for name in names:
            versions = _TABLE.setdefault((domain, name), [])
            if any(version == since for version, _ in versions):
                raise ValueError(f"operator {name!r} has two converters since opset {since}")
            versions.append((since, function))
            versions.sort(key=lambda each: each[0], reverse=True)
        return function

    return declare


def find(domain: str, name: str, opset: int) -> Converter | None:
    """The converter of an operator at this opset of its domain; None if there is none."""
    _load()
    return next((function for since, function in _TABLE.get((domain, name), ()) if since <= opset), None)


def _load() -> None:
    """Import every file of operators."""
    if not _TABLE:
        package = import_module("core.onnx.reading.operators")
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            import_module(module.name)
