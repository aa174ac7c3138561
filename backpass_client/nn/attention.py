"""Attention with several heads, and the block of a transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backpass_client.builder.symbol import Symbol
from backpass_client.builder.types import InvalidOp
from backpass_client.functions import op_function
from backpass_client.nn.layer import Layer, size_of
from backpass_client.nn.linear import Dropout, Linear
from backpass_client.nn.norms import LayerNorm

__all__ = ["MultiHeadAttention", "TransformerBlock"]


class MultiHeadAttention(Layer):
    """Attention of a query [batch, length, features] to a key and value [batch, other length, features]."""

    def __init__(
        self, heads: int, *, dropout: float = 0.0, train: bool = True, bias: bool = True, name: str | None = None
    ) -> None:
        """dropout: on the result, in training."""
        super().__init__(name or "attention")
        self.heads = heads
        self.dropout = Dropout(dropout, train=train)
        self.bias = bias

    def forward(
        self,
        query: Symbol,
        key: Symbol | None = None,
        value: Symbol | None = None,
        *,
        mask: Symbol | None = None,
        causal: bool = False,
    ) -> Symbol:
        """key, value: by default the query. mask: as of `scaled_dot_product_attention`, over [batch, heads, l, s]."""
        key = query if key is None else key
        value = key if value is None else value
        features = size_of(query, -1)
        if features % self.heads:
            raise InvalidOp(f"{features} features cannot be divided into {self.heads} heads")
        q, k, v = (
            self._split(self._linear(name, features, x))
            for name, x in (("query", query), ("key", key), ("value", value))
        )
        seen = op_function("scaled_dot_product_attention")(q, k, v, mask, causal=causal)
        joined = op_function("merge_axes")(op_function("transpose")(seen, axes=[0, 2, 1, 3]), start=2, end=4)
        return self.dropout(self._linear("out", features, joined))

    if TYPE_CHECKING:
        __call__ = forward

    def _linear(self, name: str, features: int, x: Symbol) -> Symbol:
        made = lambda: Linear(features, bias=self.bias, name=name)
        found: Symbol = self.part(f"linear {name}", made, x)(x)
        return found

    def _split(self, x: Symbol) -> Symbol:
        """[batch, length, features] -> [batch, heads, length, features / heads]."""
        parts = op_function("unflatten")(x, axis=2, sizes=[self.heads, size_of(x, -1) // self.heads])
        return op_function("transpose")(parts, axes=[0, 2, 1, 3])


class TransformerBlock(Layer):
    """Attention and two linear layers, each on normalised input and added to it (Xiong et al. 2020)."""

    def __init__(
        self,
        heads: int,
        *,
        hidden: int | None = None,
        activation: str = "gelu",
        dropout: float = 0.0,
        train: bool = True,
        causal: bool = False,
        name: str | None = None,
    ) -> None:
        """hidden: features between the linear layers; by default 4 times those of x. activation: the name of an op."""
        super().__init__(name)
        self.hidden, self.activation, self.causal = hidden, activation, causal
        self.attention = MultiHeadAttention(heads, dropout=dropout, train=train)
        self.norms = LayerNorm(name="norm"), LayerNorm(name="norm")
        self.dropout = Dropout(dropout, train=train)

    def forward(self, x: Symbol, *, mask: Symbol | None = None) -> Symbol:
        features = size_of(x, -1)
        grow = self.part("linear grow", lambda: Linear(self.hidden or 4 * features, name="grow"), x)
        shrink = self.part("linear shrink", lambda: Linear(features, name="shrink"), x)
        x = x + self.attention(self.norms[0](x), mask=mask, causal=self.causal)
        return x + self.dropout(shrink(op_function(self.activation)(grow(self.norms[1](x)))))

    if TYPE_CHECKING:
        __call__ = forward
