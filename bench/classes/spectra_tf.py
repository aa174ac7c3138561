"""The losses of bench/classes/spectra.py in TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["LOSSES"]


def fourier_operator(p: Any, feeds: Any) -> Any:
    def spectral(h: Any, w: Any) -> Any:
        modes, size = w.shape[-1], h.shape[-1]
        z = tf.signal.rfft2d(h)
        kept = tf.concat([z[:, :, :modes, :modes], z[:, :, -modes:, :modes]], 2)
        kept = tf.einsum("bixy,ioxy->boxy", kept, w)
        rows = [[0, 0], [0, 0], [0, size - 2 * modes], [0, 0]]
        out = tf.concat([tf.pad(kept[:, :, :modes], rows), kept[:, :, modes:]], 2)
        out = tf.pad(out, [[0, 0], [0, 0], [0, 0], [0, size // 2 + 1 - modes]])
        return tf.signal.irfft2d(out, h.shape[-2:])

    h = tf.einsum("bixy,io->boxy", feeds["x"], p["up"])
    for i in range(len(p) // 4):
        mixed = tf.einsum("bixy,io->boxy", h, p[f"w{i}"])
        h = tf.nn.gelu(spectral(h, tf.complex(p[f"re{i}"], p[f"im{i}"])) + mixed + p[f"b{i}"])
    return tf.reduce_mean(tf.square(tf.einsum("bixy,io->boxy", h, p["down"]) - feeds["y"]))


def spectrograms(p: Any, feeds: Any) -> Any:
    filtered = lambda x, w: tf.nn.conv1d(x, tf.transpose(w, [2, 1, 0]), 1, "SAME")
    made_up = filtered(tf.tanh(filtered(tf.transpose(feeds["x"], [0, 2, 1]), p["w1"])), p["w2"])[:, :, 0]

    def magnitudes(x: Any, window: Any) -> Any:
        n = window.shape[0]
        z = tf.signal.rfft(tf.signal.frame(x, n, n // 4) * window)
        return tf.sqrt(tf.square(tf.math.real(z)) + tf.square(tf.math.imag(z)) + 1e-6)

    mean_distance = lambda a, b: tf.reduce_mean(tf.abs(a - b))
    total = mean_distance(made_up, feeds["y"])
    for window in (each for name, each in feeds.items() if name.startswith("window")):
        found, wanted = magnitudes(made_up, window), magnitudes(feeds["y"], window)
        total += mean_distance(found, wanted) + mean_distance(tf.math.log(found), tf.math.log(wanted))
    return total


LOSSES = {"fourier_operator": fourier_operator, "spectrograms": spectrograms}
