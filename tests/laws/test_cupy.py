"""Every op and its gradient run on cupy op by op and equal NumPy: on a strict stand-in, and on a GPU."""

from __future__ import annotations

import ast
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core.ir import Block
from core.ir.builder import BlockBuilder
from core.ir.errors import CoreError, ExecutionError, ProgramError
from core.runtime.reference import execute
from tests.laws.examples import CASES, OPS, arrays, block_for, examples_of, floats, gradient, scalar, type_of
from tests.laws.test_precision import in_dtype

cupy = pytest.importorskip("cupy", reason="the stand-in is made from the installed cupy")
from tests.cupy_stand_in import Refused, installed, to_host  # noqa: E402

DTYPES = ("float64", "float32", "float16", "bfloat16")


def programs(name: str, i: int, dtype: str) -> Iterator[tuple[Block, list[Any]]]:
    """An example of an op in a dtype and its gradient, with the arrays that they take."""
    spec, example = OPS[name], in_dtype(examples_of(OPS[name])[i], dtype)
    args = arrays(example)
    try:
        block = block_for(spec, example)
    except ProgramError:
        return  # the op takes no floats of this size
    yield block, args
    if spec.differentiable and floats(args):
        yield gradient(scalar(block), [block.params[k] for k in floats(args)]), args


def on_device(xp: Any, x: Any) -> Any:
    return [on_device(xp, each) for each in x] if isinstance(x, list) else xp.asarray(x)


def check(name: str, i: int, dtype: str) -> None:
    for block, args in programs(name, i, dtype):
        with np.errstate(all="ignore"):
            try:
                wanted = execute(block, args)
            except ExecutionError as refused:
                with installed() as xp, pytest.raises(CoreError) as caught:
                    execute(block, on_device(xp, args), xp=xp)
                assert caught.value.code == refused.code
                continue
            with installed() as xp:
                found = execute(block, on_device(xp, args), xp=xp)
        for f, w in zip(found, wanted, strict=True):
            same(to_host(f), w, dtype)


def same(found: Any, wanted: Any, dtype: str) -> None:
    if isinstance(wanted, list):
        for f, w in zip(found, wanted, strict=True):
            same(f, w, dtype)
        return
    wanted = np.asarray(wanted)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted)
        return
    unit = float(ml_dtypes.finfo(wanted.dtype).eps)
    kind = "c16" if wanted.dtype.kind == "c" else "f8"
    np.testing.assert_allclose(found.astype(kind), wanted.astype(kind), rtol=8 * unit, atol=8 * unit)


def sampled() -> Iterator[object]:
    for name in sorted(OPS):
        for dtype in DTYPES:
            fast = DTYPES[zlib.crc32(name.encode()) % len(DTYPES)] == dtype
            yield pytest.param(name, dtype, marks=[] if fast else [pytest.mark.slow])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "dtype"), list(sampled()))
def test_an_op_and_its_gradient_on_the_stand_in_equal_numpy(name, dtype):
    for i in range(len(examples_of(OPS[name]))):
        check(name, i, dtype)


@pytest.mark.parametrize("name", ["matmul", "einsum", "bmm", "argsort", "unique", "auc", "searchsorted", "mode"])
def test_products_and_sorts_of_bfloat16_run_on_the_stand_in(name):
    for i in range(len(examples_of(OPS[name]))):
        check(name, i, "bfloat16")


def test_a_maximum_of_segments_shows_nan_although_the_atomic_one_ignores_it():
    x, ids = np.array([1.0, np.nan, 2.0, 3.0]), np.array([0, 0, 1, 1])
    b = BlockBuilder()
    like = np.zeros(2)
    given = [b.param(type_of(each)) for each in (x, ids, like)]
    block = b.build([b.emit("segment_max", *given)])

    with installed() as xp:
        (found,) = execute(block, on_device(xp, [x, ids, like]), xp=xp)

    np.testing.assert_array_equal(to_host(found), [np.nan, 3.0])


REFUSALS: dict[str, Callable[[Any, Any], Any]] = {
    "an implicit transfer to the host": lambda xp, x: np.asarray(x),
    "an array of the host as an operand": lambda xp, x: x + np.ones(3),
    "an array of the host as an argument": lambda xp, x: xp.where(x > 0, x, np.ones(3)),
    "an array of the host as a value": lambda xp, x: x.__setitem__(slice(0, 3), np.ones(3)),
    "an unknown keyword": lambda xp, x: xp.argsort(x, stable=True),
    "an unknown keyword of a ufunc": lambda xp, x: xp.add(x, x, where=x > 0),
    "a kind of sort": lambda xp, x: xp.argsort(x, kind="heapsort"),
    "a product of bfloat16": lambda xp, x: xp.matmul(*2 * (xp.ones((2, 3, 3), ml_dtypes.bfloat16),)),
    "a sort of bfloat16": lambda xp, x: xp.sort(x.astype(ml_dtypes.bfloat16)),
    "a loop of strings": lambda xp, x: xp.asarray(np.array(["a"])),
    "a solver whose failure would be silent": lambda xp, x: xp.linalg.inv(xp.eye(2)),
    "different values for one element": lambda xp, x: x.__setitem__(xp.asarray([0, 0]), xp.asarray([1.0, 2.0])),
    "NaN as an integer": lambda xp, x: (x * np.nan).astype("int64"),
}


@pytest.mark.parametrize("what", sorted(REFUSALS))
def test_the_stand_in_refuses(what):
    with installed() as xp, pytest.raises(Refused):
        REFUSALS[what](xp, xp.asarray(np.array([1.0, 2.0, 3.0])))


def test_the_stand_in_has_what_cupy_has_and_no_more():
    with installed() as xp:
        with pytest.raises(AttributeError):
            getattr(xp, "float_power_of_two")  # noqa: B009
        with pytest.raises(AttributeError):
            getattr(xp.asarray([1.0]), "no_such_method")  # noqa: B009
        with pytest.raises(NotImplementedError):
            xp.maximum.reduceat(xp.asarray([1.0, 2.0]), [0])
        total = xp.asarray(np.array([1.0, 2.0])).sum()

        assert isinstance(total, xp.ndarray) and total.shape == ()
        assert xp.asarray([1.0, 2.0])[xp.asarray([5])].tolist() == [2.0], "an index out of range wraps around"


def test_the_stand_in_is_gone_afterwards():
    with installed() as xp:
        assert sys.modules["cupy"] is xp is not cupy

    assert sys.modules["cupy"] is cupy


def test_two_files_import_cupy():
    """Work on cupy is in one file for ops and one for the driver, and neither is needed on the processor."""
    root = Path(__file__).parents[2]
    files = [path for folder in ("core", "service") for path in (root / folder).rglob("*.py")]
    naming = {path: text for path in files if "cupy" in (text := path.read_text())}
    found = {
        str(path.relative_to(root))
        for path, text in naming.items()
        if any(_imports_cupy(node) for node in ast.walk(ast.parse(text)))
    }

    assert "core/ops/common/on_cuda.py" in found
    assert len(found) <= 2 and all(name.startswith(("core/ops/common/", "core/device/")) for name in found), found


def _imports_cupy(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        names = [each.name for each in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
        names = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    else:
        names = []
    return any(name.split(".")[0] in ("cupy", "cupyx", "cupy_backends") for name in names)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "i"), CASES if cupy.is_available() else [])
def test_an_op_and_its_gradient_on_a_gpu_equal_numpy(name, i):
    for block, args in programs(name, i, "float64"):
        found = execute(block, on_device(cupy, args), xp=cupy)
        for value, wanted in zip(found, execute(block, args), strict=True):
            if not isinstance(wanted, list):
                np.testing.assert_allclose(cupy.asnumpy(value), wanted, rtol=1e-9, atol=1e-12)
