"""TensorFlow: the function of `tf_function`, compiled by XLA."""

from __future__ import annotations

from functools import partial

from bench.peers import tf_function
from bench.peers.tf_function import start, versions

__all__ = ["Training", "start", "versions"]

Training = partial(tf_function.Training, compiled=True)
