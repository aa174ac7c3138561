"""Compiled steps read the address of an array's data from the array object."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from core.codegen.llvm import I64, Function
from core.codegen.machine import load
from core.ir.errors import InternalError
from core.runtime import array_header
from core.runtime.array_header import DATA_OFFSET, check_layout, header_address


@pytest.fixture(scope="module")
def read():
    """Compiled code that loads the address at `DATA_OFFSET` of an array object, as a step does."""
    f = Function("data_address", [("header", "ptr")], "i64")
    address = f.load(f.at(f.param("header"), I64(DATA_OFFSET), "uint8"), "int64")
    f.do(f"ret {address}")
    library = load(f.text().replace(" #0", ""))
    yield library.function("data_address", ctypes.c_void_p, returns=ctypes.c_int64)


ARRAYS = {
    "scalar": np.zeros(()),
    "matrix": np.arange(6, dtype=np.int8).reshape(2, 3),
    "slice": np.arange(12.0)[3:],
    "transposed": np.ones((3, 4)).T,
    "read only": np.frombuffer(b"eight by"),
}


@pytest.mark.parametrize("name", list(ARRAYS))
def test_compiled_code_reads_the_data_address_that_numpy_reports(read, name):
    assert read(header_address(ARRAYS[name])) == ARRAYS[name].ctypes.data


def test_compiled_code_follows_an_array_resized_in_place(read):
    array = np.zeros(4)
    array.resize(2**20, refcheck=False)

    assert read(header_address(array)) == array.ctypes.data


def test_a_layout_with_the_address_elsewhere_is_refused(monkeypatch):
    check_layout.cache_clear()
    monkeypatch.setattr(array_header, "DATA_OFFSET", array_header.DATA_OFFSET + 8)

    with pytest.raises(InternalError, match="does not store the address of an array's data at byte 24"):
        check_layout()
