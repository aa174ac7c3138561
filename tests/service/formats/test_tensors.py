"""Tensors in JSON and in safetensors: valid arrays survive a round trip, and invalid ones are refused."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from service.formats.json_tensors import DTYPES, TensorLimits, decode, decode_all, dumps, encode, encode_all
from service.formats.safetensors import pack, unpack
from service.problems import HttpProblem

shapes = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Any array that has a form on the wire, NaN, infinities and -0 included."""
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    shape = draw(shapes)
    if dtype == ml_dtypes.bfloat16:
        return draw(arrays_of.arrays(np.uint16, shape)).view(dtype)
    return draw(arrays_of.arrays(dtype, shape))


def same(first: np.ndarray, second: np.ndarray) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


@settings(max_examples=200, deadline=None)
@given(array=arrays(), as_base64=st.booleans())
def test_json_preserves_every_bit_of_an_array(array: np.ndarray, as_base64: bool):
    text = dumps(encode(array, base64=as_base64))

    back = decode(json.loads(text, parse_constant=pytest.fail), pointer="/feeds/x")

    assert same(back, array)


@settings(max_examples=100, deadline=None)
@given(tensors=st.dictionaries(st.text(max_size=5).filter(lambda n: n != "__metadata__"), arrays(), max_size=4))
def test_a_tensor_file_preserves_every_array_and_the_library_can_read_it(tensors: dict[str, np.ndarray]):
    tensors = {name.encode("utf-8", "ignore").decode(): array for name, array in tensors.items()}
    data = pack(tensors, {"seq": 3}, key="request")

    document, back = unpack(data)

    assert document == {"seq": 3}
    assert back.keys() == tensors.keys()
    assert all(same(back[name], tensors[name]) for name in tensors)
    assert {name for name, _ in safetensors.deserialize(data)} == tensors.keys()


def test_a_file_written_by_the_library_is_read():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    data = safetensors.numpy.save({"x": x, "y": np.array(True)}, {"request": '{"fetch": ["h"]}', "other": "kept out"})

    document, tensors = unpack(data)

    assert document == {"fetch": ["h"]}
    assert same(tensors["x"], x)
    assert bool(tensors["y"]) is True


def test_an_array_with_nan_is_encoded_as_base64_and_marked():
    document = json.loads(dumps(encode_all({"g": np.array([1, np.nan], np.float32)})))

    assert document["g"]["finite"] is False
    assert base64.b64decode(document["g"]["b64"]) == np.array([1, np.nan], np.float32).tobytes()


def test_complex_arrays_have_no_form_on_the_wire():
    for write in (encode, lambda array: pack({"x": array}, {})):
        with pytest.raises(TypeError):
            write(np.zeros(2, np.complex64))


def tensor(**members: Any) -> dict[str, Any]:
    whole = {"dtype": "float32", "shape": [2], "data": [1, 2], **members}
    return {name: value for name, value in whole.items() if value is not None}


FOUR_BYTES = base64.b64encode(bytes(4)).decode()
BAD_TENSORS = {
    "not an object": ([1, 2], "invalid-request", ""),
    "null": (None, "invalid-request", ""),
    "unknown member": (tensor(extra=1), "invalid-request", ""),
    "no data": (tensor(data=None), "invalid-request", ""),
    "both forms": (tensor(b64="AAAA"), "invalid-request", ""),
    "finite as text": (tensor(finite="yes"), "invalid-request", "/finite"),
    "no dtype": (tensor(dtype=None), "dtype-mismatch", "/dtype"),
    "unknown dtype": (tensor(dtype="float8"), "dtype-mismatch", "/dtype"),
    "complex": (tensor(dtype="complex64"), "dtype-mismatch", "/dtype"),
    "dtype as list": (tensor(dtype=["float32"]), "dtype-mismatch", "/dtype"),
    "no shape": (tensor(shape=None), "invalid-request", "/shape"),
    "shape as number": (tensor(shape=2), "invalid-request", "/shape"),
    "negative size": (tensor(shape=[-1]), "invalid-request", "/shape"),
    "boolean size": (tensor(shape=[True]), "invalid-request", "/shape"),
    "float size": (tensor(shape=[2.0]), "invalid-request", "/shape"),
    "text size": (tensor(shape=["2"]), "invalid-request", "/shape"),
    "rank 9": (tensor(shape=[1] * 9), "limit-exceeded", "/shape"),
    "huge product": (tensor(shape=[2**32, 2**32]), "limit-exceeded", "/shape"),
    "2**63": (tensor(shape=[2**63]), "limit-exceeded", "/shape"),
    "huge size after a zero": (tensor(shape=[0, 2**40, 2**40], data=[]), "limit-exceeded", "/shape"),
    "too many": (tensor(data=[1, 2, 3]), "shape-mismatch", "/data"),
    "too few": (tensor(data=[]), "shape-mismatch", "/data"),
    "scalar without data": (tensor(shape=[], data=[]), "shape-mismatch", "/data"),
    "data as text": (tensor(data="12"), "invalid-request", "/data"),
    "nested data": (tensor(data=[[1], [2]]), "dtype-mismatch", "/data/0"),
    "boolean as float": (tensor(data=[1, True]), "dtype-mismatch", "/data/1"),
    "text as float": (tensor(data=[1, "2"]), "dtype-mismatch", "/data/1"),
    "null as float": (tensor(data=[None, 2]), "dtype-mismatch", "/data/0"),
    "float32 overflow": (tensor(data=[1, 1e39]), "dtype-mismatch", "/data/1"),
    "float16 overflow": (tensor(dtype="float16", data=[70000, 1]), "dtype-mismatch", "/data/0"),
    "float as int": (tensor(dtype="int32", data=[1, 2.0]), "dtype-mismatch", "/data/1"),
    "boolean as int": (tensor(dtype="int32", data=[True, 2]), "dtype-mismatch", "/data/0"),
    "int8 overflow": (tensor(dtype="int8", data=[1, 128]), "dtype-mismatch", "/data/1"),
    "int32 underflow": (tensor(dtype="int32", data=[-(2**31) - 1, 1]), "dtype-mismatch", "/data/0"),
    "int64 overflow": (tensor(dtype="int64", data=[1, 2**63]), "dtype-mismatch", "/data"),
    "negative uint8": (tensor(dtype="uint8", data=[-1, 1]), "dtype-mismatch", "/data/0"),
    "int as bool": (tensor(dtype="bool", data=[1, 0]), "dtype-mismatch", "/data/0"),
    "b64 as number": (tensor(data=None, b64=7), "invalid-request", "/b64"),
    "b64 too short": (tensor(data=None, b64=FOUR_BYTES), "shape-mismatch", "/b64"),
    "b64 too long": (tensor(shape=[], data=None, b64="A" * 4000), "shape-mismatch", "/b64"),
    "b64 one byte short": (tensor(shape=[1], data=None, b64="AAAA"), "shape-mismatch", "/b64"),
    "b64 bad padding": (tensor(shape=[1], data=None, b64="AAAAA==="), "invalid-request", "/b64"),
    "b64 bad alphabet": (tensor(shape=[1], data=None, b64="AA*AAA=="), "invalid-request", "/b64"),
    "b64 not ASCII": (tensor(shape=[1], data=None, b64="äAAAAA=="), "invalid-request", "/b64"),
    "bool byte": (tensor(dtype="bool", shape=[1], data=None, b64="Ag=="), "dtype-mismatch", "/b64"),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_an_error_points_to_the_invalid_member_of_a_tensor(name: str):
    value, code, place = BAD_TENSORS[name]

    with pytest.raises(HttpProblem) as caught:
        decode(value, pointer="/feeds/x")

    assert (caught.value.status, caught.value.code) == (422, code)
    assert caught.value.errors[0].pointer == f"/feeds/x{place}"


def test_all_invalid_tensors_are_reported_together():
    with pytest.raises(HttpProblem) as caught:
        decode_all({"a": tensor(), "b/c": 1, "d": tensor(dtype="x")}, pointer="/feeds")

    assert [error.pointer for error in caught.value.errors] == ["/feeds/b~1c", "/feeds/d/dtype"]


def test_a_tensor_over_the_limit_of_bytes_is_refused():
    with pytest.raises(HttpProblem, match="more than 7 bytes"):
        decode(tensor(), pointer="", limits=TensorLimits(bytes=7))


def file(header: Any, body: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + body


def entry(begin: int = 0, end: int = 8, shape: Any = (2,), dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}


BAD_FILES = {
    "empty": (b"", 400, "invalid-tensor-file"),
    "seven bytes": (bytes(7), 400, "invalid-tensor-file"),
    "no header": (bytes(8), 400, "invalid-json"),
    "header of 2**63": (file({}, size=2**63), 400, "limit-exceeded"),
    "header of 100 MB": (file({}, size=10**8), 400, "limit-exceeded"),
    "header past the end": (file({}, size=3), 400, "invalid-tensor-file"),
    "header is not JSON": (file(b"{nope"), 400, "invalid-json"),
    "header is a list": (file([]), 400, "invalid-json"),
    "name twice": (file(b'{"x":%b,"x":%b}' % ((json.dumps(entry()).encode(),) * 2), bytes(8)), 400, "invalid-json"),
    "entry is a list": (file({"x": [1]}), 400, "invalid-tensor-file"),
    "member missing": (file({"x": {"dtype": "F32", "shape": [2]}}, bytes(8)), 400, "invalid-tensor-file"),
    "member too many": (file({"x": entry(strides=[1])}, bytes(8)), 400, "invalid-tensor-file"),
    "unknown dtype": (file({"x": entry(dtype="C64")}, bytes(8)), 422, "dtype-mismatch"),
    "dtype as list": (file({"x": entry(dtype=["F32"])}, bytes(8)), 422, "dtype-mismatch"),
    "negative shape": (file({"x": entry(shape=[-2])}, bytes(8)), 422, "invalid-request"),
    "huge shape": (file({"x": entry(shape=[2**32, 2**32])}, bytes(8)), 422, "limit-exceeded"),
    "shape too large": (file({"x": entry(shape=[3])}, bytes(8)), 422, "shape-mismatch"),
    "shape too small": (file({"x": entry(shape=[1])}, bytes(8)), 422, "shape-mismatch"),
    "offsets past the end": (file({"x": entry()}, bytes(7)), 400, "invalid-tensor-file"),
    "offsets reversed": (file({"x": entry(8, 0)}, bytes(8)), 400, "invalid-tensor-file"),
    "offsets negative": (file({"x": entry(-8, 0)}, bytes(8)), 400, "invalid-tensor-file"),
    "offsets as floats": (file({"x": entry(0.0, 8.0)}, bytes(8)), 400, "invalid-tensor-file"),
    "offsets as one": (file({"x": {**entry(), "data_offsets": 8}}, bytes(8)), 400, "invalid-tensor-file"),
    "overlap": (file({"x": entry(0, 8), "y": entry(4, 12)}, bytes(12)), 400, "invalid-tensor-file"),
    "same bytes": (file({"x": entry(), "y": entry()}, bytes(8)), 400, "invalid-tensor-file"),
    "gap": (file({"x": entry(0, 8), "y": entry(12, 20)}, bytes(20)), 400, "invalid-tensor-file"),
    "bytes left over": (file({"x": entry()}, bytes(9)), 400, "invalid-tensor-file"),
    "long name": (file({"x" * 300: entry()}, bytes(8)), 422, "limit-exceeded"),
    "metadata of numbers": (file({"__metadata__": {"request": 1}}), 400, "invalid-tensor-file"),
    "metadata as text": (file({"__metadata__": "{}"}), 400, "invalid-tensor-file"),
    "request is not JSON": (file({"__metadata__": {"request": "{"}}), 400, "invalid-json"),
    "request is a list": (file({"__metadata__": {"request": "[]"}}), 400, "invalid-json"),
    "bool byte": (file({"x": entry(0, 1, [1], "BOOL")}, b"\x02"), 422, "dtype-mismatch"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_an_invalid_file_is_refused(name: str):
    data, status, code = BAD_FILES[name]

    with pytest.raises(HttpProblem) as caught:
        unpack(data)

    assert (caught.value.status, caught.value.code) == (status, code)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("request is a list", "in `request` of the file's metadata"),
        ("request is not JSON", "in `request` of the file's metadata"),
        ("header is not JSON", "in the file's header"),
    ],
)
def test_an_error_names_the_part_of_a_file_with_invalid_json(name: str, place: str):
    with pytest.raises(HttpProblem, match=f", {place}$"):
        unpack(BAD_FILES[name][0])


@settings(max_examples=200, deadline=None)
@given(cut=st.integers(0, 200), place=st.integers(0, 200), byte=st.integers(0, 255))
def test_a_damaged_file_gives_arrays_or_a_problem(cut: int, place: int, byte: int):
    whole = bytearray(pack({"x": np.ones(4, np.float32), "b": np.array([True])}, {"a": 1}, key="request"))
    whole[place % len(whole)] = byte

    try:
        unpack(whole[: len(whole) - cut] if cut < 50 else whole)
    except HttpProblem as problem:
        assert problem.status in (400, 422)
