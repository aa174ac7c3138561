"""Layers of neural networks for programs, each a few lines over the ops.

    @bp.program
    def classifier(x: bp.f32["batch", 784], label: bp.i64["batch"]):
        h = bp.relu(bp.nn.Linear(256)(x))
        logits = bp.nn.Linear(10)(h)
        return {"loss": bp.softmax_with_cross_entropy(logits, label, reduction="mean"), "logits": logits}

A layer declares its parameters where it is first called in a program, in a scope of its own; a second call shares them.
Activations, losses and pooling have no parameters: they are ops, functions of the package.
Files: layer (the base), linear, convolution, norms, recurrent, attention.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from backpass_client.foreign_names import FOREIGN_NAMES
from backpass_client.nn.attention import MultiHeadAttention, TransformerBlock
from backpass_client.nn.convolution import Conv, ConvTranspose
from backpass_client.nn.layer import Layer
from backpass_client.nn.linear import Dropout, Embedding, Linear
from backpass_client.nn.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from backpass_client.nn.recurrent import GRU, LSTM, RNN
from backpass_client.op_table import hint_for

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BatchNorm",
    "Conv",
    "ConvTranspose",
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

OTHER_NAMES = {
    "Module": "did you mean Layer?",
    "ModuleList": "a Python list holds layers",
    "ParameterList": "a Python list holds parameters",
    "Sequential": "call one layer after the other",
    "Parameter": "did you mean backpass_client.parameter?",
    "Dense": "did you mean Linear?",
    "Transformer": "did you mean TransformerBlock?",
    "TransformerEncoder": "did you mean TransformerBlock, several times?",
    "TransformerEncoderLayer": "did you mean TransformerBlock?",
    "functional": FOREIGN_NAMES["functional"],
    "init": FOREIGN_NAMES["init"],
    "utils": "clipping is a setting of a session: clip_norm=1.0",
}
"""Names of other libraries that are no ops."""

if not TYPE_CHECKING:  # a type checker knows the names that exist

    def __getattr__(name: str) -> NoReturn:
        """Raises AttributeError, which names the layer or op that `name` of another library means."""
        hint = "" if name.startswith("_") else _hint(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint and '; '}{hint}")


def layer_of(name: str) -> str:
    """The layer that `name`, such as Conv2d, means in other libraries; empty for none."""
    layer = re.sub(r"[123][dD]$", "", name)
    return layer if layer in __all__ and layer != "Layer" else ""


def _hint(name: str) -> str:
    if layer := layer_of(name):
        return f"did you mean {layer}? It takes the sizes of its input from its input"
    op = hint_for(name)
    return OTHER_NAMES.get(name) or (op and f"layers without parameters are ops: {op}")
