"""Cells that no dtype of a column holds exactly are reported by row and column, never rounded or read as others."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.datasets.exactness import inexact
from tests.service.datasets.tables import converted, mistakes


def table(format: str, column: list[Any], **options: Any) -> bytes:
    """A file with the column `a`, and a column `b` so that no line is empty. None is a missing value."""
    if format == "csv":
        return b"a,b\n" + b"".join(b"%s,1\n" % (b"" if each is None else b"%d" % each) for each in column)
    if format == "jsonl":
        return b"".join(json.dumps({"a": each, "b": 1}).encode() + b"\n" for each in column)
    file = io.BytesIO()
    pq.write_table(pa.table({"a": pa.array(column), "b": [1] * len(column)}), file, **options)
    return file.getvalue()


FORMATS = ["csv", "jsonl", "parquet"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("floats", "first"), [("float32", 2**24 + 1), ("float64", 2**53 + 1), ("float64", 2**63 - 1)])
def test_integers_beside_missing_values_that_are_not_exact_are_reported(tmp_path, format, floats, first):
    data = table(format, [1, None, first, -first, None])

    assert mistakes(tmp_path, data, format, missing="nan", floats=floats) == [
        f"row 3, column 'a': the integer is not exact as {floats}",
        f"row 4, column 'a': the integer is not exact as {floats}",
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_integers_beside_missing_values_that_are_exact_become_decimals(tmp_path, format):
    values = [0, None, 2**24, -(2**63), 2**62, None]

    columns, _ = converted(tmp_path, table(format, values), format, missing="nan")

    assert columns["a"].dtype == np.float32
    np.testing.assert_array_equal(columns["a"], [np.nan if each is None else each for each in values])


@pytest.mark.parametrize("format", FORMATS)
def test_integers_beyond_floats_stay_integers_where_rows_with_missing_values_are_dropped(tmp_path, format):
    columns, _ = converted(tmp_path, table(format, [2**53 + 1, None, 5]), format, missing="drop")

    assert columns["a"].tolist() == [2**53 + 1, 5]


@pytest.mark.parametrize("format", FORMATS)
def test_a_type_that_the_request_names_may_round(tmp_path, format):
    data = table(format, [2**24 + 1, None])

    columns, _ = converted(tmp_path, data, format, missing="nan", types={"a": "float32"})

    np.testing.assert_array_equal(columns["a"], [2**24, np.nan])


def test_lists_of_integers_that_are_not_exact_are_reported_in_json_lines(tmp_path):
    data = b'{"a":[1,2]}\n{"a":null}\n{"a":[3,16777217]}\n'

    assert mistakes(tmp_path, data, "jsonl", missing="nan") == [
        "row 3, column 'a': the integer is not exact as float32"
    ]


def test_integers_beyond_int64_are_reported_in_json_lines_with_missing_values(tmp_path):
    data = b'{"a":1}\n{"a":null}\n{"a":9223372036854775808}\n'

    assert mistakes(tmp_path, data, "jsonl", missing="nan") == [
        "row 3, column 'a': an integer is outside of int64; set a type for the column"
    ]


def test_a_parquet_column_without_statistics_has_missing_values_only_if_a_row_has_one(tmp_path):
    whole = table("parquet", [2**53 + 1, 2], write_statistics=False)
    missing = table("parquet", [1, None], write_statistics=False)

    assert converted(tmp_path, whole, "parquet", missing="nan")[0]["a"].tolist() == [2**53 + 1, 2]
    assert converted(tmp_path, missing, "parquet", missing="nan")[0]["a"].dtype == np.float32


def test_a_stack_of_integers_that_a_float64_does_not_have_is_refused(tmp_path):
    data = b"a,b\n0.5,1\n1.5,9007199254740993\n"

    assert mistakes(tmp_path, data, "csv", floats="float64", stack={"x": ["a", "b"]}) == [
        "row 2, column 'b': the integer is not exact as float64"
    ]


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("stored", ["float16", "float32", "float64"])
def test_inexact_integers_are_those_that_python_finds(dtype, stored):
    limits = np.iinfo(dtype)
    near = {int(limits.min), int(limits.max), *(s * 2**e + d for e in range(64) for s in (-1, 1) for d in (-1, 0, 1))}
    integers = [n for n in sorted(near) if limits.min <= n <= limits.max]
    with np.errstate(over="ignore"):
        floats = np.array(integers, dtype).astype(stored)

    found = inexact(np.array(integers, dtype), floats)

    assert found.tolist() == [not np.isfinite(f) or int(f) != n for n, f in zip(integers, floats, strict=True)]


# --- cells of CSV files ------------------------------------------------------------------------------------------


def test_integers_may_have_a_plus_sign(tmp_path):
    columns, _ = converted(tmp_path, b"a,b\n+5, +6\n-7,8\n", "csv")

    assert (columns["a"].tolist(), columns["b"].tolist()) == ([5, -7], [6, 8])
    assert columns["a"].dtype == columns["b"].dtype == np.int64
    assert mistakes(tmp_path, b"a\n+-5\n1\n2\n", "csv") == [
        "row 1, column 'a': not a number, but 2 of 3 cells are; correct it, or set the type text"
    ]


@pytest.mark.parametrize("cell", [b"0x1F", b"0X1f"])
def test_hexadecimal_cells_are_no_numbers(tmp_path, cell):
    data = b"a\n1\n" + cell + b"\n"

    assert mistakes(tmp_path, data, "csv") == [
        "row 2, column 'a': not a number, but 1 of 2 cells are; correct it, or set the type text"
    ]
    assert mistakes(tmp_path, data, "csv", types={"a": "uint8"}) == ["row 2, column 'a': not an integer of int64"]
    assert converted(tmp_path, b"a\n" + cell + b"\n", "csv")[1]["columns"][0]["vocabulary"] == [cell.decode()]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_an_empty_line_of_a_file_with_one_column_is_a_missing_value(tmp_path, end):
    data = end.join([b"a", b"1", b"", b"2", b""])

    assert mistakes(tmp_path, data, "csv") == [
        "row 2, column 'a': a missing value; set `missing` to nan or drop to accept it"
    ]
    np.testing.assert_array_equal(converted(tmp_path, data, "csv", missing="nan")[0]["a"], [1, np.nan, 2])
    assert converted(tmp_path, data, "csv", missing="drop")[0]["a"].tolist() == [1, 2]


def test_empty_lines_before_a_header_and_in_files_with_several_columns_do_not_count(tmp_path):
    assert converted(tmp_path, b"\xef\xbb\xbf\n\r\na\n1\n2\n", "csv")[0]["a"].tolist() == [1, 2]
    assert converted(tmp_path, b"\na,b\n\n1,2\n\n", "csv")[0]["b"].tolist() == [2]
    assert mistakes(tmp_path, b"\n1\n", "csv", header=False)[0].startswith("row 1, column 'column_1': a missing value")


def test_rows_are_counted_with_empty_lines_in_files_with_one_column(tmp_path):
    data = b"\n\na\n1\n\n3,4\nx\n5\n"

    assert mistakes(tmp_path, data, "csv", missing="nan") == [
        "row 3: 2 cells, but the file has 1 columns",
        "row 4, column 'a': not a number, but 2 of 3 cells are; correct it, or set the type text",
    ]
