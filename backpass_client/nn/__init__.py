"""Layers of neural networks for programs, each a few lines over the ops.

    @bp.program
    def classifier(x: bp.f32["batch", 784], label: bp.i64["batch"]):
        h = bp.relu(bp.nn.Linear(256)(x))
        logits = bp.nn.Linear(10)(h)
        return {"loss": bp.softmax_with_cross_entropy(logits, label, reduction="mean"), "logits": logits}

A layer declares its parameters where it is first called in a program, in a scope of its own; a second call shares them.
Files: layer (the base), linear, convolution, norms, recurrent, attention.
"""

from __future__ import annotations

from backpass_client.nn.attention import MultiHeadAttention, TransformerBlock
from backpass_client.nn.convolution import Conv
from backpass_client.nn.layer import Layer
from backpass_client.nn.linear import Dropout, Embedding, Linear
from backpass_client.nn.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from backpass_client.nn.recurrent import GRU, LSTM, RNN

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BatchNorm",
    "Conv",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "InstanceNorm",
    "Layer",
    "LayerNorm",
    "Linear",
    "MultiHeadAttention",
    "RMSNorm",
    "TransformerBlock",
]
