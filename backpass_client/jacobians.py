"""Products with Jacobians and Hessians, and these matrices, of Python functions.

All are gradients of gradients (`grad`), on a tape and in programs. Names are those of JAX; as with `grad`, the function
comes first and its arguments later: ``jvp(f)(x, v)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from backpass_client.builder.build import Builder
from backpass_client.builder.loops import scan
from backpass_client.builder.symbol import Symbol
from backpass_client.builder.trees import flattened, labels, like
from backpass_client.builder.types import same_sizes
from backpass_client.differentiate import grad, is_recorded, leaf, recording_gradients
from backpass_client.expression import Expression
from backpass_client.recorder import apply, current_recorder

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vjp"]

Function = Callable[..., Any]


def vjp(f: Function, argnum: int = 0) -> Function:
    """(value, product of a cotangent and the Jacobian) of `f` with respect to argument `argnum`.

    The result takes the arguments of `f`, then the cotangent, of the shape of the value: ``vjp(f)(x, ct)``. The product
    has the shape of the argument, or its structure (see `grad`).
    """

    @wraps(f)
    def product(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        given, cotangent = _divided(args, "a cotangent")
        values = []

        def weighted(*each: Any) -> Any:
            values.append(f(*each, **kwargs))
            return _total(values[-1], cotangent, "the cotangent", "the value")

        slope = grad(weighted, argnum)(*given)
        return _given_back(values[-1], given[argnum]), slope

    return product


def jvp(f: Function, argnum: int = 0) -> Function:
    """(value, product of the Jacobian and a tangent) of `f` with respect to argument `argnum`: the derivative of the
    value along a direction.

    The result takes the arguments of `f`, then the tangent, of the shape of the argument: ``jvp(f)(x, v)``. The product
    has the shape of the value. A product of a cotangent and the Jacobian is linear in the cotangent, and its gradient
    by the cotangent is the product with the tangent.
    """

    @wraps(f)
    def product(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        given, tangent = _divided(args, "a tangent")
        on_tape = not isinstance(current_recorder.get(), Builder)
        own = [leaf(x) if on_tape and i == argnum else x for i, x in enumerate(given)]
        with recording_gradients():
            value = f(*own, **kwargs)
        zeros = [np.zeros(x.shape, x.dtype) if on_tape else apply("zeros_like", [x], {}) for x in flattened(value)]

        def along(cotangent: Any) -> Any:
            _, slope = vjp(f, argnum)(*given, cotangent, **kwargs)
            return _total(slope, tangent, "the tangent", "the argument")

        with recording_gradients():
            found = grad(along)(like(value, zeros))
        return _given_back(value, given[argnum]), _given_back(found, given[argnum])

    return product


def hvp(f: Function, argnum: int = 0) -> Function:
    """The product of the Hessian of `f` and a vector, without the Hessian.

    f: returns a scalar.
    The result takes the arguments of `f`, then the vector, of the shape or structure of the argument: ``hvp(f)(x, v)``.
    """

    @wraps(f)
    def product(*args: Any, **kwargs: Any) -> Any:
        given, vector = _divided(args, "a vector")

        def slope(*each: Any) -> Any:
            return _total(grad(f, argnum)(*each, **kwargs), vector, "the vector", "the argument")

        return grad(slope, argnum)(*given)

    return product


def jacobian(f: Function, argnum: int = 0) -> Function:
    """All derivatives of the value of `f` by argument `argnum`, both arrays: [*value, *argument].

    In a program, a loop computes one row after the other, and draws the random numbers of `f` again for each. There all
    sizes of a value with more than one axis must be known. On a tape it is an array or an expression, as `grad` is.
    Raises TypeError if the value or the argument is not one array.
    """

    @wraps(f)
    def rows(*args: Any, **kwargs: Any) -> Any:
        if not 0 <= argnum < len(args):
            raise TypeError(f"cannot differentiate argument {argnum}: f got {len(args)} positional arguments")
        recorder = current_recorder.get()
        if isinstance(recorder, Builder):
            return _rows_in_program(recorder, f, argnum, args, kwargs)
        return _rows_on_tape(f, argnum, args, kwargs)

    return rows


def hessian(f: Function, argnum: int = 0) -> Function:
    """All second derivatives of `f` by argument `argnum`, an array: [*argument, *argument]. f: returns a scalar.

    See `jacobian` for what it needs.
    """
    return jacobian(grad(f, argnum), argnum)


def _divided(args: tuple[Any, ...], wanted: str) -> tuple[tuple[Any, ...], Any]:
    if len(args) < 2:
        raise TypeError(f"takes the arguments of the function, then {wanted}: got {len(args)} arguments")
    return args[:-1], args[-1]


def _total(values: Any, weights: Any, given: str, of: str) -> Any:
    """The sum of all elements of `values` times `weights`, two trees of one structure.

    given, of: their nouns, for errors. Raises TypeError if structures or shapes differ.
    """
    places, weight_of = labels(values), dict(zip(labels(weights), flattened(weights), strict=True))
    if not places or len(places) != len(labels(weights)) or {*places} != weight_of.keys():
        wanted, got = ", ".join(places), ", ".join(weight_of)
        raise TypeError(f"{given} must have the structure of {of}: ({wanted}), not ({got})")
    total = None
    for place, value in zip(places, flattened(values), strict=True):
        weight = weight_of[place]
        if not _has_shape_of(value, weight):
            raise TypeError(f"{given} must have the shape of {of}, {value!r}, not {weight!r}")
        part = (value * weight).sum()
        total = part if total is None else total + part
    return total


def _has_shape_of(value: Any, weight: Any) -> bool:
    """Whether the shapes are equal, as far as they are known: a product would repeat the smaller array."""
    shapes = [x.shape if isinstance(x, Symbol | Expression) else np.shape(x) for x in (value, weight)]
    if None in shapes:
        return True
    return len(shapes[0]) == len(shapes[1]) and all(map(same_sizes, *shapes))


def _rows_in_program(b: Builder, f: Function, argnum: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, value = (_one_array(each, what) for each, what in ((args[argnum], "argument"), (f(*args, **kwargs), "value")))
    shape = value.type.shape
    if shape is None or (len(shape) > 1 and not all(isinstance(n, int) for n in shape)):
        raise TypeError(f"the sizes of the value {value!r} must be known, or it must be a vector")
    if all(isinstance(n, int) for n in shape):
        places = b.operand(np.arange(math.prod(shape)))
    else:
        places = b.call("dynamic_range", (0, b.call("size", (value,), {}), 1), {})

    def row(_: Any, place: Symbol) -> tuple[tuple[()], Any]:
        def element(*each: Any) -> Any:
            flat = f(*each, **kwargs).reshape(-1)
            return (flat * b.call("cast", (b.call("equal", (places, place), {}),), {"dtype": flat.dtype})).sum()

        return (), grad(element, argnum)(*args)

    _, found = scan(row, (), places, name="jacobian")
    return found if len(shape) == 1 else found.reshape(*shape, *x.shape)


def _rows_on_tape(f: Function, argnum: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = leaf(args[argnum])
    with recording_gradients():
        value = _one_array(f(*args[:argnum], x, *args[argnum + 1 :], **kwargs), "value")
    flat, zeros = apply("reshape", [value], {"shape": [-1]}), apply("zeros_like", [x], {})
    slopes = [value.tape.record_gradients(flat[i], [x])[0] for i in range(math.prod(value.shape))]
    rows = apply("stack", [zeros if each is None else each for each in slopes], {"axis": 0})
    found = apply("reshape", [rows], {"shape": [*value.shape, *x.shape]})
    return _given_back(found, args[argnum])


def _given_back(x: Any, argument: Any) -> Any:
    """`x` itself, or its array if it is an expression on a tape and no `grad` around it or `argument` needs that."""
    return x.value if isinstance(x, Expression) and not is_recorded(argument) else x


def _one_array(x: Any, what: str) -> Any:
    if not isinstance(x, Symbol | Expression):
        raise TypeError(f"the {what} must be one array, not a {type(x).__name__}; see vjp and jvp")
    return x
