"""Feeds, parameters, states and constants, declared where they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from backpass_client.builder.build import current_builder
from backpass_client.builder.symbol import Symbol
from backpass_client.builder.types import Dtype, DtypeLike, InvalidOp, Type, as_dtype, same_sizes

__all__ = ["constant", "feed", "parameter", "scope", "state", "typed", "update"]


def feed(name: str, type: Type | Dtype) -> Symbol:
    """Declare a feed, which comes with each step."""
    return current_builder("a feed").feed(name, _type(type))


def parameter(
    name: str,
    shape: int | Sequence[int] | Type | Dtype = (),
    *,
    dtype: DtypeLike = "float32",
    init: Any = None,
    trainable: bool = True,
) -> Symbol:
    """Declare a parameter, from any place of the program.

    shape:     its sizes, one of a vector, or a type such as ``bp.f64[3]``, or ``bp.f64`` for one number.
    init:      its first values: an array; a number; or an initializer, such as "he_normal" or
               ``{"type": "normal", "std": 0.02}``. By default the ops that read it decide.
    trainable: whether training changes it.
    """
    return current_builder("a parameter").parameter(name, _leaf_type(shape, dtype), init, trainable)


def state(
    name: str, shape: int | Sequence[int] | Type | Dtype = (), *, dtype: DtypeLike = "float32", init: Any = 0.0
) -> Symbol:
    """Declare a state, which keeps its value from step to step until `update` changes it. See `parameter`."""
    return current_builder("a state").parameter(name, _leaf_type(shape, dtype), init, True, role="state")


def update(state: Symbol, value: Any) -> Symbol:
    """Let `state` have `value` in the next step. This step reads its old value, also after this line."""
    b = current_builder("an update")
    b.operand(state)
    leaf = b.leaves.get(state.name.text)
    if leaf is None or leaf.role != "state":
        raise InvalidOp(f"{state!r} is not a state")
    if state.name.text in b.updates:
        raise InvalidOp(f"the state {state.name.text!r} is updated twice")
    new = b.operand(value)
    if b.block is not b.root:
        raise InvalidOp(
            f"the state {state.name.text!r} is updated in {b.block.title}: return the value and update outside"
        )
    if new.type.is_known and (
        new.type.dtype != state.type.dtype
        or new.type.rank != state.type.rank
        or not all(map(same_sizes, new.type.dims, state.type.dims))
    ):
        raise InvalidOp(f"the state {state.name.text!r} is {state.type} and cannot become {new.type}")
    b.updates[state.name.text] = new
    return new


def constant(value: Any, dtype: DtypeLike | None = None) -> Symbol:
    """A number or array as a constant. Python's floats become float32, and its integers int64."""
    return current_builder("a constant").constant(value, None if dtype is None else as_dtype(dtype).name)


def typed(x: Symbol, type: Type | Dtype) -> Symbol:
    """`x`, whose type the client does not know. The service checks the type."""
    return x.builder.typed(x, _type(type))


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Names of variables written inside start with `name` and a full stop."""
    with current_builder("a scope").scope(name):
        yield


def _type(type: Type | Dtype) -> Type:
    if not isinstance(type, Type | Dtype):
        raise InvalidOp(f"a type is written as bp.f32['batch', 3], not {type!r}")
    return Type(type.name, ()) if isinstance(type, Dtype) else type


def _leaf_type(shape: int | Sequence[int] | Type | Dtype, dtype: DtypeLike) -> Type:
    if isinstance(shape, Type | Dtype):
        return _type(shape)
    return as_dtype(dtype)[(shape,) if isinstance(shape, int | np.integer) else tuple(shape)]
