"""The losses of bench/classes/spectra.py in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["LOSSES"]


def fourier_operator(p: Any, feeds: Any) -> Any:
    def spectral(h: Any, w: Any) -> Any:
        modes = w.shape[-1]
        z = jnp.fft.rfft2(h)
        low, high = z[:, :, :modes, :modes], z[:, :, -modes:, :modes]
        out = jnp.zeros_like(z)
        out = out.at[:, :, :modes, :modes].set(jnp.einsum("bixy,ioxy->boxy", low, w[:, :, :modes]))
        out = out.at[:, :, -modes:, :modes].set(jnp.einsum("bixy,ioxy->boxy", high, w[:, :, modes:]))
        return jnp.fft.irfft2(out, s=h.shape[-2:])

    h = jnp.einsum("bixy,io->boxy", feeds["x"], p["up"])
    for i in range(len(p) // 4):
        mixed = jnp.einsum("bixy,io->boxy", h, p[f"w{i}"])
        h = jax.nn.gelu(spectral(h, p[f"re{i}"] + 1j * p[f"im{i}"]) + mixed + p[f"b{i}"], approximate=False)
    return jnp.square(jnp.einsum("bixy,io->boxy", h, p["down"]) - feeds["y"]).mean()


def spectrograms(p: Any, feeds: Any) -> Any:
    filtered = lambda x, w: jax.lax.conv_general_dilated(x, w, (1,), [(4, 4)], dimension_numbers=("NCH", "OIH", "NCH"))
    made_up = filtered(jnp.tanh(filtered(feeds["x"], p["w1"])), p["w2"])[:, 0]

    def magnitudes(x: Any, window: Any) -> Any:
        n = len(window)
        starts = jnp.arange((x.shape[1] - n) // (n // 4) + 1) * (n // 4)
        z = jnp.fft.rfft(x[:, starts[:, None] + jnp.arange(n)] * window)
        return jnp.sqrt(jnp.square(z.real) + jnp.square(z.imag) + 1e-6)

    total = jnp.abs(made_up - feeds["y"]).mean()
    for window in (each for name, each in feeds.items() if name.startswith("window")):
        found, wanted = magnitudes(made_up, window), magnitudes(feeds["y"], window)
        total += jnp.abs(found - wanted).mean() + jnp.abs(jnp.log(found) - jnp.log(wanted)).mean()
    return total


LOSSES = {"fourier_operator": fourier_operator, "spectrograms": spectrograms}
