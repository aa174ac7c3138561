"""The tape: it records the ops computed inside ``with Tape(...)`` and differentiates them.

An immediate tape sends each op at its call. A lazy tape collects ops and sends them together when the program reads a
value, a shape or a gradient. A variable of the service's tape is released, with the next request, once no Python
object depends on it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from contextvars import Token
from typing import Any, Literal, Self

import numpy as np

from backpass_client.arguments import slots_and_attributes, with_expanded_numbers
from backpass_client.connection import Service, quoted
from backpass_client.errors import BackpassError
from backpass_client.expression import Expression, Name, Playback, Recorder, current_tape
from backpass_client.idempotent_calls import IdempotentCalls
from backpass_client.results import Arrays, group
from backpass_client.variable import Variable

__all__ = ["Tape", "immediate", "lazy"]


class _Pending:
    """The next request: ops with the expressions they compute, and leaves with the variables they hold."""

    def __init__(self) -> None:
        self.ops: list[dict[str, Any]] = []
        self.outputs: list[list[weakref.ref[Expression]]] = []
        self.leaves: dict[str, np.ndarray] = {}
        self.variables: list[Variable] = []


class Tape:
    """A tape in the service. ``with Tape(url) as tape:`` makes it the current tape, and closes it at the end."""

    def __init__(
        self,
        service: Service | str,
        mode: Literal["immediate", "lazy"] = "immediate",
        *,
        seed: int = 0,
        lease_s: float | None = None,
    ) -> None:
        """seed: seed of random ops. lease_s: seconds without a call after which the service may close the tape."""
        self._owns_service = isinstance(service, str)
        self.service = Service(service) if isinstance(service, str) else service
        self.mode = mode
        self.generation = 0
        made = self.service.call("POST", "/v1/tapes", {"mode": mode, "seed": seed, "lease_s": lease_s})
        self.id: str = made["id"]
        self.path = f"/v1/tapes/{self.id}"
        self._calls = IdempotentCalls(self.service, self.path, made["next_seq"])
        self._count = 0
        self._renew = False
        self._pending = _Pending()
        self._dead: list[str] = []
        self._releasable: list[str] = []
        self._parameters: weakref.WeakSet[Name] = weakref.WeakSet()
        self._retained: weakref.WeakSet[Expression] = weakref.WeakSet()
        self._tokens: list[Token[Recorder | None]] = []

    def __enter__(self) -> Self:
        self._tokens.append(current_tape.set(self))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        current_tape.reset(self._tokens.pop())
        if not self._tokens:
            try:
                self.close()
            except BackpassError:
                if kind is None:  # otherwise it would hide the error raised in the block
                    raise

    def close(self) -> None:
        """Delete the tape in the service. Its expressions can compute nothing after that."""
        try:
            self.service.call("DELETE", self.path)
        finally:
            if self._owns_service:
                self.service.close()

    def renew(self) -> None:
        """Forget everything but the parameters, as DyNet's ``renew_cg`` does. Earlier expressions become unusable."""
        self._forget_pending()
        self._renew = True
        self.generation += 1
        self._releasable += self._dead  # no pending op can read them any more
        self._dead.clear()

    def view(self) -> dict[str, Any]:
        """The state of the tape: ops, bytes, lease, next sequence number."""
        return self.service.call("GET", self.path)

    def program(self) -> dict[str, Any]:
        """The tape as a program document."""
        self.flush()
        return self.service.call("GET", f"{self.path}/program")["program"]

    # --- writing -------------------------------------------------------------------------------------------------

    def call(self, type: str, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Append one op with Python's arguments: see `function`. Its output, or a tuple of them.

        Raises TypeError for an argument that the op does not have; and as `apply` does.
        """
        spec = self.service.op(type)
        given, attrs = slots_and_attributes(spec, inputs, named)
        return self.apply(type, with_expanded_numbers(given, spec, self._full_like), attrs)

    def _full_like(self, like: Expression, value: int | float) -> Any:
        return self.apply("full_like", {"x": like}, {"value": value})

    def apply(self, type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> Expression | tuple[Any, ...]:
        """Append one op; its output, or a tuple of them.

        inputs: slot -> an expression or array, or a list of them.
        Raises Refused with the place of the error: here if the tape is immediate, else when the ops are sent.
        """
        spec = self.service.op(type)
        names = {slot: [self.name_of(x) for x in _list(given)] for slot, given in inputs.items()}
        parents = tuple(name for each in names.values() for name in each)
        op: dict[str, Any] = {"type": type, "inputs": {s: [n.text for n in each] for s, each in names.items()}}
        if attrs:
            op["attrs"] = {name: _attribute(value) for name, value in attrs.items()}
        variadic = any(output["variadic"] for output in spec["outputs"])
        found: list[Expression] = []
        if not variadic:  # only the service knows the number of a variadic op's outputs
            found = [Expression(self, self._new(parents)) for _ in spec["outputs"]]
            op["outputs"] = {o["name"]: [e.name] for o, e in zip(spec["outputs"], found, strict=True)}
        self._pending.ops.append(op)
        self._pending.outputs.append([weakref.ref(e) for e in found])
        if variadic:
            said = self.flush()[-1]
            found = [
                Expression(self, self._existing(o["name"], parents)).describe(said["op"], o) for o in said["outputs"]
            ]
        elif self.mode == "immediate":
            self.flush()
        return found[0] if len(found) == 1 and not variadic else tuple(found)

    def name_of(self, value: Any) -> Name:
        """The name on the tape of an expression; an array becomes a constant leaf and gets a new name."""
        if isinstance(value, Variable):
            return value.bind(self)
        if isinstance(value, Expression):
            value.check_on(self)
            return value.named
        name = self._new((), "c")
        self._pending.leaves[f"constant/{name.text}"] = np.array(value)
        return name

    def put(self, variable: Expression, data: np.ndarray) -> Name:
        """Add a leaf that holds `data`, the value of `variable`. The next request sends it."""
        assert isinstance(variable, Variable)
        name = self._new((), variable.label or "v")
        name.variable = weakref.ref(variable)
        if variable.requires_grad:
            self._parameters.add(name)
        role = "parameter" if variable.requires_grad else "constant"
        self._pending.leaves[f"{role}/{name.text}"] = data
        self._pending.variables.append(variable)
        return name

    def flush(self, wanted: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Send the pending ops and leaves, and set the places, types and values that the service returns.

        wanted: names whose values the service must return.
        """
        pending = self._pending
        if not (pending.ops or pending.leaves or self._renew or wanted):
            return []
        # only names that died before the last flush: pending ops may read the others
        asked = {"ops": pending.ops, "release": self._releasable, "renew": self._renew}
        if wanted is not None:
            asked["return_values"] = list(wanted)
        try:
            said, tensors = self._calls.send("ops", asked, pending.leaves)
        except BaseException:
            self._forget_pending()
            raise
        self._pending, self._renew = _Pending(), False
        self._releasable = self._dead[:]
        del self._dead[: len(self._releasable)]
        values = group(tensors, "value")
        for op, expressions in zip(said["appended"], pending.outputs, strict=True):
            for output, reference in zip(op["outputs"], expressions, strict=False):
                expression = reference()
                if expression is not None:
                    expression.describe(op["op"], output)
                    expression.take(values.get(output["name"]))
        return said["appended"]

    def _forget_pending(self) -> None:
        for reference in (each for expressions in self._pending.outputs for each in expressions):
            expression = reference()
            if expression is not None:
                expression.lost = True
        for variable in self._pending.variables:
            self._parameters.discard(variable.named)
            variable.unbind()
        self._pending = _Pending()

    def _new(self, parents: tuple[Name, ...], hint: str = "e") -> Name:
        self._count += 1
        return self._existing(f"{hint}.{self._count}" if len(hint) > 1 else f"{hint}{self._count}", parents)

    def _existing(self, text: str, parents: tuple[Name, ...]) -> Name:
        name = Name(text, parents)
        weakref.finalize(name, self._dead.append, text).atexit = False
        return name

    # --- reading -------------------------------------------------------------------------------------------------

    def value(self, expression: Expression) -> np.ndarray:
        """The value of `expression`; a lazy tape computes it now."""
        expression.check_on(self)
        self.flush([expression.name] if self._pending.ops else None)
        if expression.taken is None:
            _, tensors = self.service.exchange("GET", f"{self.path}/values/{quoted(expression.name)}")
            expression.take(tensors["value"])
        assert expression.taken is not None
        return expression.taken

    def retain(self, expression: Expression) -> None:
        """Let backward passes set the `grad` of `expression`, as they do for variables."""
        expression.check_on(self)
        self._retained.add(expression)

    # --- gradients -----------------------------------------------------------------------------------------------

    def backward(self, target: Expression, gradient: Any = None) -> Playback:
        """Run the backward pass from `target`, and add each gradient to the `grad` of its variable.

        gradient: the cotangent of `target`; needed unless `target` is a scalar.
        """
        target_name = self.name_of(target).text  # first, because it may add a parameter
        owners: dict[str, Expression] = {e.name: e for e in self._retained if e.generation == self.generation}
        for each in self._parameters:
            variable = each.variable() if each.variable is not None else None
            if variable is not None:
                owners[each.text] = variable
        said, found = self._play_back(target, target_name, sorted(owners), gradient)
        for name, value in found.items():
            owners[name].add_grad(value)
        return Playback(
            said["played_back"],
            [(owners[each["variable"]], each["after"]) for each in said["final"]],
            said["ran"],
            [(owners[name], why) for name, why in said["missing"].items()],
            said["compiled"],
        )

    def gradients(self, target: Expression, wrt: Sequence[Expression], gradient: Any = None) -> list[np.ndarray | None]:
        """The gradients of `target` as arrays, without changing any `grad`; None where there is no gradient."""
        names = [self.name_of(x).text for x in wrt]
        _, found = self._play_back(target, self.name_of(target).text, names, gradient)
        return [found.get(name) for name in names]

    def record_gradients(
        self, target: Expression, wrt: Sequence[Expression], gradient: Expression | None = None
    ) -> list[Expression | None]:
        """The gradients of `target` as expressions, which can be differentiated; None where there is no gradient."""
        names = [self.name_of(x) for x in wrt]
        parents = (self.name_of(target), *names)
        asked: dict[str, Any] = {"target": parents[0].text, "record": True, "wrt": [name.text for name in names]}
        if gradient is not None:
            parents = (*parents, self.name_of(gradient))
            asked["target_gradient"] = parents[-1].text
        self.flush()
        said, tensors = self._calls.send("backward", asked, {})
        values = group(tensors, "value")
        written = {o["name"]: (op["op"], o) for op in said["appended"] for o in op["outputs"]}
        found: dict[str, Expression] = {}
        for variable, name in said["recorded"].items():
            found[variable] = Expression(self, self._existing(name, parents)).describe(*written[name])
            found[variable].take(values.get(name))
        return [found.get(name.text) for name in names]

    def _play_back(
        self, target: Expression, name: str, wrt: Sequence[str], gradient: Any
    ) -> tuple[dict[str, Any], Arrays]:
        """(JSON members of the response, gradients by name)."""
        given = {}
        if gradient is not None:
            array = gradient.value if isinstance(gradient, Expression) else gradient
            dtype = array.dtype if isinstance(array, np.ndarray) else target.dtype
            given["target_gradient"] = np.asarray(array, dtype)
        self.flush()
        asked = {"target": name, "wrt": wrt}
        said, tensors = self.service.exchange("POST", f"{self.path}/backward", asked, given, repeat=True)
        target.take(tensors.get("value"))
        return said, group(tensors, "grad")

    def __repr__(self) -> str:
        return f"Tape({self.service.url!r}, {self.mode!r})"


def immediate(service: Service | str, **settings: Any) -> Tape:
    """A tape that computes each op at its call."""
    return Tape(service, "immediate", **settings)


def lazy(service: Service | str, **settings: Any) -> Tape:
    """A tape that computes values when the program reads them."""
    return Tape(service, "lazy", **settings)


def _attribute(value: Any) -> Any:
    """`value` as the wire writes it: infinity is a string, because JSON has no number for it."""
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _list(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list | tuple) else [given]
