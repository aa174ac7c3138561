"""Symbols: the values of a program under construction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from backpass_client.builder.blocks import Block, Name, Ref, origin_of_unknown
from backpass_client.builder.inference.rules import has_rule
from backpass_client.builder.inference.sizes import product
from backpass_client.builder.open_slices import with_open_slices
from backpass_client.builder.types import InvalidOp, Size, SizeName, Type
from backpass_client.recorder import Operand, OpRecorder

if TYPE_CHECKING:
    from backpass_client.builder.build import Builder

__all__ = ["Symbol"]

NO_VALUE = "values come from Program.evaluate or a session, gradients from bp.grad or a session"
OF_VALUES = frozenset({"backward", "data", "grad", "item", "numpy", "requires_grad", "tolist", "value"})
"""Attributes that arrays with values have."""


class Symbol(Operand["Symbol"], Ref):
    """A value of a program under construction: Python's operators and the ops of the package make new ones from it."""

    __slots__ = ("_name", "block", "builder", "type")

    def __init__(self, builder: Builder, name: Name, type: Type, block: Block) -> None:
        self.builder = builder
        self._name = name
        self.type = type
        self.block = block

    @property
    def name(self) -> Name:  # type: ignore[override]
        """The name of its variable."""
        while self._name.same is not None:
            self._name = self._name.same
        return self._name

    @property
    def owner(self) -> OpRecorder:
        return self.builder

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes: numbers, names of open sizes, and None for other open ones. Raises InvalidOp if not known.

        A name stands for its number among the operands of an op: ``x.sum() / x.shape[0]``.
        """
        if self.type.shape is None:
            raise self._unknown("shape")
        return tuple([SizeName(size) if isinstance(size, str) else size for size in self.type.shape])

    @property
    def dtype(self) -> str:  # type: ignore[override]
        """The name of the dtype. Raises InvalidOp if it is not known."""
        if self.type.dtype is None:
            raise self._unknown("dtype")
        return self.type.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def named(self, name: str) -> Symbol:
        """This value as the variable `name`, which requests can fetch."""
        return self.builder.rename(self, name)

    def reshape(self, *shape: Any) -> Symbol:
        """The same elements in another shape. Any number of sizes may be names, if they stay next to each other.

        ``x.reshape("batch", "time", 8, 64)`` of an x [batch, time, 512] divides its last axis.
        """
        sizes = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else list(shape)
        if all(isinstance(size, int) for size in sizes):
            return self._op("reshape", shape=sizes)
        return self._with_open_sizes(sizes)

    def _with_open_sizes(self, sizes: list[Size]) -> Symbol:
        have = list(self.shape)
        first = 0
        while first < min(len(have), len(sizes)) and have[first] == sizes[first] and have[first] is not None:
            first += 1
        last = 0
        while last < min(len(have), len(sizes)) - first and have[-1 - last] == sizes[-1 - last] is not None:
            last += 1
        before, after = have[first : len(have) - last], sizes[first : len(sizes) - last]
        if sum(not isinstance(size, int) for size in sizes) == 1 and -1 not in sizes:
            named = [size for size in sizes if not isinstance(size, int)]
            if [size for size in have if not isinstance(size, int)] == named and product(
                size for size in have if isinstance(size, int)
            ) != product(size for size in sizes if isinstance(size, int)):
                raise InvalidOp(f"cannot reshape {self.name.text}={self.type} to {sizes}")
            return self._op("reshape", shape=[size if isinstance(size, int) else -1 for size in sizes])
        opened = [size if isinstance(size, int) else -1 for size in after]
        if not before and not after:
            return self
        if len(before) == 1 and opened.count(-1) <= 1:
            return self._op("unflatten", axis=first, sizes=opened)
        if len(after) == 1 and before:
            return self._op("merge_axes", start=first, end=first + len(before))
        raise InvalidOp(
            f"cannot reshape {self.name.text}={self.type} to {sizes}: while more than one size is open, only "
            "neighbouring axes can be merged into one, or one divided"
        )

    def _unknown(self, what: str) -> InvalidOp:
        """The error for a shape or dtype that the client does not know, with the op at which it lost the type."""
        origin = origin_of_unknown(self.builder.root, self, has_rule)
        cause = ""
        if origin is not None and origin[0].name is not self.name:
            cause = f", because the type of {origin[0].name.text} ({origin[1].type}, {origin[1].line}) is not"
        return InvalidOp(
            f"the {what} of {self.name.text} is not known{cause}; declare it with bp.typed(x, bp.f32[...])"
        )

    @property
    def _known_rank(self) -> int | None:
        return None if self.type.shape is None else len(self.type.shape)

    @property
    def _known_dtype(self) -> str | None:
        return self.type.dtype

    def __getitem__(self, index: Any) -> Symbol:
        """The part at `index`: see `index_ops`. A symbol in an index holds positions.

        A bound of a slice may be a symbol of one integer, or the name of an open size: ``table[: x.shape[1]]``.
        """
        for each in index if isinstance(index, tuple) else (index,):
            if isinstance(each, Symbol) and each.type.dtype == "bool":
                raise TypeError(f"cannot index with the mask {each.name.text}={each.type}; use masked_select or where")
        part, index = with_open_slices(self, index)
        shape = part.type.shape
        found: Symbol = part._part(index, lambda axis: None if shape is None else shape[axis], fixed=True)
        return found

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        if not isinstance(self.shape[0], int):
            raise TypeError(f"{self.name.text}={self.type} has no fixed length; bp.scan runs over an open first axis")
        return self.shape[0]

    def __iter__(self) -> Iterator[Symbol]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> NoReturn:
        self._no_value("bp.cond, bp.where and bp.while_loop choose by the value of a symbol")

    def __float__(self) -> NoReturn:
        self._no_value()

    def __int__(self) -> NoReturn:
        self._no_value()

    def __index__(self) -> NoReturn:
        self._no_value()

    def _hint_for(self, method: str) -> str:
        return NO_VALUE if method in OF_VALUES else super()._hint_for(method)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """The shape and the number of axes for np.shape and np.ndim. Raises TypeError for others: it names the op."""
        name = function.__name__
        if not isinstance(getattr(Symbol, name, None), property):
            self._no_function_of_numpy(f"{function.__module__.replace('numpy', 'np')}.{name}")
        return getattr(self, name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        self._no_value(f"bp.stack and bp.concat join symbols, and {NO_VALUE}")

    def __format__(self, spec: str) -> str:
        if spec:
            self._no_value()
        return str(self)

    def _no_value(self, advice: str = NO_VALUE) -> NoReturn:
        raise TypeError(f"{self.name.text} is a symbol of a program and has no value yet; {advice}")

    def __repr__(self) -> str:
        return f"<{self.name.text}: {self.type}>"
