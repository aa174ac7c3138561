"""Recurrent layers over batches of sequences, with lengths, several layers and both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backpass_client.builder.loops import scan
from backpass_client.builder.symbol import Symbol
from backpass_client.functions import op_function
from backpass_client.nn.layer import Layer, size_of
from backpass_client.nn.linear import Dropout
from backpass_client.op_results import Results

__all__ = ["GRU", "LSTM", "RNN"]


class _Recurrent(Layer):
    """Layers of a cell. The op of the same name runs whole sequences; its cell runs one step where lengths differ.

    Gates stand in the rows of the weights [gates * hidden, inputs] and [gates * hidden, hidden] in the op's order.
    """

    op: str
    gates: int
    state_count: int

    def __init__(
        self,
        hidden: int,
        *,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        train: bool = True,
        time_first: bool = False,
        name: str | None = None,
    ) -> None:
        """dropout: between layers, in training. time_first: whether x is [time, batch, inputs]."""
        super().__init__(name)
        self.hidden, self.layers, self.directions = hidden, layers, 2 if bidirectional else 1
        self.time_first = time_first
        self.dropout = Dropout(dropout, train=train)

    def forward(self, x: Symbol, lengths: Symbol | None = None, initial: Any = None) -> Results:
        """out [batch, time, directions * hidden], and states, the last ones [layers * directions, batch, hidden].

        lengths: the number of steps of each sequence, [batch]; outputs after its end are 0, and its last state is that
                 of its last step.
        initial: the first states, of the shape of the last ones; zeros by default. Those of an LSTM are a pair (h, c).
        """
        x = x if self.time_first else op_function("transpose")(x, axes=[1, 0, 2])
        within = None
        if lengths is not None:
            seen = op_function("steps_within")(op_function("transpose")(x, axes=[1, 0, 2]), lengths)
            within = op_function("unsqueeze")(op_function("transpose")(seen, axes=[1, 0]), axes=[2])
        given = None if initial is None else initial if isinstance(initial, tuple | list) else (initial,)
        last: list[list[Symbol]] = [[] for _ in range(self.state_count)]
        for layer in range(self.layers):
            outputs = []
            for direction in range(self.directions):
                number = layer * self.directions + direction
                states = [self._zero(x)] * self.state_count if given is None else [each[number] for each in given]
                suffix = f"_{layer}" + ("_reverse" if direction else "")
                out, *new = self._run(x, within, states, self._weights(suffix, x), bool(direction))
                outputs.append(out)
                for each, state in zip(last, new, strict=True):
                    each.append(state)
            x = outputs[0] if len(outputs) == 1 else op_function("concat")(outputs, axis=2)
            if layer < self.layers - 1:
                x = self.dropout(x)
        stacked = [op_function("stack")(each) for each in last]
        out = x if self.time_first else op_function("transpose")(x, axes=[1, 0, 2])
        kind = type(self).__name__
        last_ones = stacked[0] if len(stacked) == 1 else Results.of(kind, ("h", "c"), stacked, "states")
        return Results.of(kind, ("out", "states"), [out, last_ones], "layer(...)")

    if TYPE_CHECKING:
        __call__ = forward

    def _zero(self, x: Symbol) -> Symbol:
        """A state of zeros for x [time, batch, inputs]."""
        attrs = {"shape": [-1, self.hidden], "dtype": x.dtype, "input_dim": 1, "output_dim": 0}
        return op_function("fill_constant_batch_size_like")(x, **attrs)

    def _weights(self, suffix: str, x: Symbol) -> list[Symbol]:
        rows, inputs = self.gates * self.hidden, size_of(x, -1)
        return [
            self.parameter(f"weight_x{suffix}", [rows, inputs], x),
            self.parameter(f"weight_h{suffix}", [rows, self.hidden], x),
            self.parameter(f"bias_x{suffix}", [rows], x, "zeros"),
            self.parameter(f"bias_h{suffix}", [rows], x, "zeros"),
        ]

    def _run(
        self, x: Symbol, within: Symbol | None, states: Sequence[Symbol], weights: Sequence[Symbol], reverse: bool
    ) -> list[Symbol]:
        """[outputs, *last states] of one direction of one layer. within: [time, batch, 1], false after the ends."""
        if within is None:
            return list(op_function(self.op)(x, *states, *weights, reverse=reverse))
        cell, where = op_function(f"{self.op}_cell"), op_function("where")

        def step(before: list[Symbol], seen: tuple[Symbol, Symbol]) -> tuple[list[Symbol], Symbol]:
            element, live = seen
            found = cell(element, *before, *weights)
            new = found if isinstance(found, tuple) else (found,)
            kept = [where(live, after, old) for after, old in zip(new, before, strict=True)]
            return kept, where(live, kept[0], 0.0)

        last, out = scan(step, list(states), (x, within), reverse=reverse)
        return [out, *last]


class LSTM(_Recurrent):
    """Long short-term memory over x [batch, time, inputs]: see `lstm_cell`. Its states are (h, c)."""

    op, gates, state_count = "lstm", 4, 2


class GRU(_Recurrent):
    """Gated recurrent units over x [batch, time, inputs]: see `gru_cell`."""

    op, gates, state_count = "gru", 3, 1


class RNN(_Recurrent):
    """``h = tanh(...)`` over x [batch, time, inputs]: see `rnn_cell`."""

    op, gates, state_count = "rnn", 1, 1
