"""Every format stores the same table as the same columns; the expected values are the arrays in the file."""

from __future__ import annotations

import io

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.datasets.cells import dtype_named
from service.objects.tensor_file import CODES
from tests.service.datasets.tables import as_csv, as_jsonl, as_npz, as_parquet, as_safetensors, converted

TABLE = {
    "x": np.array([0.1, -2.5, 1e30], np.float32),
    "n": np.array([1, -(2**62), 3]),
    "ok": np.array([True, False, True]),
    "kind": np.array(["rose", "aster", "rose"]),
}
WRITERS = {"csv": as_csv, "jsonl": as_jsonl, "parquet": as_parquet, "npz": as_npz}


@pytest.mark.parametrize("format", WRITERS)
def test_a_table_has_the_same_columns_in_every_format(tmp_path, format):
    columns, about = converted(tmp_path, WRITERS[format](TABLE), format)

    assert {name: array.dtype.name for name, array in columns.items()} == {
        "x": "float32", "n": "int64", "ok": "bool", "kind": "int64"
    }  # fmt: skip
    for name in ("x", "n", "ok"):
        np.testing.assert_array_equal(columns[name], TABLE[name])
    assert columns["kind"].tolist() == [1, 0, 1]
    assert [each["name"] for each in about["columns"]] == list(TABLE)
    assert about["columns"][3]["vocabulary"] == ["aster", "rose"]
    assert about["rows"] == 3


@pytest.mark.parametrize("format", ["jsonl", "parquet", "npz", "safetensors"])
def test_tensors_of_several_dimensions_keep_their_shape(tmp_path, format):
    table = {"image": np.arange(24, dtype=np.float32).reshape(4, 3, 2), "label": np.arange(4)}
    writers = {**WRITERS, "safetensors": as_safetensors}

    columns, about = converted(tmp_path, writers[format](table), format)

    np.testing.assert_array_equal(columns["image"], table["image"])
    assert columns["image"].dtype == np.float32
    assert {each["name"]: each["shape"] for each in about["columns"]} == {"image": [3, 2], "label": []}


@pytest.mark.parametrize("name", CODES)
def test_safetensors_keep_every_dtype_to_the_bit(tmp_path, name):
    values = np.frombuffer(np.random.default_rng(0).bytes(64) if name != "bool" else bytes([0, 1] * 32), np.uint8)
    array = values.view(dtype_named(name)).reshape(2, -1)
    from service.objects.tensor_file import chunks

    columns, _ = converted(tmp_path, b"".join(chunks({"a": array}, {})), "safetensors")

    assert columns["a"].dtype == array.dtype
    assert columns["a"].tobytes() == array.tobytes()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False, allow_infinity=False, width=64),
            st.booleans(),
            st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=8),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_tables_survive_csv_with_quotes_as_json_lines_and_as_parquet(tmp_path_factory, rows):
    import csv as standard

    tmp_path = tmp_path_factory.mktemp("law")
    n, x, ok, text = (list(column) for column in zip(*rows, strict=True))
    file = io.StringIO()
    writer = standard.writer(file, quoting=standard.QUOTE_NONNUMERIC)
    writer.writerow(["n", "x", "ok", "text"])
    for row in rows:
        writer.writerow([row[0], repr(row[1]), str(row[2]).lower(), row[3]])
    table = {"n": np.array(n), "x": np.array(x), "ok": np.array(ok), "text": np.array(text, object)}
    data = {
        "csv": file.getvalue().encode(),
        "jsonl": as_jsonl(table),
        "parquet": _parquet(pa.table({name: column.tolist() for name, column in table.items()})),
    }
    for format, content in data.items():
        columns, about = converted(tmp_path, content, format, types={"text": "text", "x": "float64"}, floats="float64")
        assert columns["n"].tolist() == n
        assert columns["x"].tolist() == x
        assert columns["ok"].tolist() == ok
        words = next(each for each in about["columns"] if each["name"] == "text")["vocabulary"]
        assert [words[code] for code in columns["text"]] == text
        assert words == sorted(set(text))


def _parquet(table: pa.Table, **options: object) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


@settings(max_examples=30, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from(["<f4", ">f4", "<f8", ">f2", "<i2", ">i8", "u1", "<u2", ">u4", "?"]),
        hnp.array_shapes(min_dims=1, max_dims=4, max_side=5),
    ),
    st.booleans(),
    st.booleans(),
)
def test_arrays_of_numpy_survive_npz_in_any_byte_order_and_memory_order(tmp_path_factory, array, fortran, compressed):
    array = np.asfortranarray(array) if fortran else array

    columns, _ = converted(tmp_path_factory.mktemp("npz"), as_npz({"a": array}, compressed), "npz")

    assert columns["a"].dtype.isnative
    np.testing.assert_array_equal(columns["a"], array)


def test_equal_tables_of_different_formats_have_equal_digests(tmp_path):
    table = {"x": np.array([1.5, 2.5], np.float32), "n": np.array([1, 2])}

    digests = {converted(tmp_path, write(table), format)[1]["sha256"] for format, write in WRITERS.items()}

    assert len(digests) == 1


def test_statistics_agree_with_numpy(tmp_path):
    values = np.random.default_rng(1).normal(size=(2_000_000,)).astype(np.float32)
    values[[3, 5]] = np.nan
    values[7] = np.inf
    half = np.array([1, 2, np.nan, 60000], np.float16)

    facts = converted(tmp_path, as_npz({"a": values}), "npz")[1]["columns"][0]["statistics"]
    half_facts = converted(tmp_path, as_npz({"a": half}), "npz")[1]["columns"][0]["statistics"]

    finite = values[np.isfinite(values)].astype(np.float64)
    assert (facts["nan"], facts["infinite"], facts["min"], facts["max"]) == (2, 1, finite.min(), finite.max())
    assert facts["mean"] == pytest.approx(finite.mean(), rel=1e-12)
    assert half_facts == {"nan": 1, "infinite": 0, "min": 1, "max": 60000, "mean": 20001}


def test_integers_beyond_2_to_the_53_keep_their_statistics_exact(tmp_path):
    facts = converted(tmp_path, as_npz({"a": np.array([2**62 + 1, 5])}), "npz")[1]["columns"][0]["statistics"]

    assert (facts["min"], facts["max"]) == (5, 2**62 + 1)


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_rows_with_missing_values_are_dropped_or_become_nan_if_the_request_says_so(tmp_path, format):
    data = {
        "csv": b"a,b,c\n1,0.5,x\n,1.5,y\n3,,z\n4,2.5,w\n",
        "jsonl": b'{"a":1,"b":0.5,"c":"x"}\n{"a":null,"b":1.5,"c":"y"}\n{"a":3,"c":"z"}\n{"a":4,"b":2.5,"c":"w"}\n',
        "parquet": _parquet(
            pa.table(
                {
                    "a": [1, None, 3, 4],
                    "b": pa.array([0.5, 1.5, None, 2.5], pa.float32()),
                    "c": ["x", "y", "z", "w"],
                }
            )
        ),
    }[format]

    dropped, about = converted(tmp_path, data, format, missing="drop")
    assert (dropped["a"].tolist(), dropped["b"].tolist()) == ([1, 4], [0.5, 2.5])
    assert dropped["a"].dtype == np.int64
    assert about["columns"][2]["vocabulary"] == ["w", "x"]

    filled, _ = converted(tmp_path, data, format, missing="nan")
    assert filled["a"].dtype == filled["b"].dtype == np.float32
    np.testing.assert_array_equal(filled["a"], [1, np.nan, 3, 4])
    np.testing.assert_array_equal(filled["b"], [0.5, 1.5, np.nan, 2.5])


def test_named_types_store_columns_as_asked(tmp_path):
    data = b"a,b,c,d\n1,2,true,7\n200,3,0,8\n"

    columns, about = converted(tmp_path, data, "csv", types={"a": "uint8", "b": "bfloat16", "c": "bool", "d": "text"})

    assert columns["a"].dtype == np.uint8
    assert columns["b"].dtype == np.dtype(ml_dtypes.bfloat16)
    assert columns["c"].tolist() == [True, False]
    assert about["columns"][3]["vocabulary"] == ["7", "8"]


def test_columns_are_stacked_to_tensors_by_name_or_pattern(tmp_path):
    data = b"pixel1,y,pixel2,pixel10\n1,0.5,2,3\n4,1.5,5,6\n"

    columns, about = converted(tmp_path, data, "csv", stack={"image": ["pixel*"], "target": ["y"]})

    assert columns["image"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert columns["image"].dtype == np.int64
    assert columns["target"].tolist() == [[0.5], [1.5]]
    assert [each["name"] for each in about["columns"]] == ["image", "target"]


def test_a_stack_of_integers_and_decimals_has_decimals(tmp_path):
    columns, _ = converted(tmp_path, b"a,b\n1,0.5\n2,1.5\n", "csv", stack={"x": ["b", "a"]})

    assert columns["x"].dtype == np.float32
    assert columns["x"].tolist() == [[0.5, 1], [1.5, 2]]


def test_csv_with_byte_order_mark_windows_line_ends_and_quoted_line_ends_is_read(tmp_path):
    data = b'\xef\xbb\xbf"a","b, c"\r\n1,"two\r\nlines"\r\n\r\n2,"say ""hi"""\r\n'

    columns, about = converted(tmp_path, data, "csv")

    assert columns["a"].tolist() == [1, 2]
    assert about["columns"][1]["name"] == "b, c"
    assert about["columns"][1]["vocabulary"] == ['say "hi"', "two\r\nlines"]


def test_csv_without_a_header_and_with_another_delimiter_is_read(tmp_path):
    columns, _ = converted(tmp_path, b"1;2.5\n3;4.5\n", "csv", header=False, delimiter=";")

    assert columns["column_1"].tolist() == [1, 3]
    assert columns["column_2"].tolist() == [2.5, 4.5]


def test_a_type_is_found_from_all_rows_and_not_from_the_first_ones(tmp_path):
    rows = 200_000
    data = b"a,b\n" + b"1,2\n" * rows + b"0.5,2\n"

    columns, _ = converted(tmp_path, data, "csv")

    assert columns["a"].dtype == np.float32
    assert columns["b"].dtype == np.int64
    assert len(columns["a"]) == rows + 1


@pytest.mark.parametrize(
    "texts",
    [
        ["2024-01-31", "2024-02-01"],
        ["31.01.2024", "01.02.2024"],
        ["12:30", "7:05"],
        ["10.0.0.1", "127.0.0.1"],
        ["1.2.3", "1.10.0"],
        ["555-1234", "555-9876"],
        ["12kg", "5 m"],
        ["A", "1,5", "B"],
    ],
)
def test_texts_with_digits_that_are_no_numbers_become_codes(tmp_path, texts):
    table = "a\n" + "".join(f'"{text}"\n' for text in texts)

    _, about = converted(tmp_path, table.encode(), "csv")

    assert about["columns"][0]["vocabulary"] == sorted(texts)


def test_numbers_in_another_notation_are_texts_if_the_request_says_so(tmp_path):
    columns, about = converted(tmp_path, b'a\n"1,5"\n"0,5"\n', "csv", types={"a": "text"})

    assert columns["a"].tolist() == [1, 0]
    assert about["columns"][0]["vocabulary"] == ["0,5", "1,5"]


def test_ten_thousand_columns_are_read(tmp_path):
    names = [f"c{i}" for i in range(10_000)]
    data = ",".join(names).encode() + b"\n" + b",".join([b"1"] * 10_000) + b"\n" + b",".join([b"2"] * 10_000)

    columns, _ = converted(tmp_path, data, "csv", stack={"x": ["c*"]})

    assert columns["x"].shape == (2, 10_000)


def test_fixed_shape_tensors_and_dictionaries_of_arrow_are_read(tmp_path):
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.float32).reshape(2, 3, 2))
    words = pa.array(["b", "a"]).dictionary_encode()

    columns, _ = converted(tmp_path, _parquet(pa.table({"t": tensor, "w": words})), "parquet")

    assert columns["t"].tolist() == np.arange(12).reshape(2, 3, 2).tolist()
    assert columns["w"].tolist() == [1, 0]


def test_the_name_of_one_csv_column_in_quotes_may_contain_other_delimiters(tmp_path):
    columns, _ = converted(tmp_path, b'\n"income; in euros"\n1\n3\n', "csv")

    assert columns["income; in euros"].tolist() == [1, 3]
