"""Files that are no datasets: every mistake has its row and column, and nothing is read beyond the limits."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.datasets.options import Limits
from service.problems import HttpProblem
from tests.service.datasets.tables import as_csv, as_jsonl, as_npz, as_parquet, as_safetensors, converted, mistakes

TABLE = {"x": np.arange(2000, dtype=np.float32), "n": np.arange(2000)}
SMALL = Limits(size=2**20)


def text_of(*parts: bytes) -> pa.Array:
    """An array of texts with these bytes, which Arrow does not check."""
    return pa.Array.from_buffers(pa.string(), len(parts), pa.array(parts, pa.binary()).buffers())


def parquet(columns: dict[str, object], **options: object) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, **options)
    return file.getvalue()


def npz(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


CASES = [
    # CSV
    ("csv", b"", "the file is empty"),
    ("csv", b"\n", "the file is empty"),
    ("csv", b"a,b\n", "the file has no rows"),
    ("csv", b"a,b\n1,2\n3\n4,5\n6,7,8\n", "row 2: 1 cells, but the file has 2 columns"),
    ("csv", b"a,a\n1,2\n", "column 'a': column 2 has the name of an earlier one"),
    ("csv", b"a,,b\n1,2,3\n", "column 2 has no name"),
    ("csv", b"a,b\n1,2\n,4\n", "row 2, column 'a': a missing value"),
    ("csv", b"a\n1\n2\nx\n3\n", "row 3, column 'a': not a number, but 3 of 4 cells are"),
    ("csv", b'a\nNo\n"1,5"\n"-2,25"\n', "row 2, column 'a': a number in another notation than 1234.5"),
    ("csv", b'a\n"1,000"\n"12,000.5"\nx\n', "row 1, column 'a': a number in another notation"),
    ("csv", "a\n1\u00a0000\n1'000\n".encode(), "row 1, column 'a': a number in another notation"),
    ("csv", "a\n$5\n€ 7\n".encode(), "row 1, column 'a': a number in another notation"),
    ("csv", b"a\n50%\n7.5 %\n3\n", "row 1, column 'a': a number in another notation"),
    ("csv", b"a,b\n1,\n2,\n", "row 1, column 'b': a missing value"),
    ("csv", b"a\n1\n99999999999999999999\n", "row 2, column 'a': the integer is outside of int64"),
    ("csv", b"a\n1\n%b\n" % (b"9" * 5000), "row 2, column 'a': the integer is outside of int64"),
    ("csv", b"a\n-%b9\n-9223372036854775809\n" % (b"0" * 5000), "row 2, column 'a': the integer is outside of int64"),
    ("csv", b"a\n1.5\n1e39\n", "row 2, column 'a': the number is outside of the range of float32"),
    ("csv", b"1,2\n3,4\n", "the first line has numbers"),
    ("csv", b"a;b;c\n1;2;3\n", "one column, and its name contains ';': set delimiter to ';'"),
    ("csv", b"\xef\xbb\xbfa\tb\n1\t2\n", "one column, and its name contains a tab: set delimiter to a tab"),
    ("csv", b'"a";"b"\n1;2\n', "set delimiter to ';'"),
    ("csv", b"a,b\n1,\xff\xfe\n", "not UTF-8"),
    ("csv", "a,b\n1,2\n".encode("utf-16"), "not UTF-8"),
    ("csv", b'a,b\n"1,2\n3,4\n', "line 2: a quote that begins a cell is not closed"),
    ("csv", b'"a,b\n1,2\n', "line 1: a quote that begins a cell is not closed"),
    ("csv", b'\xef\xbb\xbfa,b\r\n1,x\r\n2,"y\r\n3,z\r\n', "line 3: a quote that begins a cell is not closed"),
    ("csv", b'a\n"x ""y""\n', "line 2: a quote that begins a cell is not closed"),
    ("csv", b'a\nx\n"', "line 3: a quote that begins a cell is not closed"),
    ("csv", b'a,b\r1,"x\r2,y\r3,"z"\r', "line 2: text after the closing quote of a cell"),
    ("csv", b'a,b\n1,"he said \\"no\\""\n', "line 2: text after the closing quote of a cell"),
    ("csv", b"a\n" + b"x" * 30_000_000, "a row takes more than 8388608 bytes"),
    ("csv", b"\x00\x01\x02" * 100, "mistake"),
    # JSON lines
    ("jsonl", b"", "the file has no rows"),
    ("jsonl", b"\n \n", "the file has no rows"),
    ("jsonl", b"[1]\n", "row 1: the outermost value is not an object"),
    ("jsonl", b'{"a":1}\n{"a":\n', "row 2: "),
    ("jsonl", b'{"a":1}\n{"a":NaN}\n', "row 2: "),
    ("jsonl", b'{"a":1,"a":2}\n', "row 1: the member 'a' is repeated"),
    ("jsonl", b'{"a":1}\n{"b":1}\n', "row 2, column 'b': the first row does not have this column"),
    ("jsonl", b'{"a":[1,2]}\n{"a":[1]}\n', "row 2, column 'a': a value of shape [1], but earlier ones have [2]"),
    ("jsonl", b'{"a":[[1,2],[3]]}\n', "row 1, column 'a': a list whose lists differ in length"),
    ("jsonl", b'{"a":[]}\n', "row 1, column 'a': a list that is empty"),
    ("jsonl", b'{"a":{"b":1}}\n', "row 1, column 'a': an object"),
    ("jsonl", b'{"a":true}\n{"a":1}\n', "column 'a': the column has booleans and integers"),
    ("jsonl", b'{"a":[1,true]}\n', "column 'a': the column has booleans and integers"),
    ("jsonl", b'{"a":9223372036854775808}\n', "row 1, column 'a': an integer is outside of int64"),
    ("jsonl", b'{"a":0.5}\n{"a":1e39}\n', "row 2, column 'a': a number is outside of the range of float32"),
    ("jsonl", b'{"a":["x"]}\n', "column 'a': lists of texts cannot be stored"),
    ("jsonl", b'{"a":' + b"[" * 20 + b"1" + b"]" * 20 + b"}\n", "nested deeper than 12 levels"),
    ("jsonl", b'{"a":"' + b"x" * 9_000_000, "row 1: a line takes more than"),
    # Parquet
    ("parquet", b"", "not a valid Parquet file"),
    ("parquet", b"PAR1PAR1", "not a valid Parquet file"),
    ("parquet", as_parquet(TABLE)[:-100], "not a valid Parquet file"),
    ("parquet", parquet({"name": [1]}).replace(b"name", b"\xf4ame"), "not a valid Parquet file"),
    ("parquet", parquet({"s": [{"a": 1}]}), "column 's': values of type struct<a: int64> cannot be stored"),
    ("parquet", parquet({"s": [[{"a": 1}]]}), "column 's': values of type struct<a: int64> cannot be stored"),
    ("parquet", parquet({"a": pa.nulls(2)}), "column 'a': the column has no values; leave it out"),
    ("parquet", parquet({"b": [b"x"]}), "column 'b': values of type binary cannot be stored"),
    ("parquet", parquet({"a": [1, None]}), "row 2, column 'a': a missing value"),
    ("parquet", parquet({"a": ["x", None]}), "row 2, column 'a': a missing value"),
    ("parquet", parquet({"a": text_of(b"x", b"\xad", b"x")}), "row 2, column 'a': a text that is not UTF-8"),
    (
        "parquet",
        parquet({"a": text_of(b"x", b"\xad").dictionary_encode()}),
        "row 2, column 'a': a text that is not UTF-8",
    ),
    ("parquet", parquet({"a": [[1, 2], [3]]}), "row 2, column 'a': a list whose length is not 2"),
    ("parquet", parquet({"a": [[1, 2], [None, 3]]}), "column 'a': a missing value inside of a list"),
    ("parquet", parquet({"a": [[1, 2], None]}), "row 2, column 'a': a missing value"),
    ("parquet", parquet({"a": pa.array([[], []], pa.list_(pa.int64()))}), "column 'a': the lists are empty"),
    ("parquet", parquet({"a": pa.array([], pa.int64())}), "the file has no rows"),
    ("parquet", parquet({"a": pa.array([2**64 - 1], pa.uint64())}), "row 1, column 'a': a number is outside"),
    # NPZ
    ("npz", b"", "not a valid NPZ file"),
    ("npz", b"PK\x05\x06" + bytes(18), "the file has no columns"),
    ("npz", as_npz(TABLE)[:-30], "not a valid NPZ file"),
    ("npz", as_npz({"a": np.array([1, "x", None], object)}), "column 'a': the array has Python objects"),
    ("npz", npz(a=pickle.dumps([1, 2])), "column 'a': not an array as numpy.save writes it"),
    ("npz", as_npz({"a": np.ones(3), "b": np.ones(4)}), "column 'b': 4 rows, but the first column has 3"),
    ("npz", as_npz({"a": np.float64(1)}), "column 'a': the tensor is a scalar"),
    ("npz", as_npz({"a": np.ones((0, 3))}), "column 'a': the column has no elements"),
    ("npz", as_npz({"a": np.ones(3, complex)}), "column 'a': dtype complex128 cannot be stored"),
    ("npz", npz(a=npy("{'descr': '<i8', 'fortran_order': False, 'shape': (-2,), }")), "declares a negative size"),
    ("npz", as_npz({"a": np.ones(3, "M8[s]")}), "column 'a': dtype datetime64[s] cannot be stored"),
    ("npz", npz(a=npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }")), "another size"),
    ("npz", npz(a=npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }")), "column 'a'"),
    ("npz", npz(a=npy("__import__('os').system('true')")), "column 'a': not an array as numpy.save writes it"),
    ("npz", npz(a=npy("{'descr': '|b1', 'fortran_order': False, 'shape': (1,), }", b"\x02")), "neither 0 nor 1"),
    # safetensors
    ("safetensors", b"", "shorter than eight bytes"),
    ("safetensors", as_safetensors(TABLE)[:-5], "data_offsets lie outside of the file"),
    ("safetensors", struct.pack("<Q", 2**60) + b"{}", "exceeds the limit"),
    ("safetensors", struct.pack("<Q", 2) + b"{}", "the file has no columns"),
    ("safetensors", as_safetensors({"a": np.ones(3), "b": np.ones(4)}), "column 'b': 4 rows"),
    ("safetensors", as_safetensors({"a": np.ones(())}), "column 'a': the tensor is a scalar"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "data", "text"), CASES, ids=[f"{f}-{i}" for i, (f, _, _) in enumerate(CASES)])
def test_a_bad_file_is_refused_with_its_place(tmp_path, format, data, text):
    with pytest.raises(HttpProblem) as refused:
        converted(tmp_path, data, format)

    found = [refused.value.detail, *(error.detail for error in refused.value.errors)]
    assert any(text in each for each in found), found
    assert refused.value.status in (400, 422)


def test_all_mistakes_are_told_at_once_with_row_and_column(tmp_path):
    data = b"a,b,c\n1,2,x\n,2,x\n1,2\n1,nothing,x\n1,,x\n1,2,x\n"

    found = mistakes(tmp_path, data, "csv")

    assert [each.partition(":")[0] for each in found] == [
        "row 3",
        "row 2, column 'a'",
        "row 5, column 'b'",
        "row 4, column 'b'",
    ]
    with pytest.raises(HttpProblem) as refused:
        converted(tmp_path, data, "csv")
    assert refused.value.errors[1].location == {"row": 2, "column": "a"}
    assert refused.value.errors[1].pointer == "/a"


@pytest.mark.parametrize("broken", [1, 2, 3])
def test_a_row_that_is_no_json_is_the_only_mistake_of_its_file(tmp_path, broken):
    rows = [b'{"a":1,"b":"x"}'] * 3
    rows[broken - 1] = b'{"a":1,'

    with pytest.raises(HttpProblem) as refused:
        converted(tmp_path, b"\n".join(rows), "jsonl")

    assert [error.location for error in refused.value.errors] == [{"row": broken}]


def test_cells_that_do_not_have_the_named_type_are_told_by_row(tmp_path):
    data = b"a,b,c,d\n1,1,true,1\nx,300,maybe,1.5\n3,-1,false,2\n"

    found = mistakes(tmp_path, data, "csv", types={"a": "int64", "b": "uint8", "c": "bool", "d": "int32"})

    assert [each.partition(":")[0] for each in found] == [
        "row 2, column 'a'",
        "row 2, column 'b'",
        "row 3, column 'b'",
        "row 2, column 'c'",
        "row 2, column 'd'",
    ]


@pytest.mark.parametrize(("format", "write"), [("csv", as_csv), ("jsonl", as_jsonl), ("parquet", as_parquet)])
def test_a_type_for_an_unknown_column_is_refused(tmp_path, format, write):
    assert mistakes(tmp_path, write({"a": np.arange(3)}), format, types={"b": "float32"}) == [
        "column 'b': a type is given for a column that the file does not have"
    ]


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        ({"x": ["z"]}, "column 'x': no column is called 'z'"),
        ({"x": ["a", "word"]}, "column 'x': the column 'word' has texts"),
        ({"word": ["a"]}, "column 2 has the name of an earlier one"),
        ({"x": ["a", "big"]}, "row 2, column 'big': the integer is not exact as float32"),
    ],
)
def test_stacks_of_wrong_columns_are_refused(tmp_path, stack, text):
    data = b"a,word,big\n0.5,u,1\n1.5,v,16777217\n"

    assert any(text in each for each in mistakes(tmp_path, data, "csv", stack=stack))


def test_a_zip_bomb_is_refused_before_it_is_decompressed(tmp_path):
    bomb = as_npz({"a": np.zeros(50_000_000, np.uint8)})
    assert len(bomb) < 100_000

    assert "the limit of 1048576 bytes" in mistakes(tmp_path, bomb, "npz", SMALL)[0]
    assert not any(path.stat().st_size > 2**20 for path in (tmp_path / "scratch").iterdir())


def test_a_member_that_decompresses_to_more_than_it_declares_is_refused(tmp_path):
    good = bytearray(as_npz({"a": np.zeros(1000)}))
    place = good.rindex(b"PK\x01\x02")
    declared = struct.unpack_from("<I", good, place + 24)[0]
    data = good.replace(struct.pack("<I", declared), struct.pack("<I", 128 + 8))

    assert mistakes(tmp_path, bytes(data), "npz")


def test_overlapping_members_of_an_archive_count_each(tmp_path):
    """Members that share their data make a small file large: the sum of their sizes is limited."""
    many = {f"a{i}": np.zeros(100_000) for i in range(2)}

    assert "the limit of 1048576 bytes" in mistakes(tmp_path, as_npz(many), "npz", SMALL)[0]


def test_a_parquet_file_with_repeated_values_is_limited_by_its_rows(tmp_path):
    data = parquet({"a": np.zeros(1_000_000, np.int64)})
    assert len(data) < 100_000

    assert "the limit of 1048576 bytes" in mistakes(tmp_path, data, "parquet", SMALL)[0]


def test_a_column_with_too_many_different_texts_is_refused(tmp_path):
    data = b"id\n" + b"".join(b"u%d\n" % i for i in range(10_001))

    assert "more than 10000 different texts" in mistakes(tmp_path, data, "csv")[0]


def test_more_columns_than_the_limit_are_refused(tmp_path):
    header = {f"c{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(10_001)}
    text = json.dumps(header).encode()

    found = mistakes(tmp_path, struct.pack("<Q", len(text)) + text + bytes(10_001), "safetensors")

    assert "10001 columns" in found[0]


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet", "npz", "safetensors"])
def test_every_truncation_and_random_damage_is_a_problem_or_a_dataset(tmp_path, format):
    """No other exception: it would be answered as a fault of the service."""
    write = {"csv": as_csv, "jsonl": as_jsonl, "parquet": as_parquet, "npz": as_npz, "safetensors": as_safetensors}
    good = write[format]({"x": np.linspace(0, 1, 40, dtype=np.float32), "n": np.arange(40)})
    draw = np.random.default_rng(7)
    for trial in range(150):
        data = bytearray(good[: draw.integers(0, len(good))] if trial % 3 == 0 else good)
        for _ in range(int(draw.integers(0, 4)) if data else 0):
            data[draw.integers(0, len(data))] = draw.integers(0, 256)
        try:
            converted(tmp_path, bytes(data), format)
        except HttpProblem as problem:
            assert problem.status in (400, 422)
