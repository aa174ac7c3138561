"""The losses of bench/classes/spectra.py in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

__all__ = ["LOSSES"]

Tensors = dict[str, torch.Tensor]


def fourier_operator(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    def spectral(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        modes = w.shape[-1]
        z = torch.fft.rfft2(h)
        low, high = z[:, :, :modes, :modes], z[:, :, -modes:, :modes]
        out = torch.zeros_like(z)
        out[:, :, :modes, :modes] = torch.einsum("bixy,ioxy->boxy", low, w[:, :, :modes])
        out[:, :, -modes:, :modes] = torch.einsum("bixy,ioxy->boxy", high, w[:, :, modes:])
        return torch.fft.irfft2(out, s=h.shape[-2:])

    h = torch.einsum("bixy,io->boxy", feeds["x"], p["up"])
    for i in range(len(p) // 4):
        mixed = torch.einsum("bixy,io->boxy", h, p[f"w{i}"])
        h = F.gelu(spectral(h, torch.complex(p[f"re{i}"], p[f"im{i}"])) + mixed + p[f"b{i}"])
    return F.mse_loss(torch.einsum("bixy,io->boxy", h, p["down"]), feeds["y"])


def spectrograms(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    h = F.conv1d(feeds["x"], p["w1"], padding=4).tanh()
    made_up = F.conv1d(h, p["w2"], padding=4)[:, 0]

    def magnitudes(x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        n = len(window)
        z = torch.stft(x, n, n // 4, window=window, center=False, return_complex=True)
        return (torch.view_as_real(z).square().sum(-1) + 1e-6).sqrt()

    total = F.l1_loss(made_up, feeds["y"])
    for window in (each for name, each in feeds.items() if name.startswith("window")):
        found, wanted = magnitudes(made_up, window), magnitudes(feeds["y"], window)
        total = total + F.l1_loss(found, wanted) + F.l1_loss(found.log(), wanted.log())
    return total


LOSSES = {"fourier_operator": fourier_operator, "spectrograms": spectrograms}
