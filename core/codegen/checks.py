"""How generated code says that a check failed: by its number, in the error word."""

from __future__ import annotations

from core.codegen.llvm import I64, Function, Value

__all__ = ["fail"]


def fail(f: Function, error: Value, check: Value) -> None:
    """Write the number of a failed check to the error word, unless an op before it in the program failed as well.

    Checks are numbered in the order of the ops, and what is below 0 ended the run already.
    """
    said = f.load(error, "int64")
    first = f.binary("or", f.compare("icmp eq", said, I64(0)), f.compare("icmp slt", check, said))
    f.store(f.select(first, check, said), error)
