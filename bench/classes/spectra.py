"""Nets and losses on frequencies."""

from __future__ import annotations

import numpy as np

import backpass_client as bp
from bench.classes.made import Symbols, made, normal, zeros
from bench.workload import Workload

__all__ = ["WORKLOADS", "fourier_operator", "spectrograms"]


def fourier_operator(batch: int = 8, size: int = 64, width: int = 16, modes: int = 12, layers: int = 2) -> Workload:
    """A Fourier neural operator on a square: each layer mixes the channels of the lowest frequencies and of every point
    (Li et al. 2021)."""
    rng = np.random.default_rng(80)
    feeds = {"x": normal(rng, batch, 1, size, size), "y": normal(rng, batch, 1, size, size)}
    parameters = {"up": normal(rng, 1, width), "down": normal(rng, width, 1, scale=width**-0.5)}
    for i in range(layers):
        for part in ("re", "im"):
            parameters[f"{part}{i}"] = normal(rng, width, width, 2 * modes, modes, scale=1 / width)
        parameters[f"w{i}"] = normal(rng, width, width, scale=width**-0.5)
        parameters[f"b{i}"] = zeros(width, 1, 1)

    def spectral(h: bp.Symbol, re: bp.Symbol, im: bp.Symbol) -> bp.Symbol:
        z = bp.fft(bp.rfft(h, axis=3)[:, :, :, :modes], axis=2)
        z = bp.concat([z[:, :, :modes], z[:, :, -modes:]], axis=2)
        a, b = z[..., 0], z[..., 1]
        mixed = lambda x, w: bp.einsum([x, w], equation="bixy,ioxy->boxy")
        z = bp.stack([mixed(a, re) - mixed(b, im), mixed(a, im) + mixed(b, re)], axis=4)
        between = bp.fill_constant(shape=[batch, width, size - 2 * modes, modes, 2], value=0.0)
        z = bp.fft(bp.concat([z[:, :, :modes], between, z[:, :, modes:]], axis=2), axis=2, inverse=True)
        return bp.irfft(z, n=size, axis=3)

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h = bp.einsum([given["x"], p["up"]], equation="bixy,io->boxy")
        for i in range(layers):
            mixed = bp.einsum([h, p[f"w{i}"]], equation="bixy,io->boxy")
            h = bp.gelu(spectral(h, p[f"re{i}"], p[f"im{i}"]) + mixed + p[f"b{i}"])
        return bp.mse_loss(bp.einsum([h, p["down"]], equation="bixy,io->boxy"), given["y"])

    return made("fourier_operator", loss, feeds, parameters)


def spectrograms(
    batch: int = 8, time: int = 8192, width: int = 16, frames: tuple[int, ...] = (1024, 512, 240)
) -> Workload:
    """A filter that learns a signal from its spectrograms of several resolutions: the distances of magnitudes and of
    their logarithms (Yamamoto et al. 2020)."""
    rng = np.random.default_rng(81)
    feeds = {"x": normal(rng, batch, 1, time), "y": normal(rng, batch, time)}
    feeds |= {f"window{n}": np.hanning(n).astype("float32") for n in frames}
    parameters = {"w1": normal(rng, width, 1, 9, scale=1 / 3), "w2": normal(rng, 1, width, 9, scale=width**-0.5 / 3)}

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h = bp.tanh(bp.conv1d(given["x"], p["w1"], paddings=[4]))
        made_up = bp.conv1d(h, p["w2"], paddings=[4])[:, 0]

        def magnitudes(x: bp.Symbol, n: int) -> bp.Symbol:
            z = bp.stft(x, given[f"window{n}"], frame_length=n, hop_length=n // 4)
            return bp.sqrt(bp.square(z).sum(-1) + 1e-6)

        total = bp.l1_loss(made_up, given["y"])
        for n in frames:
            found, wanted = magnitudes(made_up, n), magnitudes(given["y"], n)
            total = total + bp.l1_loss(found, wanted) + bp.l1_loss(bp.log(found), bp.log(wanted))
        return total

    return made("spectrograms", loss, feeds, parameters)


WORKLOADS = {"fourier_operator": fourier_operator, "spectrograms": spectrograms}
