"""The attributes and slots of one op: names resolved to values, and every mistake reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from core.ir.builder import Value
from core.ir.errors import ProgramError, escaped
from core.ir.registry import OpSpec
from core.ir.suggest import near
from core.wire.problems import Problems
from core.wire.records import place_of
from core.wire.site import KEY, AlreadyReported, Site

__all__ = ["OpReader"]


class OpReader:
    """Reads the parts of one op. Problems are added to `problems`, and reading goes on with its other parts."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems

    def report(self, at: Site, error: ProgramError) -> None:
        """Report an error of the current op, and go on with its other parts."""
        error.at(at.raw.location)
        for each in error.problems:
            pointer = each.pointer if error.pointer else at.raw.pointer
            self.problems.add(each.code, each.message, pointer, each.location, each.suggestion)

    def construct_attrs(self, spec: OpSpec, at: Site) -> dict[str, Any]:
        """The attributes of a construct. Also checks the names of its slots.

        Raises AlreadyReported after a report of every mistake.
        """
        wrong = False
        for which in ("input", "output"):
            wrong |= self.unknown_slots(spec, at, which)
        attrs = self.attrs(spec, at, at.raw.attrs)
        if attrs is None or wrong:
            raise AlreadyReported
        return attrs

    def attrs(self, spec: OpSpec, at: Site, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """All attributes of an op; None after a report of every one that is wrong."""
        try:
            return spec.complete(given)
        except ProgramError:
            for each in spec.mistakes(given):
                self.report(at, at.refuse(each.message, each.code, f"attrs{each.pointer}", each.suggestion))
            return None

    def inputs(self, spec: OpSpec, at: Site) -> list[Value | None] | None:
        """The values of the input slots, in the order of the declaration; None after a report of every one that is
        wrong."""
        wrong = misspelt = self.unknown_slots(spec, at, "input")
        values: list[Value | None] = []
        for slot in spec.inputs:
            names = at.raw.inputs.get(slot.name, ())
            if len(names) > 1 and not slot.variadic:
                message = f"slot {slot.name!r} of {spec.name} takes one name, not {len(names)}"
                self.report(at, at.refuse(message, "bad_slot", f"inputs/{slot.name}"))
                wrong = True
            if not names and not slot.variadic:
                if not slot.optional:
                    if not misspelt:  # a slot that is missing may be there under a wrong name
                        self.report(at, at.refuse(f"{spec.name} needs the input {slot.name!r}", "bad_slot"))
                    wrong = True
                values.append(None)
            for i, name in enumerate(names):
                value = self.resolve(at, name, place_of(f"inputs/{slot.name}", names, i), slot.name)
                wrong |= value is None
                values.append(value)
        return None if wrong else values

    def unknown_slots(self, spec: OpSpec, at: Site, which: str) -> bool:
        """Report all slots that an op does not have. which: "input" or "output". Returns whether there is one."""
        slots = [s.name for s in spec.inputs] if which == "input" else spec.outputs
        unknown = sorted((at.raw.inputs if which == "input" else at.raw.outputs).keys() - set(slots))
        for slot in unknown:
            hint = f"its slots are {', '.join(slots) or 'none'}"
            place = f"{which}s/{escaped(slot)}"
            self.report(at, at.refuse(f"{spec.name} has no {which} slot {slot!r}", "bad_slot", place, hint))
        return bool(unknown)

    def operands(self, at: Site, slot: str) -> list[Value]:
        """The values in `slot` of a construct."""
        names = at.raw.inputs.get(slot, ())
        found = [self.resolve(at, n, place_of(f"inputs/{slot}", names, i), slot) for i, n in enumerate(names)]
        if None in found:
            raise AlreadyReported
        return [v for v in found if v is not None]

    def operand(self, at: Site, slot: str) -> Value:
        """The single value in `slot` of a construct."""
        if len(at.raw.inputs.get(slot, ())) != 1:
            raise at.refuse(f"{at.raw.type} needs one {slot}", "bad_slot", "inputs")
        return self.operands(at, slot)[0]

    def resolve(self, at: Site, name: str, place: str, slot: str) -> Value | None:
        """The current version of `name`. If there is none, reports the problem and returns None."""
        if name in at.env:
            return at.env[name]
        location = replace(at.raw.location, slot=slot, variable=name)
        pointer = f"{at.raw.pointer}/{place}"
        if name in at.block.vars or any(name in op.written_names() for op in at.block.ops):
            self.problems.add("use_before_definition", f"{name!r} is read before any op writes it", pointer, location)
        else:
            hint = near(name, [each for each in at.env if each != KEY])
            self.problems.add("unknown_variable", f"no variable {name!r} is visible here", pointer, location, hint)
        at.env[name] = None
        return None

    def outputs(self, spec: OpSpec, at: Site) -> tuple[str | None, ...] | None:
        """The client's names for the outputs. None in place of an omitted one; an empty tuple if no output of a control
        op is named. None in place of all after a report of every mistake.
        """
        raw = at.raw
        wrong = self.unknown_slots(spec, at, "output")
        if not raw.written_names():
            if spec.kind != "control":
                self.report(at, at.refuse(f"{spec.name} must list at least one output", "bad_slot"))
            return () if spec.kind == "control" and not wrong else None
        if spec.variadic_outputs:
            return None if wrong else raw.outputs[spec.outputs[0]]
        names = []
        for slot in spec.outputs:
            given = raw.outputs.get(slot, ())
            if len(given) > 1:
                message = f"slot {slot!r} of {spec.name} takes one name, not {len(given)}"
                self.report(at, at.refuse(message, "bad_slot", f"outputs/{slot}"))
                wrong = True
            names.append(given[0] if given else None)
        if len({n for n in names if n}) < sum(n is not None for n in names):
            self.report(at, at.refuse(f"{spec.name} writes the same name twice", "bad_slot", "outputs"))
            wrong = True
        return None if wrong else tuple(names)
