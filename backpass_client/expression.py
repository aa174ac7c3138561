"""Values on a tape, and arithmetic with them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from backpass_client.errors import BackpassError

if TYPE_CHECKING:
    from backpass_client.tape import Playback, Tape

__all__ = ["Expression", "Name", "Variable"]


class Name:
    """A variable of the service's tape. It lives as long as something here depends on it.

    parents: what it was computed from. variable: of a leaf, the object whose value it holds.
    """

    __slots__ = ("__weakref__", "parents", "text", "variable")

    def __init__(self, text: str, parents: tuple[Name, ...] = ()) -> None:
        self.text = text
        self.parents = parents
        self.variable: weakref.ref[Variable] | None = None


class Expression:
    """A value on a tape. `value`, `shape` and `dtype` are there as soon as they are asked for."""

    __array_ufunc__ = None  # so that numpy leaves `array * expression` to us

    def __init__(self, tape: Tape, name: Name) -> None:
        self._tape: Tape | None = tape
        self.named = name
        self.generation = tape.generation
        self.place: int | None = None
        self.taken: np.ndarray | None = None
        self.grad: np.ndarray | None = None
        self._about: dict[str, Any] | None = None

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What it is called on the tape."""
        return self.named.text

    @property
    def tape(self) -> Tape:
        assert self._tape is not None
        return self._tape

    @property
    def value(self) -> np.ndarray:
        """As an array. On a lazy tape what is needed for it runs now; each op runs once."""
        return self.tape.value(self) if self.taken is None else self.taken

    @property
    def data(self) -> Any:
        """The same as `value`."""
        return self.value

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape) if -1 in self._known()["shape"] else tuple(self._known()["shape"])

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self._known()["dtype"])

    @property
    def ndim(self) -> int:
        return len(self._known()["shape"])

    def item(self) -> Any:
        """The value as a Python number."""
        return self.value.item()

    def _known(self) -> dict[str, Any]:
        if self._about is None:
            self.check_on(self.tape)
            self.tape.flush()
        if self._about is None:
            raise BackpassError(f"{self.name} was never computed: the ops it was sent with were refused")
        return self._about

    # --- what the tape tells it ----------------------------------------------------------------------------------

    def describe(self, place: int, about: dict[str, Any]) -> Self:
        self.place, self._about = place, about
        return self

    def take(self, value: np.ndarray | None) -> None:
        self.taken = self.taken if value is None else value

    def add_grad(self, value: np.ndarray) -> None:
        self.grad = value if self.grad is None else self.grad + value

    def check_on(self, tape: Tape) -> None:
        """Raises BackpassError if it cannot be used on `tape` as it stands now."""
        if self._tape is not tape:
            raise BackpassError("an expression of another tape cannot be used here; its value can")
        if self.generation != tape.generation:
            raise BackpassError("the tape was renewed after this expression was computed; its value can still be used")

    # --- gradients -----------------------------------------------------------------------------------------------

    def backward(self, gradient: Any = None) -> Playback:
        """Gradients of this, added to the `grad` of every variable it depends on.

        gradient: its cotangent, if it is not a single number.
        """
        return self.tape.backward(self, gradient)

    def retain_grad(self) -> Self:
        """Let `backward` set the `grad` of this too."""
        self.tape.retain(self)
        return self

    def detach(self) -> Expression:
        """The same value as a constant."""
        return self._op("stop_gradient")

    # --- arithmetic ----------------------------------------------------------------------------------------------

    def _op(self, type: str, *others: Any, **attrs: Any) -> Any:
        from backpass_client.functions import apply

        return apply(type, (self, *others), attrs)

    def __neg__(self) -> Expression:
        return self._op("neg")

    def __add__(self, other: Any) -> Expression:
        return self._op("scale", bias=float(other)) if _number(other) else self._op("add", other)

    def __sub__(self, other: Any) -> Expression:
        return self._op("scale", bias=-float(other)) if _number(other) else self._op("sub", other)

    def __mul__(self, other: Any) -> Expression:
        return self._op("scale", scale=float(other)) if _number(other) else self._op("mul", other)

    def __truediv__(self, other: Any) -> Expression:
        return self._op("div", other)

    def __pow__(self, other: Any) -> Expression:
        return self._op("square") if _number(other) and other == 2 else self._op("pow", other)

    def __matmul__(self, other: Any) -> Expression:
        return self._op("matmul", other)

    def __radd__(self, other: Any) -> Expression:
        return self + other if _number(other) else self._turned("add", other)

    def __rsub__(self, other: Any) -> Expression:
        return self._op("scale", scale=-1.0, bias=float(other)) if _number(other) else self._turned("sub", other)

    def __rmul__(self, other: Any) -> Expression:
        return self * other if _number(other) else self._turned("mul", other)

    def __rtruediv__(self, other: Any) -> Expression:
        return self._turned("div", other)

    def __rpow__(self, other: Any) -> Expression:
        return self._turned("pow", other)

    def __rmatmul__(self, other: Any) -> Expression:
        return self._turned("matmul", other)

    def _turned(self, type: str, other: Any) -> Any:
        from backpass_client.functions import apply

        return apply(type, (other, self), {})

    # --- parts and shapes ----------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Expression:
        from backpass_client.indexing import indexed

        return indexed(self, index)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Expression]:
        return (self[i] for i in range(len(self)))

    def reshape(self, *shape: Any) -> Expression:
        return self._op("reshape", shape=_ints(shape))

    def transpose(self, *axes: Any) -> Expression:
        """The axes in this order; all of them reversed if none is given."""
        return self._op("transpose", axes=_ints(axes)) if axes else self._op("transpose")

    @property
    def T(self) -> Expression:
        return self.transpose()

    def sum(self, axis: Any = None, keepdims: bool = False) -> Expression:
        return self._op("reduce_sum", **_over(axis, keepdims))

    def mean(self, axis: Any = None, keepdims: bool = False) -> Expression:
        return self._op("reduce_mean", **_over(axis, keepdims))

    def max(self, axis: Any = None, keepdims: bool = False) -> Expression:
        return self._op("reduce_max", **_over(axis, keepdims))

    def __float__(self) -> float:
        return float(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype)

    def __repr__(self) -> str:
        if self.taken is not None:
            return f"{type(self).__name__}({self.taken!r})"
        return f"<{type(self).__name__} {self.name}, not computed yet>"


class Variable(Expression):
    """A leaf: an array of yours. It is put on the tape when it is first used there, and again when it has changed.

    data:          the array; assign to it, or change it in place, to train it.
    grad:          what backward passes have added up; None before the first.
    requires_grad: whether they do.
    """

    def __init__(self, data: Any, requires_grad: bool = True, name: str | None = None) -> None:
        self._data = np.array(data)
        self.requires_grad = requires_grad
        if requires_grad and self._data.dtype.kind in "iub":
            self._data = self._data.astype(np.float64)
        self.label = name
        self.place = None
        self.grad = None
        self._tape = None
        self._sent: np.ndarray | None = None
        self.generation = -1

    @property
    def value(self) -> np.ndarray:
        return self._data

    @property
    def data(self) -> np.ndarray:
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        self._data = np.asarray(value, self._data.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def dtype(self) -> np.dtype:
        return self._data.dtype

    @property
    def ndim(self) -> int:
        return self._data.ndim

    @property
    def tape(self) -> Tape:
        """The current one, or the one it was used on last."""
        from backpass_client.tape import current

        return current(self._tape)

    def zero_grad(self) -> None:
        self.grad = None

    def bind(self, tape: Tape) -> Name:
        """The variable of `tape` that holds the present data."""
        there = self._tape is tape and (self.requires_grad or self.generation == tape.generation)
        if not there or self._sent is None or not _same(self._sent, self._data):
            self._sent = self._data.copy()
            self.named = tape.put(self, self._sent)
            self._tape, self.generation = tape, tape.generation
        return self.named

    def unbind(self) -> None:
        """What was put last never arrived."""
        self._sent = None

    def check_on(self, tape: Tape) -> None:
        self.bind(tape)

    def take(self, value: np.ndarray | None) -> None:
        pass  # the data is ours

    def __repr__(self) -> str:
        return f"Variable({self._data!r})"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ints(given: tuple[Any, ...]) -> list[int]:
    sizes = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    return [int(n) for n in sizes]


def _over(axis: Any, keepdims: bool) -> dict[str, Any]:
    axes = None if axis is None else _ints((axis,))
    return {"axes": axes, "keepdims": keepdims}


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the last bit."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
