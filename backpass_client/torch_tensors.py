"""Tensors of PyTorch as arrays, and arrays as the parameters and buffers of a module. torch is imported where used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from backpass_client.errors import BackpassError

__all__ = ["from_array", "load_into", "to_array"]


def to_array(tensor: Any) -> np.ndarray:
    """The elements of a tensor. bfloat16 needs `ml_dtypes`."""
    import torch

    held = tensor.detach().cpu().contiguous()
    if held.dtype != torch.bfloat16:
        return held.numpy()
    import ml_dtypes

    return held.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def from_array(array: np.ndarray) -> Any:
    """A tensor with these elements, on the CPU."""
    import torch

    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.name != "bfloat16":
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def load_into(module: Any, values: Mapping[str, np.ndarray]) -> None:
    """Copy `values` into the parameters and buffers of the module that have these names. The others stay.

    Raises BackpassError, before anything changes, if no name fits or a shape does not.
    """
    import torch

    held = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    known = {name: value for name, value in values.items() if name in held}
    if not known:
        raise BackpassError(
            f"none of the names {', '.join(list(values)[:5])} is a parameter or buffer of {type(module).__name__}"
        )
    wrong = [
        f"{name}: {list(value.shape)} in place of {list(held[name].shape)}"
        for name, value in known.items()
        if tuple(value.shape) != tuple(held[name].shape)
    ]
    if wrong:
        raise BackpassError(f"these shapes do not fit {type(module).__name__}: {'; '.join(wrong)}")
    with torch.no_grad():
        for name, value in known.items():
            held[name].copy_(from_array(value))
