"""Models of torch, torchvision and transformers with small sizes and random weights.

A case is a module in training mode whose outputs can be compared with a target, its example inputs, and the targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["CASES", "Case", "Logits", "loss_of", "vision_models"]


@dataclass(frozen=True)
class Case:
    """module: the model. inputs: its arguments. loss: kind of the loss. label: its targets."""

    module: nn.Module
    inputs: tuple[Any, ...]
    loss: str
    label: Tensor
    dynamic: Any = None


def loss_of(case: Case, outputs: Tensor) -> Tensor:
    """The loss of the case in torch."""
    function = {"cross_entropy": nn.functional.cross_entropy, "mse": nn.functional.mse_loss}[case.loss]
    return function(outputs, case.label)


class UNet(nn.Module):
    """Two levels down and up again, with skips, transposed convolutions and bilinear upsampling."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = self._double(3, width)
        self.down = nn.Sequential(nn.MaxPool2d(2), self._double(width, 2 * width))
        self.bottom = nn.Sequential(nn.MaxPool2d(2), self._double(2 * width, 4 * width))
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.joined = self._double(4 * width, 2 * width)
        self.upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.last = self._double(3 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _double(inner: int, outer: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inner, outer, 3, padding=1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, padding=1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.down(a)
        c = self.bottom(b)
        b = self.joined(torch.cat([self.up(c), b], 1))
        return self.head(self.last(torch.cat([self.upsample(b), a], 1)))


class Recurrent(nn.Module):
    """An LSTM or GRU over padded sequences; the last valid state of each is classified."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6, padding_idx=0)
        self.rnn = getattr(nn, kind)(6, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        states, _ = self.rnn(self.embedding(tokens))
        mask = (torch.arange(tokens.shape[1])[None] < lengths[:, None]).unsqueeze(-1)
        return self.head((states * mask).sum(1) / lengths[:, None])


class EncoderDecoder(nn.Module):
    """`nn.Transformer` between embeddings, with a causal mask; the head shares the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(24, 16)
        self.place = nn.Parameter(torch.randn(1, 10, 16) * 0.1)
        self.transformer = nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 24, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        source = self.embedding(source) + self.place[:, : source.shape[1]]
        target = self.embedding(target) + self.place[:, : target.shape[1]]
        states = self.transformer(source, target, tgt_mask=mask, tgt_is_causal=True)
        return self.head(states).transpose(1, 2)


class Branching(nn.Module):
    """A `torch.cond` and a `while_loop` over a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 5)
        self.b = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        from torch._higher_order_ops.while_loop import while_loop

        x = torch.cond(x.sum() > 0, lambda x: torch.tanh(self.a(x)), lambda x: torch.sin(self.b(x)), (x,))

        def going(i: Tensor, h: Tensor) -> Tensor:
            return i < 3

        def body(i: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, torch.tanh(h @ self.a.weight + self.b.bias)

        _, h = while_loop(going, body, (torch.tensor(0), x))
        return h


def _classes(batch: int, classes: int, *more: int) -> Tensor:
    return torch.randint(0, classes, (batch, *more))


def vision_models() -> Any:
    """`torchvision.models`. The models also work with a build of torchvision for another variant of torch, whose own
    operators cannot be loaded; but its import wants their schemas."""
    global _library
    if _library is None:
        _library = torch.library.Library("torchvision", "FRAGMENT")
    try:
        import torchvision.models as models
    except RuntimeError:
        for name in ("nms", "qnms"):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision.models as models
    return models


_library: torch.library.Library | None = None  # definitions last as long as it


def resnet18() -> Case:
    resnet18 = vision_models().resnet18
    return Case(resnet18(num_classes=10), (torch.randn(8, 3, 64, 64),), "cross_entropy", _classes(8, 10))


def mobilenet_v3() -> Case:
    module = vision_models().mobilenet_v3_small(num_classes=10, dropout=0.0)
    return Case(module, (torch.randn(4, 3, 64, 64),), "cross_entropy", _classes(4, 10))


def vit() -> Case:
    module = vision_models().VisionTransformer(16, 4, 2, 2, 32, 64, num_classes=10)
    nn.init.normal_(module.heads.head.weight, std=0.02)
    return Case(module, (torch.randn(4, 3, 16, 16),), "cross_entropy", _classes(4, 10))


def unet() -> Case:
    return Case(UNet(), (torch.randn(2, 3, 16, 16),), "cross_entropy", _classes(2, 2, 16, 16))


def lstm() -> Case:
    return Case(
        Recurrent("LSTM"), (torch.randint(1, 20, (4, 7)), torch.tensor([7, 3, 5, 1])), "cross_entropy", _classes(4, 3)
    )


def gru() -> Case:
    return Case(
        Recurrent("GRU"), (torch.randint(1, 20, (4, 7)), torch.tensor([7, 3, 5, 1])), "cross_entropy", _classes(4, 3)
    )


def transformer() -> Case:
    inputs = (torch.randint(0, 24, (3, 8)), torch.randint(0, 24, (3, 6)))
    return Case(EncoderDecoder(), inputs, "cross_entropy", _classes(3, 24, 6))


class Logits(nn.Module):
    """The logits of a model of transformers, with the classes on axis 1."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.model(input_ids=tokens).logits
        return logits.transpose(1, 2) if logits.ndim == 3 else logits


def gpt2() -> Case:
    vision_models()  # transformers imports it
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return Case(Logits(GPT2LMHeadModel(config)), (torch.randint(0, 50, (2, 12)),), "cross_entropy", _classes(2, 50, 12))


def bert() -> Case:
    vision_models()
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    return Case(Logits(model), (torch.randint(0, 50, (4, 12)),), "cross_entropy", _classes(4, 3))


def control_flow() -> Case:
    return Case(Branching(), (torch.randn(2, 5) + 0.5,), "mse", torch.randn(2, 5))


CASES: dict[str, Callable[[], Case]] = {
    each.__name__: each
    for each in (resnet18, mobilenet_v3, vit, unet, lstm, gru, transformer, gpt2, bert, control_flow)
}
