"""Types of recurrent ops and of ops on sequences."""

from __future__ import annotations

from typing import Any

from backpass_client.builder.inference.rules import rule
from backpass_client.builder.inference.sizes import floats, integers, same_dtype, same_size
from backpass_client.builder.types import Type

__all__: list[str] = []


def _check_gates(x: Type, h: Type, weight_x: Type, weight_h: Type, gates: int) -> None:
    floats(x, h)
    same_dtype(x, h, weight_x, weight_h)
    same_size(x.dims[-1], weight_x.dims[1], "x and weight_x differ in their last size")
    same_size(h.dims[-1], weight_h.dims[1], "h and weight_h differ in their last size")
    hidden = h.dims[-1]
    if isinstance(hidden, int):
        same_size(weight_x.dims[0], gates * hidden, f"rows of weight_x, which must be {gates} times the hidden size")
        same_size(weight_h.dims[0], gates * hidden, f"rows of weight_h, which must be {gates} times the hidden size")


@rule("lstm")
def lstm(x: Type, h: Type, c: Type, weight_x: Type, weight_h: Type, *biases: Type | None, **a: Any) -> Any:
    _check_gates(x, h, weight_x, weight_h, 4)
    return Type(x.kind, (*x.dims[:2], h.dims[-1])), h, c


@rule("lstm_cell")
def lstm_cell(x: Type, h: Type, c: Type, weight_x: Type, weight_h: Type, *biases: Type | None, **a: Any) -> Any:
    _check_gates(x, h, weight_x, weight_h, 4)
    return h, c


@rule("gru")
def gru(x: Type, h: Type, weight_x: Type, weight_h: Type, *biases: Type | None, **attrs: Any) -> Any:
    _check_gates(x, h, weight_x, weight_h, 3)
    return Type(x.kind, (*x.dims[:2], h.dims[-1])), h


@rule("gru_cell")
def gru_cell(x: Type, h: Type, weight_x: Type, weight_h: Type, *biases: Type | None, **attrs: Any) -> Type:
    _check_gates(x, h, weight_x, weight_h, 3)
    return h


@rule("rnn")
def rnn(x: Type, h: Type, weight_x: Type, weight_h: Type, *biases: Type | None, **attrs: Any) -> Any:
    _check_gates(x, h, weight_x, weight_h, 1)
    return Type(x.kind, (*x.dims[:2], h.dims[-1])), h


@rule("rnn_cell")
def rnn_cell(x: Type, h: Type, weight_x: Type, weight_h: Type, *biases: Type | None, **attrs: Any) -> Type:
    _check_gates(x, h, weight_x, weight_h, 1)
    return h


@rule("sequence_mask")
def sequence_mask(lengths: Type, maxlen: int, dtype: str, **attrs: Any) -> Type:
    integers(lengths)
    return Type(dtype, (*lengths.dims, None if maxlen == -1 else maxlen))


@rule("steps_within")
def steps_within(x: Type, lengths: Type | None, **attrs: Any) -> Type:
    return Type("bool", x.dims[:2])


@rule("sequence_pool")
def sequence_pool(x: Type, lengths: Type, **attrs: Any) -> Type:
    return Type(x.kind, (lengths.dims[0], *x.dims[1:]))


@rule("sequence_softmax", "sequence_reverse")
def same_rows(x: Type, lengths: Type, **attrs: Any) -> Type:
    integers(lengths)
    return x


@rule("sequence_pad")
def sequence_pad(x: Type, lengths: Type, value: Type | None, padded_length: int, **attrs: Any) -> Type:
    time = None if padded_length == -1 else padded_length
    return Type(x.kind, (lengths.dims[0], time, *x.dims[1:]))


@rule("sequence_unpad")
def sequence_unpad(x: Type, lengths: Type, **attrs: Any) -> Type:
    return Type(x.kind, (None, *x.dims[2:]))


@rule("max_sequence_len")
def max_sequence_len(lengths: Type, **attrs: Any) -> Type:
    return Type("int64", ())


@rule("ctc_loss")
def ctc_loss(log_probs: Type, label: Type, *lengths: Type, reduction: str, **attrs: Any) -> Type:
    floats(log_probs)
    return Type(log_probs.kind, (log_probs.dims[1],) if reduction == "none" else ())


@rule("linear_chain_crf")
def linear_chain_crf(emission: Type, *others: Type | None, **attrs: Any) -> Type:
    return Type(emission.kind, emission.dims[:1])


@rule("crf_decoding")
def crf_decoding(emission: Type, *others: Type | None, **attrs: Any) -> Type:
    return Type("int64", emission.dims[:2])


@rule("viterbi_decode")
def viterbi_decode(emission: Type, *others: Type | None, **attrs: Any) -> tuple[Type, Type]:
    return Type(emission.kind, emission.dims[:1]), Type("int64", emission.dims[:2])
