"""The tape: it records the ops computed inside ``with Tape(...)`` and differentiates them.

An immediate tape sends each op at its call. A lazy tape collects ops and sends them together when the program reads a
value, a shape or a gradient. A variable of the service's tape is released, with the next request, once no Python
object depends on it.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from typing import Any, Literal, Self

import numpy as np

from backpass_client.arguments import Signature, attributes_as_json, misfit
from backpass_client.batch import Batch, Inputs, RecordedOp, Structures, document, in_stacks
from backpass_client.connection import Service, new_key, quoted
from backpass_client.errors import BackpassError, Refused
from backpass_client.expression import Expression, Playback, Recorder, current_tape
from backpass_client.idempotent_calls import IdempotentCalls
from backpass_client.names import Name, Names
from backpass_client.op_results import Results
from backpass_client.recorder import OpRecorder, current_recorder
from backpass_client.results import Arrays, group
from backpass_client.variable import Variable

__all__ = ["Tape", "immediate", "lazy"]


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
        asked = {"mode": mode, "seed": seed, "lease_s": lease_s}
        made = self.service.call("POST", "/v1/tapes", asked, headers=new_key())
        self.id: str = made["id"]
        self.path = f"/v1/tapes/{self.id}"
        self._calls = IdempotentCalls(self.service, self.path, made["next_seq"])
        self._signatures: dict[str, Signature] = {}
        self._structures = Structures()
        self._names = Names()
        self._renew = False
        self._batch = Batch(self, self.generation)
        self._parameters: weakref.WeakSet[Name] = weakref.WeakSet()
        self._retained: weakref.WeakSet[Expression] = weakref.WeakSet()
        self._tokens: list[tuple[Token[Recorder | None], Token[OpRecorder | None]]] = []

    def __enter__(self) -> Self:
        self._tokens.append((current_tape.set(self), current_recorder.set(self)))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        as_tape, as_recorder = self._tokens.pop()
        current_recorder.reset(as_recorder)
        current_tape.reset(as_tape)
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
        self.generation += 1
        self._forget_batch()
        self._names.renew()
        self._renew = True

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

        Raises TypeError for an argument that the op does not have, and Refused with the place of the error: here if
        the tape is immediate, else when the ops are sent.
        """
        signature = self._signatures.get(type) or self._signature(type)
        found = self._record(signature, inputs, named)
        if signature.is_variadic or self.mode == "immediate":
            self.flush()
        if signature.is_variadic:  # only the service knows the number of outputs
            batch, number, parents = found
            outputs = batch.appended[number]["outputs"]
            names = [self._names.existing(output["name"], parents) for output in outputs]
            expressions = [Expression(name, batch, number, i) for i, name in enumerate(names)]
            return Results.of(type, signature.outputs, expressions)
        return found

    def _signature(self, type: str) -> Signature:
        self._signatures[type] = Signature(self.service.op(type))
        return self._signatures[type]

    def _record(self, signature: Signature, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Add one op to the batch. Its output, or a tuple of them; of a variadic op (batch, number, parents)."""
        slots: Inputs
        attrs, batch = "", self._batch
        if (
            not named
            and signature.is_plain
            and len(inputs) <= len(signature.slots)
            and _ARRAYS.issuperset(map(type, inputs))
        ):
            parents = tuple(
                [x.named if x.__class__ is Expression and x._batch is batch else self.name_of(x) for x in inputs]
            )
            slots = tuple([name.text for name in parents])
        else:
            given, attributes = signature.arguments(inputs, named)
            operands = signature.with_constants(given, self)
            batch = self._batch  # another one if a constant needed the dtype of an expression
            names = [_each(self.name_of, operands.get(slot)) for slot in signature.slots]
            slots = tuple([_each(lambda name: name.text, each) for each in names])
            parents = tuple([name for each in names if each for name in (each if isinstance(each, tuple) else (each,))])
            attrs = json.dumps(attributes_as_json(signature.type, attributes)) if attributes else ""
        number = len(batch.ops)
        if signature.is_variadic:
            batch.ops.append((signature.type, slots, attrs, ()))
            return batch, number, parents
        if len(signature.outputs) == 1:
            name = self._names.new(parents)
            batch.ops.append((signature.type, slots, attrs, (name.text,)))
            return Expression(name, batch, number)
        written = [self._names.new(parents) for _ in signature.outputs]
        batch.ops.append((signature.type, slots, attrs, tuple([name.text for name in written])))
        expressions = [Expression(name, batch, number, i) for i, name in enumerate(written)]
        return Results.of(signature.type, signature.outputs, expressions)

    def full_like(self, like: Expression, value: int | float) -> Any:
        """An array of `value` with the shape and dtype of `like`."""
        if value != value:  # NaN cannot be an attribute
            return np.array(value, like.dtype)
        signature = self._signatures.get("full_like") or self._signature("full_like")
        return self._record(signature, [like], {"value": value})  # sent with the op that reads it

    def array_like(self, like: Expression | None, values: Any) -> np.ndarray:
        """A number or an array with the dtype of `like`. Raises TypeError for values that the dtype does not have."""
        if like is None:
            return np.array(values)
        wrong = misfit(values, like.dtype.name)
        if wrong is not None:
            raise TypeError(f"{wrong} is not a value of dtype {like.dtype.name}; bp.cast converts the other operand")
        return np.array(values, like.dtype)

    def name_of(self, value: Any) -> Name:
        """The name on the tape of an expression; an array becomes a constant leaf and gets a new name.

        Raises TypeError for anything that is no array of numbers.
        """
        if isinstance(value, Variable):
            return value.bind(self)
        if isinstance(value, Expression):
            value.check_on(self)
            return value.named
        array = np.array(value)
        if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
            raise TypeError(f"cannot use a {type(value).__name__} as an array: its elements are {array.dtype}")
        name = self._names.new((), "c")
        self._batch.leaves[f"constant/{name.text}"] = array
        return name

    def put(self, variable: Expression, data: np.ndarray) -> Name:
        """Add a leaf that holds `data`, the value of `variable`. The next request sends it."""
        assert isinstance(variable, Variable)
        name = variable.named if variable.owned_by(self) else None
        # ops of this generation may read the last value under its name, or a failed request may have left it there
        if name is None or not variable.requires_grad or name.used == self.generation:
            name = self._names.leaf(variable.label)
            name.variable = weakref.ref(variable)
        if variable.requires_grad:
            self._parameters.add(name)
        role = "parameter" if variable.requires_grad else "constant"
        self._batch.leaves[f"{role}/{name.text}"] = data
        self._batch.variables.append(variable)
        return name

    def flush(self, wanted: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Send the recorded ops and leaves, and set the places, types and values that the service returns.

        wanted: names whose values the service must return.
        """
        batch = self._batch
        if not (batch.ops or batch.leaves or self._renew or wanted):
            return []
        self._send({} if wanted is None else {"return_values": list(wanted)}, {})
        return batch.appended

    def _send(self, more: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], Arrays]:
        """Send the batch with further JSON members and tensors; (JSON members, tensors) of the response."""
        batch = self._batch
        asked = {"release": self._names.releasable(), "renew": self._renew, **more}
        ops = tuple(batch.ops)
        try:
            known = self._structures.get(ops)
            leaves, stacked = in_stacks(batch.leaves)
            given = {**leaves, **tensors}
            if stacked:
                asked["stacked"] = stacked
            if known is not None:
                try:
                    said, found = self._calls.send("ops", {"structure": known[0], **asked}, given)
                except Refused as error:
                    if not any(each.get("code") == "unknown-structure" for each in error.errors):
                        raise
                    self._structures.forget(ops)
                    known = None
            if known is None:
                said, found = self._calls.send("ops", {"ops": [self._document(op) for op in ops], **asked}, given)
        except BaseException:
            self._forget_batch()
            raise
        appended = said.get("appended")
        if appended is None:
            assert known is not None  # only the answer about a structure leaves them out
            appended = known[1]
        elif "structure" in said:
            self._structures.put(ops, said["structure"], appended)
        batch.answered(said.get("first", 0), appended, group(found, "value"))
        self._batch, self._renew = Batch(self, self.generation), False
        self._names.sent()
        return said, found

    def _document(self, op: RecordedOp) -> dict[str, Any]:
        signature = self._signatures[op[0]]
        return document(op, signature.slots, signature.outputs)

    def _forget_batch(self) -> None:
        batch, self._batch = self._batch, Batch(self, self.generation)
        batch.lost = True
        for variable in batch.variables:
            self._parameters.discard(variable.named)
            variable.unbind()

    # --- reading -------------------------------------------------------------------------------------------------

    def value(self, expression: Expression) -> np.ndarray:
        """The value of `expression`; a lazy tape computes it now."""
        expression.check_on(self)
        self.flush([expression.name] if self._batch.ops else None)
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
        batch = Batch(self, self.generation)
        batch.answered(0, said["appended"], group(tensors, "value"))
        written = {o["name"]: (n, i) for n, op in enumerate(said["appended"]) for i, o in enumerate(op["outputs"])}
        if said["appended"]:
            batch.first = said["appended"][0]["op"]
        found = {
            variable: Expression(self._names.existing(name, parents), batch, *written[name])
            for variable, name in said["recorded"].items()
        }
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
        asked = {"target": name, "wrt": list(wrt)}
        if self._batch.ops or self._batch.leaves or self._renew:
            said, tensors = self._send({"backward": asked, "return_values": "none"}, given)
        else:
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


def _each(f: Callable[[Any], Any], given: Any) -> Any:
    """`f` of the input of a slot: of each one in a list, as a tuple; None for an empty slot."""
    return tuple([f(x) for x in given]) if isinstance(given, list | tuple) else None if given is None else f(given)


_ARRAYS = frozenset({Expression, Variable, np.ndarray})
"""The classes of inputs that need no conversion."""
