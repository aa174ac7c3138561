"""The functions of one plan while they are written, and their LLVM text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from core.codegen.cpus import cpu
from core.codegen.llvm import Function, IRValue
from core.ir.stop import poll

__all__ = ["Module"]

SHARE = 50_000
"""Characters of text that are worth another parallel compilation: some thirty milliseconds of LLVM's time."""


@dataclass(slots=True)
class Module:
    """The functions of one plan.

    functions:    in the order in which they were written.
    names:        function name by the key that it was written for.
    globals:      definition of each global variable, by its name.
    symbols:      addresses of external functions, by name.
    scratch:      bytes after the arena for partial results of threads and for scratch memory of kernels.
    uses_threads: whether the code calls `parallel_for`.
    polls:        whether the code reads the stop word.
    """

    functions: list[Function] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    globals: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    scratch: int = 0
    uses_threads: bool = False
    polls: bool = False

    def function(self, key: object, hint: str, make: Callable[[str], Function]) -> str:
        """The name of the function for `key`; `make(name)` writes it if it does not exist yet.

        Keys are compared by their `repr`, because 0.0 equals -0.0 but needs other code.
        """
        text = repr(key)
        if text not in self.names:
            self.names[text] = f"{hint}{len(self.names)}"
            self.functions.append(make(self.names[text]))
        return self.names[text]

    def table(self, numbers: tuple[int, ...]) -> IRValue:
        """The address of a constant array of these numbers, int64 each."""
        text = ".".join(map(str, numbers))
        if len(numbers) > 8:
            text = f"long.{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        name = f"@table.{text}"
        values = ", ".join(f"i64 {n}" for n in numbers)
        self.globals[name] = f"{name} = private constant [{len(numbers)} x i64] [{values}]"
        return IRValue(name, "ptr")

    def data(self, data: bytes) -> IRValue:
        """The address of constant bytes."""
        name = f"@data.{hashlib.sha256(data).hexdigest()[:32]}"
        text = "".join(f"\\{byte:02x}" for byte in data)
        self.globals[name] = f'{name} = private constant [{len(data)} x i8] c"{text}", align 64'
        return IRValue(name, "ptr")

    def text(self) -> str:
        return self.texts(1)[0]

    def texts(self, most: int) -> list[str]:
        """The module as at most `most` texts that call each other, of about equal length; one text if it is short."""
        written = {f: _text_of(f) for f in self.functions}
        count = max(1, min(most, sum(map(len, written.values())) // SHARE))
        shares: list[list[Function]] = [[] for _ in range(count)]
        lengths = [0] * count
        for f, text in sorted(written.items(), key=lambda each: len(each[1]), reverse=True):
            least = lengths.index(min(lengths))
            shares[least].append(f)
            lengths[least] += len(text)
        return [self._text({f: text for f, text in written.items() if f in share}) for share in map(set, shares)]

    def _text(self, own: dict[Function, str]) -> str:
        """A text that defines the functions `own`, written as text already, and declares the others."""
        width = cpu().vector_bytes * 8
        wide = f'"prefer-vector-width"="{width}" "min-legal-vector-width"="{width}"'
        declared = {f.declaration for f in self.functions if f not in own}.union(*(f.declarations for f in own))
        attributes = f"attributes #0 = {{ nounwind noinline {wide} }}"
        return "\n".join([*self.globals.values(), *own.values(), *sorted(declared), attributes])


def _text_of(f: Function) -> str:
    poll()
    return f.text()
