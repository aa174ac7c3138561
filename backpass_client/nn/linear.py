"""Linear layers, tables of embeddings, dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backpass_client.builder.symbol import Symbol
from backpass_client.functions import op_function
from backpass_client.nn.layer import Layer, size_of

__all__ = ["Dropout", "Embedding", "Linear"]


class Linear(Layer):
    """``x @ weight + bias`` for x [..., inputs]; weight [inputs, features], bias [features]."""

    def __init__(self, features: int, *, bias: bool = True, init: Any = None, name: str | None = None) -> None:
        """init: the initializer of the weight, or its value."""
        super().__init__(name)
        self.features, self.bias, self.init = features, bias, init

    def forward(self, x: Symbol) -> Symbol:
        out = x @ self.parameter("weight", [size_of(x, -1), self.features], x, self.init)
        return out + self.parameter("bias", [self.features], x, "zeros") if self.bias else out

    if TYPE_CHECKING:
        __call__ = forward


class Embedding(Layer):
    """Rows of a table [size, features] for integers ids [...]: [..., features]."""

    def __init__(
        self,
        size: int,
        features: int,
        *,
        dtype: str = "float32",
        padding_idx: int | None = None,
        is_sparse: bool = False,
        init: Any = None,
        name: str | None = None,
    ) -> None:
        """padding_idx: an id whose row is zero. is_sparse: keep the gradient as the rows that were looked up."""
        super().__init__(name)
        self.size, self.features, self.dtype, self.init = size, features, dtype, init
        self.attrs = {"padding_idx": padding_idx, "is_sparse": is_sparse}

    def forward(self, ids: Symbol) -> Symbol:
        return op_function("embedding")(self.table(ids), ids, **self.attrs)

    if TYPE_CHECKING:
        __call__ = forward

    def table(self, ids: Symbol) -> Symbol:
        """The table itself, for example to share it with the last layer: ``h @ embedding.table(ids).T``."""
        b = ids.builder
        if (self, "weight") not in b.shared:
            like = Symbol(b, ids.name, ids.type.__class__(self.dtype, ()), ids.block)
            if (self, "prefix") not in b.shared:
                b.shared[self, "prefix"] = b.new_prefix(self.name)
            with b.at(b.shared[self, "prefix"]):
                self.parameter("weight", [self.size, self.features], like, self.init)
        table: Symbol = b.shared[self, "weight"]
        return table


class Dropout(Layer):
    """Set each element to 0 with probability `p`, and scale the others; nothing with `train` false."""

    def __init__(self, p: float, *, train: bool = True, name: str | None = None) -> None:
        super().__init__(name)
        self.p, self.train = p, train

    def forward(self, x: Symbol) -> Symbol:
        return op_function("dropout")(x, p=self.p) if self.train and self.p else x

    if TYPE_CHECKING:
        __call__ = forward
