"""Variables that inner blocks write: the carried values of loops, and the results of branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from core.ir import StackType, TensorType
from core.ir.errors import ProgramError
from core.onnx.reading.draft import Draft
from core.onnx.reading.values import Array, Label, Tensor
from core.onnx.reading.worlds import WORLDS, Sample
from core.ops.common.types import joined_type

__all__ = ["Cell", "joined", "write_all"]


@dataclass(slots=True, eq=False)
class Cell:
    """A variable that a loop or branch overwrites: the value that it has where an inner block begins.

    free: axes of any size. The samples of their sizes are its own, so no other size was taken for equal to them.
    """

    value: Tensor | Array
    free: set[int] = field(default_factory=set)

    @property
    def label(self) -> Label:
        assert self.value.label is not None
        return self.value.label

    @classmethod
    def like(cls, value: Tensor | Array, hint: str) -> Cell:
        """A cell with the type of `value`. Its elements are not known, for trips change them."""
        if isinstance(value, Array):
            return cls(Array(value.type, Label(hint)))
        samples = tuple(None if s is None else Sample(s.type) for s in value.samples)
        return cls(Tensor(value.type, Label(hint), samples=samples))


def write_all(draft: Draft, sources: Sequence[Tensor | Array], cells: Sequence[Cell]) -> None:
    """Write each source to its cell, as if all were written at once."""
    own = {id(cell.label) for cell in cells}
    copied: list[Tensor | Array] = []
    for source, cell in zip(sources, cells, strict=True):
        label = draft.use(source)
        if id(label) in own and label is not cell.label:
            copy = Label(f"{label.hint}.before")
            draft.assign(source, copy)
            source = Array(source.type, copy) if isinstance(source, Array) else Tensor(source.type, copy)
        copied.append(source)
    for source, cell in zip(copied, cells, strict=True):
        if draft.use(source) is not cell.label:
            draft.assign(source, cell.label)


def joined(
    draft: Draft, a: Tensor | Array, b: Tensor | Array, what: str, free: set[int]
) -> tuple[Tensor | Array, bool]:
    """A value of the type that both fit, and whether it is wider than `a`. A size in which they differ becomes open,
    and its axis is added to `free`.

    Raises ProgramError if dtype, rank or kind differ.
    """
    if isinstance(a, Array) or isinstance(b, Array):
        if not (isinstance(a, Array) and isinstance(b, Array)):
            raise ProgramError(f"{what}: a sequence and a tensor", "type_mismatch")
        type = joined_type(a.type, b.type, "type_mismatch", what)
        assert isinstance(type, StackType)
        return Array(type, a.label), type != a.type
    found = joined_type(a.type, b.type, "type_mismatch", what)
    assert isinstance(found, TensorType)
    free &= set(range(len(found.shape)))
    pairs = [(_sample(a, w), _sample(b, w)) for w in range(WORLDS)]
    differ = [
        n == -1
        and i not in free
        and (a.shape[i] != -1 or any(s is None or t is None or s.type.shape[i] != t.type.shape[i] for s, t in pairs))
        for i, n in enumerate(found.shape)
    ]
    if found == a.type and not any(differ):
        return a, False
    free.update(i for i, each in enumerate(differ) if each)
    fresh = [draft.sizes.fresh() if each else () for each in differ]
    samples = []
    for w in range(WORLDS):
        own = _sample(a, w)
        shape = (
            None
            if own is None
            else tuple(fresh[i][w] if d else n for i, (n, d) in enumerate(zip(own.type.shape, differ, strict=True)))
        )
        samples.append(None if shape is None or -1 in shape else Sample(TensorType(shape, found.dtype)))
    return Tensor(found, a.label, samples=() if found.is_static and not any(a.samples) else tuple(samples)), True


def _sample(x: Tensor, w: int) -> Sample | None:
    return x.samples[w] if x.samples else Sample(x.type)
